"""The language of `modes/`: what the row of a coupling mode in the mode table means, step by step.

A file is a mode. It begins with comments, the row in words. Then come scenes, each with a title and
one step per line, ``->`` before what is true once the step has had its effect::

    == The triggering transaction waits for the rule.
    rule R immediate
    T begin
    T raises E -> R runs under T; T waits
    R commit -> R committed; T is ready
    T commit -> T committed
    order -> begin T, spawn R, commit R, commit T

==========================  =====================================================================
``rule R causal``           rule R, in this mode, with the event E; ``on F``, ``on_abort=rule``
``T begin``, ``T.1 begin``  a top-level transaction on a thread of its own, a subtransaction of it
``T raises E``              a signal
``T writes``                a row of that name
``T reads R``               looks for the row of that name: ``T sees R``, ``T sees no R``
``T commit``, ``T abort``   the block ends; of a rule: its action does
``R fails``                 the action raises
``recorded``                firings that the journal has: ``R``, ``R as intent``, or ``nothing``
``order``                   begin, spawn, commit, abort as recorded, of all that is named here
``left``                    the last step: the committed rows, in order, and ``letter of R``
==========================  =====================================================================

What may be true: ``R runs under T`` (as a child), ``R runs alone`` (top-level), ``no R`` (it has
not begun), ``T waits`` (its step has not ended), ``T is ready`` (it has), ``R committed``, ``R
aborted``. A step without ``->`` ends ready. The test waits until all of it is true. That nothing
happened too early is seen in ``order``, and the recorded history is audited.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import activedb as adb
from activedb import State
from activedb.errors import RuleFailed, TransactionAborted
from coupling.acta import AbortEvent, BeginEvent, CommitEvent, SpawnEvent, audit
from tests.databases import PATIENCE_S
from tests.ledger import Ledger, open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction
    from tests.databases import Place

__all__ = ["Scene", "scenes_of"]


class OnPurpose(Exception):
    """Error that an action raises on request."""


@dataclass
class Part:
    """Part in the script: a top-level transaction with its subtransactions, or a rule."""

    name: str
    inbox: SimpleQueue[list[str]] = field(default_factory=SimpleQueue)
    is_busy: bool = False
    is_rule: bool = False


def scenes_of(text: str) -> dict[str, list[str]]:
    """Steps by the title of the scene."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("== "):
            steps = found[line.removeprefix("== ")] = []
        elif line and not line.startswith("#"):
            steps.append(line)
    return found


