from __future__ import annotations

import signal
import threading
from functools import partial

import pytest

from activedb.errors import TransactionStateError
from activedb.transactions._pool import Pool
from tests.databases import PATIENCE_S, in_thread, until


def test_pool_starts_no_more_threads_than_allowed() -> None:
    pool = Pool(2)
    go = threading.Event()
    running = []

    def call() -> None:
        running.append(threading.get_ident())
        assert go.wait(PATIENCE_S)

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
    until(lambda: len(pool._idle) == 1)
    meeting = threading.Barrier(count, timeout=PATIENCE_S)
    tasks = [pool.submit(meeting.wait) for _ in range(count)]
    until(lambda: all(task.done for task in tasks))
    pool.close()
    assert [task.error for task in tasks] == [None] * count


def test_pool_waiter_runs_a_task_that_no_thread_has_taken() -> None:
    pool = Pool(1)
    go = threading.Event()
    busy = pool.submit(lambda: go.wait(PATIENCE_S))
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
            waiter.result(PATIENCE_S)
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


def test_pool_close_waits_for_a_thread_that_is_being_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread is known from the moment it is made, but cannot be joined before it has started."""
    starting, go = threading.Event(), threading.Event()
    start = threading.Thread.start

    def start_slowly(thread: threading.Thread) -> None:
        if thread.name.startswith("activedb-"):
            starting.set()
            assert go.wait(PATIENCE_S)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    pool, done = Pool(1), threading.Event()
    submitting = in_thread(lambda: pool.submit(done.set))
    assert starting.wait(PATIENCE_S)
    closing = in_thread(pool.close)
    until(lambda: pool._closed)
    go.set()
    submitting.result(PATIENCE_S)
    closing.result(PATIENCE_S)
    assert done.is_set()
    assert not pool._alive


def nested(pool: Pool, depth: int) -> int:
    """A call that waits for a call that waits for a call, and so on."""
    return 1 + (pool.submit(partial(nested, pool, depth - 1)).result() if depth else 0)


@pytest.mark.parametrize("threads", [1, 4])
def test_pool_waits_nested_as_deep_as_memory_allows_end(threads: int) -> None:
    pool = Pool(threads)
    assert in_thread(nested, pool, 3_000).result(PATIENCE_S) == 3_001
    until(lambda: pool._running == 0)
    until(lambda: len(pool._alive) <= threads)  # those too many end a moment later
    pool.close()
    assert not pool._alive


def test_pool_waiter_with_a_deep_stack_of_its_own_has_a_substitute_run_the_task() -> None:
    pool = Pool(1)
    hold = threading.Event()
    busy = pool.submit(lambda: hold.wait(PATIENCE_S))

    def deep(frames: int) -> int:
        if frames:
            return deep(frames - 1)
        return pool.submit(threading.get_ident).result()

    here = in_thread(lambda: (threading.get_ident(), deep(3), deep(600))).result(PATIENCE_S)
    assert here[1] == here[0]
    assert here[2] != here[0]
    hold.set()
    busy.wait()
    pool.close()


def test_pool_thread_that_waits_lets_another_one_run() -> None:
    """A third task can run while one of two threads waits for a task of the other."""
    pool = Pool(2)
    met = threading.Barrier(2, timeout=PATIENCE_S)
    meets = [threading.Event(), threading.Event()]

    def second() -> None:
        meets[0].set()
        met.wait()

    def first() -> None:
        task = pool.submit(second)
        assert meets[0].wait(PATIENCE_S)  # a thread has it, so this one has to sleep
        task.wait()

    outer = pool.submit(first)
    assert meets[0].wait(PATIENCE_S)
    third = pool.submit(met.wait)
    until(lambda: third.done)
    outer.result()
    pool.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_pool_runs_no_more_at_once_than_it_may_however_many_wait(threads: int) -> None:
    """The leaves of a tree of tasks, which do not wait, never exceed the number allowed."""
    pool = Pool(threads)
    latch = threading.Lock()
    running: list[int] = [0, 0]

    def leaf() -> None:
        with latch:
            running[0] += 1
            running[1] = max(running)
        for _ in range(200):
            pass
        with latch:
            running[0] -= 1

    def tree(depth: int) -> None:
        if not depth:
            leaf()
            return
        for task in [pool.submit(partial(tree, depth - 1)) for _ in range(4)]:
            task.wait()

    pool.submit(partial(tree, 5))
    until(lambda: pool._running == 0 and not pool._queue)
    assert 1 <= running[1] <= threads
    pool.close()


def test_pool_interrupted_waiter_leaves_the_counts_right() -> None:
    pool = Pool(1)
    go = threading.Event()
    busy = pool.submit(lambda: go.wait(PATIENCE_S))
    until(lambda: busy.claimed)  # else this thread runs it, and sleeps for nothing
    sleeping = threading.get_ident()

    def interrupt() -> None:
        until(lambda: bool(busy.sleepers))
        signal.pthread_kill(sleeping, signal.SIGINT)

    helper = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        busy.wait()
    helper.result(PATIENCE_S)
    assert not busy.sleepers
    go.set()
    busy.wait()
    until(lambda: pool._running == 0)
    pool.close()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_pool_thread_survives_what_ends_programs(kind: type[BaseException]) -> None:
    pool = Pool(1)

    def fail() -> None:
        raise kind("out")

    tasks = [pool.submit(fail) for _ in range(3)]
    until(lambda: all(task.done for task in tasks))
    assert [type(task.error) for task in tasks] == [kind] * 3
    assert pool.submit(lambda: 7).result() == 7
    # One that was about to be idle did not count; the one that was started instead ends.
    until(lambda: len(pool._alive) == 1)
    pool.close()


def test_pool_thread_that_rests_lets_another_one_run() -> None:
    pool = Pool(1)
    go = threading.Event()

    def rest() -> None:
        with pool.resting():
            assert go.wait(PATIENCE_S)

    resting = [pool.submit(rest) for _ in range(3)]
    assert pool.submit(lambda: "ran").result() == "ran"
    until(lambda: pool._resting == 3)
    in_pool = in_thread(pool.submit(threading.get_ident).wait)
    in_pool.result(PATIENCE_S)
    go.set()
    for task in resting:
        task.wait()
    pool.close()
    assert (pool._running, pool._resting) == (0, 0)


def test_pool_does_not_let_any_number_of_threads_rest() -> None:
    pool = Pool(2)
    go = threading.Event()

    def rest() -> None:
        with pool.resting():
            assert go.wait(PATIENCE_S)

    tasks = [pool.submit(rest) for _ in range(100)]
    until(lambda: pool._resting == 64 and pool._running == 2)
    assert len(pool._alive) >= 66  # one may be idle that was too late to be woken
    go.set()
    for task in tasks:
        until(lambda task=task: task.done)  # type: ignore[misc]
    pool.close()
    assert (pool._running, pool._resting) == (0, 0)
