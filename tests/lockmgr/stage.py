"""Real threads that run one at a time, in the order in which they could: no races, no sleeps.

A worker runs until it sleeps in the lock manager's `Waiter` seam, or ends; only then the next one
that is ready gets its turn. Time is virtual and stands still except in `pass_time`. Unlike
`scheduler`, which draws an interleaving, the stage always plays the same one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tests.patience import PATIENCE_S


class Curtain(BaseException):
    """Raised in a worker that still sleeps when the stage closes."""


class Worker:
    """A thread that makes one call, and how that ended."""

    def __init__(self, call: Callable[[], None]):
        self.call = call
        self.turn = threading.Semaphore(0)
        self.ended = False
        self.error: BaseException | None = None


class Stage:
    """Stage that gives workers their turns, first in, first out.

    Only the worker that has the turn touches any attribute, so none needs a latch.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.closing = False
        self.ended: list[Worker] = []
        self._ready: deque[Worker] = deque()
        self._asleep: dict[StageWaiter, Worker] = {}
        self._current: Worker | None = None
        self._returned = threading.Semaphore(0)

    def start(self, call: Callable[[], None]) -> Worker:
        """Make a worker for `call`; it runs at the next `settle`."""
        worker = Worker(call)
        threading.Thread(target=self._live, args=(worker,), daemon=True).start()
        self._ready.append(worker)
        return worker

    def settle(self) -> None:
        """Let everybody run until every worker sleeps or has ended."""
        while self._ready:
            self._current = self._ready.popleft()
            self._current.turn.release()
            assert self._returned.acquire(timeout=PATIENCE_S), "a worker blocked outside the seam"

    def pass_time(self, seconds: float) -> None:
        """Move the clock on, stopping wherever a wait runs out, until everybody sleeps again."""
        end_s = self.now_s + seconds
        while due := [
            w for w in self._asleep if w.deadline_s is not None and w.deadline_s <= end_s
        ]:
            first = min(due, key=lambda waiter: waiter.deadline_s or 0.0)
            self.now_s = max(self.now_s, first.deadline_s or 0.0)
            self.rouse(first)
            self.settle()
        self.now_s = end_s

    def close(self) -> None:
        """End every worker that still sleeps."""
        self.closing = True
        for waiter in tuple(self._asleep):
            self.rouse(waiter)
        self.settle()

    def clock(self) -> float:
        """Virtual seconds."""
        return self.now_s

    def new_waiter(self) -> StageWaiter:
        """Make the place for one sleep of the worker that has the turn."""
        return StageWaiter(self)

    def sleep(self, waiter: StageWaiter) -> None:
        """Give the turn back until `rouse`; called on the worker's thread."""
        worker = self._current
        assert worker is not None
        if self.closing:
            raise Curtain
        self._asleep[waiter] = worker
        self._returned.release()
        worker.turn.acquire()
        if self.closing:
            raise Curtain

    def rouse(self, waiter: StageWaiter) -> None:
        """Put the sleeper, if it still sleeps, in line for a turn."""
        worker = self._asleep.pop(waiter, None)
        if worker is not None:
            self._ready.append(worker)

    def _live(self, worker: Worker) -> None:
        worker.turn.acquire()
        try:
            worker.call()
        except BaseException as error:
            worker.error = error
        worker.ended = True
        self.ended.append(worker)
        self._returned.release()


class StageWaiter:
    """A `Waiter` whose sleeps and wake-ups are the stage's."""

    def __init__(self, stage: Stage):
        self.deadline_s: float | None = None
        self._stage = stage
        self._woken = False

    def wait(self, timeout_s: float | None) -> None:
        self.deadline_s = None if timeout_s is None else self._stage.now_s + timeout_s
        if not self._woken:
            self._stage.sleep(self)

    def wake(self) -> None:
        self._woken = True
        self._stage.rouse(self)
