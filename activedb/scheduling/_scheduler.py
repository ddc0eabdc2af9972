"""What all schedulers have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from activedb.scheduling._operations import Writes, check_distinct
from activedb.scheduling._s_transactions import Outcome, STransaction
from activedb.scheduling._state import State
from activedb.scheduling._tables import Ref

__all__ = ["Scheduler", "SerialOrder", "evaluate", "run_alone"]


class Scheduler(Protocol):
    """Runs s-transactions such that the result is that of their serial order by `at`.

    ``add`` takes them in any order; ``run`` is called when a punctuation has said that no earlier
    one will come. After it every one that was added has its outcome, and the state has the
    versions of those that committed, and no others.

    Not thread-safe: one thread adds and runs.
    """

    @property
    def name(self) -> str:
        """By which users choose it."""
        ...

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction; in any order."""
        ...

    def run(self, state: State) -> None:
        """Run what was added."""
        ...

    def discard(self) -> None:
        """Forget what was added and not run."""
        ...


def run_alone(transaction: STransaction, state: State) -> None:
    """Run all operations of an s-transaction here and now, and set its outcome.

    REQUIRES: all that is earlier and writes what it reads has ended.
    """
    writes, outcome = evaluate(transaction, state.reader(transaction.at))
    state.write(writes, transaction.at)
    transaction.outcome = outcome


def evaluate(transaction: STransaction, read: Callable[[Ref], Any]) -> tuple[Writes, Outcome]:
    """What an s-transaction writes, and its outcome, given what it reads; nothing if it aborts."""
    writes: Writes = []
    results = []
    try:
        for operation in transaction.operations:
            effect = operation.evaluate(read)
            writes += effect.writes
            results.append(effect.result)
        if len(writes) > 1:
            check_distinct(writes)
    except Exception as error:
        return [], Outcome.of_error(error)
    return writes, Outcome(tuple(results))


class SerialOrder:
    """One s-transaction after the other, by timestamp, on the thread that calls: the definition."""

    name = "serial"

    def __init__(self) -> None:
        self._added: list[STransaction] = []

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction; in any order."""
        self._added.append(transaction)

    def run(self, state: State) -> None:
        """Run what was added; O(n log n)."""
        added, self._added = self._added, []
        for transaction in sorted(added, key=lambda t: t.at):
            run_alone(transaction, state)

    def discard(self) -> None:
        """Forget what was added and not run."""
        self._added = []
