"""A deterministic thread scheduler behind the `Waiter` seam.

Workers are real threads, but one runs at a time, and the next is drawn from a seeded generator
wherever a worker pauses, waits, wakes another, joins one or ends. Time is virtual: it moves only
when a wait is drawn to run out. One seed is one interleaving, again and again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

STALL_S = 20.0
"""How long a worker may run without giving the turn back before the test gives up."""


class Worker:
    """One thread, what it waits for, and how it ended."""

    def __init__(self, body: Callable[[], None]):
        self.body = body
        self.turn = threading.Semaphore(0)
        self.ended = False
        self.error: BaseException | None = None
        self.ready: Callable[[], bool] = lambda: True
        self.deadline_s: float | None = None


class Scheduler:
    """Runs workers in an order that `seed` decides."""

    def __init__(self, seed: int):
        self._draw = random.Random(seed)
        self._workers: list[Worker] = []
        self._current: Worker | None = None
        self._returned = threading.Semaphore(0)
        self._now_s = 0.0

    def start(self, body: Callable[[], None]) -> Callable[[], None]:
        """Add a worker, from outside or from another worker; return the function that joins it."""
        worker = Worker(body)
        self._workers.append(worker)
        threading.Thread(target=self._live, args=(worker,), daemon=True).start()
        return lambda: self.pause(lambda: worker.ended)

    def run(self) -> None:
        """Run until every worker has ended; raise the first error, or if nobody can go on."""
        while alive := [worker for worker in self._workers if not worker.ended]:
            able = [w for w in alive if w.ready() or w.deadline_s is not None]
            assert able, "every worker waits: a wake-up was lost or a deadlock not found"
            worker = self._draw.choice(able)
            if not worker.ready() and worker.deadline_s is not None:
                self._now_s = max(self._now_s, worker.deadline_s)
            self._current = worker
            worker.turn.release()
            assert self._returned.acquire(timeout=STALL_S), "a worker blocked outside the seam"
            if worker.error is not None:
                raise worker.error

    def pause(
        self, ready: Callable[[], bool] = lambda: True, timeout_s: float | None = None
    ) -> None:
        """Give the turn back until `ready`, or until `timeout_s` has passed and is drawn."""
        worker = self._current
        assert worker is not None
        worker.ready = ready
        worker.deadline_s = None if timeout_s is None else self._now_s + timeout_s
        self._returned.release()
        worker.turn.acquire()
        worker.ready, worker.deadline_s = (lambda: True), None

    def clock(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def new_waiter(self) -> ScheduledWaiter:
        return ScheduledWaiter(self)

    def _live(self, worker: Worker) -> None:
        worker.turn.acquire()
        try:
            worker.body()
        except BaseException as error:
            worker.error = error
        worker.ended = True
        self._returned.release()


class ScheduledWaiter:
    """A `Waiter` whose sleeps and wake-ups are the scheduler's."""

    def __init__(self, scheduler: Scheduler):
        self._scheduler = scheduler
        self._woken = False

    def wait(self, timeout_s: float | None) -> None:
        self._scheduler.pause(lambda: self._woken, timeout_s)

    def wake(self) -> None:
        self._scheduler.pause()
        self._woken = True
