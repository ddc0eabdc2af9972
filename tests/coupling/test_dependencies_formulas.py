"""The dependency graph against the formulas, taken literally: all short histories, random ones."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import event, given, settings

from coupling import DependencyKind
from tests.coupling.world import World

KINDS = list(DependencyKind)
SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


def both_top_level(world: World) -> None:
    world.add(0)
    world.add(1)


def other_in_a_subtransaction(world: World) -> None:
    world.add(2)
    world.begin(2)
    world.add(0)
    world.add(1, 2)


def siblings(world: World) -> None:
    world.add(2)
    world.begin(2)
    world.add(0, 2)
    world.add(1, 2)


def parent_on_child(world: World) -> None:
    world.add(0)
    world.begin(0)
    world.add(1, 0)


def all_histories(setup: Callable[[World], None], kinds: tuple[DependencyKind, ...]) -> int:
    """Play every history in which 0 depends on 1; return how many were complete."""
    world = World()
    setup(world)
    for kind in kinds:
        world.depend(0, kind, 1)
    complete = 0
    unfinished = [world]
    while unfinished:
        world = unfinished.pop()
        here = pickle.dumps(world)
        live = [name for name in world.parents if world.is_live(name)]
        if not live:
            complete += 1
            world.check_history()
        for name in live:
            begun = ("begin", name) in world.history
            steps = ["abort"]
            if name not in (world.wants_to_commit if begun else world.wants_to_begin):
                steps.append("commit" if begun else "begin")
            for what in steps:
                after: World = pickle.loads(here)
                getattr(after, what)(name)
                unfinished.append(after)
    return complete


@pytest.mark.long
@pytest.mark.parametrize("kinds", [(k,) for k in KINDS] + [("AD", "ED"), ("SQD", "ED")])
@pytest.mark.parametrize(
    "setup", [both_top_level, other_in_a_subtransaction, siblings, parent_on_child]
)
def test_dependencies_every_short_history_is_as_the_formulas_say(
    setup: Callable[[World], None], kinds: tuple[str, ...]
) -> None:
    assert all_histories(setup, tuple(DependencyKind(kind) for kind in kinds)) > 10


@st.composite
def forests(draw: st.DrawFn) -> World:
    """Up to six transactions, some in others, not all begun, and dependencies between them."""
    world = World()
    for name in range(draw(st.integers(2, 6))):
        parents = [p for p in world.parents if ("begin", p) in world.history]
        world.add(name, draw(st.sampled_from([None, *parents, *parents])))
        if draw(st.sampled_from([True, True, True, False])):
            world.begin(name)
    return world


names = st.integers(0, 5)
dependencies = st.tuples(st.just("depend"), names, st.sampled_from(KINDS), names)
steps = st.one_of(
    st.tuples(st.sampled_from(["begin", "abort"]), names),
    st.tuples(st.just("commit"), names),
    st.tuples(st.just("commit"), names),
    dependencies,
    st.tuples(st.just("add"), st.integers(6, 8), names),
)


@settings(max_examples=500 * SCALE)
@given(forests(), st.lists(dependencies, min_size=2, max_size=9), st.lists(steps, max_size=30))
def test_dependencies_random_histories_are_as_the_formulas_say(
    world: World, first: list[tuple[Any, ...]], then: list[tuple[Any, ...]]
) -> None:
    for what, *arguments in first + then:
        getattr(world, what)(*arguments)
    event(f"refused cycles: {min(len(world.refused), 3)}")
    event(f"longest cycle: {max((len(e.cycle) for e in world.refused), default=0)}")
    event(f"handed over: {min(world.handed_over, 3)}")
    world.finish()
    world.check_history()
    assert len(world.graph) == 0
    assert world.graph.dependencies() == ()
