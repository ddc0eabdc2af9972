"""The semantics of rules as a plain interpreter: one thread, dicts, no locks, no retries.

Written from the design (section 6) and the seed (Saygin, Ulusoy, Chakravarthy, sections 2.1 and 3),
to be compared with what the engine leaves behind. It knows nothing of the engine, and runs what may
run in parallel in some order: a program whose outcome depends on that order has no place here.

A program is data: rules, top-level transactions, and steps in both.

=====================  ==========================================================================
``Add(counter, n)``    a counter grows
``Write()``            a row of the log, named after the path that leads here
``Raise(k, n, …)``     an event of kind `k`: a signal, or if `k` is odd a row that is inserted
``Fail(by_abort)``     an error, or the abort of the transaction in which it stands
``Sub(steps)``         a subtransaction; its failure goes no further
``Par(branches)``      subtransactions side by side, awaited; their failures go no further
=====================  ==========================================================================
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Add", "Fail", "Par", "Program", "Raise", "RuleSpec", "Sub", "Top", "World", "Write"]


@dataclass(frozen=True)
class Add:
    """Add `n` to a counter."""

    counter: int
    n: int


@dataclass(frozen=True)
class Write:
    """Write a row of the log."""


@dataclass(frozen=True)
class Raise:
    """Raise an event of kind `kind` with the parameter `n`.

    If that fails, the program goes on as if nothing had happened, if it `swallows` the error. It
    does not get far: a rule that takes the triggering transaction along takes it.
    """

    kind: int
    n: int
    swallows: bool = False


@dataclass(frozen=True)
class Fail:
    """Fail: with an error, or by aborting the transaction."""

    by_abort: bool


@dataclass(frozen=True)
class Sub:
    """A subtransaction."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Par:
    """Parallel subtransactions."""

    branches: tuple[tuple[Step, ...], ...]


Step: TypeAlias = Add | Write | Raise | Fail | Sub | Par


@dataclass(frozen=True)
class RuleSpec:
    """A rule; its condition: the parameter `n` of the event is no multiple of `unless`."""

    name: str
    on: int
    coupling: str
    steps: tuple[Step, ...]
    priority: int | None = None
    on_abort: str = "triggering"
    unless: int = 0
    condition_action: str = "immediate"

    def holds(self, n: int) -> bool:
        """The condition, for an event with the parameter `n`."""
        return not self.unless or bool(n % self.unless)


@dataclass(frozen=True)
class Top:
    """A top-level transaction of the program."""

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    """Rules, and what raises the first events."""

    rules: tuple[RuleSpec, ...]
    tops: tuple[Top, ...]


class Failure(Exception):
    """A transaction fails."""


@dataclass(frozen=True)
class Due:
    """A rule with the event that triggers it, or the action alone of one whose condition held."""

    rule: RuleSpec
    path: str
    n: int
    action_only: bool = False


@dataclass
class Tx:
    """A transaction, with what becomes of it when it commits or aborts."""

    parent: Tx | None = None
    is_deferred_rule: bool = False
    effects: list[tuple[str, str, int]] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    waiting: list[Due] = field(default_factory=list)
    after_commit: list[Due] = field(default_factory=list)
    after_abort: list[Due] = field(default_factory=list)


