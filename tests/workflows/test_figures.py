"""Figures 1 to 5 of Vidyasankar 2016, run and compensated in a database."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from activedb.batches import Closing, Program, isolated, merged, overlapping, split
from activedb.errors import AlreadyCompensated, Interferes
from tests.workflows.marking import Marking, chain, marking, rows_of

if TYPE_CHECKING:
    from activedb import Database
    from activedb.batches import Grouping


def fed(db: Database, *groupings: Grouping, batches: int) -> Marking:
    """A chain of programs that has had so many batches, of six rows each."""
    of = marking(db, chain(*groupings))
    for number in range(1, batches + 1):
        of.run.feed("a", rows_of(*(f"{number}.{row}" for row in range(6))))
    return of


def test_isolation_compensation_of_one_batch_leaves_the_others(db: Database) -> None:
    of = fed(db, isolated(), isolated(), isolated(), batches=2)
    plan = of.run.plan("a#1")
    assert plan.order == ("P3#1", "P2#1", "P1#1")
    assert len(of.written()) == 6  # nothing is done by planning
    of.run.compensate("a#1", plan=plan)
    assert of.executed() == ["P1#2", "P2#2", "P3#2"]
    assert all(".0" in mark and "1.0" not in mark for mark in of.written())
    assert of.states()["a#1"] == "dropped"
    assert of.states()["a#2"] == "whole"


def test_isolation_compensation_of_a_derived_batch_keeps_what_led_to_it(db: Database) -> None:
    of = fed(db, isolated(), isolated(), isolated(), batches=1)
    of.run.compensate("P1#1'")
    assert of.executed() == ["P1#1"]
    assert of.states() == {
        "a#1": "partially dropped",
        "P1#1'": "dropped",
        "P2#1'": "withdrawn",
        "P3#1'": "withdrawn",
    }


def test_figure_1_splits_every_piece_goes_with_its_batch(db: Database) -> None:
    of = fed(db, isolated(), split(3), split(2), batches=2)
    assert len(of.run.lineage("a#1").triggered) == 1 + 3 + 6
    assert of.run.lineage("P2>P3#4").sources == ("a#1",)
    of.run.compensate("a#1")
    assert len(of.executed()) == 10
    assert all("2." in mark for mark in of.written())


def test_figure_2_merges_full_non_intrusive_and_cover(db: Database) -> None:
    of = fed(db, isolated(), merged(2), merged(3), batches=6)
    with pytest.raises(Interferes, match="a#2 would lose P2#1, P3#1") as refused:
        of.run.compensate("a#1")
    others = {each.batch for each in refused.value.plan.interference}
    assert others == {"a#2", "a#3", "a#4", "a#5", "a#6"}
    assert len(of.executed()) == 6 + 3 + 1

    gentle = of.run.compensate("a#1", "non-intrusive")  # (a): T1,1 only
    assert gentle.order == ("P1#1",)
    assert {each.transaction for each in gentle.lost_input} == {"P2#1"}
    assert of.states()["a#1"] == "partially dropped"

    cover = of.run.cover("a#2")
    assert (cover.closing, len(cover.sources)) == (Closing.CLOSED, 6)
    of.run.compensate("a#2", "independent cover")  # (c): all that is left
    assert of.executed() == []
    assert of.written() == []
    assert {of.states()[f"a#{number}"] for number in range(1, 7)} == {"dropped"}
    with pytest.raises(AlreadyCompensated):
        of.run.compensate("a#2", "independent cover")


def test_figure_2_merges_interference_that_is_allowed_is_recorded(db: Database) -> None:
    of = fed(db, isolated(), merged(2), merged(3), batches=6)
    of.run.compensate("a#1", allow_interference=True)  # (b)
    assert of.executed() == ["P1#2", "P1#3", "P1#4", "P1#5", "P1#6", "P2#2", "P2#3"]
    states = of.states()
    assert states["a#1"] == "dropped"
    assert {states[f"a#{number}"] for number in range(2, 7)} == {"partially dropped"}
    assert [states[id] for id in ("P1#2'", "P2#2'", "P2#1'")] == ["dropped", "dropped", "withdrawn"]


def test_figure_3_splits_and_merges_cover_is_both_batches(db: Database) -> None:
    of = fed(db, isolated(), split(3), merged(2), batches=2)
    shared = {each.shared for each in of.run.plan("a#1").interference}
    assert shared == {("P3#2",)}
    assert of.run.cover("a#1").sources == of.run.cover("a#2").sources == ("a#1", "a#2")
    of.run.compensate("a#1", "independent cover")
    assert of.written() == []


def test_figure_3_derived_batch_is_not_compensated_at_the_cost_of_those_beside_it(
    db: Database,
) -> None:
    of = fed(db, isolated(), split(3), merged(2), batches=2)
    before = of.written()
    with pytest.raises(Interferes, match="P1>P2#1 would lose P3#1"):
        of.run.compensate("P1>P2#2")
    assert of.written() == before

    gentle = of.run.compensate("P1>P2#2", "non-intrusive")
    assert gentle.order == ("P2#2",)
    assert [(each.transaction, each.because_of) for each in gentle.kept] == [("P3#1", ("P1>P2#1",))]
    assert {each.of for each in gentle.broken} == {"a#1", "P3#1"}
    with pytest.raises(AlreadyCompensated, match="P3#1 stand, for others"):
        of.run.compensate("P1>P2#2", "non-intrusive")


def test_figure_3_output_of_which_others_need_all_is_not_compensated_without_them(
    db: Database,
) -> None:
    of = fed(db, isolated(), split(3), merged(2), batches=2)
    before, states = of.written(), of.states()
    plan = of.run.plan("P2#2'", "non-intrusive")
    assert (plan.transactions, plan.to_withdraw, plan.broken) == ((), (), ())
    for again in ("once", "twice"):
        with pytest.raises(Interferes, match="nothing: P3#1 is needed by P1>P2#1") as refused:
            of.run.compensate("P2#2'", "non-intrusive", allow_interference=again == "twice")
        assert refused.value.plan == plan
        with pytest.raises(Interferes, match="would do nothing"):
            of.run.compensate(plan=plan)
    assert (of.written(), of.states()) == (before, states)

    of.run.compensate("P2#2'", allow_interference=True)
    with pytest.raises(AlreadyCompensated):
        of.run.compensate("P2#2'", "non-intrusive")
    with pytest.raises(AlreadyCompensated):
        of.run.compensate(plan=plan)


def test_figure_4_overlap_has_no_cover_and_goes_on_without_what_was_dropped(db: Database) -> None:
    of = fed(db, overlapping(3), overlapping(2), isolated(), batches=5)
    cover = of.run.cover("a#3")
    assert (cover.closing, cover.sources) == (Closing.ENDLESS, ("a#3",))
    assert of.run.waiting() == {"P1": ("a#4", "a#5"), "P2": ("P1#3'",)}
    of.run.compensate("a#3", allow_interference=True)
    assert of.executed() == []
    assert {of.states()[f"a#{n}"] for n in (4, 5)} == {"partially dropped"}
    of.run.feed("a", rows_of("6.0"))  # a6 . a5 . a4, as the paper says
    assert of.executed() == ["P1#4", "P2#3", "P3#3"]  # P2 with one batch, as the other is gone
    assert [row["of"][:2] for row in of.run.rows("a>P1#4")] == ["4."] * 6 + ["5."] * 6 + ["6."]


def test_figure_5_relaxed_batch_order_merges_what_is_not_consecutive(db: Database) -> None:
    relaxed = "batch order"
    programs = [
        Program("P1", {"a": split(6)}, relax=relaxed),
        Program("P2", {"P1": merged(2)}, relax=relaxed),
        Program("P3", "P2"),
    ]
    of = marking(db, programs)
    of.run.feed("a", rows_of(*map(str, range(6))))
    lineage = of.run.whole_lineage()
    assert len(of.executed()) == 6 + 3 + 3
    merged_ = [batch for batch in lineage.batches() if batch.reader == "P2"]
    pieces = sorted(piece.batch for batch in merged_ for piece in batch.pieces)
    assert pieces == sorted(f"P1#{number}'" for number in range(1, 7))
    one = random.Random(5).choice(merged_)
    of.run.compensate(one.id)
    assert len(of.executed()) == 6 + 2 + 2
