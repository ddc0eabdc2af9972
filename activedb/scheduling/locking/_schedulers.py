"""Schedulers with locks (Wang et al., section 5), from one event at a time to low-water marks."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from activedb.scheduling._operations import At, STransaction, Writes
from activedb.scheduling._scheduler import SerialOrder, check_threads, evaluate, wait_for
from activedb.scheduling._state import SharedState
from activedb.scheduling._tables import Computed, Ref, at_key
from activedb.scheduling.locking._gate import Choose, Gate, Stopped, TurnGate
from activedb.scheduling.locking._lock_table import (
    FIGURE_3_LWM,
    FIGURE_3_S2PL,
    Granularity,
    ObjectLock,
    TimestampLockTable,
    check_granularity,
    insert_all,
    just_after,
    locks_of,
    read_locks,
    write_locks_of,
)

__all__ = [
    "LWM",
    "S2PL",
    "SEI",
    "Locking",
    "PushBased",
    "RunThreads",
    "resolving",
]


# -- bounded pool of threads that takes s-transactions in timestamp order --------------------------


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
        workers = [
            threading.Thread(target=loop, name=f"s-transactions {number}")
            for number in range(1, threads + 1)
        ]
        try:
            for worker in workers:
                worker.start()
        except BaseException as error:  # a thread cannot be started, or Ctrl-C
            self._fail(error)
        wait_for(workers, self._fail)

    def _fail(self, error: BaseException) -> None:
        with self._latch:
            if self._failure is None:
                self._failure = error
        if self._locks is not None:
            self._locks.stop()
        if self._gate is not None:
            self._gate.stop()


# -- schedulers ------------------------------------------------------------------------------------


class Locking(ABC):
    """Scheduler whose s-transactions run on threads and lock the objects that they access.

    Parameters
    ----------
    granularity : {"table", "row"}
        Kind of objects locked.
    threads : int
        Maximum number of s-transactions that run at a time, including those that wait for locks.
    gate : Gate, optional
        Chooses the order of accesses: `TurnGate`, for tests of interleavings.
    """

    def __init__(self, granularity: str = "row", *, threads: int = 4, gate: Gate | None = None):
        self.granularity: Granularity = check_granularity(granularity)
        self.threads = check_threads(threads)
        self._gate = gate
        self._added: list[STransaction] = []

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction, in any order."""
        self._added.append(transaction)

    @abstractmethod
    def run(self, state: SharedState) -> None:
        """Run all s-transactions added; O(n log n) for n locks, besides the operations.

        Raises
        ------
        AccessError
            If two s-transactions have the same place.
        BaseException
            An exception of a function that is not an `Exception`, such as KeyboardInterrupt, or an
            exception of the gate.

        After an error some s-transactions have no outcome; none of them is run later.
        """

    def discard(self) -> None:
        """Discard s-transactions that were added and not run."""
        self._added = []

    def _take_added(self) -> list[STransaction]:
        """Return the s-transactions to run and forget them, whatever the outcome of the run."""
        added, self._added = self._added, []
        return added


# -- reader of references: resolves computed keys first, and makes each access through the pool ----


def resolving(
    read: Callable[[Ref], Any],
    at: At,
    pool: RunThreads,
    *,
    locks: Callable[[Ref], Collection[ObjectLock]] | None = None,
) -> Callable[[Ref], Any]:
    """Return a reader for the operations of one s-transaction.

    Parameters
    ----------
    read : callable
        Gives the value of a reference whose key is known.
    at : At
        The s-transaction's timestamp.
    pool : RunThreads
        Pool on whose thread the reads happen.
    locks : callable, optional
        Gives the locks needed to read such a reference; by default the s-transaction has them
        already.

    Returns
    -------
    callable
        Gives the value of any reference; the sources of a computed key are read through it, too.
    """

    def read_any(ref: Ref) -> Any:
        if isinstance(ref.key, Computed):
            ref = replace(ref, key=at_key(ref, read_any))
        what = f"read {ref!r}" if pool.is_gated else ""
        pool.access(at, what, () if locks is None else locks(ref))
        return read(ref)

    return read_any


# -- strict two-phase locking over a stream (Wang et al., section 5.2) -----------------------------


