"""Axioms 19 and 21 to 23: commit, abort, sequential and exclusion dependencies."""

from __future__ import annotations

from collections.abc import Iterator

from coupling.acta._axioms import Violation
from coupling.acta._events import SpawnMode
from coupling.acta._lives import Life, Lives

__all__ = ["check_dependencies"]


def check_dependencies(lives: Lives) -> Iterator[Violation]:
    """Yield the violations of axioms 19 and 21 to 23. O(transactions · depth)."""
    for child in lives.of.values():
        for position, spawn in child.spawns:
            spawning = lives.of[spawn.by]
            if spawn.mode.is_child:
                yield from _child(position, child, spawning)
            elif child.own:
                if spawn.mode is SpawnMode.CAUSAL:
                    yield from _causal(lives, child, spawning)
                elif spawn.mode is SpawnMode.SEQUENTIAL:
                    yield from _sequential(lives, child, spawning)
                elif spawn.mode is SpawnMode.EXCLUSIVE:
                    yield from _exclusive(lives, child, spawning)


def _child(position: int, child: Life, parent: Life) -> Iterator[Violation]:
    if parent.aborts and not child.aborts:
        aborted = parent.aborts[0]
        if not child.commits or child.commits[0] > aborted:
            yield Violation(
                19,
                child.id,
                f"transaction {parent.id} aborts, and its child {child.id}, which has not "
                f"committed before, does not abort",
                (*sorted((aborted, *child.commits[:1])),),
            )
    if parent.commits:
        committed = parent.commits[0]
        ends = child.ends
        if not ends or ends[0] >= committed:
            yield Violation(
                19,
                child.id,
                f"transaction {parent.id} commits before its child {child.id} has ended",
                (position, committed, *ends[:1])
                if position < committed
                else (committed, position, *ends[:1]),
            )


def _causal(lives: Lives, child: Life, spawning: Life) -> Iterator[Violation]:
    aborted = lives.undone_at(spawning.id)
    if aborted is not None and not child.aborts:
        yield Violation(
            21,
            child.id,
            f"transaction {spawning.id} is aborted, and {child.id}, which causally depends on it, "
            f"does not abort",
            (*sorted((aborted, *child.commits[:1])),),
        )


def _sequential(lives: Lives, child: Life, spawning: Life) -> Iterator[Violation]:
    committed, started = lives.durable_at(spawning.id), child.own[0]
    if committed is None or started < committed:
        yield Violation(
            22,
            child.id,
            f"transaction {child.id} starts, and {spawning.id}, which it is to follow, has not "
            f"committed up to its top-level transaction",
            (started,) if committed is None else (started, committed),
        )


def _exclusive(lives: Lives, child: Life, spawning: Life) -> Iterator[Violation]:
    committed, aborted = lives.durable_at(spawning.id), lives.undone_at(spawning.id)
    if committed is not None and not child.aborts:
        yield Violation(
            23,
            child.id,
            f"transaction {spawning.id} commits, and {child.id}, which is its alternative, does "
            f"not abort",
            (*sorted((committed, *child.commits[:1])),),
        )
    elif child.commits and (aborted is None or child.commits[0] < aborted):
        yield Violation(
            23,
            child.id,
            f"transaction {child.id} commits, and {spawning.id}, whose alternative it is, has not "
            f"aborted",
            (child.commits[0],) if aborted is None else (child.commits[0], aborted),
        )
