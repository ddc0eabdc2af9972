"""A workload with a checkable outcome: nested transactions that count, on any kind of thread.

Rows are plain integers that only the locks protect. Every increment is a read, a pause and a
write; an abort takes its own increments back. In the end the rows must add up to the increments
of the transactions whose whole line committed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial

from lockmgr import Deadlock, LockManager, LockTimeout, Mode, WaitCancelled, intention

TABLE = ("rows",)
DEPTH_MAX = 2

Start = Callable[[Callable[[], None]], Callable[[], None]]
"""Function that starts a body on a thread of its own and returns the function that joins it."""


class RolledBack(Exception):
    """A transaction that aborts of its own accord."""


GIVEN_UP = (Deadlock, LockTimeout, WaitCancelled, RolledBack)


class Workload:
    """Workload of random nested transactions over a few rows."""

    def __init__(
        self,
        manager: LockManager,
        *,
        seed: int,
        start: Start,
        pause: Callable[[], None],
        rows: int = 3,
        timeouts_s: tuple[float | None, ...] = (None, None, None, 0, 0.01),
    ):
        self.manager = manager
        self.rows = [0] * rows
        self.committed: list[int] = []
        self._seed = seed
        self._start = start
        self._pause = pause
        self._timeouts_s = timeouts_s
        self._tids = itertools.count(1)

    def transaction(self) -> None:
        """Run one top-level transaction to its end, whichever that is."""
        tid = next(self._tids)
        self.manager.begin(tid)
        self._run(tid, self.committed, 0)

    def _run(self, tid: int, destination: list[int], depth: int) -> None:
        """Run a transaction that has begun; if it commits, its increments go to `destination`."""
        draw = random.Random(f"{self._seed} {tid}")
        increments: list[int] = []
        try:
            for _ in range(draw.randint(1, 4)):
                self._act(tid, increments, depth, draw)
            if draw.random() < 0.15:
                raise RolledBack
        except GIVEN_UP:
            for row in increments:
                self.rows[row] -= 1
            self.manager.abort(tid)
        else:
            destination.extend(increments)
            self.manager.commit(tid)

    def _act(self, tid: int, increments: list[int], depth: int, draw: random.Random) -> None:
        row = draw.randrange(len(self.rows))
        timeout_s = draw.choice(self._timeouts_s)
        action = draw.choice(("count", "count", "read", "scan", "children", "children"))
        if action == "count":
            self._acquire(tid, (*TABLE, row), Mode.X, timeout_s)
            value = self.rows[row]
            self._pause()
            self.rows[row] = value + 1
            increments.append(row)
        elif action == "read":
            self._acquire(tid, (*TABLE, row), Mode.S, timeout_s)
            value = self.rows[row]
            self._pause()
            assert self.rows[row] == value, f"row {row} changed under a shared lock"
        elif action == "scan":
            self._acquire(tid, TABLE, Mode.S, timeout_s)
            values = list(self.rows)
            self._pause()
            assert self.rows == values, "the table changed under a scan"
        elif depth < DEPTH_MAX:
            self._spawn(tid, increments, depth, draw)

    def _spawn(self, tid: int, increments: list[int], depth: int, draw: random.Random) -> None:
        """Run children in parallel, and something of the parent's own beside them."""
        self.manager.offer(tid)
        children = [next(self._tids) for _ in range(draw.randint(1, 3))]
        joins = []
        for child in children:
            self.manager.begin(child, tid)
            joins.append(self._start(partial(self._run, child, increments, depth + 1)))
        try:
            if draw.random() < 0.5:
                self._act(tid, increments, DEPTH_MAX, draw)
        except GIVEN_UP:
            for child in children:
                self.manager.cancel(child)
            raise
        finally:
            for join in joins:
                join()

    def _acquire(
        self, tid: int, resource: tuple[str | int, ...], mode: Mode, timeout_s: float | None
    ) -> None:
        self.manager.acquire(tid, resource, mode, timeout_s)
        for length in range(1, len(resource)):
            assert self.manager.holds(tid, resource[:length], intention(mode))
        assert self.manager.holds(tid, resource, mode)

    def check(self) -> None:
        """Check that nothing is lost and nothing is left, once all threads have ended."""
        assert self.rows == [self.committed.count(row) for row in range(len(self.rows))]
        assert self.manager.dump() == "empty"
        assert not self.manager._sleepers
        assert not self.manager._cancelled