class World:
    """Committed state, and how it comes about.

    Attributes
    ----------
    rows : set of (table, key)
        Of the log and of the tables whose inserts are events.
    counters : Counter
    letters : Counter
        How many dead letters each rule has.
    transactions : int
        Begun so far.
    """

    def __init__(self, rules: tuple[RuleSpec, ...]):
        self.rows: set[tuple[str, str]] = set()
        self.counters: Counter[int] = Counter()
        self.letters: Counter[str] = Counter()
        self.transactions = 0
        self._rules = rules
        self._due: deque[Due] = deque()

    def play(self, program: Program) -> None:
        """Run the top-level transactions, one after another, and all that they trigger."""
        for top in program.tops:
            with contextlib.suppress(Failure):
                self._top_level(partial(self._steps, steps=top.steps, path=top.name))
            while self._due:
                self._firing(self._due.popleft())

    # -- transactions ----------------------------------------------------------------------

    def _begin(self, parent: Tx | None = None, *, is_deferred_rule: bool = False) -> Tx:
        self.transactions += 1
        return Tx(parent, is_deferred_rule)

    def _run(self, t: Tx, body: Callable[[Tx], object]) -> None:
        """Run `body` in `t`, then commit; if either fails, abort, and say so."""
        try:
            body(t)
            self._commit(t)
        except Failure:
            self._due += t.after_abort
            raise

    def _commit(self, t: Tx) -> None:
        above = t.parent
        if t.is_deferred_rule:
            # "executed in the next cycle after the commitment of their parent"
            assert above is not None
            above.waiting += t.waiting
        else:
            while t.waiting:
                cycle, t.waiting = t.waiting, []
                self._children(t, cycle, deferred=True)
        if above is not None:
            above.effects += t.effects
            above.letters += t.letters
            above.after_commit += t.after_commit
            above.after_abort += t.after_abort
            return
        for what, key, n in t.effects:
            if what == "counter":
                self.counters[int(key)] += n
            else:
                assert (what, key) not in self.rows
                self.rows.add((what, key))
        self.letters.update(t.letters)
        self._due += t.after_commit

    def _top_level(self, body: Callable[[Tx], object]) -> None:
        self._run(self._begin(), body)

    # -- rules -----------------------------------------------------------------------------

    def _children(self, t: Tx, due: list[Due], *, deferred: bool) -> None:
        """Run rules as children of `t`, the higher priority first, no priority last."""

        def rank(item: Due) -> tuple[bool, int]:
            return item.rule.priority is None, -(item.rule.priority or 0)

        for _, group in groupby(sorted(due, key=rank), key=rank):
            for item in group:
                child = self._begin(t, is_deferred_rule=deferred)
                try:
                    self._run(child, partial(self._rule, item=item))
                except Failure:
                    if item.rule.on_abort == "triggering":
                        raise
                    t.letters.append(item.rule.name)

    def _firing(self, item: Due) -> None:
        """A rule in a top-level transaction of its own."""
        try:
            self._top_level(lambda t: self._rule(t, item))
        except Failure:
            self.letters[item.rule.name] += 1

    def _rule(self, s: Tx, item: Due) -> None:
        """Condition and action of a rule that runs in `s`."""
        rule = item.rule
        if not item.action_only:
            if not rule.holds(item.n):
                return
            action = Due(rule, item.path, item.n, action_only=True)
            if rule.condition_action == "deferred":
                # At the commit point of the transaction that triggered the rule; a top-level
                # rule has its own only.
                owner = s if s.parent is None else s.parent
                owner.waiting.append(action)
                return
            if rule.condition_action == "detached":
                self._due.append(action)
                return
        self._steps(s, rule.steps, f"{item.path}>{rule.name}")

    def _occurred(self, t: Tx, kind: int, path: str, n: int) -> None:
        immediate: list[Due] = []
        for rule in self._rules:
            if rule.on != kind:
                continue
            item = Due(rule, path, n)
            if rule.coupling == "immediate":
                immediate.append(item)
            elif rule.coupling == "deferred":
                t.waiting.append(item)
            elif rule.coupling == "detached":
                self._due.append(item)
            elif rule.coupling in ("sequential", "causal"):
                t.after_commit.append(item)
            else:
                assert rule.coupling == "exclusive"
                t.after_abort.append(item)
        self._children(t, immediate, deferred=False)

    # -- steps -----------------------------------------------------------------------------

    def _steps(self, t: Tx, steps: tuple[Step, ...], path: str) -> None:
        for number, step in enumerate(steps):
            here = f"{path}.{number}"
            match step:
                case Add(counter, n):
                    t.effects.append(("counter", str(counter), n))
                case Write():
                    t.effects.append(("log", here, 0))
                case Raise(kind, n):
                    if kind % 2:
                        t.effects.append((f"facts{kind}", here, 0))
                    self._occurred(t, kind, here, n)
                case Fail():
                    raise Failure(here)
                case Sub(inner):
                    self._alone(t, inner, here)
                case Par(branches):
                    for branch, inner in enumerate(branches):
                        self._alone(t, inner, f"{here}.{branch}")

    def _alone(self, t: Tx, steps: tuple[Step, ...], path: str) -> None:
        with contextlib.suppress(Failure):
            self._run(self._begin(t), lambda s: self._steps(s, steps, path))
