"""Bounded pool of threads that takes s-transactions in timestamp order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from activedb.errors import ConfigurationError
from activedb.scheduling._operations import At, STransaction
from activedb.scheduling.locking._gate import Gate, Stopped
from activedb.scheduling.locking._lock_table import ObjectLock, TimestampLockTable

__all__ = ["RunThreads", "check_threads"]


def check_threads(threads: int) -> int:
    """Return `threads`; raise `ConfigurationError` unless it is a whole number from 1."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ConfigurationError(f"threads is a whole number from 1, not {threads!r}")
    return threads


class RunThreads:
    """Threads of one run, and the handling of its failure.

    Parameters
    ----------
    threads : int
        Maximum number of s-transactions that run at a time. With one thread, or one s-transaction,
        the calling thread runs them.
    locks : TimestampLockTable, optional
        Locks that the s-transactions may wait for.
    gate : Gate, optional

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(
        self, threads: int, *, locks: TimestampLockTable | None = None, gate: Gate | None = None
    ):
        self._threads = threads
        self._locks = locks
        self._gate = gate
        self._latch = threading.Lock()
        self._failure: BaseException | None = None

    @property
    def is_gated(self) -> bool:
        """True if a gate observes the accesses."""
        return self._gate is not None

    def run(
        self, transactions: Sequence[STransaction], work: Callable[[STransaction], None]
    ) -> None:
        """Run s-transactions, each begun when all before it in the sequence have begun.

        Parameters
        ----------
        transactions : sequence of STransaction
        work : callable
            Runs one; may block until an s-transaction before it in the sequence has ended.

        Raises
        ------
        BaseException
            The first failure; no further s-transaction begins then, and all threads have ended.
        """
        threads = min(self._threads, len(transactions))
        left = iter(transactions)

        def next_one() -> STransaction | None:
            with self._latch:
                return None if self._failure is not None else next(left, None)

        def loop() -> None:
            try:
                while (transaction := next_one()) is not None:
                    work(transaction)
                if self._gate is not None:
                    self._gate.leave()
            except BaseException as error:
                self._fail(error)

        if self._gate is not None:
            self._gate.start(threads)
        if threads == 1:
            loop()
        else:
            self._on_threads(threads, loop)
        if self._failure is not None:
            raise self._failure

    def access(self, at: At, what: str, locks: Collection[ObjectLock] = ()) -> None:
        """Acquire `locks` for an s-transaction, then wait for permission to access.

        The call is made while a user's function reads. So any failure is recorded in the run first:
        it is not an error of the function, and the function cannot hide it.

        Raises
        ------
        Stopped
            If the run has failed, here or elsewhere.
        """
        try:
            if locks and self._locks is not None:
                self._locks.request(at, locks)
            if self._gate is not None:
                self._gate.access(at, what)
        except BaseException as error:
            self._fail(error)
            raise Stopped from error

    def check(self) -> None:
        """Raise `Stopped` if the run has failed: the user's function may have suppressed it."""
        with self._latch:
            if self._failure is not None:
                raise Stopped

    def _on_threads(self, threads: int, loop: Callable[[], None]) -> None:
        started: list[threading.Thread] = []
        try:
            for number in range(1, threads + 1):
                worker = threading.Thread(target=loop, name=f"s-transactions {number}")
                worker.start()
                started.append(worker)
            for worker in started:
                worker.join()
        except BaseException as error:  # a thread cannot be started, or Ctrl-C
            self._fail(error)
            for worker in started:
                worker.join()

    def _fail(self, error: BaseException) -> None:
        with self._latch:
            if self._failure is None:
                self._failure = error
        if self._locks is not None:
            self._locks.stop()
        if self._gate is not None:
            self._gate.stop()
