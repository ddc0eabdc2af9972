"""Random programs against the naive model, with the invariants checked after every call."""

from __future__ import annotations

import os
from collections import Counter
from typing import TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockmgr import Denial, Mode, VerifyingLockTable
from lockmgr._modes import SUPREMUM
from tests.lockmgr.model import Model, Queues

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
RESOURCES = (("a",), ("b",), ("c",))
LIVE_MAX = 10

Draw: TypeAlias = tuple[int, int, int]
"""Three numbers from which a step picks whatever there is to pick from."""


class Run:
    """A table and its model, driven side by side."""

    def __init__(self) -> None:
        self.table = VerifyingLockTable()
        self.model = Model()
        self.begun = 0
        self.seen: Counter[str] = Counter()

    def step(self, verb: str, draw: Draw) -> None:
        """Take one step, if there is a transaction that can."""
        live = list(self.model.parents)
        waiting = list(self.model.asked)
        acting = [tid for tid in live if tid not in waiting]
        leaves = [tid for tid in acting if not self.model.children(tid)]
        able = {
            "cancel": waiting,
            "commit": leaves,
            "abort": leaves,
            "request": leaves * 4 + acting,
        }.get(verb, acting)
        if verb == "begin":
            if len(live) < LIVE_MAX:
                parents = [None, *live, *live, *live]
                parent = parents[draw[0] % len(parents)]
                if parent in acting and draw[1] % 8:
                    self._offer(parent)
                self._begin(parent)
        elif able:
            tid = able[draw[0] % len(able)]
            if verb == "request":
                resource, mode = RESOURCES[draw[1] % len(RESOURCES)], Mode(draw[2] % len(Mode))
                self._request(tid, resource, mode)
            elif verb == "downgrade":
                self._downgrade(tid, draw)
            else:
                getattr(self, f"_{verb}")(tid)
            self._compare()

    def _begin(self, parent: int | None) -> None:
        self.begun += 1
        self.table.begin(self.begun, parent)
        self.model.add("begin", self.begun, (), parent)

    def _request(self, tid: int, resource: tuple[str], mode: Mode) -> None:
        reply = self.table.request(tid, resource, mode)
        self.seen[type(reply).__name__] += 1
        if reply.effects:
            self.seen["moved another"] += 1
        self.model.check_request(tid, resource, mode, reply, self._queues())

    def _commit(self, tid: int) -> None:
        effects = self.table.commit(tid)
        self.seen["denied at inheritance"] += any(isinstance(step, Denial) for step in effects)
        self.model.check_end("commit", tid, effects, self._queues())

    def _abort(self, tid: int) -> None:
        self.model.check_end("abort", tid, self.table.abort(tid), self._queues())

    def _cancel(self, tid: int) -> None:
        self.model.check_end("withdraw", tid, self.table.cancel(tid), self._queues())

    def _offer(self, tid: int) -> None:
        effects = self.table.offer(tid)
        for resource in [there for owner, there in self.model.held if owner == tid]:
            self.model.add("downgrade", tid, resource)
        self.model.check_quiet(effects, self._queues())

    def _downgrade(self, tid: int, draw: Draw) -> None:
        locks = [(there, mode) for (owner, there), mode in self.model.held.items() if owner == tid]
        if locks:
            resource, held = locks[draw[1] % len(locks)]
            weaker = [mode for mode in Mode if mode is not held and SUPREMUM[held][mode] is held]
            targets = [None, *weaker]
            target = targets[draw[2] % len(targets)]
            effects = self.table.downgrade(tid, resource, target)
            self.model.add("downgrade", tid, resource, target)
            self.model.check_quiet(effects, self._queues())

    def _queues(self) -> Queues:
        return {
            entry.resource: [request.transaction.tid for request in entry.queue]
            for entry in self.table._entries.values()
            if entry.queue
        }

    def _compare(self) -> None:
        for tid in self.model.parents:
            for actual, locks in (
                (self.table.held(tid), self.model.held),
                (self.table.retained(tid), self.model.retained),
            ):
                assert actual == {there: mode for (t, there), mode in locks.items() if t == tid}

    def finish(self) -> None:
        """End everybody: with no undetected deadlock somebody can always go on."""
        while self.model.parents:
            ending = [
                tid
                for tid in self.model.parents
                if tid not in self.model.asked and not self.model.children(tid)
            ]
            assert ending, f"stuck:\n{self.table.dump()}"
            self._commit(ending[0])
        assert self.table.dump() == "empty"


VERBS = (
    ("request",) * 12 + ("begin",) * 3 + ("commit",) * 2 + ("abort", "cancel", "offer", "downgrade")
)


@settings(max_examples=150 * SCALE, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(VERBS), st.tuples(*[st.integers(0, 59)] * 3)),
        min_size=30,
        max_size=120,
    )
)
def test_table_random_programs_agree_with_the_naive_model(
    program: list[tuple[str, Draw]],
) -> None:
    run = Run()
    for verb, draw in program:
        run.step(verb, draw)
    run.finish()
