"""Real threads that play the steps of a scenario, and how to tell that everybody stands still.

A *strand* is a thread's part: it plays a top-level transaction, or a spawned child, with the
subtransactions that it opens on its own thread. Between two steps it waits for the next one. The
stage is *settled* when each strand waits either for its next step or for another transaction:

* in the lock manager, as its snapshot says;
* on the server, as ``pg_stat_activity`` and ``pg_blocking_pids`` say;
* for its children to end, as its Python stack and the list of live children say.

Such a wait ends only when somebody else goes on, so if all of them last from one look to the next
while the lock manager has counted nothing, nobody will move before the next step.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from activedb import State
from activedb.errors import (
    ActiveDBError,
    ConnectionLost,
    ConstraintViolation,
    LockNotAvailable,
    StatementCancelled,
    TransactionError,
    TransactionStateError,
)
from tests.scenarios.ground import reaches
from tests.scenarios.judge import Event
from tests.scenarios.operations import VERBS, Operation, called, perform
from tests.scenarios.pool import WatchedPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Table

    import activedb as adb
    from activedb import Transaction
    from tests.scenarios.ground import Ground

PATIENCE_S = 15.0
OFFER_S = 0.05
"""How long a superior has to stand still until its children know that it will not offer."""
_ENDINGS = ("commit", "abort", "fails", "result")
_SLEEPING = ("threading", "activedb.transactions._pool")


class OnPurposeError(Exception):
    """What a transaction raises that is told to fail."""


class CurtainError(BaseException):
    """Ends the strands of a scenario that is over."""


@dataclass
class Step:
    """A line of a scenario that some transaction plays."""

    name: str
    words: list[str]

    @property
    def verb(self) -> str:
        """What to do."""
        return self.words[0]

    @property
    def timeout(self) -> dict[str, float]:
        """The limit of time of ``begin within 300 ms``, as it is given to activedb."""
        match self.words:
            case [_, "within", limit, "ms"]:
                return {"timeout": int(limit) / 1_000}
        return {}


def top_of(name: str) -> str:
    """``T1`` for ``T1.2.1``."""
    return name.split(".")[0]


def _ends_the_block(error: BaseException) -> bool:
    """Whether the program of a scenario lets an error end the transaction that raised it."""
    if isinstance(error, LockNotAvailable | TransactionStateError):
        return False
    return isinstance(
        error, TransactionError | ConstraintViolation | ConnectionLost | StatementCancelled
    )


@dataclass(eq=False)
class Strand:
    """A thread's part; `root` is the first transaction on it."""

    stage: Stage
    root: str
    db: adb.Database
    tables: Mapping[str, Table]
    is_retried: bool
    inbox: SimpleQueue[Step | None] = field(default_factory=SimpleQueue)
    current: Step | None = None
    backlog: deque[Step] = field(default_factory=deque)
    open: list[str] = field(default_factory=list)
    ended: bool = False
    thread: int = 0
    error: BaseException | None = None

    # -- on the thread -----------------------------------------------------------------------

    def live(self, again: bool) -> None:
        """Play a top-level transaction, then whatever is still asked of it."""
        self.thread = threading.get_ident()
        try:
            self._live(again)
        except BaseException as error:
            self.stage.broken = error

    def _live(self, again: bool) -> None:
        assert self.current is not None
        limit = self.current.timeout
        try:
            if again:
                run = self.db.with_timeout(**limit).run if limit else self.db.run
                run(self._attempt)
            else:
                with self.db.transaction(**limit) as t:
                    self._play(self.root, t)
        except CurtainError:
            return
        except BaseException as error:
            self._end(self.root, error)
        else:
            self._end(self.root, None)
        while (step := self.inbox.get()) is not None:
            self._operate(step)

    def watch(self, call: Callable[[], Any]) -> Any:
        """Make the call in which a spawned child is played, tries and all; tell how it ends."""
        self.thread = threading.get_ident()
        try:
            result = call()
        except CurtainError:
            raise OnPurposeError from None
        except BaseException as error:
            self.ended = True
            self._end(self.root, error)
            raise
        self.ended = True
        self._end(self.root, None)
        return result

    def _attempt(self, t: Transaction) -> None:
        """One try of the root."""
        self._play(self.root, t)

    def _play(self, name: str, t: Transaction) -> None:
        """Play the steps of one transaction until it is to commit or fails."""
        self._begin(name, t)
        while True:
            step = self.inbox.get()
            if step is None:
                raise CurtainError
            match step.verb:
                case "commit" if step.name == name:
                    return
                case "abort" if step.name == name:
                    t.abort()
                case "fails" if step.name == name:
                    raise OnPurposeError
                case "begin":
                    self._subtransaction(step, t)
                case "spawn":
                    self._spawn(step, t)
                case "result":
                    self._result(step.name)
                case _:
                    self._operate(step)

    def _subtransaction(self, step: Step, t: Transaction) -> None:
        name = step.name
        try:
            with t.subtransaction(**step.timeout) as s:
                self._play(name, s)
        except Exception as error:
            if self.is_retried and _ends_the_block(error):
                self.stage.happened(name, "abort")
                self.error = error
                raise
            self._end(name, error)
        else:
            self._end(name, None)

    def _spawn(self, step: Step, t: Transaction) -> None:
        name = step.name
        pool = self.db._forest.pool
        assert isinstance(pool, WatchedPool)
        retried = self.stage.settings.get("retries_max", 0) > 0
        strand = Strand(self.stage, name, self.db, self.tables, retried)
        strand.current = Step(name, ["spawned"])
        try:
            with pool.wrapping(strand.watch):
                spawn = t.with_timeout(**step.timeout).spawn if step.timeout else t.spawn
                self.stage.children[name] = spawn(strand._attempt)
        except Exception as error:
            self._finish(called(error))
            return
        self.stage.add(strand)
        self._finish("ok")

    def _result(self, name: str) -> None:
        try:
            self.stage.children[name].result()
        except Exception as error:
            self._finish(_told(error))
        else:
            self._finish("ok")

    def _operate(self, step: Step) -> None:
        """Do something to rows, or to a transaction that has ended or is not the innermost."""
        name = step.name if step.verb != "begin" else step.name.rpartition(".")[0]
        t = self.stage.nodes[name]
        live = t.state is State.ACTIVE
        if step.verb not in VERBS:
            assert step.verb in ("commit", "abort", "begin"), f"not a step: {step}"
            self._finish(
                self._refused({"begin": t.subtransaction}.get(step.verb) or getattr(t, step.verb))
            )
            return
        operation = Operation.read(step.words)
        try:
            outcome = perform(operation, t, self.tables)
        except Exception as error:
            if _ends_the_block(error) and live:
                self.error = error
                raise
            outcome = _told(error)
            if outcome in ("row exists", "row not found"):
                self.stage.happened(step.name, operation, outcome)
        else:
            assert live, "an ended transaction still works"
            self.stage.happened(step.name, operation, outcome)
        self._finish(outcome)

    def _refused(self, call: Callable[[], object]) -> str:
        """Make a call that a transaction has to refuse."""
        try:
            call()
        except Exception as error:
            return _told(error)
        raise AssertionError("an ended transaction still works")

    # -- what is told ------------------------------------------------------------------------

    def _begin(self, name: str, t: Transaction) -> None:
        again = name in self.stage.nodes and name == self.root
        self.open.append(name)
        self.stage.began(name, t, again=again)
        if again:
            self.open[:] = [name]
            reason = "refused" if self.error is None else called(self.error)
            self._finish(f"{reason}, {name} begins again")
        else:
            self._finish("ok")
        self.error = None

    def _end(self, name: str, error: BaseException | None) -> None:
        t = self.stage.nodes.get(name)
        if name in self.open:
            del self.open[self.open.index(name) :]
        step = self.current
        assert step is not None
        if t is None:  # it could not even begin
            assert error is not None
            self._finish(called(error))
            return
        committed = t.state is State.COMMITTED
        self.stage.happened(name, "commit" if committed else "abort")
        if committed or (step.verb in ("abort", "fails") and step.name == name):
            outcome = "ok" if error is None or not committed else called(error)
        else:
            outcome = f"{'' if error is None else _told(error) + ', '}{name} aborted"
        self._finish(outcome)

    def _finish(self, outcome: str) -> None:
        step = self.current
        assert step is not None
        self.stage.finished(self, step, outcome)


