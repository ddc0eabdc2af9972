"""Deadlock reports list the waits in the order in which they began, under every schedule."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lockmgr import (
    Blocked,
    Denial,
    Denied,
    EdgeKind,
    LockManager,
    Mode,
    VerifyingLockTable,
)
from tests.drawing import SCALE, Worlds
from tests.lockmgr.scheduler import Scheduler
from tests.lockmgr.workload import Workload


class Noting(VerifyingLockTable):
    """Judge of reports, which notes by itself when each transaction and each wait began."""

    def __init__(self, **how: Any):
        super().__init__(**how)
        self.noted = 0
        self.begun: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.seen: Counter[str] = Counter()

    def _note(self) -> int:
        self.noted += 1
        return self.noted

    def begin(self, tid: int, parent: int | None = None, **how: Any) -> None:
        super().begin(tid, parent, **how)
        self.begun[tid] = self._note()

    def request(self, tid: int, resource: Any, mode: Mode, *, wait: bool = True) -> Any:
        now = self._note()
        reply = super().request(tid, resource, mode, wait=wait)
        return self._judged(tid, now, reply)

    def await_end(self, tid: int, of: int, *, wait: bool = True) -> Any:
        now = self._note()
        reply = super().await_end(tid, of, wait=wait)
        return self._judged(tid, now, reply)

    def commit(self, tid: int) -> Any:
        effects = super().commit(tid)
        self._judge_all(effects)
        return effects

    def _judged(self, tid: int, now: int, reply: Any) -> Any:
        if isinstance(reply, Blocked | Denied):
            self.waiting[tid] = now
        if isinstance(reply, Denied):
            self._judge(reply.report)
        self._judge_all(reply.effects)
        return reply

    def _judge_all(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Denial):
                self._judge(effect.report)

    def _judge(self, report: Any) -> None:
        assert Counter(report.waits) == Counter(report.cycle)
        assert report.victim == report.cycle[0].waiter
        times = []
        for edge in report.waits:
            self.seen[edge.kind] += 1
            if edge.kind is EdgeKind.COMMIT:
                times.append(self.begun[edge.waited_for])
            elif edge.kind is EdgeKind.INLINE:
                times.append(self.waiting[edge.waited_for])
            else:
                times.append(self.waiting[edge.waiter])
        assert times == sorted(times)
        self.seen["deadlocks"] += 1


@pytest.mark.long
@pytest.mark.parametrize("policy", ["requester", "youngest"])
def test_report_under_seeded_schedules_tells_the_waits_as_they_began(policy: str) -> None:
    worlds = Worlds(60 * SCALE, policy, deadlocks=10, **{EdgeKind.COMMIT.value: 1})
    for chance in worlds:
        seed = chance.getrandbits(32)
        scheduler = Scheduler(seed)
        table = Noting(victim=policy)
        manager = LockManager(table, new_waiter=scheduler.new_waiter, clock=scheduler.clock)
        workload = Workload(manager, seed=seed, start=scheduler.start, pause=scheduler.pause)
        for _ in range(4):
            scheduler.start(workload.transaction)
        try:
            scheduler.run()
            workload.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        worlds.met += table.seen


def test_on_wait_is_told_whom_a_call_waits_for_and_nothing_if_it_does_not() -> None:
    outcomes = {tuple(_told_by_two_who_lock_one_thing(seed)) for seed in range(20)}
    assert outcomes == {(), ((1, 2),), ((2, 1),)}


def _told_by_two_who_lock_one_thing(seed: int) -> list[tuple[int, int]]:
    scheduler = Scheduler(seed)
    manager = LockManager(new_waiter=scheduler.new_waiter, clock=scheduler.clock)
    told: list[tuple[int, int]] = []

    def lock(tid: int) -> None:
        manager.acquire(
            tid,
            ("r",),
            Mode.X,
            on_wait=lambda edges: told.extend((e.waiter, e.waited_for) for e in edges),
        )
        scheduler.pause()
        manager.commit(tid)

    for tid in (1, 2):
        manager.begin(tid)
        scheduler.start(lambda tid=tid: lock(tid))  # type: ignore[misc]
    scheduler.run()
    return told
