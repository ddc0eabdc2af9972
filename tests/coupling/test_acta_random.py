"""The auditor against random histories: legal, changed, lawless; and the work that it takes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from coupling.acta import (
    AXIOMS,
    BeginEvent,
    CommitEvent,
    DelegateEvent,
    Event,
    History,
    ObjectOperation,
    OperationKind,
    SpawnEvent,
    SpawnMode,
    audit,
)
from tests.coupling.acta_histories import OBJECTS, legal_history
from tests.coupling.acta_mutations import KINDS, mutated
from tests.coupling.acta_naive import Naive
from tests.drawing import SCALE, Worlds, drawn
from tests.effort import calls_of

if TYPE_CHECKING:
    from collections.abc import Callable


def found(history: History) -> set[tuple[int, int]]:
    return {(violation.axiom, violation.transaction) for violation in audit(history)}


def shown(history: History, seed: int) -> str:
    return f"seed {seed}\n" + "\n".join(history.lines())


def test_audit_of_random_legal_histories_finds_nothing() -> None:
    worlds = Worlds(300 * SCALE, "legal", **{mode.value: 1 for mode in SpawnMode})
    for chance in worlds:
        seed = chance.getrandbits(32)
        history = legal_history(seed)
        assert audit(history) == [], shown(history, seed)
        worlds.met.update(e.mode.value for e in history.events if isinstance(e, SpawnEvent))


@pytest.mark.long
def test_audit_of_changed_histories_finds_what_the_formulas_say() -> None:
    axioms: set[int] = set()
    worlds = Worlds(400 * SCALE, "changed", axioms=21, **dict.fromkeys(KINDS, 1))
    for chance in worlds:
        seed = chance.getrandbits(32)
        history = legal_history(seed, 40)
        kind, history = mutated(history, chance)
        if chance.random() < 0.3:
            _, history = mutated(history, chance)
        naive = Naive(history)
        if naive.has_circles():
            audit(history)  # the formulas have no meaning then, but there is an end
            continue
        expected = naive.violations()
        assert found(history) == expected, shown(history, seed)
        if expected:
            worlds.met[kind] += 1
            axioms |= {axiom for axiom, _ in expected}
            worlds.met["axioms"] = len(axioms)


def lawless(seed: int) -> History:
    """Transactions that live as they should and work without any locks or order."""
    chance = random.Random(seed)
    events: list[Event] = [BeginEvent(1), BeginEvent(2)]
    ids = [1, 2]
    for id in range(3, chance.randrange(4, 9)):
        parent = chance.choice(ids)
        mode = chance.choice([SpawnMode.IMMEDIATE, SpawnMode.DEFERRED])
        priority, cycle, group = chance.choice([None, 0, 1, 2]), None, None
        if mode is SpawnMode.DEFERRED:
            cycle = chance.choice([None, 0, 1])
        else:
            group = chance.choice([None, 0])
        events.append(SpawnEvent(parent, id, mode, parent, priority, cycle, group))
        ids.append(id)
    parents = {e.child: e.parent for e in events if isinstance(e, SpawnEvent)}
    for number in range(1, chance.randrange(2, 30)):
        kind = chance.choice(list(OperationKind))
        events.append(ObjectOperation(chance.choice(ids), number, kind, chance.choice(OBJECTS)))
    for id in reversed(ids):
        above = parents.get(id)
        events += (
            [CommitEvent(id)] if above is None else [DelegateEvent(id, above), CommitEvent(id)]
        )
    return History(tuple(events))


@pytest.mark.long
def test_audit_of_lawless_histories_finds_what_the_formulas_say() -> None:
    breakable = {9, 11, 17, 25, 27, 28, 29, 30}
    assert breakable < AXIOMS.keys()
    worlds = Worlds(400 * SCALE, "lawless", **{str(axiom): 1 for axiom in breakable})
    for chance in worlds:
        seed = chance.getrandbits(32)
        history = lawless(seed)
        expected = Naive(history).violations()
        assert found(history) == expected, shown(history, seed)
        axioms = {axiom for axiom, _ in expected}
        assert axioms <= breakable
        worlds.met.update(map(str, axioms))


def hot_rows(count: int) -> History:
    events: list[Event] = []
    chance = drawn("hot rows")
    number = id = 0
    while len(events) < count:
        id += 1
        top = id
        events.append(BeginEvent(top))
        for _ in range(3):
            id += 1
            events.append(SpawnEvent(top, id, SpawnMode.IMMEDIATE, top))
            for _ in range(4):
                number += 1
                kind = chance.choice(list(OperationKind))
                path = (
                    ("a",) if chance.random() < 0.05 and kind == "read" else ("a", str(number % 50))
                )
                events.append(ObjectOperation(id, number, kind, path))
            events += [DelegateEvent(id, top), CommitEvent(id)]
        events.append(CommitEvent(top))
    return History(tuple(events))


def many_siblings(count: int) -> History:
    events: list[Event] = [BeginEvent(1)]
    for id in range(2, count // 5 + 2):
        path = ("a", str(id % 7))
        events += [
            SpawnEvent(1, id, SpawnMode.IMMEDIATE, 1, priority=-id),
            ObjectOperation(id, 2 * id, OperationKind.READ, path),
            ObjectOperation(id, 2 * id + 1, OperationKind.WRITE, path),
            DelegateEvent(id, 1),
            CommitEvent(id),
        ]
    return History((*events, CommitEvent(1)))


def scans_then_writes(count: int) -> History:
    events: list[Event] = []
    for id in range(1, count // 3):
        read = id < count // 6
        path = ("a",) if read else ("a", str(id % 99))
        kind = OperationKind.READ if read else OperationKind.WRITE
        events += [BeginEvent(id), ObjectOperation(id, id, kind, path), CommitEvent(id)]
    return History(tuple(events))


@pytest.mark.long
@pytest.mark.parametrize("make", [hot_rows, many_siblings, scans_then_writes])
def test_work_of_an_audit_hardly_grows_per_event(make: Callable[[int], History]) -> None:
    def work(events: int) -> float:
        history = make(events)
        assert len(history) >= 0.98 * events
        assert audit(history) == []
        return calls_of(lambda: audit(history)) / len(history)

    # Ten times, if each event met each other.
    assert work(10_000) < 2 * work(1_000)
