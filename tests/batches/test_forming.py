"""Forming input batches, by example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from activedb.batches import (
    Batch,
    BatchKind,
    Due,
    Forming,
    Grouping,
    Lineage,
    Piece,
    Program,
    Workflow,
    isolated,
    merged,
    overlapping,
    split,
)
from activedb.errors import LineageError, RecordedTwice
from tests.drawing import Worlds

if TYPE_CHECKING:
    from collections.abc import Mapping


def source(number: int, stream: str = "a") -> Batch:
    return Batch(f"{stream}{number}", BatchKind.SOURCE, stream, number)


def shown(due: tuple[Due, ...]) -> list[str]:
    return [
        f"{each.program}#{each.number}: "
        + " | ".join(", ".join(str(piece) for piece in one) for one in each.inputs)
        for each in due
    ]


def one(grouping: Grouping, state: Mapping[str, Any] | None = None, **options: str) -> Forming:
    workflow = Workflow([Program("p", {"a": grouping}, **options)], sources="a")  # type: ignore[arg-type]
    return Forming(workflow, state)


def test_forming_split_makes_as_many_at_once() -> None:
    assert shown(one(split(2)).offer(source(1))) == ["p#1: 1/2 of a1", "p#2: 2/2 of a1"]


def test_forming_merge_waits_for_enough() -> None:
    forming = one(merged(2))
    assert forming.offer(source(1)) == ()
    assert forming.waiting() == {"p": ("a1",)}
    assert shown(forming.offer(source(2))) == ["p#1: a1, a2"]
    assert forming.waiting() == {}


def test_forming_overlap_keeps_what_the_next_one_shares() -> None:
    forming = one(overlapping(3, every=2))
    due = [shown(forming.offer(source(n))) for n in range(1, 6)]
    assert due == [[], [], ["p#1: a1, a2, a3"], [], ["p#2: a3, a4, a5"]]
    assert forming.waiting() == {"p": ("a5",)}


def test_forming_pieces_are_merged_across_batches() -> None:
    forming = one(Grouping(parts=3, size=2, step=2))
    assert shown(forming.offer(source(1))) == ["p#1: 1/3 of a1, 2/3 of a1"]
    assert shown(forming.offer(source(2))) == [
        "p#2: 3/3 of a1, 1/3 of a2",
        "p#3: 2/3 of a2, 3/3 of a2",
    ]


def test_forming_batch_order_is_kept_unless_relaxed() -> None:
    strict, relaxed = one(merged(2)), one(merged(2), relax="batch order")
    assert strict.offer(source(3)) == strict.offer(source(2)) == ()
    assert strict.waiting() == {"p": ("a2", "a3")}
    assert shown(strict.offer(source(1))) == ["p#1: a1, a2"]
    assert relaxed.offer(source(3)) == ()
    assert shown(relaxed.offer(source(1))) == ["p#1: a3, a1"]


def test_forming_join_waits_for_the_same_place_of_each_stream() -> None:
    forming = Forming(Workflow([Program("p", {"a": merged(2), "b": split(2)})], sources=["a", "b"]))
    assert forming.offer(source(1, "b")) == ()
    assert forming.offer(source(1)) == ()
    assert forming.waiting() == {"p": ("a1", "b1")}
    assert shown(forming.offer(source(2))) == ["p#1: a1, a2 | 1/2 of b1"]


def test_forming_skipped_batch_leaves_gaps() -> None:
    forming = one(merged(2))
    forming.offer(source(1))
    assert shown(forming.skip("a", 2)) == ["p#1: a1"]
    assert forming.skip("a", 3) == forming.skip("a", 4) == ()
    forming.offer(source(5))
    assert shown(forming.offer(source(6))) == ["p#3: a5, a6"]


def test_forming_skip_goes_on_where_nothing_is_left() -> None:
    workflow = Workflow([Program("p", "a"), Program("q", {"p": merged(2)})], sources="a")
    forming = Forming(workflow)
    forming.offer(source(1))
    forming.offer(Batch("p1'", BatchKind.OUTPUT, "p", 1, producer="p1"))
    assert shown(forming.skip("a", 2)) == ["q#1: p1'"]


def test_forming_withdrawn_batch_is_in_nothing_that_is_formed_later() -> None:
    forming = one(overlapping(3))
    for number in (1, 2, 3, 5):
        forming.offer(source(number))
    forming.withdraw(["a3", "a5", "x"])
    assert shown(forming.offer(source(4))) == ["p#2: a2, a4", "p#3: a4"]
    assert forming.waiting() == {"p": ("a4",)}


def test_forming_same_number_twice_is_refused_and_changes_nothing() -> None:
    forming = one(merged(2))
    forming.offer(source(1))
    forming.offer(source(3))
    before = forming.state()
    for number in (1, 3):
        with pytest.raises(RecordedTwice, match=f"number {number} of 'a'"):
            forming.offer(source(number))
    with pytest.raises(LineageError, match="input batch already"):
        forming.offer(Batch("x", BatchKind.INPUT, "a", 1, pieces=(Piece("a1"),)))
    with pytest.raises(LineageError, match="no stream 'z'"):
        forming.skip("z", 1)
    assert forming.state() == before


@pytest.mark.parametrize("cut", [split(1), split(2), merged(3), overlapping(3, every=2)], ids=str)
def test_forming_that_relaxes_or_keeps_order_from_now_on_loses_no_batch(cut: Grouping) -> None:
    worlds = Worlds(20, "relaxing", str(cut), relaxed_with_held=5, strict_with_early=5)
    for random in worlds:
        forming, is_relaxed = one(cut), False
        taken: list[int] = []  # in this order, by the definition
        held: list[int] = []
        found: list[Due] = []
        for number in sorted(range(1, 21), key=lambda n: n + random.random() * 5):
            if random.random() < 0.3:
                is_relaxed = not is_relaxed
                options = {"relax": "batch order"} if is_relaxed else {}
                forming = one(cut, forming.state(), **options)
                worlds.met["relaxed_with_held"] += is_relaxed and bool(held)
                worlds.met["strict_with_early"] += not is_relaxed and len(taken) < max(
                    taken, default=0
                )
            is_skipped = random.random() < 0.2
            found += forming.skip("a", number) if is_skipped else forming.offer(source(number))
            held.append(-number if is_skipped else number)
            held.sort(key=abs)
            if is_relaxed:
                early, held = [each for each in held if abs(each) != number], []
                taken += [*early, -number if is_skipped else number]
            while held and abs(held[0]) == _first_missing(taken):
                taken.append(held.pop(0))
        plain = one(cut, relax="batch order")
        expected: list[Due] = []
        for each in taken:
            expected += plain.offer(source(each)) if each > 0 else plain.skip("a", -each)
        assert (held, len(taken)) == ([], 20)
        assert found == expected
        assert forming.waiting() == plain.waiting()


def _first_missing(taken: list[int]) -> int:
    there = set(map(abs, taken))
    return next(number for number in range(1, 22) if number not in there)


def test_forming_number_that_was_taken_out_of_order_is_refused_once_order_is_kept() -> None:
    relaxed = one(isolated(), relax="batch order")
    relaxed.offer(source(2))
    strict = one(isolated(), relaxed.state())
    with pytest.raises(RecordedTwice):
        strict.offer(source(2))
    assert shown(strict.offer(source(1))) == ["p#2: a1"]
    assert shown(strict.offer(source(3))) == ["p#3: a3"]


@pytest.mark.parametrize("cut", [split(2), merged(3), overlapping(3, every=2)], ids=str)
def test_forming_state_that_has_not_counted_relaxed_batches_goes_on_behind_them(
    cut: Grouping,
) -> None:
    relaxed = one(cut, relax="batch order")
    for number in range(1, 6):
        relaxed.offer(source(number))
    state = relaxed.state()
    for intake in state["intakes"]:
        intake["expected"] = 1
        del intake["taken"]
    assert one(cut, state).state() == relaxed.state()


def test_forming_state_of_another_workflow_is_refused() -> None:
    other = Workflow([Program("q", "a")], sources="a")
    with pytest.raises(
        LineageError, match="state belongs to another workflow, with the programs p"
    ):
        Forming(other, one(merged(2)).state())


def test_input_batch_of_pieces_of_several_cuts_is_refused() -> None:
    lineage = Lineage(Workflow([Program("p", {"s": Grouping(parts=2)})], sources="s"))
    batch = lineage.arrive("s").id
    with pytest.raises(LineageError, match="cut in 2 and in 1"):
        lineage.form("p", [Piece(batch, 1, 2), Piece(batch, 1, 1)])
