"""The facade under a seeded scheduler: each seed is one interleaving of all its threads."""

from __future__ import annotations

import pytest

from lockmgr import LockManager, LockTimeout, Mode, VerifyingLockTable
from tests.drawing import SCALE, Worlds
from tests.lockmgr.scheduler import Scheduler
from tests.lockmgr.workload import Workload


def run(seed: int) -> LockManager:
    scheduler = Scheduler(seed)
    manager = LockManager(
        VerifyingLockTable(), new_waiter=scheduler.new_waiter, clock=scheduler.clock
    )
    workload = Workload(manager, seed=seed, start=scheduler.start, pause=scheduler.pause)
    for _ in range(4):
        scheduler.start(workload.transaction)
    scheduler.run()
    workload.check()
    return manager


@pytest.mark.long
@pytest.mark.parametrize("part", range(4 * SCALE))
def test_manager_seeded_interleavings_lose_no_update_and_no_wake_up(part: int) -> None:
    worlds = Worlds(50, "interleavings", part, waits=20, deadlocks=20, timeouts=20)
    for chance in worlds:
        seed = chance.getrandbits(32)
        try:
            counters = run(seed).counters
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        worlds.met.update(
            waits=counters.waits, deadlocks=counters.deadlocks, timeouts=counters.timeouts
        )


def test_scheduler_same_seed_same_interleaving() -> None:
    assert run(7).counters == run(7).counters
    assert len({str(run(seed).counters) for seed in range(7, 12)}) > 1


def test_scheduler_worker_that_nobody_wakes_is_reported() -> None:
    scheduler = Scheduler(0)
    scheduler.start(lambda: scheduler.new_waiter().wait(None))
    with pytest.raises(AssertionError, match="a wake-up was lost"):
        scheduler.run()


def test_manager_timeout_racing_a_grant_keeps_the_lock_or_never_had_it() -> None:
    """2 gives up at some point around 1's commit; the dump must agree with what acquire said."""
    assert {_race(seed) for seed in range(40)} == {"granted", "timed out"}


def _race(seed: int) -> str:
    scheduler = Scheduler(seed)
    manager = LockManager(
        VerifyingLockTable(), new_waiter=scheduler.new_waiter, clock=scheduler.clock
    )
    manager.begin(1)
    manager.begin(2)
    manager.acquire(1, ("a",), Mode.X)
    outcome = ["none"]

    def wait() -> None:
        try:
            manager.acquire(2, ("a",), Mode.X, timeout_s=1.0)
        except LockTimeout:
            outcome[0] = "timed out"
        else:
            outcome[0] = "granted"
        assert manager.holds(2, ("a",), Mode.X) == (outcome[0] == "granted")

    def release() -> None:
        scheduler.pause()
        manager.commit(1)

    scheduler.start(wait)
    scheduler.start(release)
    scheduler.run()
    return outcome[0]
