"""A bounded pool of threads that cannot starve itself.

Whoever waits for a task that no thread has taken yet runs it on its own thread, so a parent
never waits for a child that waits for a thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from activedb.errors import TransactionStateError

__all__ = ["Pool", "Task"]

T = TypeVar("T")


class Task(Generic[T]):
    """A call that a pool thread, or whoever waits for it, will make exactly once."""

    __slots__ = ("_call", "_claimed", "_done", "_error", "_latch", "_result")

    def __init__(self, call: Callable[[], T]):
        self._call: Callable[[], T] | None = call
        self._latch = threading.Lock()
        self._claimed = False
        self._done = threading.Event()
        self._result: T
        self._error: BaseException | None = None

    def run_if_unclaimed(self) -> bool:
        """Run the call on this thread unless somebody else has taken it."""
        with self._latch:
            if self._claimed:
                return False
            self._claimed = True
        assert self._call is not None
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error
        finally:
            self._call = None
            self._done.set()
        return True

    def wait(self) -> None:
        """Return when the call has been made, making it here if nobody has begun."""
        if not self.run_if_unclaimed():
            self._done.wait()

    def result(self) -> T:
        """Wait, then return what the call returned or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def error(self) -> BaseException | None:
        """What the call raised, once it is done."""
        return self._error


class Pool:
    """At most `threads` daemon threads, started as they are needed.

    Latch: ``_wake``; nothing else is taken under it.
    """

    def __init__(self, threads: int):
        self._threads_max = threads
        self._threads: list[threading.Thread] = []
        self._queue: deque[Task[object]] = deque()
        self._wake = threading.Condition()
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Task[T]:
        """Queue `call`; O(1), never blocks."""
        task = Task(call)
        with self._wake:
            if self._closed:
                raise TransactionStateError("the database is closed; open it again with connect()")
            self._queue.append(task)  # type: ignore[arg-type]  # results are read by type T only
            # Every queued task needs an idle thread of its own; one that was woken for an
            # earlier task may not have run yet and still count as idle.
            if len(self._queue) <= self._idle:
                self._wake.notify()
            elif len(self._threads) < self._threads_max:
                thread = threading.Thread(
                    target=self._work, name=f"activedb-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        return task

    def close(self) -> None:
        """Let the threads finish what is queued, then end them."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._idle += 1
                self._wake.wait_for(lambda: self._queue or self._closed)
                self._idle -= 1
                if not self._queue:
                    return
                task = self._queue.popleft()
            task.run_if_unclaimed()
