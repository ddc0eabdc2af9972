"""Threads that run TPGs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from activedb.scheduling._operations import Effect
from activedb.scheduling.tpg._execution import Execution
from activedb.scheduling.tpg._exploration import Take
from activedb.scheduling.tpg._times import PhaseTimes, Stopwatch
from activedb.scheduling.tpg._vertex import Vertex

__all__ = ["run_all"]

_Finished = tuple[Execution, Vertex, Effect | None, Exception | None]


def run_all(executions: Sequence[Execution], threads: int) -> PhaseTimes:
    """Run TPGs that have no key in common to their end.

    The calling thread is one of the workers; the others have ended when this returns. An exception
    of an operation that is not an `Exception`, and any internal error, ends the run and is raised.

    Parameters
    ----------
    executions : sequence of Execution
        Created for the same number of workers.
    threads : int
        Number of workers.

    Returns
    -------
    PhaseTimes
        Sum over all workers, without planning.
    """
    crew = _Crew(executions, threads)
    crew.run()
    if crew.error is not None:
        raise crew.error
    return crew.times()


class _Crew:
    """Workers, and the condition on which they wait.

    Latch: `_changed`, held while a worker is in an `Execution`; the latches of versions are taken
    under it. It is not held while an operation is evaluated.

    Attributes
    ----------
    error : BaseException or None
        Error that ended the run early.
    """

    def __init__(self, executions: Sequence[Execution], threads: int):
        self.error: BaseException | None = None
        self._executions = executions
        self._threads = threads
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0
        self._stirs = 0
        self._seen = [-1] * threads  # of a waiting worker: _stirs when it began to wait
        self._times = [PhaseTimes() for _ in range(threads)]  # each worker changes only its own

    def run(self) -> None:
        """Work until all executions are done."""
        threads = [
            threading.Thread(target=self._work, args=(number,), name=f"tpg-{number}", daemon=True)
            for number in range(1, self._threads)
        ]
        try:
            for thread in threads:
                thread.start()
            self._work(0)
        except BaseException as error:  # raised in the calling thread outside `_work`
            self._stop(error)
        finally:
            watch = Stopwatch()
            for thread in threads:
                self._join(thread)
            self._times[0].wait_s += watch.lap_s()

    def times(self) -> PhaseTimes:
        """Return the times of the workers by phase. REQUIRES: all have ended."""
        found = PhaseTimes()
        for times in self._times:
            found.add(times)
        found.abort_s = sum(execution.aborts.seconds for execution in self._executions)
        found.explore_s = max(found.explore_s - found.abort_s, 0.0)  # explore_s includes aborts
        return found

    def _join(self, thread: threading.Thread) -> None:
        """Wait for the end of a thread, even if the user interrupts this one."""
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:
                self._stop(error)

    def _work(self, worker: int) -> None:
        times, watch = self._times[worker], Stopwatch()
        try:
            finished: _Finished | None = None
            while True:
                with self._changed:
                    if finished is not None:
                        execution, vertex, effect, error = finished
                        execution.finish(worker, vertex, effect, error)
                    taken = self._take(worker, watch)
                times.explore_s += watch.lap_s()
                if taken is None:
                    return
                execution, vertex = taken
                finished = (execution, vertex, *execution.evaluate(vertex))
                times.run_s += watch.lap_s()
        except BaseException as error:  # raised later by the calling thread
            self._stop(error)

    def _take(self, worker: int, watch: Stopwatch) -> tuple[Execution, Vertex] | None:
        """Return the next operation, waiting if needed; None at the end. REQUIRES: `_changed`."""
        count = len(self._executions)
        while self.error is None:
            done = 0
            for offset in range(count):
                execution = self._executions[(worker + offset) % count]
                taken = execution.take(worker)
                if isinstance(taken, Vertex):
                    self._notify(execution)
                    return execution, taken
                done += taken is Take.DONE
            self._notify(None)
            if done == count:
                return None
            times = self._times[worker]
            times.explore_s += watch.lap_s()
            self._wait(worker)
            times.wait_s += watch.lap_s()
        return None

    def _notify(self, taken_from: Execution | None) -> None:
        """Wake the waiting workers if there may be an operation for them.

        Workers are not woken if the only operation available was just taken from `taken_from`.
        """
        for execution in self._executions:
            if execution.stirred:
                execution.stirred = False
                if execution is not taken_from or execution.feeds_others():
                    self._stirs += 1
                    if self._waiting:
                        self._changed.notify_all()

    def _wait(self, worker: int) -> None:
        self._seen[worker] = self._stirs
        idle = self._seen.count(self._stirs) == self._threads
        assert not idle, "all workers wait for each other"
        self._waiting += 1
        self._changed.wait()
        self._waiting -= 1
        self._seen[worker] = -1

    def _stop(self, error: BaseException) -> None:
        with self._changed:
            if self.error is None:
                self.error = error
            self._changed.notify_all()
