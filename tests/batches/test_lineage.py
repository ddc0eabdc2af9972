"""Recording: what is refused leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from activedb.batches import (
    BatchKind,
    Grouping,
    Lineage,
    Piece,
    Program,
    Standing,
    State,
    Workflow,
    batch_graph,
    composite,
    lineage_of,
    merged,
    overlapping,
    split,
    standing,
    transaction_graph,
)
from activedb.errors import LineageError, NotRecorded, RecordedTwice, StreamError, UsedTwice


def recorded() -> Lineage:
    """Two sources, a split, a merge of two, a window of two, a join, and a called program."""
    workflow = Workflow(
        [
            Program("cut", {"a": split(2)}),
            Program("pair", {"cut": merged(2)}),
            Program("slide", {"a": overlapping(2)}),
            Program("join", ["pair", "b"]),
            Program("called", after="join"),
        ],
        sources=["a", "b"],
    )
    lineage = Lineage(workflow)
    lineage.arrive("a")
    lineage.arrive("b")
    lineage.execute("cut", [[Piece("a#1", 1, 2)]])
    lineage.fail("cut", [[Piece("a#1", 2, 2)]])
    return lineage


def test_lineage_ids_and_numbers_by_default() -> None:
    lineage = recorded()
    assert [batch.id for batch in lineage.batches()] == [
        "a#1",
        "b#1",
        "a>cut#1",
        "cut#1'",
        "a>cut#2",
    ]
    assert [each.id for each in lineage.transactions()] == ["cut#1", "cut#2"]
    assert lineage.batch("a>cut#2").pieces == (Piece("a#1", 2, 2),)
    assert str(lineage.batch("a>cut#2").pieces[0]) == "2/2 of a#1"
    assert lineage.batch("cut#1'").kind is BatchKind.OUTPUT
    assert lineage.transaction("cut#2").state is State.FAILED
    assert len(lineage) == 7
    assert "cut#1" in lineage
    assert "cut#3" not in lineage


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda g: g.arrive("c"), LineageError, "not a source .* there are a, b"),
        (lambda g: g.arrive("a", 1), RecordedTwice, "number 1"),
        (lambda g: g.arrive("a", 0), LineageError, "from 1"),
        (lambda g: g.arrive("a", id="b#1"), RecordedTwice, "'b#1'"),
        (lambda g: g.arrive("a", id="cut#1"), RecordedTwice, "'cut#1'"),
        (lambda g: g.form("pair", ["a#1"]), LineageError, "does not read 'a'"),
        (lambda g: g.form("cut", []), LineageError, "at least one piece"),
        (lambda g: g.form("cut", ["a#1", "b#1"]), LineageError, "of one stream"),
        (lambda g: g.form("cut", ["a#1", "a#1"]), LineageError, "a piece twice"),
        (lambda g: g.form("cut", [Piece("a#1", 3, 2)]), LineageError, "no such part: 3/2 of a#1"),
        (lambda g: g.form("cut", ["a>cut#1"]), LineageError, "input batch itself"),
        (lambda g: g.form("cut", ["cut#1"]), NotRecorded, "it is a transaction"),
        (lambda g: g.execute("cat", ["a#1"]), LineageError, "not a program"),
        (lambda g: g.execute("pair", ["x"]), NotRecorded, "no batch 'x'"),
        (lambda g: g.execute("pair"), LineageError, "has an input batch"),
        (lambda g: g.execute("join", [[]]), LineageError, "has an input batch"),
        (lambda g: g.execute("pair", ["a>cut#1"]), LineageError, "formed for 'cut'"),
        (lambda g: g.execute("cut", [[Piece("a#1", 1, 2)]]), UsedTwice, "in cut#1"),
        (lambda g: g.execute("cut", [[Piece("a#1", 1, 3)]]), LineageError, "cut in 2"),
        (lambda g: g.execute("slide", ["a#1"], id="cut#1"), RecordedTwice, "'cut#1'"),
        (lambda g: g.execute("slide", ["a#1"], id="x", output="x"), RecordedTwice, "two things"),
        (lambda g: g.execute("slide", ["a#1"], output="a#1"), RecordedTwice, "'a#1'"),
        (lambda g: g.execute("slide", ["a#1", "a>cut#1"]), LineageError, "formed for 'cut'"),
        (lambda g: g.execute("join", ["b#1", ["b#1"]]), LineageError, "one input batch of 'b'"),
        (lambda g: g.execute("slide", ["a#1"], triggered_by=["cut#1"]), LineageError, "in after="),
        (lambda g: g.execute("called", triggered_by=["b#1"]), NotRecorded, "it is a batch"),
        (lambda g: g.succeed("cut#1"), LineageError, "has not failed: it is executed"),
        (lambda g: g.succeed("cut#2", output="a#1"), RecordedTwice, "'a#1'"),
        (lambda g: g.compensate(["cut#1", "cut#9"]), NotRecorded, "'cut#9'"),
        (lambda g: g.end("cut"), LineageError, "not a source"),
        (lambda g: g.sources_of("x"), NotRecorded, "'x'"),
        (lambda g: g.next_of("x"), NotRecorded, "'x'"),
        (lambda g: lineage_of(g, "cut#1"), NotRecorded, "it is a transaction"),
    ],
)
def test_lineage_call_that_cannot_be_is_refused_and_changes_nothing(
    call: Callable[[Lineage], object], error: type[Exception], words: str
) -> None:
    lineage = recorded()
    before = lineage.records(), len(lineage), [lineage.is_still_due("a#1")]
    with pytest.raises(error, match=words):
        call(lineage)
    assert (lineage.records(), len(lineage), [lineage.is_still_due("a#1")]) == before
    assert issubclass(error, StreamError)
    lineage.arrive("a", 2)
    lineage.execute("slide", [["a#1", "a#2"]])


def test_lineage_called_program_belongs_to_what_has_triggered_it() -> None:
    lineage = recorded()
    lineage.succeed("cut#2")
    lineage.execute("pair", [["cut#1'", "cut#2'"]])
    join = lineage.execute("join", ["pair#1'", "b#1"], output="")
    called = lineage.execute("called", triggered_by=[join.id], output="")
    assert lineage.sources_of(called.id) == ("a#1", "b#1")
    assert composite(lineage, "b#1") == ("join#1", "called#1")
    kinds = {(f, s): kind for f, s, kind in transaction_graph(lineage).edges(data="kind")}
    assert kinds["join#1", "called#1"] == "trigger"
    assert kinds["pair#1", "join#1"] == "stream"
    assert standing(lineage, "b#1") is Standing.COMPLETE


def test_lineage_transaction_without_output_makes_nothing_of_its_batch() -> None:
    lineage = recorded()
    lineage.execute("slide", ["a#1"], output="")
    assert lineage.next_of("slide#1") == ()
    assert "slide#1'" not in lineage


def test_lineage_piece_may_be_used_again_after_compensation() -> None:
    lineage = recorded()
    lineage.compensate(["cut#1"])
    again = lineage.execute("cut", [[Piece("a#1", 1, 2)]])
    assert (again.id, again.number) == ("cut#3", 3)
    with pytest.raises(LineageError, match="cut#1 is compensated already"):
        lineage.compensate(["cut#1"])


def test_lineage_still_due_is_what_a_reader_is_to_use() -> None:
    lineage = recorded()
    assert lineage.is_still_due("a#1")
    assert [p.name for p in lineage.readers_still_due("a#1")] == ["slide"]
    lineage.arrive("a")
    lineage.execute("slide", [["a#1", "a#2"]])
    assert not lineage.is_still_due("a#1")
    assert [p.name for p in lineage.readers_still_due("a#2")] == ["cut", "slide"]
    lineage.execute("cut", [[Piece("a#2", 1, 2)]])
    assert [p.name for p in lineage.readers_still_due("a#2")] == ["cut", "slide"]
    lineage.execute("cut", [[Piece("a#2", 2, 2)]])
    assert [p.name for p in lineage.readers_still_due("a#2")] == ["slide"]
    lineage.end("a")
    assert not lineage.is_still_due("a#2")
    assert lineage.is_at_rest("pair")
    assert not lineage.is_at_rest("join")


def test_lineage_still_due_is_what_the_newest_input_batch_hands_on() -> None:
    workflow = Workflow([Program("p", {"a": overlapping(4, every=3)})], sources="a")
    lineage = Lineage(workflow)
    for _ in range(7):
        lineage.arrive("a")
    # Recorded in another order than they were formed in.
    lineage.execute("p", [["a#4", "a#5", "a#6", "a#7"]], number=2)
    lineage.execute("p", [["a#1", "a#2", "a#3", "a#4"]], number=1)
    due = [batch.id for batch in lineage.source_batches("a") if lineage.is_still_due(batch.id)]
    assert due == ["a#7"]


def test_lineage_standing_through_the_life_of_a_batch() -> None:
    lineage = Lineage(
        Workflow([Program("p", "a"), Program("q", {"p": Grouping(size=2, step=2)})], sources="a")
    )
    lineage.arrive("a")
    assert standing(lineage, "a#1") is Standing.WAITING
    lineage.execute("p", ["a#1"])
    assert standing(lineage, "a#1") is Standing.IN_PROCESS
    lineage.arrive("a")
    lineage.execute("p", ["a#2"])
    lineage.fail("q", [["p#1'", "p#2'"]])
    assert standing(lineage, "a#1") is Standing.FAILED
    lineage.succeed("q#1")
    assert standing(lineage, "a#1") is standing(lineage, "q#1'") is Standing.COMPLETE
    lineage.compensate(["q#1"])
    assert standing(lineage, "a#1") is Standing.PARTIALLY_DROPPED
    assert standing(lineage, "p#1'") is Standing.DROPPED
    assert standing(lineage, "q#1'") is Standing.WITHDRAWN
    lineage.compensate(["p#1"])
    assert standing(lineage, "a#1") is Standing.DROPPED
    assert standing(lineage, "a#2") is Standing.PARTIALLY_DROPPED


def test_lineage_of_a_batch_goes_both_ways() -> None:
    lineage = recorded()
    lineage.succeed("cut#2")
    lineage.execute("pair", [["cut#1'", "cut#2'"]])
    found = lineage_of(lineage, "cut#2'")
    assert found.sources == ("a#1",)
    assert found.made_of == ("a#1", "a>cut#2")
    assert found.made_by == ("cut#2",)
    assert found.triggered == ("pair#1",)
    assert found.derived == ("cut>pair#1", "pair#1'")
    assert found.record()["standing"] == "in process"
    assert lineage_of(lineage, "cut>pair#1").explain() == [
        "cut>pair#1 is in process; it is derived from a#1.",
        "It is formed of cut#1', cut#2'.",
        "Made by cut#1, cut#2.",
        "It has triggered pair#1.",
        "Derived from it: pair#1'.",
    ]
    assert set(batch_graph(lineage).predecessors("cut>pair#1")) == {"cut#1'", "cut#2'"}


def test_lineage_part_of_it_can_be_restored_alone() -> None:
    lineage = recorded()
    lineage.arrive("a")
    lineage.execute("cut", [[Piece("a#2", 1, 2)]])
    records = lineage.records()
    part = Lineage.of(lineage.workflow, records[-4:])
    assert [each.id for each in part.transactions()] == ["cut#3"]
    assert part.arrive("a").number == 3
