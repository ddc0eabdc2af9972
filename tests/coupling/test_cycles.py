from __future__ import annotations

import pytest

from coupling import CycleBoundReached, DeferredCycles


def test_cycles_without_items_end_at_once() -> None:
    cycles: DeferredCycles[str] = DeferredCycles(1)
    assert cycles.next_cycle() == []
    assert cycles.next_cycle() == []


def test_cycles_keep_the_order_in_which_items_were_deferred() -> None:
    cycles: DeferredCycles[int] = DeferredCycles(1)
    for item in (3, 1, 2, 1):
        cycles.defer(item)
    assert cycles.next_cycle() == [3, 1, 2, 1]
    assert cycles.next_cycle() == []


def test_cycles_item_deferred_during_a_cycle_waits_for_the_next_one() -> None:
    cycles: DeferredCycles[str] = DeferredCycles(10)
    cycles.defer("a")
    cycles.defer("b")
    ran = []
    while cycle := cycles.next_cycle():
        for item in cycle:
            if len(item) < 3:
                cycles.defer(item + item[0])
        ran.append(list(cycle))
    assert ran == [["a", "b"], ["aa", "bb"], ["aaa", "bbb"]]


def test_cycles_taken_list_is_not_changed_by_later_items() -> None:
    cycles: DeferredCycles[str] = DeferredCycles(10)
    cycles.defer("a")
    cycle = cycles.next_cycle()
    cycles.defer("b")
    assert cycle == ["a"]


def test_cycles_up_to_the_bound_are_allowed() -> None:
    cycles: DeferredCycles[int] = DeferredCycles(3)
    for number in range(3):
        cycles.defer(number)
        assert cycles.next_cycle() == [number]
    assert cycles.next_cycle() == []


def test_cycles_beyond_the_bound_raise_with_what_is_pending() -> None:
    cycles: DeferredCycles[str] = DeferredCycles(2)
    for _ in range(2):
        cycles.defer("x")
        cycles.next_cycle()
    cycles.defer("left")
    cycles.defer("over")
    with pytest.raises(CycleBoundReached, match="more than 2 deferred cycles") as caught:
        cycles.next_cycle()
    assert caught.value.bound == 2
    assert caught.value.pending == ["left", "over"]


def test_cycles_bound_that_was_reached_stays_reached() -> None:
    cycles: DeferredCycles[str] = DeferredCycles(1)
    cycles.defer("x")
    cycles.next_cycle()
    cycles.defer("y")
    for _ in range(2):
        with pytest.raises(CycleBoundReached):
            cycles.next_cycle()