class S2PL(Locking):
    """Scheduler that locks all possible accesses of an s-transaction from its start to its end.

    The locks of all s-transactions are inserted in timestamp order before any operation runs (phase
    I), and an s-transaction begins when all of its own locks are granted. They are released when it
    has ended (phase II).

    See `Locking` for its parameters.
    """

    name = "s2pl"

    def run(self, state: SharedState) -> None:
        """Run all s-transactions added; see `Locking.run`."""
        added = self._take_added()
        added.sort(key=lambda t: t.at)
        locks = TimestampLockTable(FIGURE_3_S2PL, self._gate)
        needed = insert_all(added, locks, lambda t: locks_of(t, self.granularity))
        pool = RunThreads(self.threads, locks=locks, gate=self._gate)

        def work(transaction: STransaction) -> None:
            at = transaction.at
            locks.request(at, needed[transaction])
            writes, outcome = evaluate(transaction, resolving(state.reader(at), at, pool))
            pool.check()
            if writes:
                pool.access(at, "write")
                state.write(writes, at)
            transaction.outcome = outcome
            locks.release(at)

        pool.run(list(needed), work)


# -- scheduling by low-water marks (Wang et al., section 5.3, appendices E and F) ------------------


class LWM(Locking):
    """Scheduler that delays reads only for earlier writers, and writes only at commit.

    Write locks are inserted in advance, in any order. A read is granted once no older write lock is
    left on its object, and gets the version of its timestamp, whatever has been written since. For
    a computed key, it locks the row as soon as the key is known, not the table. The writes of an
    s-transaction take effect at its end, once its write locks are the oldest, and before they are
    released; if it aborts, none does.

    See `Locking` for its parameters.
    """

    name = "lwm"

    def run(self, state: SharedState) -> None:
        """Run all s-transactions added; see `Locking.run`."""
        added = self._take_added()
        locks = TimestampLockTable(FIGURE_3_LWM, self._gate)
        # read locks would block no request
        to_write = insert_all(added, locks, lambda t: write_locks_of(t, self.granularity))
        pool = RunThreads(self.threads, locks=locks, gate=self._gate)

        def work(transaction: STransaction) -> None:
            at = transaction.at
            read = resolving(
                state.reader(at), at, pool, locks=lambda ref: read_locks(ref, self.granularity)
            )
            writes, outcome = evaluate(transaction, read)
            pool.check()
            if writes:
                pool.access(at, "write", to_write[transaction])
                state.write(writes, at)
            transaction.outcome = outcome
            locks.release(at)

        pool.run(sorted(to_write, key=lambda t: t.at), work)


# -- execution without a scheduler: every access happens when it comes (Wang et al., section 2) ----


_END = At(sys.maxsize, "", 0)


class PushBased:
    """Execution as in stream engines without stream transactions, to demonstrate the anomalies.

    Not for production use. s-transactions run on threads as they arrive. A read gets the value
    written last, in the order in which writes were made, whatever its timestamp: so it may read too
    late, and a writer may write too late.

    Parameters
    ----------
    order : callable, optional
        Chooses the next access, as for `TurnGate`; by default the threads' own timing decides.
    threads : int
        Maximum number of s-transactions that run at a time.

    Attributes
    ----------
    trace : list of (At, str)
        With `order`: the accesses of the last run, in that order.
    """

    name = "push-based"

    def __init__(self, order: Choose | None = None, *, threads: int = 4):
        self._order = order
        self.threads = check_threads(threads)
        self._added: list[STransaction] = []
        self.trace: list[tuple[At, str]] = []

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction; s-transactions begin in this order."""
        self._added.append(transaction)

    def discard(self) -> None:
        """Discard s-transactions that were added and not run."""
        self._added = []

    def run(self, state: SharedState) -> None:
        """Run all s-transactions added. Versions are placed in the order of the writes."""
        added, self._added = self._added, []
        if not added:
            return
        gate = None if self._order is None else TurnGate(self._order)
        pool = RunThreads(self.threads, gate=gate)
        latch = threading.Lock()
        last = min(transaction.at for transaction in added)

        def write(writes: Writes, at: At) -> None:
            nonlocal last
            with latch:
                last = at if at > last else just_after(last)
                state.write(writes, last)

        def work(transaction: STransaction) -> None:
            at = transaction.at

            def newest(ref: Ref) -> Any:
                if ref.window_us is None:
                    return state.value(ref, _END)
                return state.of(ref.table).window(ref.key, at.us - ref.window_us, _END)

            writes, outcome = evaluate(transaction, resolving(newest, at, pool))
            pool.check()
            for item in writes:
                pool.access(at, f"write {item[0][item[1]]!r}" if pool.is_gated else "")
                write([item], at)
            transaction.outcome = outcome

        pool.run(added, work)
        if gate is not None:
            self.trace = gate.trace


# -- single-event-initiated: one event at a time (Wang et al., section 5.1) ------------------------


class SEI(SerialOrder):
    """Scheduler that completes all work triggered by one event before it takes the next event.

    Since each s-transaction has exclusive use of all tables, there are no locks and no choice of
    versions. It takes its input in timestamp order, into which `run` sorts it.
    """

    name = "sei"
