from __future__ import annotations

import threading
from functools import partial

import pytest

from activedb.errors import TransactionStateError
from activedb.transactions._pool import Pool
from tests.databases import in_thread, until

pytestmark = pytest.mark.timeout(30)


def test_pool_starts_no_more_threads_than_allowed() -> None:
    pool = Pool(2)
    go = threading.Event()
    running = []

    def call() -> None:
        running.append(threading.get_ident())
        assert go.wait(5)

    tasks = [pool.submit(call) for _ in range(5)]
    until(lambda: len(running) == 2)
    go.set()
    for task in tasks:
        task.wait()
    assert len(set(running) - {threading.get_ident()}) <= 2
    pool.close()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_pool_with_idle_threads_runs_as_many_tasks_at_once_as_it_may(count: int) -> None:
    """A thread that is being woken is not idle any more: the next task needs another one."""
    for _ in range(20):
        rendezvous(count)


def rendezvous(count: int) -> None:
    """Have tasks meet on a pool that has one idle thread."""
    pool = Pool(4)
    pool.submit(lambda: None)
    until(lambda: pool._idle == 1 and not pool._queue)
    meeting = threading.Barrier(count, timeout=2)
    tasks = [pool.submit(meeting.wait) for _ in range(count)]
    until(lambda: all(task._done.is_set() for task in tasks))
    pool.close()
    assert [task.error for task in tasks] == [None] * count


def test_pool_waiter_runs_a_task_that_no_thread_has_taken() -> None:
    pool = Pool(1)
    go = threading.Event()
    busy = pool.submit(lambda: go.wait(5))
    queued = pool.submit(threading.get_ident)
    assert queued.result() == threading.get_ident()
    go.set()
    assert busy.result() is True
    pool.close()


def test_pool_task_runs_exactly_once_however_many_wait() -> None:
    pool = Pool(3)
    for _ in range(50):
        runs: list[int] = []
        task = pool.submit(partial(runs.append, 1))
        waiters = [in_thread(task.wait) for _ in range(4)]
        for waiter in waiters:
            waiter.result(5)
        assert runs == [1]
    pool.close()


def test_pool_task_error_is_kept_for_every_waiter() -> None:
    pool = Pool(1)
    task = pool.submit(lambda: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            task.result()
    assert isinstance(task.error, ZeroDivisionError)
    pool.close()


def test_pool_close_finishes_what_is_queued_and_refuses_more() -> None:
    pool = Pool(1)
    done: list[int] = []
    for number in range(10):
        pool.submit(partial(done.append, number))
    pool.close()
    assert done == list(range(10))
    with pytest.raises(TransactionStateError, match="closed"):
        pool.submit(lambda: None)
    pool.close()
