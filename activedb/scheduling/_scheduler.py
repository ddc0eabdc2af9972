"""Interface of all schedulers, and the serial scheduler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from activedb.errors import DefinitionError
from activedb.scheduling._operations import Outcome, STransaction, Writes, check_distinct
from activedb.scheduling._state import SharedState
from activedb.scheduling._tables import Ref

__all__ = ["Scheduler", "SerialOrder", "check_threads", "evaluate", "run_alone", "wait_for"]


class Scheduler(Protocol):
    """Scheduler of s-transactions; the result is that of their serial order by `at`.

    ``add`` takes s-transactions in any order; ``run`` is called when a punctuation guarantees that
    no earlier one will come. After ``run``, every s-transaction added has its outcome, and the
    state has the versions of the committed ones and no others.

    Not thread-safe: one thread adds and runs.
    """

    @property
    def name(self) -> str:
        """The name by which users choose the scheduler."""
        ...

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction, in any order."""
        ...

    def run(self, state: SharedState) -> None:
        """Run all s-transactions added."""
        ...

    def discard(self) -> None:
        """Discard s-transactions that were added and not run."""
        ...


def wait_for(threads: Sequence[threading.Thread], stop: Callable[[BaseException], None]) -> None:
    """Wait until threads have ended, even if the user interrupts this one again and again.

    Parameters
    ----------
    threads : sequence of Thread
        Some may not have been started.
    stop : callable
        Gets what interrupts the wait, and makes the threads end soon.
    """
    while True:
        try:
            for thread in threads:
                if thread.is_alive():
                    thread.join()
            return
        except BaseException as error:
            stop(error)


def check_threads(threads: int) -> int:
    """Return `threads`; raise `DefinitionError` unless it is a whole number from 1."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise DefinitionError(f"threads is a whole number from 1, not {threads!r}")
    return threads


def run_alone(transaction: STransaction, state: SharedState) -> None:
    """Run all operations of an s-transaction on the calling thread, and set its outcome.

    REQUIRES: all earlier s-transactions that write what it reads have ended.
    """
    writes, outcome = evaluate(transaction, state.reader(transaction.at))
    state.write(writes, transaction.at)
    transaction.outcome = outcome


def evaluate(transaction: STransaction, read: Callable[[Ref], Any]) -> tuple[Writes, Outcome]:
    """Return an s-transaction's writes and outcome, given `read`; no writes if it aborts."""
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
    """Serial execution by timestamp on the calling thread: the reference for all schedulers."""

    name = "serial"

    def __init__(self) -> None:
        self._added: list[STransaction] = []

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction, in any order."""
        self._added.append(transaction)

    def run(self, state: SharedState) -> None:
        """Run all s-transactions added; O(n log n)."""
        added, self._added = self._added, []
        for transaction in sorted(added, key=lambda t: t.at):
            run_alone(transaction, state)

    def discard(self) -> None:
        """Discard s-transactions that were added and not run."""
        self._added = []
