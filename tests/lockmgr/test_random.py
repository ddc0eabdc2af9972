"""Random programs against the naive model, with the invariants checked after every call.

The seed is printed with what was tried; `ACTIVEDB_TEST_SEED` sets it, `ACTIVEDB_TEST_SCALE`
multiplies the number of runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

import lockmgr._core
from lockmgr import Denial, Denied, EdgeKind, Effects, LockTable, Mode, Reply, Resource, Snapshot
from tests.drawing import SCALE, SEED, Worlds
from tests.lockmgr.escalating import EscalationMachine
from tests.lockmgr.machine import POLICIES, LockMachine
from tests.lockmgr.model import BLOCKED_BY, Model
from tests.lockmgr.predicates import PredicateMachine

STEPS_MIN = 10_000 * SCALE
STEPS_PER_RUN_MAX = 80

interpreted = pytest.mark.skipif(
    not lockmgr._core.__file__.endswith(".py"),
    reason="compiled modules do not see what is put in the place of their functions",
)


def run(
    machine: type[LockMachine],
    runs: int,
    table_class: type[LockTable] | None = None,
    *,
    drawn_from: int = SEED,
) -> Counter[str]:
    """Run a machine `runs` times, on other tables than its own if given; return what happened."""
    seen: Counter[str] = Counter()
    names: dict[str, object] = {"seen": seen}
    phases = [Phase.generate, Phase.shrink]
    if table_class is not None:
        names["table_class"] = table_class
        phases.remove(Phase.shrink)
    print(f"ACTIVEDB_TEST_SEED={SEED}, from which {drawn_from} is drawn")
    run_state_machine_as_test(
        seed(drawn_from)(type(machine.__name__, (machine,), names)),
        settings=settings(
            max_examples=runs * SCALE,
            stateful_step_count=STEPS_PER_RUN_MAX,
            phases=phases,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(", ".join(f"{number} {what}" for what, number in sorted(seen.items())))
    return seen


def run_until(machine: type[LockMachine], runs: int, wanted: Iterable[str]) -> None:
    """Run a machine until enough has happened, each time from another seed."""
    worlds = Worlds(1, machine.__name__, steps=STEPS_MIN, **dict.fromkeys(wanted, 1))
    for chance in worlds:
        worlds.met += run(machine, runs, drawn_from=chance.getrandbits(32))


@pytest.mark.long
def test_table_random_programs_agree_with_the_naive_model() -> None:
    told = set(EdgeKind) - {EdgeKind.SOFT, EdgeKind.THREAD}  # THREAD: callers find these
    wanted = ["moved", "ends awaited", "cycles at inheritance", "nowait into a cycle"]
    wanted += [f"{kind} edges in cycles" for kind in sorted(told)]
    wanted += [f"denied by {policy}" for policy in POLICIES]
    run_until(LockMachine, 500, wanted)


@pytest.mark.long
def test_table_random_programs_escalating_lose_no_protection() -> None:
    run_until(EscalationMachine, 300, ["escalations"])


@pytest.mark.long
def test_table_random_programs_with_predicates_agree_with_the_naive_model() -> None:
    wanted = ["declared", "to be locked before", "cycles at inheritance"]
    run_until(PredicateMachine, 300, wanted)


# -- the machine can fail ------------------------------------------------------------------------


class ReleasesAtSubCommit(LockTable):
    """Table that breaks rule 2: what a subtransaction has owned is free when it commits."""

    def commit(self, tid: int) -> Effects:
        told = self.snapshot()
        is_subtransaction = any(v.tid == tid and v.parent is not None for v in told.transactions)
        is_needed = any(tid in view.causes for view in told.transactions)
        return super().abort(tid) if is_subtransaction and not is_needed else super().commit(tid)


class IgnoresTheHeir(LockTable):
    """Table that breaks rule 4 if an heir is named: what the heir should have is free."""

    def abort(self, tid: int, heir: int | None = None) -> Effects:
        return super().abort(tid)


class ForgetsTheThread(LockTable):
    """Table that overlooks deadlocks through the thread that a child shares with its parent."""

    def __init__(self, victim: str = "requester", escalate_at: int | None = None) -> None:
        super().__init__(victim, escalate_at)
        self.inline: set[int] = set()

    def begin(
        self,
        tid: int,
        parent: int | None = None,
        *,
        causes: Iterable[int] = (),
        inline: bool = False,
    ) -> None:
        super().begin(tid, parent, causes=causes)
        (self.inline.add if inline else self.inline.discard)(tid)

    def snapshot(self) -> Snapshot:
        """Return what a table without the fault would, to hide it."""
        told = super().snapshot()
        views = tuple(view._replace(inline=view.tid in self.inline) for view in told.transactions)
        model = Model("requester")
        for view in views:
            model.begin(*view)
        asleep = {edge.waiter for edge in told.edges if edge.kind in BLOCKED_BY}
        model.awaited = dict.fromkeys(asleep, 0)
        own = {edge for edge in model.edges({}) if edge.kind is EdgeKind.INLINE}
        return told._replace(transactions=views, edges=(*told.edges, *own))


class DeniesTheWrongOne(LockTable):
    """Table that takes another policy than it says."""

    def __init__(self, victim: str = "requester", escalate_at: int | None = None) -> None:
        super().__init__("requester" if victim == "youngest" else victim, escalate_at)
        self.victim = victim

    def request(self, tid: int, resource: Resource, mode: Mode, *, wait: bool = True) -> Reply:
        return self._disguised(super().request(tid, resource, mode, wait=wait))

    def await_end(self, tid: int, of: int, *, wait: bool = True) -> Reply:
        return self._disguised(super().await_end(tid, of, wait=wait))

    def commit(self, tid: int) -> Effects:
        return self._renamed(super().commit(tid))

    def abort(self, tid: int, heir: int | None = None) -> Effects:
        return self._renamed(super().abort(tid, heir))

    def _disguised(self, reply: Reply) -> Reply:
        if isinstance(reply, Denied):
            reply = replace(reply, report=replace(reply.report, policy=self.victim))
        return replace(reply, effects=self._renamed(reply.effects))

    def _renamed(self, effects: Effects) -> Effects:
        return tuple(
            Denial(effect.tid, replace(effect.report, policy=self.victim))
            if isinstance(effect, Denial)
            else effect
            for effect in effects
        )


def is_found(
    machine: type[LockMachine], runs: int, faulty: type[LockTable], *, saying: str = ""
) -> bool:
    """Return whether a machine finds this of faulty tables, from one seed or another."""
    for number in range(20):
        try:
            run(machine, runs, faulty, drawn_from=SEED + number)
        except AssertionError as error:
            if saying in str(error):
                return True
    return False


@pytest.mark.long
@pytest.mark.parametrize(
    "faulty", [ReleasesAtSubCommit, IgnoresTheHeir, ForgetsTheThread, DeniesTheWrongOne]
)
def test_random_programs_on_a_faulty_table_are_told_apart(faulty: type[LockTable]) -> None:
    assert is_found(LockMachine, 500, faulty)


@interpreted
def test_random_programs_escalating_to_too_little_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockmgr._escalation.COVERING", (Mode.S,) * len(Mode))
    assert is_found(EscalationMachine, 300, LockTable, saying="lets in who was kept out")
