"""Forming input batches, by example."""

from __future__ import annotations

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
    merged,
    overlapping,
    split,
)
from activedb.errors import LineageError, RecordedTwice


def source(number: int, stream: str = "a") -> Batch:
    return Batch(f"{stream}{number}", BatchKind.SOURCE, stream, number)


def shown(due: tuple[Due, ...]) -> list[str]:
    return [
        f"{each.program}#{each.number}: "
        + " | ".join(", ".join(str(piece) for piece in one) for one in each.inputs)
        for each in due
    ]


def one(grouping: Grouping, **options: str) -> Forming:
    return Forming(Workflow([Program("p", {"a": grouping}, **options)], sources="a"))  # type: ignore[arg-type]


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
