"""A deterministic thread scheduler behind the `Waiter` seam.

Workers are real threads, but one runs at a time, and the next is chosen, by a seeded generator or
by whatever the test hands in, wherever a worker pauses, waits, wakes another, joins one or ends.
Time is virtual: it moves only when a wait is chosen to run out. One seed, or one list of choices,
is one interleaving, again and again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from tests.patience import PATIENCE_S

Choose = Callable[[int], int]
"""Function that picks one of several workers that can go on, given in order of their start."""


class Abandoned(BaseException):
    """Exception that ends the workers that a failed run has left behind."""


class Worker:
    """One thread, what it waits for, and how it ended."""

    def __init__(self, body: Callable[[], None]):
        self.body = body
        self.turn = threading.Semaphore(0)
        self.fresh = True
        self.ended = False
        self.error: BaseException | None = None
        self.ready: Callable[[], bool] = lambda: True
        self.deadline_s: float | None = None


class Scheduler:
    """Scheduler of workers in the order that a seed, or a `Choose`, decides."""

    def __init__(self, choose: int | Choose):
        self._choose = random.Random(choose).randrange if isinstance(choose, int) else choose
        self._workers: list[Worker] = []
        self._here = threading.local()
        self._returned = threading.Semaphore(0)
        self._now_s = 0.0
        self._abandoned = False

    def start(self, body: Callable[[], None]) -> Callable[[], None]:
        """Add a worker, from outside or from another worker; return the function that joins it."""
        worker = Worker(body)
        self._workers.append(worker)
        threading.Thread(target=self._live, args=(worker,), daemon=True).start()

        def join() -> None:
            if not worker.ended:
                self.pause(lambda: worker.ended)

        return join

    def run(self) -> None:
        """Run until every worker has ended; raise the first error, or if no worker can go on."""
        try:
            while alive := [worker for worker in self._workers if not worker.ended]:
                able = [w for w in alive if w.ready() or w.deadline_s is not None]
                assert able, "every worker waits: a wake-up was lost or a deadlock not found"
                worker = able[self._choose(len(able))]
                if not worker.ready() and worker.deadline_s is not None:
                    self._now_s = max(self._now_s, worker.deadline_s)
                worker.turn.release()
                assert self._returned.acquire(timeout=PATIENCE_S), (
                    "a worker blocked outside the seam"
                )
                if worker.error is not None:
                    raise worker.error
        except BaseException:
            self._abandoned = True
            for worker in self._workers:
                worker.turn.release()
            raise

    def pause(
        self, ready: Callable[[], bool] = lambda: True, timeout_s: float | None = None
    ) -> None:
        """Give the turn back until `ready`, or until `timeout_s` has passed and is chosen."""
        worker: Worker = self._here.worker
        worker.ready = ready
        worker.deadline_s = None if timeout_s is None else self._now_s + timeout_s
        self._returned.release()
        worker.turn.acquire()
        if self._abandoned:
            raise Abandoned
        worker.fresh = ready()
        worker.ready, worker.deadline_s = (lambda: True), None

    def step(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Give the turn back before an act that the other workers can notice.

        Not before the first one of a turn: who goes first was chosen with the turn itself, and
        choosing again would only be the same interleaving twice. That a wait ran out counts as
        an act, for whoever moves next finds the worker on its way back. Outside of the workers
        there is no turn to give.
        """
        worker: Worker | None = getattr(self._here, "worker", None)
        if worker is not None:
            if not (worker.fresh and ready()):
                self.pause(ready)
            worker.fresh = False

    def clock(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def new_waiter(self) -> ScheduledWaiter:
        return ScheduledWaiter(self)

    def new_latch(self) -> ScheduledLatch:
        return ScheduledLatch(self)

    def _live(self, worker: Worker) -> None:
        self._here.worker = worker
        worker.turn.acquire()
        try:
            if not self._abandoned:
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
        if not self._woken:
            self._scheduler.pause(lambda: self._woken, timeout_s)

    def wake(self) -> None:
        self._scheduler.step()
        self._woken = True


class ScheduledLatch:
    """A latch before which the scheduler may put any other worker's act."""

    def __init__(self, scheduler: Scheduler):
        self._scheduler = scheduler
        self._taken = False

    def __enter__(self) -> None:
        self._scheduler.step(lambda: not self._taken)
        assert not self._taken, "the latch is not re-entrant"
        self._taken = True

    def __exit__(self, *_: object) -> None:
        self._taken = False
