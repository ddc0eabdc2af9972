"""Deadlock detection through `LockTable`, the lock manager's core, in graphs of several shapes."""

from __future__ import annotations

import statistics
import time

from lockmgr import Blocked, Denied, LockTable, Mode, Reply, Resource

__all__ = ["deadlock_ms", "detect_ms", "detect_queue_ms", "detect_unreached_ms"]

_TIMED_S = 0.02
_TIMED_MIN = 3


def detect_ms(waiting: int) -> float:
    """Time a request that must wait at the head of a chain of waiters, and traverses all of it.

    Another transaction waits for the requester, so it may be on a cycle; it is on none.
    """
    table = _chain(waiting)
    return _request_ms(table, _newcomer(table, waiting), ("rows", 0), Blocked)


def deadlock_ms(waiting: int) -> float:
    """Time the request that closes that chain to a ring: the search, the report and the denial."""
    return _request_ms(_chain(waiting), waiting, ("rows", 0), Denied)


def detect_unreached_ms(waiting: int) -> float:
    """Time a request that waits for a running transaction while `waiting` others wait elsewhere."""
    table = _chain(waiting)
    tid = _newcomer(table, waiting)
    table.begin(tid + 2)
    table.request(tid + 2, ("running",), Mode.X)
    return _request_ms(table, tid, ("running",), Blocked)


def detect_queue_ms(waiting: int) -> float:
    """Time a request behind a queue of writers of one row, each waiting for all before it."""
    table = LockTable()
    for tid in range(waiting + 1):
        table.begin(tid)
        table.request(tid, ("rows", 0), Mode.X)
    return _request_ms(table, _newcomer(table, waiting), ("rows", 0), Blocked)


def _chain(waiting: int) -> LockTable:
    """Return a table where transaction i holds row i and, except the last, waits for row i + 1."""
    table = LockTable()
    for tid in range(waiting + 1):
        table.begin(tid)
        table.request(tid, ("rows", tid), Mode.X)
    for tid in range(waiting):
        table.request(tid, ("rows", tid + 1), Mode.X)
    return table


def _newcomer(table: LockTable, waiting: int) -> int:
    """Begin a transaction that another one waits for; return its number."""
    tid = waiting + 1
    table.begin(tid)
    table.request(tid, ("newcomer",), Mode.X)
    table.begin(tid + 1)
    table.request(tid + 1, ("newcomer",), Mode.X)
    return tid


def _request_ms(table: LockTable, tid: int, resource: Resource, answer: type[Reply]) -> float:
    """Time a request that waits or is denied; withdrawn and repeated, a median."""
    taken_s: list[float] = []
    while len(taken_s) < _TIMED_MIN or sum(taken_s) < _TIMED_S:
        started_s = time.perf_counter()
        reply = table.request(tid, resource, Mode.X)
        taken_s.append(time.perf_counter() - started_s)
        assert isinstance(reply, answer), reply
        table.cancel(tid)
    return 1e3 * statistics.median(taken_s)
