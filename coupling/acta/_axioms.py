"""The 30 axioms in words, and the checks of 1 to 7, 16, 18, 20 and 26 to 30."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from coupling.acta._history import (
    History,
    ObjectOperation,
    RecordedTransaction,
    RecordedTransactions,
    SpawnEvent,
    SpawnMode,
)

__all__ = ["AXIOMS", "AxiomViolation", "check_lives", "check_order"]


AXIOMS: dict[int, str] = {
    1: "A top-level transaction has only Begin, spawns, Commit and Abort.",
    2: "A top-level transaction is initiated by its Begin, or by the spawn in a detached mode.",
    3: "A top-level transaction ends once, by Commit or Abort, and does nothing afterwards.",
    4: "A subtransaction has only spawns, Commit and Abort; it has no Begin.",
    5: "A subtransaction is initiated by the event that spawns it.",
    6: "A subtransaction ends once, by Commit or Abort, and does nothing afterwards.",
    7: "The fundamental axioms: initiated once, operations only between start and end, and "
    "outcomes only of operations one is responsible for.",
    8: "A transaction sees the current state of objects.",
    9: "A top-level transaction invokes no operation that conflicts with one in progress.",
    10: "Objects are atomic: undone operations leave no trace in the others.",
    11: "A transaction that commits is in no cycle of conflicts.",
    12: "Operations are committed by top-level transactions that commit.",
    13: "A top-level transaction that commits, commits every operation it is responsible for.",
    14: "Operations are aborted by transactions that abort.",
    15: "A transaction that aborts, aborts every operation it is responsible for.",
    16: "A transaction that begins has no parent.",
    17: "A subtransaction invokes no operation that conflicts with one in progress outside its "
    "line.",
    18: "The transaction that spawns in immediate or deferred mode is the parent.",
    19: "A child aborts when its parent aborts before it has committed, and a parent commits after "
    "its children have ended.",
    20: "A transaction spawned in a detached mode has no parent.",
    21: "A transaction spawned in causally dependent mode aborts if the spawning transaction "
    "aborts.",
    22: "A transaction spawned in sequential mode starts after the commit of the spawning "
    "transaction.",
    23: "A transaction spawned in exclusive mode commits only after the abort of the spawning "
    "transaction.",
    24: "A subtransaction commits if and only if it delegates its access set to its parent.",
    25: "A transaction touches an object that an inferior has touched only after that object was "
    "delegated to it.",
    26: "The ancestors of a child are its parent and the ancestors of its parent.",
    27: "A deferred child starts to work when its parent has finished its own operations.",
    28: "A child deferred to the next cycle works after all of the cycle before.",
    29: "Deferred children of one cycle work in the order of their priorities.",
    30: "An immediate child waits with its operations for siblings of higher priority that have "
    "been spawned.",
}
"""Statement of each axiom of the formal rule execution model, by its number there.

