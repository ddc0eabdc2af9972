"""Berkeley DB's side of `benchmarks.locks`, through its Python binding, if it is installed.

A private environment in memory with the lock, transaction and log subsystems and no database:
transactions write no log records, since they only lock. Everything except the sizes is at its
default. Its locks are exact: a caller that wants a table's intention lock acquires it itself. No
caller does here, which saves Berkeley DB one lock per transaction compared with our lock manager.

A child that commits hands its locks to its parent, as in our lock manager. Its detector is a call
that scans the whole lock table; its waiters are blocked threads, which let other Python threads
run.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import threading
import time
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import _handover
from benchmarks._lockmgr import HELD

__all__ = ["Berkeley"]

_LOCKS_MAX = 100_000
_LOCKERS_MAX = 10_000
_DETECTIONS = 5
_POLL_S = 0.001
_WAIT_S_MAX = 30.0


class Berkeley:
    """An open environment; each method does one run of the measurement of the same name."""

    name = "Berkeley DB"

    def __init__(self, db: Any):
        self._db = db
        self._env = db.DBEnv()
        self._env.set_lk_max_locks(_LOCKS_MAX)
        self._env.set_lk_max_objects(_LOCKS_MAX)
        self._env.set_lk_max_lockers(_LOCKERS_MAX)
        self._env.log_set_config(db.DB_LOG_IN_MEMORY, 1)
        self._env.set_flags(db.DB_TXN_NOSYNC, 1)
        subsystems = db.DB_INIT_LOCK | db.DB_INIT_TXN | db.DB_INIT_LOG | db.DB_INIT_MPOOL
        self._home = TemporaryDirectory(prefix="activedb-bench-")  # closing it writes a log
        self._env.open(self._home.name, db.DB_CREATE | db.DB_PRIVATE | db.DB_THREAD | subsystems)
        self._write = db.DB_LOCK_WRITE

    @classmethod
    def open(cls) -> Berkeley | None:
        """Open an environment; without the binding, print how to install it and return None."""
        try:
            db = importlib.import_module("berkeleydb.db")
        except ImportError as error:
            print(
                f"no Berkeley DB to compare with ({error}); to have it: "
                "pip install '.[berkeleydb]' (Debian/Ubuntu: it builds with libdb-dev)",
                file=sys.stderr,
            )
            return None
        return cls(db)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
        self._home.cleanup()

    def acquire_release_per_s(self, locks: int) -> float:
        """Return the locks per second acquired and released one by one, `HELD` at a time."""
        env, write = self._env, self._write
        rounds = max(1, locks // HELD)
        locker = env.lock_id()
        started_s = time.perf_counter()
        for _ in range(rounds):
            held = [env.lock_get(locker, b"%d" % row, write) for row in range(HELD)]
            for lock in held:
                env.lock_put(lock)
        taken_s = time.perf_counter() - started_s
        env.lock_id_free(locker)
        return rounds * HELD / taken_s

    def nested_per_s(self, transactions: int) -> float:
        """Return top-level transactions per second, each with one child that locks one object."""
        env, write = self._env, self._write
        started_s = time.perf_counter()
        for number in range(transactions):
            parent = env.txn_begin()
            child = env.txn_begin(parent)
            env.lock_get(child.id(), b"%d" % (number % 1000), write)
            child.commit()
            parent.commit()
        return transactions / (time.perf_counter() - started_s)

    def inherit_ms(self, locks: int) -> float:
        """Return the time of the commit of a child whose parent inherits this number of locks."""
        parent = self._env.txn_begin()
        child = self._env.txn_begin(parent)
        locker = child.id()
        for row in range(locks):
            self._env.lock_get(locker, b"%d" % row, self._write)
        started_s = time.perf_counter()
        child.commit()
        taken_s = time.perf_counter() - started_s
        parent.commit()
        return 1e3 * taken_s

    def handover_us(self, handovers: int) -> float:
        """Return the median time from a commit until the waiting thread has the lock."""
        transactions: dict[int, Any] = {}

        def acquire(party: int) -> None:
            transaction = transactions[party] = self._env.txn_begin()
            self._env.lock_get(transaction.id(), b"1", self._write)

        def release(party: int) -> None:
            transactions[party].commit()

        return _handover.handover_us(handovers, acquire, release, self._waited)

    def detect_ms(self, waiting: int) -> float:
        """Return the median time of the detector over a chain of waiting threads without a cycle.

        One run per chain: without a new waiter since the last run the detector does nothing.
        """
        return statistics.median(self._detect_once_ms(waiting) for _ in range(_DETECTIONS))

    def _detect_once_ms(self, waiting: int) -> float:
        env, write = self._env, self._write
        ready = threading.Barrier(waiting + 1)
        waited_before = self._waited()

        def wait_for_next(number: int) -> None:
            locker = env.lock_id()
            own = env.lock_get(locker, b"%d" % number, write)
            ready.wait()
            following = env.lock_get(locker, b"%d" % (number + 1), write)
            env.lock_put(following)
            env.lock_put(own)
            env.lock_id_free(locker)

        threads = [threading.Thread(target=wait_for_next, args=(n,)) for n in range(waiting)]
        for thread in threads:
            thread.start()
        locker = env.lock_id()
        last = env.lock_get(locker, b"%d" % waiting, write)
        ready.wait()
        try:
            give_up_s = time.monotonic() + _WAIT_S_MAX
            while self._waited() - waited_before < waiting:
                assert time.monotonic() < give_up_s, "not all threads wait"
                time.sleep(_POLL_S)
            started_s = time.perf_counter()
            victims = env.lock_detect(self._db.DB_LOCK_DEFAULT)
            taken_s = time.perf_counter() - started_s
        finally:
            env.lock_put(last)
            for thread in threads:
                thread.join()
            env.lock_id_free(locker)
        assert victims == 0, victims
        return 1e3 * taken_s

    def _waited(self) -> int:
        """Return the number of requests that have waited since the environment was opened."""
        return int(self._env.lock_stat()["lock_wait"])
