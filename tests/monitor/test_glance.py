"""A bounded look at the lock table shows a part of the whole snapshot."""

from __future__ import annotations

import pytest

from lockmgr import EdgeKind, LockManager, LockTable, Mode
from tests.drawing import Worlds
from tests.lockmgr.scheduler import Scheduler
from tests.lockmgr.workload import Workload


class Comparing(LockManager):
    """Lock manager that compares each glance with the snapshot of the same moment."""

    glances = waits = 0  # how many, and how many waits they have told

    def compare(self) -> None:
        with self._latch:
            whole = self._table.snapshot()
            for limit in (0, 1, 2, 100):
                part = self._table.glance(self._sleepers, limit)
                assert part.locks_total == len(whole.locks)
                assert part.waits_total == len(self._sleepers)
                assert set(part.locks) <= set(whole.locks)
                assert set(part.queue) <= set(whole.queue)
                assert max(len(part.locks), len(part.queue), len(part.edges)) <= limit
                commits = {(view.parent, view.tid) for view in whole.transactions if view.parent}
                for edge in part.edges:
                    if edge.kind is EdgeKind.COMMIT:
                        assert (edge.waiter, edge.waited_for) in commits
                    else:
                        assert edge in whole.edges
            assert set(part.locks) == set(whole.locks)
            assert set(part.queue) == set(whole.queue)
            told = {e for e in part.edges if e.kind is not EdgeKind.COMMIT}
            assert told == {
                e
                for e in whole.edges
                if e.kind is not EdgeKind.COMMIT
                and (e.kind is not EdgeKind.INLINE or e.waiter in self._sleepers)
            }
        self.glances += 1
        self.waits += part.waits_total


def compared(seed: int) -> Comparing:
    """Random transactions one of which runs at a time, compared between their steps."""
    scheduler = Scheduler(seed)
    manager = Comparing(new_waiter=scheduler.new_waiter, clock=scheduler.clock)

    def pause() -> None:
        manager.compare()
        scheduler.pause()

    workload = Workload(manager, seed=seed, start=scheduler.start, pause=pause)
    for _ in range(4):
        scheduler.start(workload.transaction)
    scheduler.run()
    return manager


@pytest.mark.long
def test_glance_at_any_moment_is_part_of_the_snapshot() -> None:
    worlds = Worlds(12, "glances", glances=100, waits=100)
    for chance in worlds:
        manager = compared(chance.getrandbits(32))
        worlds.met.update(glances=manager.glances, waits=manager.waits)


def test_glance_tells_those_who_wait_first() -> None:
    table = LockTable()
    for tid in (1, 2, 3):
        table.begin(tid)
    for n in range(50):
        table.request(1, ("free", n), Mode.X)
    table.request(2, ("wanted",), Mode.X)
    table.request(3, ("wanted",), Mode.X)
    found = table.glance([3], 5)
    assert found.locks[0].resource == ("wanted",)
    assert [request.tid for request in found.queue] == [3]
    assert found.locks_total == 51
    assert len(found.locks) == 5
    assert [(e.waiter, e.waited_for) for e in found.edges] == [(3, 2)]


def test_glance_of_those_who_have_ended_meanwhile_tells_nothing_of_them() -> None:
    table = LockTable()
    table.begin(1)
    assert table.glance([7, 1], 5).edges == ()
