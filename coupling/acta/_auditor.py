"""Auditor of a history against the 30 axioms."""

from __future__ import annotations

from collections.abc import Iterator

from coupling.acta._axioms import AxiomViolation, check_lives, check_order
from coupling.acta._history import History, RecordedTransaction, RecordedTransactions, SpawnMode
from coupling.acta._responsibility import Responsibility
from coupling.acta._serial import check_serial

__all__ = ["audit"]


def audit(history: History) -> list[AxiomViolation]:
    """Check a history against the axioms of rule execution.

    Returns
    -------
    list of AxiomViolation
        By last position, which is the order in which they become apparent; empty if the history
        is legal.

    Notes
    -----
    O(n log n + n · depth · length of paths) for a legal history of n events; one that breaks
    axioms 9 and 17 throughout may cost more. The reading of each axiom is in ``README.md`` of this
    folder. (Saygin, Ulusoy, Chakravarthy, section 3.3.)
    """
    lives = RecordedTransactions(history)
    responsibility = Responsibility(history, lives)
    found = [
        *check_lives(history, lives),
        *responsibility.check(),
        *check_serial(history, lives, responsibility.aborted_at),
        *check_dependencies(lives),
        *check_order(lives),
    ]
    return sorted(found, key=lambda violation: (violation.positions[-1:], violation.axiom))


# -- axioms 19 and 21 to 23: commit, abort, sequential and exclusion dependencies ------------------


def check_dependencies(lives: RecordedTransactions) -> Iterator[AxiomViolation]:
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


def _child(
    position: int, child: RecordedTransaction, parent: RecordedTransaction
) -> Iterator[AxiomViolation]:
    if parent.aborts and not child.aborts:
        aborted = parent.aborts[0]
        if not child.commits or child.commits[0] > aborted:
            yield AxiomViolation(
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
            yield AxiomViolation(
                19,
                child.id,
                f"transaction {parent.id} commits before its child {child.id} has ended",
                (position, committed, *ends[:1])
                if position < committed
                else (committed, position, *ends[:1]),
            )


def _causal(
    lives: RecordedTransactions, child: RecordedTransaction, spawning: RecordedTransaction
) -> Iterator[AxiomViolation]:
    aborted = lives.undone_at(spawning.id)
    if aborted is not None and not child.aborts:
        yield AxiomViolation(
            21,
            child.id,
            f"transaction {spawning.id} is aborted, and {child.id}, which causally depends on it, "
            f"does not abort",
            (*sorted((aborted, *child.commits[:1])),),
        )


def _sequential(
    lives: RecordedTransactions, child: RecordedTransaction, spawning: RecordedTransaction
) -> Iterator[AxiomViolation]:
    committed, started = lives.durable_at(spawning.id), child.own[0]
    if committed is None or started < committed:
        yield AxiomViolation(
            22,
            child.id,
            f"transaction {child.id} starts, and {spawning.id}, which it is to follow, has not "
            f"committed up to its top-level transaction",
            (started,) if committed is None else (started, committed),
        )


def _exclusive(
    lives: RecordedTransactions, child: RecordedTransaction, spawning: RecordedTransaction
) -> Iterator[AxiomViolation]:
    committed, aborted = lives.durable_at(spawning.id), lives.undone_at(spawning.id)
    if committed is not None and not child.aborts:
        yield AxiomViolation(
            23,
            child.id,
            f"transaction {spawning.id} commits, and {child.id}, which is its alternative, does "
            f"not abort",
            (*sorted((committed, *child.commits[:1])),),
        )
    elif child.commits and (aborted is None or child.commits[0] < aborted):
        yield AxiomViolation(
            23,
            child.id,
            f"transaction {child.id} commits, and {spawning.id}, whose alternative it is, has not "
            f"aborted",
            (child.commits[0],) if aborted is None else (child.commits[0], aborted),
        )
