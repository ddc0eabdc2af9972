"""Execution of a plan's rows on several threads, handed out as they become ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from activedb.columns.program._conflicts import PrecedenceGraph, completed
from activedb.scheduling import wait_for

__all__ = ["run_plan"]

Chunk = Callable[[Any, int, Any, int, int], tuple[int, int, int]]

_CHUNK_MAX = 4096
_FOLLOWING = 10  # a chunk's rows per follow-up row


def run_plan(
    plan: PrecedenceGraph,
    chunk: Chunk,
    alone: Callable[[int], None],
    *,
    threads: int,
    chunk_rows: int,
) -> float:
    """Run all rows of a plan on worker threads, while the calling thread waits.

    Ctrl-C is delivered to the main thread. If that thread took rows, it could be interrupted after
    acquiring the latch but before recording that it holds it.

    Parameters
    ----------
    plan : PrecedenceGraph
    chunk : callable
        ``chunk(todo, count, done, made, now)`` is `Kernel.chunk` with this plan.
    alone : callable
        Runs a row that the kernel leaves to Python.
    threads : int
    chunk_rows : int
        Maximum number of rows a thread takes at a time. It may go on to a tenth as many rows that
        waited only for those; no other thread can take these follow-up rows.

    Returns
    -------
    float
        Total busy time of all threads, in seconds.

    Raises
    ------
    BaseException
        Any exception of `alone` or a kernel, after all threads have ended.
    """
    handout = _Handout(plan, threads, max(1, min(chunk_rows, _CHUNK_MAX)))

    def work() -> None:
        try:
            handout.work(chunk, alone)
        except BaseException as error:
            handout.stop(error)

    workers = [
        threading.Thread(target=work, name=f"columns-{number}", daemon=True)
        for number in range(1, threads + 1)
    ]
    try:
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
    except BaseException as error:
        handout.stop(error)
        wait_for(workers, handout.stop)
    if handout.error is not None:
        raise handout.error
    return handout.busy_s


class _Handout:
    """Rows that are ready, and the number of rows left.

    Latch: ``_changed``, held while rows are taken or completed, never while one runs. A thread that
    finds no row ready waits on it. A thread notifies when its completed rows make others ready, or
    when it completes the last row.
    """

    def __init__(self, plan: PrecedenceGraph, threads: int, chunk_rows: int):
        self.error: BaseException | None = None
        self.busy_s = 0.0
        self._plan = plan
        self._edges = (plan.first_edge, plan.edge_to, plan.edge_next, plan.waits)
        self._share = 2 * threads
        self._chunk_rows = chunk_rows
        self._following = max(1, chunk_rows // _FOLLOWING)
        self._changed = threading.Condition(threading.Lock())
        self._ready_count = plan.ready_count
        self._left = plan.count
        self._now = 0  # number of completions so far
        self._waiting = 0
        self._running = 0

    def stop(self, error: BaseException) -> None:
        """Stop all threads and record the reason."""
        with self._changed:
            if self.error is None:
                self.error = error
            self._changed.notify_all()

    def work(
        self,
        chunk: Chunk,
        alone: Callable[[int], None],
    ) -> None:
        """Take and run rows until none are left; the body of each worker thread."""
        todo = np.empty(self._chunk_rows + self._following, np.int64)
        done = np.empty(len(todo), np.int64)
        made, busy_s = 0, 0.0
        while True:
            with self._changed:
                if made:
                    self._complete(done, made, busy_s)
                left = self._take(todo)
                now = self._now
            if not left:
                return
            start, made = time.thread_time(), 0
            part = todo[: left + self._following]
            while left:
                row, left, made = chunk(part, left, done, made, now)
                assert made + left <= len(part)
                if row >= 0:
                    alone(row)
            busy_s = time.thread_time() - start

    def _complete(self, done: Any, made: int, busy_s: float) -> None:
        self.busy_s += busy_s
        self._running -= 1
        self._left -= made
        self._now += 1
        before = self._ready_count
        self._ready_count = completed(done, made, *self._edges, self._now, self._plan.ready, before)
        if self._waiting and (self._ready_count or not self._left):
            self._changed.notify_all()

    def _take(self, todo: Any) -> int:
        """Take some ready rows, last first; return their number, 0 at the end of the run."""
        while self.error is None and self._left and not self._ready_count:
            assert self._running, "rows wait for each other"
            self._waiting += 1
            self._changed.wait()
            self._waiting -= 1
        if self.error is not None or not self._left:
            return 0
        count = max(1, min(self._chunk_rows, self._ready_count // self._share))
        self._ready_count -= count
        todo[:count] = self._plan.ready[self._ready_count : self._ready_count + count]
        self._running += 1
        return count
