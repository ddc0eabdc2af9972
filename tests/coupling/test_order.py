from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from coupling import priority_groups


def test_priority_groups_of_nothing_are_none() -> None:
    assert priority_groups([], lambda item: 1) == []


def test_priority_groups_higher_first_none_below_every_number() -> None:
    items = [("a", None), ("b", -5), ("c", 0), ("d", 7), ("e", None), ("f", 7)]
    groups = priority_groups(items, lambda item: item[1])
    assert [[name for name, _ in group] for group in groups] == [
        ["d", "f"],
        ["c"],
        ["b"],
        ["a", "e"],
    ]


def test_priority_groups_none_is_not_zero() -> None:
    assert priority_groups(["none", "zero"], {"none": None, "zero": 0}.__getitem__) == [
        ["zero"],
        ["none"],
    ]


def test_priority_groups_takes_any_iterable() -> None:
    assert priority_groups(iter([1, 2]), lambda item: item) == [[2], [1]]


@given(st.lists(st.tuples(st.none() | st.integers(-3, 3), st.integers())))
def test_priority_groups_partition_their_items_stably(
    items: list[tuple[int | None, int]],
) -> None:
    groups = priority_groups(items, lambda item: item[0])
    ranks = [{priority for priority, _ in group} for group in groups]
    assert all(len(rank) == 1 for rank in ranks)
    order = [rank.pop() for rank in ranks]
    numbers = [priority for priority in order if priority is not None]
    assert numbers == sorted(set(numbers), reverse=True)
    assert None not in order[:-1]
    assert [item for group in groups for item in group] == [
        item for priority in order for item in items if item[0] == priority
    ]
