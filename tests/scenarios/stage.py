"""Stage of a scenario: the parts of its strands, and what happened.

The stage hands each step to the strand whose part it is, waits until all strands stand still, and
remembers the events in the order in which they ended.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from activedb import State
from tests.nodes import node_of
from tests.scenarios.judge import Event
from tests.scenarios.stillness import Stillness
from tests.scenarios.strand import Step, Strand, top_of
from tests.scenarios.watched import WatchedEnds

if TYPE_CHECKING:
    import activedb as adb
    from activedb import Transaction
    from activedb.transactions import TransactionNode
    from tests.scenarios.ground import Ground
    from tests.scenarios.operations import Operation

__all__ = ["Stage"]


class Stage:
    """The strands of one scenario on one ground."""

    def __init__(self, ground: Ground):
        self.ground = ground
        self.settings = ground.settings
        self.nodes: dict[str, Transaction] = {}
        self.children: dict[str, Any] = {}
        self.strands: dict[str, Strand] = {}
        self.events: list[tuple[int, bool, Event]] = []
        self.broken: BaseException | None = None
        self.together: set[str] = set()
        self._names: dict[tuple[int, int], str] = {}
        self._latch = threading.Lock()
        self._round = 0
        self._issued: Step | None = None
        self._done: list[tuple[Step, str]] = []
        self._stillness = Stillness(self)

    # -- called by strands -------------------------------------------------------------------

    def add(self, strand: Strand) -> None:
        """Add the strand of a top-level transaction, or of a spawned child."""
        with self._latch:
            self.strands[strand.root] = strand

    def began(self, name: str, t: Transaction, *, again: bool) -> None:
        """Remember a transaction; an earlier try of it no longer counts."""
        with self._latch:
            if again and "." not in name:
                self.events = [e for e in self.events if top_of(e[2].name) != name]
            elif again:
                self.events.append((self._round, False, Event(name, "abort")))
            self.nodes[name] = t
            self._names[id(node_of(t).forest), t.id] = name
        self.happened(name, "begin")

    def happened(self, name: str, what: str | Operation, outcome: str = "") -> None:
        """Remember an event; that of the step which was issued comes first in its round."""
        with self._latch:
            issued = self._issued is not None and self._issued.name == name
            self.events.append((self._round, not issued, Event(name, what, outcome)))

    def _ended(self, node: TransactionNode) -> None:
        """Remember a commit at the moment from which others see what was done."""
        name = self._names.get((id(node.forest), node.id))
        if name is not None and node.state is State.COMMITTED:
            self.happened(name, "commit")

    def finished(self, strand: Strand, step: Step, outcome: str) -> None:
        """Take the outcome of a step, and let the strand go on with one that had to wait for it."""
        with self._latch:
            if step.verb != "spawned":
                self._done.append((step, outcome))
            strand.current = strand.backlog.popleft() if strand.backlog else None
            if strand.current is not None:
                strand.inbox.put(strand.current)

    # -- called by the script ----------------------------------------------------------------

    def all_strands(self) -> list[Strand]:
        """Return the strands there are at this moment."""
        with self._latch:
            return list(self.strands.values())

    def busy(self) -> list[Strand]:
        """Return the strands that play a step at this moment."""
        with self._latch:
            return [s for s in self.strands.values() if s.current is not None]

    def name_of(self, db: adb.Database, tid: int) -> str:
        """Return the name of the transaction with this number."""
        return self._names.get((id(db._forest), tid), "somebody")

    def idle(self) -> list[str]:
        """Return the transactions that could play a step now: the innermost of each strand."""
        with self._latch:
            return sorted(s.open[-1] for s in self.strands.values() if s.open and not s.current)

    def live_children(self, name: str) -> set[str]:
        """Return the spawned children of a transaction that have not ended."""
        with self._latch:
            spawned = {s.root for s in self.strands.values() if "." in s.root and not s.ended}
        return {child for child in spawned if child.rpartition(".")[0] == name}

    def cancel(self, name: str) -> list[str]:
        """Cancel a transaction from outside; return what happened."""
        step = Step(name, ["cancel"])
        self._next_round(step)
        self.nodes[name].cancel()
        self._stillness.wait()
        return ["ok", *self._told_of_others(step)]

    def _next_round(self, step: Step) -> None:
        with self._latch:
            self._round += 1
            self._issued, self._done = step, []

    def play(self, step: Step, *, to_the_end: bool = False) -> list[str]:
        """Have a step played; return what happened, its own outcome first."""
        self._next_round(step)
        if "." not in step.name and step.verb in ("begin", "run"):
            self._open(step)
        else:
            strand = self._strand(step)
            with self._latch:
                if strand.current is not None:
                    strand.backlog.append(step)
                    return ["not yet"]
                strand.current = step
            strand.inbox.put(step)
        if to_the_end:
            self._stillness.wait()
            self._let_time_pass(step)
            self._stillness.until(lambda: any(done is step for done, _ in self._done))
        waits = self._stillness.wait()
        own = [outcome for done, outcome in self._done if done is step]
        return [own[0] if own else f"waits for {waits[step.name]}", *self._told_of_others(step)]

    def _let_time_pass(self, step: Step) -> None:
        """Have the limits of time of a transaction and its superiors be over now."""
        name = step.name
        while name in self.nodes:
            node = node_of(self.nodes[name])
            ring = None if node._alarm is None else node._alarm.ring
            if ring is not None:
                node.forest.deadlines.at(time.monotonic(), ring)
            name = name.rpartition(".")[0]

    def _told_of_others(self, step: Step) -> list[str]:
        return [
            f"{done.name} {'resumes' if first else ' '.join(done.words)}: {outcome}"
            for done, outcome, first in self._resumed(step)
        ]

    def _resumed(self, step: Step) -> list[tuple[Step, str, bool]]:
        """Return what others did, by strand; the first step of each is the one that had waited."""
        found = []
        met: set[str] = set()
        for done, outcome in sorted(self._done, key=lambda entry: top_of(entry[0].name)):
            if done is not step:
                found.append((done, outcome, done.name not in met and done.verb != "result"))
                met.add(done.name)
        return found

    def history(self) -> list[Event]:
        """Return the events, in order."""
        return [event for _, _, event in sorted(self.events, key=lambda entry: entry[:2])]

    def close(self) -> None:
        """End the strands; all transactions must have ended."""
        for strand in self.all_strands():
            strand.inbox.put(None)

    def is_over(self) -> bool:
        """Return whether every transaction has ended and left nothing behind."""
        return all(t.state.is_final for t in self.nodes.values()) and all(
            not db._forest.locks.snapshot().transactions for db in self.ground.databases()
        )

    def _open(self, step: Step) -> None:
        process = min(self.together) if step.name in self.together else step.name
        db, tables = self.ground.database(process)
        db._forest.new_log = lambda _: WatchedEnds(self._ended)
        again = step.verb == "run"
        retried = again and self.settings.get("retries_max", 0) > 0
        strand = Strand(self, step.name, db, tables, retried)
        strand.current = step
        self.add(strand)
        threading.Thread(target=strand.live, args=(again,), daemon=True).start()

    def _strand(self, step: Step) -> Strand:
        name = step.name
        if step.verb in ("begin", "spawn", "result"):
            name = name.rpartition(".")[0]
        while name not in self.strands or (self.strands[name].ended and "." in name):
            assert "." in name, f"there is no {name}"
            name = name.rpartition(".")[0]
        return self.strands[name]