def _told(error: BaseException) -> str:
    if isinstance(error, OnPurposeError):
        return "its error"
    if not isinstance(error, ActiveDBError):
        raise error
    return called(error)


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
        self._new: list[Strand] = []

    # -- called by strands -------------------------------------------------------------------

    def add(self, strand: Strand) -> None:
        """Add the strand of a spawned child."""
        with self._latch:
            self.strands[strand.root] = strand

    def began(self, name: str, t: Transaction, *, again: bool) -> None:
        """Remember a transaction; what an earlier try of it did does not count."""
        with self._latch:
            if again and "." not in name:
                self.events = [e for e in self.events if top_of(e[2].name) != name]
            elif again:
                self.events.append((self._round, False, Event(name, "abort")))
            self.nodes[name] = t
            self._names[id(t.forest), t.id] = name
        self.happened(name, "begin")

    def happened(self, name: str, what: str | Operation, outcome: str = "") -> None:
        """Remember an event; that of the step which was issued comes first in its round."""
        with self._latch:
            issued = self._issued is not None and self._issued.name == name
            self.events.append((self._round, not issued, Event(name, what, outcome)))

    def finished(self, strand: Strand, step: Step, outcome: str) -> None:
        """Take the outcome of a step, and let the strand go on with one that had to wait for it."""
        with self._latch:
            if step.verb != "spawned":
                self._done.append((step, outcome))
            strand.current = strand.backlog.popleft() if strand.backlog else None
            if strand.current is not None:
                strand.inbox.put(strand.current)

    # -- called by the script ----------------------------------------------------------------

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
        self._settled()
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
            self._until(lambda: any(done is step for done, _ in self._done))
        waits = self._settled()
        own = [outcome for done, outcome in self._done if done is step]
        return [own[0] if own else f"waits for {waits[step.name]}", *self._told_of_others(step)]

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
        for strand in self.strands.values():
            strand.inbox.put(None)

    def is_over(self) -> bool:
        """Whether every transaction has ended and left nothing behind."""
        return all(t.state.is_final for t in self.nodes.values()) and all(
            not db._forest.locks.snapshot().transactions for db in self.ground.databases()
        )

    def _open(self, step: Step) -> None:
        process = min(self.together) if step.name in self.together else step.name
        db, tables = self.ground.database(process)
        again = step.verb == "run"
        retried = again and self.settings.get("retries_max", 0) > 0
        strand = Strand(self, step.name, db, tables, retried)
        strand.current = step
        self.strands[step.name] = strand
        threading.Thread(target=strand.live, args=(again,), daemon=True).start()

    def _strand(self, step: Step) -> Strand:
        name = step.name
        if step.verb in ("begin", "spawn", "result"):
            name = name.rpartition(".")[0]
        while name not in self.strands or (self.strands[name].ended and "." in name):
            assert "." in name, f"there is no {name}"
            name = name.rpartition(".")[0]
        return self.strands[name]

    # -- standing still ----------------------------------------------------------------------

    def _until(self, reached: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        pause = threading.Event()
        while not (found := reached()):
            if self.broken is not None:
                raise self.broken
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing moves, and nobody can tell why:\n{self._scene()}")
            pause.wait(0.0005)
        return found

    def _settled(self) -> dict[str, str]:
        """Wait until everybody stands still; return for whom each one waits."""

        def twice() -> Any:
            first = self._look()
            if first is None:
                return None
            if self._awaited():
                time.sleep(OFFER_S)  # those look for themselves, now and then
            return first if first == self._look() else None

        return self._until(twice)[1]  # type: ignore[no-any-return]

    def _look(self) -> tuple[Any, dict[str, str]] | None:
        """Return who waits for whom, or None if somebody moves."""
        with self._latch:
            busy = [s for s in self.strands.values() if s.current is not None]
        if not busy:
            return (), {}
        if self.broken is not None:
            return None
        counters, local = [], {}
        for db in self.ground.databases():
            snapshot = db._forest.locks.snapshot()
            c = db._forest.locks.counters
            counters.append((c.requests, c.grants, c.waits, c.timeouts, c.victims))
            for request in snapshot.queue:
                name = self._names.get((id(db._forest), request.tid), "somebody")
                hard = [e for e in snapshot.edges if e.waiter == request.tid and e.kind != "commit"]
                edges = [e for e in hard if e.kind != "soft"] or hard
                local[name] = {
                    self._names.get((id(db._forest), e.waited_for), "somebody") for e in edges
                }
        local |= self._awaited()
        frames = sys._current_frames()
        waits: dict[str, str] = {}
        tops: dict[str, set[str]] = {}
        server: dict[int, set[int]] | None = None
        crossing: set[str] = set()
        for strand in busy:
            on_server = None
            step, frame = strand.current, frames.get(strand.thread)
            if step is None or frame is None:
                return None
            module = frame.f_globals.get("__name__", "")
            waited: set[str] | None = None
            if step.name in local:
                waited = local[step.name]
            elif self._may_wait_for_children(step, module):
                waited = self.live_children(self._ending(strand))
                if step.verb == "result":
                    waited &= {step.name}
            elif module.startswith("psycopg"):
                if server is None:
                    server = self.ground.server_waits()
                waited = on_server = self._on_the_server(strand, server)
            if not waited:
                return None
            waits[step.name] = _names_for(step.name, waited)
            tops.setdefault(top_of(step.name), set()).update(
                top_of(name) for name in waited if top_of(name) != top_of(step.name)
            )
            if waited is on_server:
                crossing.add(top_of(step.name))
        if any(reaches(tops, top, top) for top in crossing):
            return None  # a deadlock through the server: somebody will have to give way
        return counters, waits

    def _may_wait_for_children(self, step: Step, module: str) -> bool:
        """Whether a thread that is in this module may be there to wait for children.

        That is so for who ends, and for any step that has failed and ends its transaction.
        """
        if step.verb in _ENDINGS:
            return module in _SLEEPING
        return step.verb in VERBS and module == _SLEEPING[1]

    def _awaited(self) -> dict[str, set[str]]:
        """Return the children that wait for their running superior to offer its locks."""
        found = {}
        for db in self.ground.databases():
            for waiter, superior in tuple(db._forest.offers._awaited.items()):
                name = self._names[id(db._forest), waiter]
                found[name] = {self._names[id(db._forest), superior]}
        return found

    def _ending(self, strand: Strand) -> str:
        """Return the innermost transaction of a strand that has not ended, or an empty name."""
        live = (name for name in reversed(strand.open) if not self.nodes[name].state.is_final)
        return next(live, "")

    def _on_the_server(self, strand: Strand, server: dict[int, set[int]]) -> set[str]:
        """Return the top-level transactions for which the server lets a hierarchy wait."""
        threads = {s.thread: top_of(s.root) for s in self.strands.values()}
        waited: set[str] = set()
        for thread, blockers in server.items():
            if threads.get(thread) == top_of(strand.root):
                waited |= {threads.get(blocker, "somebody") for blocker in blockers}
        return waited

    def _scene(self) -> str:
        import traceback

        frames = sys._current_frames()
        lines = []
        for strand in self.strands.values():
            lines.append(f"{strand.root}: {strand.current}")
            frame = frames.get(strand.thread)
            if strand.current is not None and frame is not None:
                lines += traceback.format_stack(frame)[-6:]
        lines += [db._forest.locks.dump() for db in self.ground.databases()]
        return "\n".join(lines)


def _names_for(waiter: str, waited: set[str]) -> str:
    """Name whom somebody waits for; of other hierarchies only the top-level transaction."""
    names = {name if top_of(name) == top_of(waiter) else top_of(name) for name in waited}
    return ", ".join(sorted(names))
