"""A bounded pool of threads that takes s-transactions in the order of time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from activedb.errors import ConfigurationError
from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling.locking._gate import Gate, Stopped

__all__ = ["check_threads", "run_in_order"]


def check_threads(threads: int) -> int:
    """Raise `ConfigurationError` unless it is a whole number from 1."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ConfigurationError(f"threads is a whole number from 1, not {threads!r}")
    return threads


def run_in_order(
    transactions: Sequence[STransaction],
    work: Callable[[STransaction], None],
    *,
    threads: int,
    stop: Callable[[], None],
    gate: Gate | None = None,
) -> None:
    """Run s-transactions on threads, each begun when all before it have begun.

    Parameters
    ----------
    transactions : sequence of STransaction
        In the order in which they begin.
    work : callable
        Runs one; may block until one that is before it in the sequence has ended.
    threads : int
        How many run at a time, at most. With one, or one s-transaction, the calling thread does.
    stop : callable
        Makes all that block, or will, raise `Stopped`.
    gate : Gate, optional

    Raises
    ------
    BaseException
        What `work` raises, the first time; no other begins then, and all threads have ended.
    """
    _Pool(transactions, work, stop, gate).run(min(threads, len(transactions)))


class _Pool:
    """The threads of one run. Latch: ``_latch``, with nothing else taken under it."""

    def __init__(
        self,
        transactions: Sequence[STransaction],
        work: Callable[[STransaction], None],
        stop: Callable[[], None],
        gate: Gate | None,
    ):
        self._transactions = iter(transactions)
        self._work = work
        self._stop = stop
        self._gate = gate
        self._latch = threading.Lock()
        self._failure: BaseException | None = None

    def run(self, threads: int) -> None:
        if self._gate is not None:
            self._gate.start(threads)
        if threads == 1:
            self._loop()
        else:
            workers = [
                threading.Thread(target=self._loop, name=f"s-transactions {number}")
                for number in range(1, threads + 1)
            ]
            started: list[threading.Thread] = []
            try:
                for worker in workers:
                    worker.start()
                    started.append(worker)
                for worker in workers:
                    worker.join()
            except BaseException as error:  # no thread to be had, or Ctrl-C
                self._fail(error)
                for worker in started:
                    worker.join()
        if self._failure is not None:
            raise self._failure

    def _loop(self) -> None:
        try:
            while (transaction := self._next()) is not None:
                self._work(transaction)
            if self._gate is not None:
                self._gate.leave()
        except Stopped:
            pass
        except BaseException as error:
            self._fail(error)

    def _next(self) -> STransaction | None:
        with self._latch:
            return None if self._failure is not None else next(self._transactions, None)

    def _fail(self, error: BaseException) -> None:
        with self._latch:
            if self._failure is None:
                self._failure = error
        self._stop()
        if self._gate is not None:
            self._gate.stop()
