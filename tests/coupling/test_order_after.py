"""Order by dependencies and priorities, against definitions that are tried one by one."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import TYPE_CHECKING, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from coupling import OrderCycle, check_order, ordered_groups, priority_groups

if TYPE_CHECKING:
    from collections.abc import Mapping


class Item(NamedTuple):
    rule: str
    number: int
    priority: int | None
    after: tuple[str, ...]


def grouped(items: list[Item]) -> list[list[Item]]:
    groups = ordered_groups(
        items, name=lambda i: i.rule, priority=lambda i: i.priority, after=lambda i: i.after
    )
    return [group.items for group in groups]


def names(items: list[Item]) -> list[list[str]]:
    return [[item.rule for item in group] for group in grouped(items)]


def test_order_after_a_rule_of_lower_priority_pulls_that_one_forward() -> None:
    items = [Item("high", 0, 9, ("low",)), Item("middle", 0, 5, ()), Item("low", 0, None, ())]
    assert names(items) == [["low"], ["high"], ["middle"]]
    groups = ordered_groups(
        items, name=lambda i: i.rule, priority=lambda i: i.priority, after=lambda i: i.after
    )
    assert [group.priority for group in groups] == [9, 9, 5]
    free = [item._replace(after=()) for item in items]
    groups = ordered_groups(
        free, name=lambda i: i.rule, priority=lambda i: i.priority, after=lambda i: i.after
    )
    assert [group.priority for group in groups] == [9, 5, None]


def test_order_after_a_rule_that_was_not_triggered_waits_for_nothing() -> None:
    items = [Item("a", 0, None, ("gone",)), Item("b", 0, None, ())]
    assert names(items) == [["a", "b"]]


def test_order_after_through_others_makes_a_chain_of_groups() -> None:
    items = [Item("c", 0, 1, ("b",)), Item("b", 0, 1, ("a",)), Item("a", 0, 1, ())]
    assert names(items) == [["a"], ["b"], ["c"]]


def test_order_after_keeps_the_occurrences_of_a_rule_together() -> None:
    items = [Item("b", 1, None, ("a",)), Item("a", 1, None, ()), Item("b", 2, None, ("a",))]
    assert grouped(items) == [[items[1]], [items[0], items[2]]]


def test_order_after_each_other_is_refused_with_the_way_around() -> None:
    items = [Item("a", 0, 1, ("b",)), Item("b", 0, 1, ("c",)), Item("c", 0, 1, ("a",))]
    with pytest.raises(OrderCycle) as refused:
        grouped(items)
    around = refused.value.rules
    assert sorted(around) == ["a", "b", "c"]
    after = {item.rule: item.after for item in items}
    assert all(b in after[a] for a, b in zip(around, [*around[1:], around[0]], strict=True))
    assert str(refused.value) == " after ".join([*around, around[0]])


def test_order_after_itself_is_refused() -> None:
    with pytest.raises(OrderCycle) as refused:
        check_order({"a": ("a",), "b": ("a",)})
    assert refused.value.rules == ["a"]


rules = st.sampled_from("abcde")


@st.composite
def triggered(draw: st.DrawFn) -> list[Item]:
    priorities = draw(
        st.fixed_dictionaries({name: st.none() | st.integers(-2, 2) for name in "abcde"})
    )
    afters = draw(st.fixed_dictionaries({name: st.sets(rules, max_size=2) for name in "abcde"}))
    found = draw(st.lists(rules, max_size=8))
    return [
        Item(rule, number, priorities[rule], tuple(sorted(afters[rule])))
        for number, rule in enumerate(found)
    ]


def waits(items: list[Item]) -> dict[str, set[str]]:
    """Rule to all those that have to end before it, directly or through others."""
    present = {item.rule: {n for n in item.after if n in {i.rule for i in items}} for item in items}
    while True:
        more = {r: o.union(*(present[x] for x in o)) for r, o in present.items()}
        if more == present:
            return present
        present = more


@given(triggered())
def test_order_is_that_of_the_definition(items: list[Item]) -> None:
    before = waits(items)
    if any(rule in others for rule, others in before.items()):
        with pytest.raises(OrderCycle) as refused:
            grouped(items)
        around, after = refused.value.rules, {item.rule: item.after for item in items}
        assert all(b in after[a] for a, b in zip(around, [*around[1:], around[0]], strict=True))
        return
    groups = grouped(items)
    assert sorted(item for group in groups for item in group) == sorted(items)
    place = {item.rule: number for number, group in enumerate(groups) for item in group}
    for group in groups:
        assert group == [item for item in items if place[item.rule] == place[group[0].rule]]
    own = {item.rule: -(2**63) if item.priority is None else item.priority for item in items}
    lifted = {
        rule: max([own[rule], *(own[other] for other in own if rule in before[other])])
        for rule in own
    }
    for first in own:
        for second in own:
            if first in before[second] or lifted[first] > lifted[second]:
                assert place[first] < place[second]
    # No group could be earlier: each one has a rule that waits for one of the group before.
    for earlier, later in pairwise(groups):
        assert any(
            lifted[a.rule] > lifted[b.rule] or a.rule in before[b.rule]
            for a in earlier
            for b in later
        )


@given(triggered())
def test_order_without_dependencies_is_that_of_priorities(items: list[Item]) -> None:
    free = [item._replace(after=()) for item in items]
    assert grouped(free) == priority_groups(free, lambda item: item.priority)


@given(st.dictionaries(st.sampled_from("abcd"), st.sets(st.sampled_from("abcd"), max_size=3)))
def test_order_check_accepts_exactly_what_some_sequence_fulfils(
    after: Mapping[str, set[str]],
) -> None:
    def fulfils(order: tuple[str, ...]) -> bool:
        place = {rule: number for number, rule in enumerate(order)}
        return all(place[a] < place[rule] for rule, others in after.items() for a in others)

    if any(fulfils(order) for order in permutations("abcd")):
        check_order(after)
    else:
        with pytest.raises(OrderCycle):
            check_order(after)