(Saygin, Ulusoy, Chakravarthy, section 3.3.2; for 7 to 17 section 3.3.1.) The reading of each for a
finite history is in ``README.md`` of this folder.
"""


@dataclass(frozen=True, slots=True)
class AxiomViolation:
    """An axiom that a history breaks.

    Attributes
    ----------
    axiom : int
        1 to 30.
    transaction : int
        Transaction that breaks it.
    message : str
        A sentence that names the transactions and objects.
    positions : tuple of int
        Positions of the offending events in the history, ascending.
    """

    axiom: int
    transaction: int
    message: str
    positions: tuple[int, ...]

    def __str__(self) -> str:
        return f"axiom {self.axiom}: {self.message}"


# -- axioms 1 to 6, the first half of 7, 16, 18, 20 and 26: start, end and parent of transactions


def check_lives(history: History, lives: RecordedTransactions) -> Iterator[AxiomViolation]:
    """Yield the violations of these axioms. O(n · depth)."""
    for life in lives.of.values():
        yield from _significant(life)
        yield from _initiated(life)
        yield from _ended(life)
        yield from _fundamental(history, life)
        yield from _place(lives, life)


def _significant(life: RecordedTransaction) -> Iterator[AxiomViolation]:
    if not life.is_child:
        for position in life.delegates:
            yield AxiomViolation(
                1,
                life.id,
                f"transaction {life.id} is top-level and delegates, which only a subtransaction "
                "may do",
                (position,),
            )
        return
    for position in life.begins:
        yield AxiomViolation(
            4,
            life.id,
            f"transaction {life.id} is a subtransaction and has a Begin, which only top-level "
            f"transactions have",
            (position,),
        )


def _initiated(life: RecordedTransaction) -> Iterator[AxiomViolation]:
    axiom = 5 if life.is_child else 2
    starts = [position for position, _ in life.spawns]
    if not life.is_child:
        starts += life.begins
    others = [position for position in life.own if position not in life.begins]
    if not starts:
        yield AxiomViolation(
            axiom,
            life.id,
            f"transaction {life.id} is top-level and has no Begin, and no transaction spawns it",
            tuple(life.own[:1]),
        )
    elif others and others[0] < min(starts):
        yield AxiomViolation(
            axiom,
            life.id,
            f"transaction {life.id} does something before it is initiated",
            (others[0], min(starts)),
        )


def _ended(life: RecordedTransaction) -> Iterator[AxiomViolation]:
    axiom = 6 if life.is_child else 3
    ends = life.ends
    if not ends:
        if not life.is_promise:
            last = life.own[-1] if life.own else life.spawns[-1][0]
            yield AxiomViolation(
                axiom,
                life.id,
                f"transaction {life.id} neither commits nor aborts",
                (last,),
            )
        return
    if len(ends) > 1:
        yield AxiomViolation(
            axiom, life.id, f"transaction {life.id} ends {len(ends)} times", (*ends,)
        )
    operations = set(life.operations)
    late = [p for p in life.own if p > ends[0] and p not in operations and p not in ends]
    if late:
        yield AxiomViolation(
            axiom,
            life.id,
            f"transaction {life.id} ends and does something afterwards",
            (ends[0], *late),
        )


def _fundamental(history: History, life: RecordedTransaction) -> Iterator[AxiomViolation]:
    for what, positions in (
        ("begins", life.begins),
        ("is spawned", [position for position, _ in life.spawns]),
    ):
        if len(positions) > 1:
            yield AxiomViolation(
                7,
                life.id,
                f"transaction {life.id} {what} {len(positions)} times",
                tuple(positions),
            )
    starts = [position for position, _ in life.spawns] + life.begins
    start, end = min(starts, default=None), min(life.ends, default=None)
    for position in life.operations:
        operation = history.events[position]
        assert isinstance(operation, ObjectOperation)
        what = f"transaction {life.id} invokes operation {operation.number}"
        if end is not None and position > end:
            yield AxiomViolation(7, life.id, f"{what} after its end", (end, position))
        elif start is None or position < start:
            at = (position,) if start is None else (position, start)
            yield AxiomViolation(7, life.id, f"{what} before it is initiated", at)


def _place(lives: RecordedTransactions, life: RecordedTransaction) -> Iterator[AxiomViolation]:
    first = (life.begins or life.own or [position for position, _ in life.spawns])[0]
    if life.begins and life.parent is not None:
        yield AxiomViolation(
            16,
            life.id,
            f"transaction {life.id} begins as top-level and has the parent {life.parent}",
            (first,),
        )
    for position, spawn in life.spawns:
        if spawn.mode.is_child and spawn.parent != spawn.by:
            yield AxiomViolation(
                18,
                life.id,
                f"transaction {spawn.by} spawns {life.id} as a child, whose parent is "
                f"{spawn.parent}",
                (position,),
            )
        elif not spawn.mode.is_child and spawn.parent is not None:
            yield AxiomViolation(
                20,
                life.id,
                f"transaction {spawn.by} spawns {life.id} as top-level, and it has the parent "
                f"{spawn.parent}",
                (position,),
            )
    if life.parent is None:
        wrong = "is a subtransaction and has no superiors" if life.is_child else ""
    elif not life.is_child or life.spawns[0][1].by != life.parent:
        wrong = f"has the superior {life.parent}, which has not spawned it as a child"
    elif lives.line(life.id)[-1].parent is not None:
        wrong = "has superiors among which there is no top-level transaction"
    else:
        wrong = ""
    if wrong:
        at = life.spawns[0][0] if life.spawns else first
        yield AxiomViolation(26, life.id, f"transaction {life.id} {wrong}", (at,))


# -- axioms 27 to 30: deferred cycles and priorities -----------------------------------------------


_Spawned: TypeAlias = tuple[int, SpawnEvent, RecordedTransaction]
"""Position of a spawn, the spawn, and the child if it has operations."""


def check_order(lives: RecordedTransactions) -> Iterator[AxiomViolation]:
    """Yield the violations of axioms 27 to 30. O(n log n)."""
    for parent in lives.of.values():
        spawned = [(p, s, lives.of[s.child]) for p, s in parent.children]
        working = [item for item in spawned if item[2].operations]
        deferred = [item for item in working if item[1].mode is SpawnMode.DEFERRED]
        if deferred:
            if parent.mode is not SpawnMode.DEFERRED:
                yield from _after_the_parent(parent, deferred)
            else:
                yield from _next_cycle(lives, parent, deferred)
            yield from _cycles_of_one_commit_point(parent, deferred)
            yield from _deferred_priorities(parent, deferred)
        together: dict[int | None, list[_Spawned]] = defaultdict(list)
        for item in working:
            if item[1].mode is SpawnMode.IMMEDIATE:
                together[item[1].group].append(item)
        for immediate in together.values():
            if len(immediate) > 1:
                yield from _immediate_priorities(parent, immediate)


def _after_the_parent(
    parent: RecordedTransaction, deferred: list[_Spawned]
) -> Iterator[AxiomViolation]:
    if not parent.operations:
        return
    last = parent.operations[-1]
    for _, _, child in deferred:
        if child.operations[0] < last:
            yield AxiomViolation(
                27,
                child.id,
                f"transaction {child.id} is deferred and works before its parent {parent.id} has "
                f"finished its own operations",
                (child.operations[0], last),
            )


def _next_cycle(
    lives: RecordedTransactions, parent: RecordedTransaction, deferred: list[_Spawned]
) -> Iterator[AxiomViolation]:
    """Check children deferred by `parent`, which is deferred itself."""
    own = parent.spawns[0][1]
    line = [lives.of[s.child] for _, s in lives.of[own.by].children if _is_cycle_mate(s, own)]
    last = max(((mate.operations[-1], mate.id) for mate in line if mate.operations), default=None)
    for _, _, child in deferred:
        if last is not None and child.operations[0] < last[0]:
            yield AxiomViolation(
                28,
                child.id,
                f"transaction {child.id} was deferred by {parent.id} to the next cycle and works "
                f"before {last[1]} of the cycle before has finished",
                (child.operations[0], last[0]),
            )


def _is_cycle_mate(spawn: SpawnEvent, own: SpawnEvent) -> bool:
    return spawn.mode is SpawnMode.DEFERRED and (spawn.cycle or 0) <= (own.cycle or 0)


def _cycles_of_one_commit_point(
    parent: RecordedTransaction, deferred: list[_Spawned]
) -> Iterator[AxiomViolation]:
    """Check children of one transaction in several cycles, if the recorder reports cycles."""
    last: tuple[int, int] | None = None
    ordered = sorted(deferred, key=lambda item: item[1].cycle or 0)
    for _, group in groupby(ordered, key=lambda item: item[1].cycle or 0):
        mates = [child for _, _, child in group]
        for child in mates:
            if last is not None and child.operations[0] < last[0]:
                yield AxiomViolation(
                    28,
                    child.id,
                    f"transaction {child.id} of a later cycle of {parent.id} works before "
                    f"{last[1]} of a cycle before has finished",
                    (child.operations[0], last[0]),
                )
        here = max((child.operations[-1], child.id) for child in mates)
        last = here if last is None else max(last, here)


def _rank(item: _Spawned) -> tuple[bool, int]:
    priority = item[1].priority
    return (priority is None, -(priority or 0))


def _by_priority(items: list[_Spawned], more: Callable[[_Spawned], int]) -> list[list[_Spawned]]:
    """Return groups of equal priority, the highest first, within equal values of `more`."""

    def key(item: _Spawned) -> tuple[int, tuple[bool, int]]:
        return more(item), _rank(item)

    return [list(group) for _, group in groupby(sorted(items, key=key), key=key)]


def _deferred_priorities(
    parent: RecordedTransaction, deferred: list[_Spawned]
) -> Iterator[AxiomViolation]:
    cycle: int | None = None
    last: tuple[int, int] | None = None
    for group in _by_priority(deferred, lambda item: item[1].cycle or 0):
        if (group[0][1].cycle or 0) != cycle:
            cycle, last = group[0][1].cycle or 0, None
        for _, _, child in group:
            if last is not None and child.operations[0] < last[0]:
                yield AxiomViolation(
                    29,
                    child.id,
                    f"transaction {child.id}, deferred by {parent.id}, works before {last[1]}, "
                    f"which has the higher priority, has finished",
                    (child.operations[0], last[0]),
                )
        here = max((child.operations[-1], child.id) for _, _, child in group)
        last = here if last is None else max(last, here)


def _immediate_priorities(
    parent: RecordedTransaction, immediate: list[_Spawned]
) -> Iterator[AxiomViolation]:
    """Find operations between the spawn and the last operation of a higher sibling."""
    groups = _by_priority(immediate, lambda item: 0)
    times = _Intervals()
    higher: list[_Spawned] = []
    for group in groups:
        for _, _, child in group:
            hit = next((q for q in child.operations if times.holds(q)), None)
            if hit is not None:
                spawned, _, above = next(
                    item for item in higher if item[0] < hit < item[2].operations[-1]
                )
                yield AxiomViolation(
                    30,
                    child.id,
                    f"transaction {child.id}, spawned by {parent.id}, works after {above.id}, "
                    f"which has the higher priority, was spawned and before that has finished",
                    (spawned, hit, above.operations[-1]),
                )
        higher += group
        for spawned, _, child in group:
            times.add(spawned, child.operations[-1])


class _Intervals:
    """Union of open intervals of positions, disjoint and ordered."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add an interval, O(log n) plus the cost of moving the list."""
        if start >= end:
            return
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def holds(self, position: int) -> bool:
        """Return whether an interval contains a position. O(log n)."""
        index = bisect_left(self._starts, position) - 1
        return index >= 0 and position < self._ends[index]
