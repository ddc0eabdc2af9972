"""Axioms 27 to 30: deferred cycles and priorities."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TypeAlias

from coupling.acta._axioms import Violation
from coupling.acta._events import Spawn, SpawnMode
from coupling.acta._transactions import RecordedTransaction, RecordedTransactions

__all__ = ["check_order"]

_Spawned: TypeAlias = tuple[int, Spawn, RecordedTransaction]
"""Position of a spawn, the spawn, and the child if it has operations."""


def check_order(lives: RecordedTransactions) -> Iterator[Violation]:
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


def _after_the_parent(parent: RecordedTransaction, deferred: list[_Spawned]) -> Iterator[Violation]:
    if not parent.operations:
        return
    last = parent.operations[-1]
    for _, _, child in deferred:
        if child.operations[0] < last:
            yield Violation(
                27,
                child.id,
                f"transaction {child.id} is deferred and works before its parent {parent.id} has "
                f"finished its own operations",
                (child.operations[0], last),
            )


def _next_cycle(
    lives: RecordedTransactions, parent: RecordedTransaction, deferred: list[_Spawned]
) -> Iterator[Violation]:
    """Check children deferred by `parent`, which is deferred itself."""
    own = parent.spawns[0][1]
    line = [lives.of[s.child] for _, s in lives.of[own.by].children if _is_cycle_mate(s, own)]
    last = max(((mate.operations[-1], mate.id) for mate in line if mate.operations), default=None)
    for _, _, child in deferred:
        if last is not None and child.operations[0] < last[0]:
            yield Violation(
                28,
                child.id,
                f"transaction {child.id} was deferred by {parent.id} to the next cycle and works "
                f"before {last[1]} of the cycle before has finished",
                (child.operations[0], last[0]),
            )


def _is_cycle_mate(spawn: Spawn, own: Spawn) -> bool:
    return spawn.mode is SpawnMode.DEFERRED and (spawn.cycle or 0) <= (own.cycle or 0)


def _cycles_of_one_commit_point(
    parent: RecordedTransaction, deferred: list[_Spawned]
) -> Iterator[Violation]:
    """Check children of one transaction in several cycles, if the recorder reports cycles."""
    last: tuple[int, int] | None = None
    ordered = sorted(deferred, key=lambda item: item[1].cycle or 0)
    for _, group in groupby(ordered, key=lambda item: item[1].cycle or 0):
        mates = [child for _, _, child in group]
        for child in mates:
            if last is not None and child.operations[0] < last[0]:
                yield Violation(
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
) -> Iterator[Violation]:
    cycle: int | None = None
    last: tuple[int, int] | None = None
    for group in _by_priority(deferred, lambda item: item[1].cycle or 0):
        if (group[0][1].cycle or 0) != cycle:
            cycle, last = group[0][1].cycle or 0, None
        for _, _, child in group:
            if last is not None and child.operations[0] < last[0]:
                yield Violation(
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
) -> Iterator[Violation]:
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
                yield Violation(
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
