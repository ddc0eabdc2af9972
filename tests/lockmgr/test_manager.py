"""The blocking facade, on real threads. A step ends when the waiter says that it sleeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from lockmgr import (
    Deadlock,
    LockManager,
    LockTimeout,
    LockUsageError,
    Mode,
    ThreadWaiter,
    VerifyingLockTable,
    WaitCancelled,
    _core,
)
from tests.drawing import Worlds
from tests.lockmgr.workload import Workload
from tests.patience import PATIENCE_S

A = ("a",)
ROW = ("a", 7)


class Bench:
    """A manager, threads, and the news that one of them has gone to sleep.

    Attributes
    ----------
    clock_runs : threading.Event
        The time of those who sleep runs from then on only.
    """

    def __init__(self, pool: ThreadPoolExecutor):
        self.asleep = threading.Semaphore(0)
        self.clock_runs = threading.Event()
        self.clock_runs.set()
        self.manager = LockManager(VerifyingLockTable(), new_waiter=self._new_waiter)
        self._pool = pool

    def _new_waiter(self) -> ThreadWaiter:
        bench = self

        class Announcing(ThreadWaiter):
            def wait(self, timeout_s: float | None) -> None:
                bench.asleep.release()
                assert bench.clock_runs.wait(PATIENCE_S)
                super().wait(timeout_s)

        return Announcing()

    def blocked(
        self, tid: int, resource: tuple[str | int, ...], mode: Mode, timeout_s: float | None = None
    ) -> Future[None]:
        """Acquire on another thread; return once that sleeps."""
        return self.asleep_in(self.manager.acquire, tid, resource, mode, timeout_s)

    def asleep_in(self, call: Callable[..., None], *arguments: object) -> Future[None]:
        """Make a call on another thread; return once that sleeps."""
        future = self._pool.submit(call, *arguments)
        assert self.asleep.acquire(timeout=PATIENCE_S)
        return future


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ThreadPoolExecutor() as pool:
        yield Bench(pool)


def test_acquire_row_takes_the_intention_on_the_table_first(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.acquire(1, ("db", "a", 7), Mode.S)
    assert manager.dump() == "1\ndb/'a'/7: held 1 S\ndb/'a': held 1 IS\ndb: held 1 IS"
    manager.acquire(1, ("db", "a", 8), Mode.X)
    assert manager.holds(1, ("db", "a"), Mode.IX)
    assert manager.holds(1, ("db", "a", 8), Mode.S)
    assert not manager.holds(1, ("db", "a", 7), Mode.X)
    assert not manager.holds(1, ("db", "a", 9), Mode.IS)


def test_acquire_blocked_is_granted_when_the_holder_commits(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, ROW, Mode.X)
    waiting = bench.blocked(2, ROW, Mode.S)
    assert manager.dump() == "1\n2 waits for 1 (held)\na/7: held 1 X; queue 2 S\na: held 1 IX, 2 IS"
    manager.commit(1)
    waiting.result(PATIENCE_S)
    assert manager.holds(2, ROW, Mode.S)


def test_acquire_blocked_at_the_table_goes_on_to_the_row(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, A, Mode.S)
    waiting = bench.blocked(2, ROW, Mode.X)
    assert manager.dump() == "1\n2 waits for 1 (held)\na: held 1 S; queue 2 IX"
    manager.abort(1)
    waiting.result(PATIENCE_S)
    assert manager.dump() == "2\na/7: held 2 X\na: held 2 IX"


def test_acquire_after_an_offer_waits_for_the_child_that_took_the_lock(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.acquire(1, ROW, Mode.X)
    manager.offer(1)
    manager.begin(2, 1)
    manager.acquire(2, ROW, Mode.X)
    waiting = bench.blocked(1, ROW, Mode.X)
    manager.commit(2)
    waiting.result(PATIENCE_S)
    assert manager.holds(1, ROW, Mode.X)


def test_acquire_requester_of_a_deadlock_gets_the_report(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, ("a",), Mode.X)
    manager.acquire(2, ("b",), Mode.X)
    waiting = bench.blocked(1, ("b",), Mode.X)
    with pytest.raises(Deadlock, match="transaction 2 is the victim") as caught:
        manager.acquire(2, ("a",), Mode.X)
    assert [(e.waiter, e.waited_for) for e in caught.value.report.cycle] == [(2, 1), (1, 2)]
    manager.abort(2)
    waiting.result(PATIENCE_S)


def test_acquire_sleeping_victim_of_an_inheritance_gets_the_report(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    for tid, parent in ((2, 1), (3, 1), (4, 2), (5, 2)):
        manager.begin(tid, parent)
    manager.acquire(4, ("a",), Mode.X)
    manager.acquire(3, ("b",), Mode.X)
    victim = bench.blocked(3, ("a",), Mode.X)
    survivor = bench.blocked(5, ("b",), Mode.X)
    manager.commit(4)
    with pytest.raises(Deadlock) as caught:
        victim.result(PATIENCE_S)
    assert caught.value.report.victim == 3
    manager.abort(3)
    survivor.result(PATIENCE_S)
    assert manager.counters.deadlocks == 1


def test_acquire_nowait_never_sleeps_and_leaves_no_request(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, A, Mode.S)
    with pytest.raises(LockTimeout, match="2 wants X on a, waits for 1, which holds it"):
        manager.acquire(2, A, Mode.X, timeout_s=0)
    assert manager.dump() == "1\n2\na: held 1 S"
    manager.acquire(2, A, Mode.S, timeout_s=0)
    counters = manager.counters
    assert (counters.requests, counters.grants, counters.waits, counters.timeouts) == (3, 2, 0, 1)


def test_acquire_time_is_up_withdraws_the_request_and_lets_those_behind_go(bench: Bench) -> None:
    manager = bench.manager
    for tid in (1, 2, 3):
        manager.begin(tid)
    manager.acquire(1, A, Mode.S)
    bench.clock_runs.clear()
    impatient = bench.blocked(2, A, Mode.X, timeout_s=0.05)
    asleep_s = time.monotonic()
    patient = bench.blocked(3, A, Mode.S)
    slept_s = time.monotonic() - asleep_s  # at least; of its time some may be over before it sleeps
    bench.clock_runs.set()
    with pytest.raises(LockTimeout):
        impatient.result(PATIENCE_S)
    patient.result(PATIENCE_S)
    assert manager.dump() == "1\n2\n3\na: held 1 S, 3 S"
    counters = manager.counters
    assert counters.timeouts == 1
    assert counters.wait_s_total >= slept_s


def test_acquire_granted_while_the_time_runs_out_is_kept() -> None:
    """The grant comes after the time is up, but before the thread has taken the latch again."""

    class Late(ThreadWaiter):
        def wait(self, timeout_s: float | None) -> None:
            manager.commit(1)

    manager = LockManager(VerifyingLockTable(), new_waiter=Late)
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, A, Mode.X)
    manager.acquire(2, A, Mode.X, timeout_s=PATIENCE_S)
    assert manager.holds(2, A, Mode.X)
    assert manager.counters.timeouts == 0


def test_acquire_interrupted_in_its_sleep_leaves_no_request() -> None:
    class Interrupted(ThreadWaiter):
        def wait(self, timeout_s: float | None) -> None:
            raise KeyboardInterrupt

    manager = LockManager(VerifyingLockTable(), new_waiter=Interrupted)
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, A, Mode.X)
    with pytest.raises(KeyboardInterrupt):
        manager.acquire(2, A, Mode.X)
    assert manager.dump() == "1\n2\na: held 1 X"
    manager.abort(2)


def test_cancel_wakes_the_blocked_thread_and_lasts_until_the_end(bench: Bench) -> None:
    manager = bench.manager
    for tid in (1, 2, 3):
        manager.begin(tid)
    manager.acquire(1, A, Mode.S)
    cancelled = bench.blocked(2, A, Mode.X)
    behind = bench.blocked(3, A, Mode.S)
    assert manager.cancel(2)
    with pytest.raises(WaitCancelled, match="2 was cancelled and can wait for nothing; abort it"):
        cancelled.result(PATIENCE_S)
    behind.result(PATIENCE_S)
    with pytest.raises(WaitCancelled):
        manager.acquire(2, ("free",), Mode.S)
    manager.abort(2)
    manager.begin(2)
    manager.acquire(2, ("free",), Mode.S)


def test_cancel_before_acquire_is_not_lost(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.begin(2, 1)
    assert not manager.cancel(2)
    with pytest.raises(WaitCancelled):
        manager.acquire(2, A, Mode.S)
    manager.commit(2)
    assert not manager.cancel(2)
    assert not manager._cancelled


def test_downgrade_keeps_what_encloses_a_held_row(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.acquire(1, ROW, Mode.X)
    with pytest.raises(LockUsageError, match="1 holds X on a/7, which needs IX on a; downgrade"):
        manager.downgrade(1, A, None)
    with pytest.raises(LockUsageError, match="needs IX on a"):
        manager.downgrade(1, A, Mode.IS)
    manager.downgrade(1, ROW, Mode.S)
    manager.downgrade(1, A, Mode.IS)
    with pytest.raises(LockUsageError, match="needs IS on a"):
        manager.downgrade(1, A, None)
    manager.downgrade(1, ROW, None)
    manager.downgrade(1, A, None)
    assert manager.dump() == "1\na/7: retained 1 X\na: retained 1 IX"


def test_acquire_second_thread_for_one_transaction_is_refused(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, A, Mode.X)
    waiting = bench.blocked(2, A, Mode.S)
    with pytest.raises(LockUsageError, match="2 waits for a"):
        manager.acquire(2, ("b",), Mode.S)
    manager.commit(1)
    waiting.result(PATIENCE_S)


def test_acquire_empty_path_or_ended_transaction_is_refused(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    with pytest.raises(LockUsageError, match="1 asks for an empty path"):
        manager.acquire(1, (), Mode.S)
    manager.commit(1)
    with pytest.raises(LockUsageError, match="1 has not begun, or has ended"):
        manager.acquire(1, A, Mode.S)
    assert manager.counters.requests == 0


def test_counters_every_request_is_counted_once_with_its_outcome(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, ROW, Mode.X)
    manager.acquire(1, ROW, Mode.X)
    waiting = bench.blocked(2, ROW, Mode.X)
    manager.commit(1)
    waiting.result(PATIENCE_S)
    counters = manager.counters
    assert (counters.requests, counters.grants, counters.waits) == (6, 6, 1)
    assert (counters.deadlocks, counters.timeouts) == (0, 0)
    assert counters.wait_s_total > 0
    counters.requests = 0
    assert manager.counters.requests == 6


@pytest.mark.long
def test_manager_stress_on_real_threads_loses_no_update_and_leaves_nothing() -> None:
    """Bounded by work, not by time: 480 top-level transactions and their inferiors.

    More if they have not met in all ways, which is up to the threads.
    """
    worlds = Worlds(1, "stress", waits=1, deadlocks=1, timeouts=1)
    for chance in worlds:
        counters = _stressed(chance.getrandbits(32)).counters
        worlds.met.update(
            waits=counters.waits, deadlocks=counters.deadlocks, timeouts=counters.timeouts
        )


def _stressed(seed: int) -> LockManager:
    errors: list[BaseException] = []

    def start(body: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                body()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()

        def join() -> None:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), manager.dump()

        return join

    manager = LockManager(VerifyingLockTable())
    workload = Workload(manager, seed=seed, start=start, pause=lambda: None, rows=4)

    def many() -> None:
        for _ in range(60):
            workload.transaction()

    for join in [start(many) for _ in range(8)]:
        join()
    assert not errors, errors[0]
    workload.check()
    return manager


def test_await_causes_follows_causes_until_all_have_committed_to_the_top(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.begin(2, 1)
    manager.begin(8)
    manager.begin(9, causes=[2, 8])
    with pytest.raises(LockTimeout, match="9 waits for the end of 2, on which it depends"):
        manager.await_causes(9, timeout_s=0)
    waiting = bench.asleep_in(manager.await_causes, 9)
    manager.commit(2)
    manager.commit(1)
    assert bench.asleep.acquire(timeout=PATIENCE_S), "now for the other cause"
    assert not waiting.done()
    manager.commit(8)
    waiting.result(PATIENCE_S)
    manager.await_causes(9)
    manager.commit(9)
    assert manager.dump() == "empty"


def test_waiter_that_cannot_be_made_leaves_no_request_behind() -> None:
    def fail() -> ThreadWaiter:
        raise MemoryError

    manager = LockManager(VerifyingLockTable(), new_waiter=fail)
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, A, Mode.X)
    with pytest.raises(MemoryError):
        manager.acquire(2, A, Mode.S)
    assert manager.dump() == "1\n2\na: held 1 X"
    manager.commit(1)
    manager.acquire(2, A, Mode.S)


def test_abort_withdraws_what_an_interrupted_thread_asked_for(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, A, Mode.X)
    manager._table.request(2, A, Mode.S)  # and here its thread was interrupted
    assert not manager.cancel(2)
    manager.abort(2)
    manager._table.begin(3)
    manager._table.request(3, A, Mode.S)
    manager.commit(1)
    assert manager.dump() == "3\na: held 3 S"
    manager.abort(3)


def test_acquire_with_a_negative_timeout_is_nowait_and_makes_no_victim(bench: Bench) -> None:
    manager = LockManager(VerifyingLockTable("youngest"))
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, A, Mode.X)
    manager.acquire(2, ("b",), Mode.X)
    manager._table.request(2, A, Mode.X)
    for timeout_s in (0, -0.001, float("nan")):
        with pytest.raises(LockTimeout):
            manager.acquire(1, ("b",), Mode.X, timeout_s)
    assert manager.counters.victims == 0


def test_wait_longer_than_any_clock_is_no_error(bench: Bench) -> None:
    manager = bench.manager
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, A, Mode.X)
    waiting = bench.blocked(2, A, Mode.S, float("inf"))
    manager.commit(1)
    waiting.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("resource", "mode", "text"),
    [
        (A, 4, "4, which is not a lock mode"),
        (A, None, "None, which is not a lock mode"),
        ("abc", Mode.S, "'abc'; a resource is a tuple"),
        (["a"], Mode.S, r"\['a'\]; a resource is a tuple"),
        ((), Mode.S, "an empty path"),
    ],
)
def test_request_for_what_is_no_path_or_mode_is_refused_and_changes_nothing(
    resource: Any, mode: Any, text: str
) -> None:
    table = VerifyingLockTable()
    manager = LockManager(table)
    table.begin(1)
    for ask in (table.request, manager.acquire):
        with pytest.raises((LockUsageError, TypeError)) as refused:
            ask(1, resource, mode)
        if isinstance(refused.value, LockUsageError):
            assert refused.match(f"transaction 1 (names|asks for) {text}")
        else:
            assert not _core.__file__.endswith(".py"), "compiled, types are checked before"
    table.verify()
    assert table.dump() == "1"


@pytest.mark.parametrize("mode", [2, "X"])
def test_downgrade_to_what_is_no_mode_is_refused_and_changes_nothing(mode: Any) -> None:
    table = VerifyingLockTable()
    manager = LockManager(table)
    manager.begin(1)
    manager.acquire(1, ROW, Mode.X)
    before = table.dump()
    for downgrade in (table.downgrade, manager.downgrade):
        with pytest.raises((LockUsageError, TypeError)) as refused:
            downgrade(1, A, mode)
        if _core.__file__.endswith(".py"):
            assert refused.match("which is not a lock mode")
    assert table.dump() == before
