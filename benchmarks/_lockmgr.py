"""Lock manager's side of `benchmarks.locks`: each function does one run of one measurement.

It needs only the standard library and `lockmgr`, so that it can be run in a separate process with
another build of `lockmgr`: ``python -P -m benchmarks._lockmgr nested_per_s 30000`` prints one JSON
object, the value after a warm-up and whether the build is compiled.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import _handover
from lockmgr import InRange, LockManager, LockTable, Mode, OneOf, Predicate, Resource

__all__ = [
    "HELD",
    "acquire_release_per_s",
    "bytes_per_lock",
    "commit_us",
    "declared_write_per_s",
    "handover_us",
    "inherit_ms",
    "is_compiled",
    "nested_per_s",
    "predicate_lock_per_s",
]

HELD = 100
"""Locks that a transaction of `acquire_release_per_s` holds when it commits."""

_COMMITS = 200
_COMMITTED_LOCKS = 10
_PREDICATES = 100


def is_compiled() -> bool:
    """Return whether the imported lock table is an extension module."""
    return Path(str(sys.modules[LockTable.__module__].__file__)).suffix != ".py"


# -- without contention --------------------------------------------------------------------------


def acquire_release_per_s(locks: int) -> float:
    """Return the write locks per second acquired on rows and released by commits of `HELD` locks.

    The intention lock on the table is acquired as well, each time, and not counted.
    """
    manager = LockManager()
    transactions = max(1, locks // HELD)
    started_s = time.perf_counter()
    for tid in range(1, transactions + 1):
        manager.begin(tid)
        for row in range(HELD):
            manager.acquire(tid, ("rows", row), Mode.X)
        manager.commit(tid)
    return transactions * HELD / (time.perf_counter() - started_s)


def nested_per_s(transactions: int) -> float:
    """Return the top-level transactions per second, each with one child that writes one row."""
    manager = LockManager()
    started_s = time.perf_counter()
    for tid in range(1, 2 * transactions, 2):
        manager.begin(tid)
        manager.begin(tid + 1, parent=tid)
        manager.acquire(tid + 1, ("rows", tid % 1000), Mode.X)
        manager.commit(tid + 1)
        manager.commit(tid)
    return transactions / (time.perf_counter() - started_s)


def predicate_lock_per_s(locks: int) -> float:
    """Return the predicates per second locked for reading, and released by commits of ten.

    Another transaction has locked a hundred other predicates of the table.
    """
    manager = LockManager()
    _lock_wards(manager, 1, range(-_PREDICATES, 0))
    transactions = max(1, locks // _COMMITTED_LOCKS)
    started_s = time.perf_counter()
    for tid in range(2, 2 + transactions):
        _lock_wards(manager, tid, range(_COMMITTED_LOCKS))
        manager.commit(tid)
    return transactions * _COMMITTED_LOCKS / (time.perf_counter() - started_s)


def declared_write_per_s(writes: int) -> float:
    """Return the row writes per second that are compared with the locked predicates, and meet none.

    Another transaction has locked a hundred predicates of the table.
    """
    manager = LockManager()
    _lock_wards(manager, 1, range(-_PREDICATES, 0))
    started_s = time.perf_counter()
    for tid in range(2, 2 + writes):
        manager.begin(tid)
        manager.acquire(tid, ("rows",), Mode.IX)
        manager.declare(tid, ("rows",), ())
        manager.acquire(tid, ("rows", tid), Mode.X)
        manager.declare(tid, ("rows",), [{"id": tid, "ward": 1, "level": 2}])
        manager.commit(tid)
    return writes / (time.perf_counter() - started_s)


def _lock_wards(manager: LockManager, tid: int, wards: Iterable[int]) -> None:
    manager.begin(tid)
    for ward in wards:
        predicate = Predicate([OneOf("ward", [ward]), InRange("level", 3, None)])
        manager.acquire(tid, ("rows", predicate), Mode.S)


def inherit_ms(locks: int) -> float:
    """Return the time of the commit of a child whose parent inherits this number of write locks."""
    manager = LockManager()
    manager.begin(1)
    manager.begin(2, parent=1)
    for row in range(locks):
        manager.acquire(2, ("rows", row), Mode.X)
    started_s = time.perf_counter()
    manager.commit(2)
    return 1e3 * (time.perf_counter() - started_s)


def commit_us(others: int) -> float:
    """Return the median time of a commit with 10 locks while another transaction holds `others`."""
    manager = LockManager()
    manager.begin(1)
    for row in range(others):
        manager.acquire(1, ("rows", row), Mode.S)
    taken_s = []
    for tid in range(2, 2 + _COMMITS):
        manager.begin(tid)
        for row in range(_COMMITTED_LOCKS):
            manager.acquire(tid, ("rows", -1 - row), Mode.X)
        started_s = time.perf_counter()
        manager.commit(tid)
        taken_s.append(time.perf_counter() - started_s)
    return 1e6 * statistics.median(taken_s)


def bytes_per_lock(locks: int) -> tuple[float, float]:
    """Return the memory per lock that one transaction holds on a row of one table.

    The first value is the memory that the lock manager adds to paths that the caller keeps anyway,
    the second includes these paths (a tuple and its number). As allocated; without the caller's
    list of them.
    """
    manager = LockManager()
    manager.begin(1)
    tracemalloc.start()
    try:
        paths: list[Resource] = [("rows", 1_000 + row) for row in range(locks)]
        paths_bytes = tracemalloc.get_traced_memory()[0] - sys.getsizeof(paths)
        before = tracemalloc.get_traced_memory()[0]
        for path in paths:
            manager.acquire(1, path, Mode.X)
        locks_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return locks_bytes / locks, (locks_bytes + paths_bytes) / locks


# -- with contention -----------------------------------------------------------------------------


def handover_us(handovers: int) -> float:
    """Return the median time from a commit until the other thread holds the row it waited for."""
    manager = LockManager()

    def acquire(tid: int) -> None:
        manager.begin(tid)
        manager.acquire(tid, ("rows", 1), Mode.X)

    return _handover.handover_us(handovers, acquire, manager.commit, lambda: manager.counters.waits)


if __name__ == "__main__":
    _measure: Callable[[int], float] = globals()[sys.argv[1]]
    _measure(int(sys.argv[2]))  # the warm-up
    print(json.dumps({"compiled": is_compiled(), "value": _measure(int(sys.argv[2]))}))