class Scene:
    """Player of one scene on a database of its own.

    Attributes
    ----------
    patience_s : float
        How long a step waits for what it expects.
    """

    def __init__(self, where: Place):
        self.patience_s = PATIENCE_S
        self.ledger: Ledger = open_ledger(where.open(recording="full", threads=6))
        self.db = self.ledger.db
        self.parts: dict[str, Part] = {}
        self.nodes: dict[str, Transaction] = {}
        self.names: dict[int, str] = {}
        self.seen: dict[str, bool] = {}
        self.broken: list[BaseException] = []
        self._before = len(self.db.admin.history())

    def play(self, steps: list[str]) -> None:
        """Play the steps; an `AssertionError` names the one that went otherwise."""
        for line in steps:
            command, _, told = line.partition(" -> ")
            expected = told.split("; ") if told else []
            try:
                self._step(command.split(), expected)
            except AssertionError as error:
                raise AssertionError(f"{line}: {error}; now {self._now()}") from error
        history = self.db.admin.history()
        assert audit(history) == [], "\n".join(history.lines())

    def _step(self, words: list[str], expected: list[str]) -> None:
        match words:
            case ["rule", name, coupling, *options]:
                self._define(name, coupling, options)
                return
            case ["recorded"]:
                self._await(lambda: expected == [self._recorded()])
                assert expected == [self._recorded()], self._recorded()
                return
            case ["order"]:
                self._join()
                assert expected == [self._order()], self._order()
                return
            case ["left"]:
                self._join()
                left = [*sorted(self.ledger.lines()), *self._letters()]
                assert expected == [", ".join(left) or "nothing"], left
                return
        name = words[0]
        part = self._part(name.partition(".")[0])
        assert not part.is_busy, f"{part.name} has not ended its last step"
        part.is_busy = True
        part.inbox.put(words)
        wanted = [fact.split() for fact in expected] or [[part.name, "is", "ready"]]
        self._await(lambda: all(self._holds(fact) for fact in wanted))
        if self.broken:
            raise self.broken[0]
        for fact in wanted:
            assert self._holds(fact), " ".join(fact)

    def _join(self) -> None:
        """Wait until all parts have done their steps, and no detached rule runs.

        A transaction that has committed may still have to notify the rules that it triggered.
        """
        self._await(lambda: not any(p.is_busy for p in self.parts.values() if not p.is_rule))
        self.db.wait_idle()

    def _await(self, reached: Callable[[], bool]) -> None:
        """Wait until something is true, but not for ever."""
        deadline, pause = time.monotonic() + self.patience_s, threading.Event()
        while not self.broken and not reached() and time.monotonic() < deadline:
            pause.wait(0.002)

    # -- what is true ----------------------------------------------------------------------

    def _holds(self, fact: list[str]) -> bool:
        match fact:
            case ["no", name]:
                return name not in self.nodes
            case [name, "runs", "alone"]:
                return name in self.nodes and self.nodes[name].parent is None
            case [name, "runs", "under", above]:
                return name in self.nodes and self.nodes[name].parent == self.nodes[above]
            case [name, "waits"]:
                return self._part(name).is_busy
            case [name, "is", "ready"]:
                return not self._part(name).is_busy
            case [name, "committed"]:
                return name in self.nodes and self.nodes[name].state is State.COMMITTED
            case [name, "aborted"]:
                return name in self.nodes and self.nodes[name].state is State.ABORTED
            case [name, "sees", other]:
                return self.seen.get(f"{name} {other}") is True
            case [name, "sees", "no", other]:
                return self.seen.get(f"{name} {other}") is False
        raise ValueError(f"no fact: {' '.join(fact)}")

    def _now(self) -> str:
        parts = {p.name: "waits" if p.is_busy else "ready" for p in self.parts.values()}
        return f"{parts} {list(self.nodes.values())} {self.seen}"

    def _recorded(self) -> str:
        rows = sorted(
            (row["rule"], row["intent"]) for row in self.ledger.pending() if not row["done"]
        )
        return (
            ", ".join(f"{name} as intent" if intent else name for name, intent in rows) or "nothing"
        )

    def _letters(self) -> list[str]:
        return [letter["source"].replace("rule", "letter of") for letter in self.ledger.letters()]

    def _order(self) -> str:
        found = []
        for event in self.db.admin.history().events[self._before :]:
            match event:
                case BeginEvent(by):
                    told = by, "begin"
                case SpawnEvent(child=child, mode=mode):
                    told = child, "spawn" if mode.is_child else ""
                case CommitEvent(by):
                    told = by, "commit"
                case AbortEvent(by):
                    told = by, "abort"
                case _:
                    continue
            if told[0] in self.names and told[1]:
                found.append(f"{told[1]} {self.names[told[0]]}")
        return ", ".join(found)

    # -- who plays -------------------------------------------------------------------------

    def _part(self, name: str) -> Part:
        if name not in self.parts:
            part = self.parts[name] = Part(name)
            threading.Thread(target=self._top, args=(part,), daemon=True).start()
        return self.parts[name]

    def _define(self, name: str, coupling: str, options: list[str]) -> None:
        event = "E"
        given: dict[str, Any] = {}
        if options[:1] == ["on"]:
            event, options = options[1], options[2:]
        for option in options:
            key, _, value = option.partition("=")
            given[key] = value
        part = self.parts[name] = Part(name, is_busy=True, is_rule=True)

        @self.db.rule(on=adb.event(event), coupling=coupling, name=name, **given)
        def rule(t: Transaction, o: Occurrence) -> None:
            self._began(name, t)
            self._perform(part, name, t)

    def _began(self, name: str, t: Transaction) -> None:
        self.names[t.id] = name
        self.nodes[name] = t
        self.parts[name.partition(".")[0]].is_busy = False

    def _top(self, part: Part) -> None:
        assert part.inbox.get()[1] == "begin"
        try:
            with contextlib.suppress(RuleFailed, TransactionAborted), self.db.transaction() as t:
                self._began(part.name, t)
                self._perform(part, part.name, t)
        except BaseException as error:
            self.broken.append(error)
        part.is_busy = False

    def _perform(self, part: Part, name: str, t: Transaction) -> None:
        """Play the steps of a transaction until it is to end."""
        while True:
            who, verb, *more = part.inbox.get()
            if who != name:
                assert verb == "begin", f"{who} {verb}"
                with contextlib.suppress(RuleFailed, TransactionAborted), t.subtransaction() as s:
                    self._began(who, s)
                    self._perform(part, who, s)
            elif verb == "commit":
                return
            elif verb == "abort":
                t.abort()
            elif verb == "fails":
                raise OnPurpose(name)
            elif verb == "raises":
                self.db.signal(*more)
            elif verb == "writes":
                self.ledger.write(t, name)
            else:
                assert verb == "reads", verb
                lines = [row.text for row in t.query(self.ledger.log.select())]
                self.seen[f"{name} {more[0]}"] = more[0] in lines
            part.is_busy = False
