"""Random rule sets: the analysis against plain enumeration, and against what the rules do."""

from __future__ import annotations

import os
import random
from itertools import permutations, product

import pytest

from activedb.analysis import Analysis, PropertyVerdict, analyze
from tests.analysis.ruleset import (
    Effect,
    Interpreter,
    Spec,
    TooLong,
    random_specs,
)
from tests.drawing import Worlds

SEED = int(os.environ["ACTIVEDB_TEST_SEED"])
RULE_SETS = 250


def draws(scale: int, salt: str) -> list[tuple[str, random.Random]]:
    return [
        (seed, random.Random(seed))
        for seed in (f"{SEED}/{salt}/{n}" for n in range(RULE_SETS * scale))
    ]


def analyzed(specs: list[Spec]) -> Analysis:
    return analyze(spec.rule() for spec in specs)


def reached(specs: list[Spec], start: list[str], *, from_deferred: bool) -> set[str]:
    """Rules that run inside of a rule whose event triggers `start`."""
    by_name = {spec.name: spec for spec in specs}
    found: set[str] = set()
    waiting = [
        name for name in start if not (from_deferred and by_name[name].coupling == "deferred")
    ]
    while waiting:
        name = waiting.pop()
        if name not in found and by_name[name].coupling != "detached":
            found.add(name)
            waiting += triggered_by(specs, by_name[name])
    return found


def triggered_by(specs: list[Spec], source: Spec) -> list[str]:
    return [s.name for s in specs if any(s.listens_to(effect) for effect in source.does)]


def order_matters(
    one: Effect, reads: tuple[tuple[str, str], ...], other: tuple[Effect, ...]
) -> bool:
    """Return whether the order of a write and another rule's reads or writes matters."""
    kind, table, column = one
    if kind == "event":
        return False
    for read_table, read_column in reads:
        apart = kind == "update" and column and read_column and column != read_column
        if table == read_table and not apart:
            return True
    for other_kind, other_table, other_column in other:
        both_update = kind == other_kind == "update"
        apart = both_update and column and other_column and column != other_column
        if other_kind != "event" and table == other_table and not apart:
            return True
    return False


def commute(specs: list[Spec], a: Spec, b: Spec) -> bool:
    by_name = {spec.name: spec for spec in specs}
    spheres = []
    for spec in (a, b):
        deferred = spec.coupling == "deferred"
        names = reached(specs, triggered_by(specs, spec), from_deferred=deferred)
        spheres.append([by_name[name] for name in sorted(names | {spec.name})])
    for one, other in product(*spheres):
        if any(order_matters(effect, other.reads, other.does) for effect in one.does):
            return False
        if any(order_matters(effect, one.reads, ()) for effect in other.does):
            return False
    for sphere, target in ((spheres[0], b), (spheres[1], a)):
        for one in sphere:
            if one is not target and target.name in triggered_by(specs, one):
                return False
    return True


def test_edges_of_random_rules_are_those_of_plain_enumeration(scale: int) -> None:
    for seed, draw in draws(scale, "edges"):
        specs = random_specs(draw, ("immediate", "deferred", "detached"), rules_max=7)
        found = {(edge.source, edge.target) for edge in analyzed(specs).edges}
        assert found == {(s.name, t) for s in specs for t in triggered_by(specs, s)}, seed


def test_cycles_of_random_rules_are_those_of_the_transitive_closure(scale: int) -> None:
    for seed, draw in draws(scale, "cycles"):
        specs = random_specs(draw, ("immediate", "deferred", "detached"), rules_max=7)
        names = [spec.name for spec in specs]
        reach = {(s.name, t) for s in specs for t in triggered_by(specs, s)}
        for via, one, other in product(names, names, names):
            if (one, via) in reach and (via, other) in reach:
                reach.add((one, other))
        expected = {
            frozenset(o for o in names if (name, o) in reach and (o, name) in reach)
            for name in names
            if (name, name) in reach
        }
        cycles = analyzed(specs).cycles
        assert {frozenset(cycle.rules) for cycle in cycles} == expected, seed
        assert all(cycle.is_certain for cycle in cycles), seed


def test_pairs_of_random_rules_are_those_of_plain_enumeration(scale: int) -> None:
    for seed, draw in draws(scale, "pairs"):
        specs = random_specs(draw, ("immediate", "deferred", "detached"), rules_max=6)
        expected = set()
        for number, a in enumerate(specs):
            for b in specs[number + 1 :]:
                together = a.coupling == "deferred" or a.on[:2] == b.on[:2]
                is_open = a.coupling == "detached" or a.priority == b.priority
                if a.coupling == b.coupling and together and is_open and not commute(specs, a, b):
                    expected.add((a.name, b.name))
        found = {(pair.first, pair.second) for pair in analyzed(specs).pairs}
        assert found == expected, seed


def test_rules_said_to_be_confluent_leave_one_state_in_every_order(scale: int) -> None:
    # The rule sets should often depend on the order, and be known not to where there is a choice.
    worlds = Worlds(RULE_SETS * scale, "states", told_apart=3, sure_with_choice=3)
    for draw in worlds:
        specs = random_specs(draw, ("immediate", "deferred"), rules_max=4)
        analysis = analyzed(specs)
        events = [draw.choice(specs).on for _ in range(2)]
        outcomes = []
        for order in permutations(specs):
            try:
                outcomes.append(Interpreter(list(order)).run(events))
            except TooLong:
                assert analysis.terminates is PropertyVerdict.UNSURE, specs
                break
        else:
            if any(outcome != outcomes[0] for outcome in outcomes):
                worlds.met["told_apart"] += 1
                assert analysis.is_confluent is PropertyVerdict.UNSURE, specs
            elif analysis.is_confluent is PropertyVerdict.SURE and len(outcomes[0]) > 2:
                worlds.met["sure_with_choice"] += 1


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
def test_runs_without_end_are_bounded_by_what_the_cycle_names(coupling: str) -> None:
    spec = Spec("loop", ("update", "a", "x"), (), (("update", "a", "x"),), coupling, None)
    with pytest.raises(TooLong):
        Interpreter([spec]).run([("update", "a", "x")])
    (cycle,) = analyzed([spec]).cycles
    assert cycle.bounds == (("cascade_max",) if coupling == "immediate" else ("cycles_max",))
