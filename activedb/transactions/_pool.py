"""Bounded thread pool that cannot starve itself.

```
  submit ──► queue ──► a thread, while fewer than `threads` run
                           │
  wait ──┬─ not begun, the stack is shallow: run it here
         ├─ not begun, the stack is deep: a helper runs it ───────────────┐
         └─ begun on another thread: let the next queued task run ────────┴─► sleep
```

A thread that waits for a task that no thread has taken yet runs it itself, so a parent never
waits for a child that waits for a thread. If that would pile up too many tasks on one stack, a
helper thread runs the task while the waiter sleeps, as in the managed blocking of (Lea, "A
Java fork/join framework", 2000).
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar, cast

from activedb.errors import database_closed

__all__ = ["Pool", "PoolTask", "is_stack_deep"]

T = TypeVar("T")

_RESTING_MAX = 64
_NESTED_MAX = 16
"""Upper bound on the tasks that one thread nests, each inside the wait of the one before."""


class _ThreadState(threading.local):
    """Per-thread state: the number of nested tasks, and the pool to which the thread belongs."""

    nested = 0
    pool: Pool | None = None


_here = _ThreadState()


class PoolTask(Generic[T]):
    """Call that a pool thread, or a waiting thread, makes exactly once.

    All fields are guarded by the pool's latch, except for the outcome of the call, which one
    thread writes before it sets `done`, and others read afterwards: `error`, None if there was
    none, and the result.
    """

    __slots__ = ("_call", "_pool", "_result", "claimed", "done", "error", "sleepers")

    def __init__(self, pool: Pool, call: Callable[[], T]):
        self._pool = pool
        self._call: Callable[[], T] | None = call
        self._result: T
        # The outcome if an interrupt comes between claiming the task and making the call.
        self.error: BaseException | None = KeyboardInterrupt("interrupted before it began")
        self.claimed = False
        self.done = False
        self.sleepers: list[_TaskWaiter] = []

    def wait(self) -> None:
        """Return when the call has been made; if no thread has begun it, have it made now."""
        self._pool.wait(self)

    def result(self) -> T:
        """Wait for the call, then return its result or raise its error."""
        self._pool.wait(self)
        if self.error is not None:
            raise self.error
        return self._result

    def make_call(self) -> None:
        """Make the call on this thread. REQUIRES: this thread has claimed the task."""
        assert self._call is not None
        try:
            self._result = self._call()
            self.error = None
        except BaseException as error:
            self.error = error
        finally:
            self._call = None


class _TaskWaiter:
    """Thread that waits for a task on another thread."""

    __slots__ = ("is_counted", "wake")

    def __init__(self, is_counted: bool):
        self.is_counted = is_counted
        self.wake = threading.Lock()
        self.wake.acquire()


class _PoolThread:
    """Thread of the pool, with the lock it sleeps on, and the task to begin with, if given."""

    __slots__ = ("started", "task", "thread", "wake")

    def __init__(self) -> None:
        self.task: PoolTask[object] | None = None
        self.thread: threading.Thread
        self.started = threading.Event()  # set also if the thread cannot be started
        self.wake = threading.Lock()
        self.wake.acquire()


class Pool:
    """Pool of daemon threads, started on demand, of which at most `threads` run at a time.

    A thread that waits for a task, or is `resting`, does not count as running. When it continues,
    it counts again at once, and never waits for a free slot, because other threads may be waiting
    for locks of its transaction. After a wait for a task the bound still holds, because the thread
    that has ended the task no longer counts; after a rest, one thread too many runs until the next
    task ends.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self, threads: int):
        self._running_max = threads
        self._latch = threading.Lock()
        self._queue: deque[PoolTask[object]] = deque()
        self._running = 0
        self._resting = 0
        self._idle: list[_PoolThread] = []
        self._alive: set[_PoolThread] = set()
        self._closed = False

    def submit(self, call: Callable[[], T]) -> PoolTask[T]:
        """Queue `call`; O(1), never blocks."""
        task = PoolTask(self, call)
        with self._latch:
            if self._closed:
                raise database_closed()
            self._queue.append(cast("PoolTask[object]", task))
            must_wake = self._may_run_more()
        if must_wake:
            self._wake_one()
        return task

    def wait(self, task: PoolTask[T]) -> None:
        """Return when `task` is done; if no thread has begun it, run it here or on a helper."""
        sleeper: _TaskWaiter | None = None
        must_wake = False
        with self._latch:
            if task.done:
                return
            is_mine, task.claimed = not task.claimed, True
            if not is_mine or _here.nested >= _NESTED_MAX or is_stack_deep():
                sleeper = _TaskWaiter(_here.pool is self)
                task.sleepers.append(sleeper)
                self._running -= sleeper.is_counted
                if is_mine:
                    # Not queued: its turn might never come while the waiter keeps its locks.
                    self._running += 1
                    must_wake = True
                else:
                    must_wake = bool(self._queue) and self._may_run_more()
        if sleeper is None:
            self._run_here(task)
            return
        try:
            if must_wake:
                self._wake_one(cast("PoolTask[object]", task) if is_mine else None)
                must_wake = False
            sleeper.wake.acquire()
        except BaseException:
            with self._latch:
                if must_wake:
                    self._running -= 1
                    task.claimed = not is_mine
                if sleeper in task.sleepers:
                    task.sleepers.remove(sleeper)
                    self._running += sleeper.is_counted
            raise

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Let another thread run in place of this one while the block sleeps.

        For waits other than for a task. This keeps threads in long waits from using up the pool.
        At most 64 threads rest; further ones count as running.
        """
        with self._latch:
            may_rest = _here.pool is self and self._resting < _RESTING_MAX
            self._resting += may_rest
            self._running -= may_rest
            must_wake = may_rest and bool(self._queue) and self._may_run_more()
        try:
            if must_wake:
                self._wake_one()
            yield
        finally:
            with self._latch:
                self._resting -= may_rest
                self._running += may_rest

    def close(self) -> None:
        """Let the threads finish the queued tasks, then end them."""
        with self._latch:
            self._closed = True
            idle, self._idle = self._idle, []
            self._running += len(idle)  # until they have found the queue empty
        for worker in idle:
            worker.wake.release()
        while True:
            with self._latch:
                alive = list(self._alive)
            others = [each for each in alive if each.thread is not threading.current_thread()]
            if not others:
                return
            for worker in others:
                worker.started.wait()  # the starting thread has released the latch
                if worker.thread.ident is not None:
                    worker.thread.join()

    # -- inside ----------------------------------------------------------------------------

    def _may_run_more(self) -> bool:
        """Count one more thread as running, if the bound allows it. REQUIRES: the latch."""
        if self._running >= self._running_max:
            return False
        self._running += 1
        return True

    def _next(self) -> PoolTask[object] | None:
        """Claim the next task of the queue. REQUIRES: the latch."""
        while self._queue:
            task = self._queue.popleft()
            if not task.claimed:
                task.claimed = True
                return task
        return None

    def _wake_one(self, task: PoolTask[object] | None = None) -> None:
        """Have a thread, which is counted already, run `task`, or the tasks that it finds queued.

        The thread claims a queued task only when it is awake, because a waiter may be faster.
        """
        with self._latch:
            worker = self._idle.pop() if self._idle else None
            if worker is None:
                fresh = _PoolThread()
                fresh.task = task
                fresh.thread = threading.Thread(
                    target=self._work,
                    args=(fresh,),
                    name=f"activedb-{len(self._alive)}",
                    daemon=True,
                )
                self._alive.add(fresh)
        if worker is not None:
            worker.task = task
            worker.wake.release()
            return
        try:
            fresh.thread.start()
        except RuntimeError:  # the system has no more threads: use the existing ones
            with self._latch:
                self._alive.discard(fresh)
                self._running -= 1
                task = task or self._next()
            fresh.started.set()
            if task is not None:
                self._run_here(task)
        finally:
            fresh.started.set()

    def _run_here(self, task: PoolTask[T]) -> None:
        _here.nested += 1
        try:
            task.make_call()
        finally:
            _here.nested -= 1
            with self._latch:
                sleepers = self._finish(task)
            for sleeper in sleepers:
                sleeper.wake.release()

    def _finish(self, task: PoolTask[T]) -> list[_TaskWaiter]:
        """Mark a task as done; return the sleepers to wake. REQUIRES: the latch."""
        task.done = True
        sleepers, task.sleepers = task.sleepers, []
        self._running += sum(sleeper.is_counted for sleeper in sleepers)
        return sleepers

    def _work(self, worker: _PoolThread) -> None:
        _here.pool = self
        while True:
            self._run_what_there_is(worker)
            with self._latch:
                # No longer counted. A task queued from now on wakes a thread.
                is_needed = len(self._idle) < self._running_max and not self._closed
                if is_needed:
                    self._idle.append(worker)
                else:
                    self._alive.discard(worker)
                    return
            worker.wake.acquire()

    def _run_what_there_is(self, worker: _PoolThread) -> None:
        """Run the given task, then queued tasks as long as the bound allows this thread to run."""
        task, worker.task = worker.task, None
        while True:
            if task is None:
                with self._latch:
                    task = self._next()
                    if task is None:
                        self._running -= 1
                        return
            task.make_call()
            with self._latch:
                sleepers = self._finish(task)
                task = None
                is_one_too_many = self._running > self._running_max
                if is_one_too_many:
                    self._running -= 1
            for sleeper in sleepers:
                sleeper.wake.release()
            if is_one_too_many:
                return


def is_stack_deep() -> bool:
    """Return whether half of the stack that Python allows is used up. O(depth)."""
    try:
        sys._getframe(sys.getrecursionlimit() // 2)
    except ValueError:
        return False
    return True
