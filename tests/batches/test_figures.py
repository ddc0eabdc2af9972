"""Figures 1 to 5 of Vidyasankar 2016 and the sentences about them, with the sets written there."""

from __future__ import annotations

import pytest

from activedb.batches import (
    Closing,
    Grouping,
    Mode,
    Requirement,
    composite,
    independent_scover,
    interference,
    is_independent,
    plan_compensation,
    scover,
    shared_transactions,
    transaction_graph,
)
from tests.batches.figures import (
    chain,
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    isolation,
    run,
)


def names(text: str) -> set[str]:
    return set(text.split())


# -- batches in isolation -----------------------------------------------------------------------


def test_isolation_composite_is_one_transaction_of_each_program() -> None:
    lineage = isolation()
    assert composite(lineage, "a1") == ("T1,1", "T2,1", "T3,1")
    assert composite(lineage, "b1") == ("T2,1", "T3,1")


def test_isolation_scover_of_a_derived_batch_is_its_source() -> None:
    lineage = isolation()
    assert scover(lineage, "b1") == ("a1",)
    assert independent_scover(lineage, "b1").sources == ("a1",)
    assert is_independent(lineage, "a1")


def test_isolation_compensating_the_derived_batch_leaves_its_first_transaction() -> None:
    plan = plan_compensation(isolation(), "b1")
    assert plan.order == ("T3,1", "T2,1")
    assert plan.dropped == ("b1",)
    assert plan.partially_dropped == ("a1",)
    assert plan_compensation(isolation(), "a1").order == ("T3,1", "T2,1", "T1,1")


# -- figure 1 -----------------------------------------------------------------------------------


def test_figure_1_splits_composites_and_cover() -> None:
    lineage = figure_1()
    everything = "T1,1 T2,11 T2,12 T2,13 T3,111 T3,112 T3,121 T3,122 T3,131 T3,132"
    assert set(composite(lineage, "b11")) == names("T2,11 T3,111 T3,112")
    assert scover(lineage, "b11") == ("a1",)
    assert set(composite(lineage, "a1")) == names(everything)
    assert set(plan_compensation(lineage, "b11").order) == names("T2,11 T3,111 T3,112")
    assert set(plan_compensation(lineage, "a1").order) == names(everything)


def test_figure_1_construction_goes_up_from_the_part_and_down_again() -> None:
    cover = independent_scover(figure_1(), "b11")
    first, second = cover.rounds
    assert set(first.downstream) == names("T2,11 T3,111 T3,112")
    assert set(first.upstream) == names("T1,1 T2,11 T3,111 T3,112")
    assert first.sources == ("a1",)
    # T1,1 itself is reached from T1,1, by a way of no edge.
    assert set(second.downstream) == names("T1,1 T2,12 T2,13 T3,121 T3,122 T3,131 T3,132")
    assert second.sources == ()
    assert (cover.sources, cover.closing) == (("a1",), Closing.CLOSED)


def test_figure_1_batch_order_is_that_of_the_parts() -> None:
    graph = transaction_graph(figure_1(), batch_order=True)
    order = {(a, b) for a, b, kind in graph.edges(data="kind") if kind == "batch order"}
    assert {("T2,11", "T2,12"), ("T2,12", "T2,13")} < order
    assert len(order) == 7


# -- figure 2 -----------------------------------------------------------------------------------


def test_figure_2_merges_composites_share_what_is_merged() -> None:
    lineage = figure_2()
    assert composite(lineage, "a1") == ("T1,1", "T2,1", "T3,1")
    assert composite(lineage, "a2") == ("T1,2", "T2,1", "T3,1")
    assert shared_transactions(lineage, "a1", "a2") == ("T2,1", "T3,1")
    assert scover(lineage, "b1") == ("a1", "a2")
    assert scover(lineage, "c1") == tuple(f"a{i}" for i in range(1, 7))


def test_figure_2_option_a_is_non_intrusive_and_breaks_monotonic_execution() -> None:
    plan = plan_compensation(figure_2(), "a1", Mode.NON_INTRUSIVE)
    assert plan.order == ("T1,1",)
    assert not plan.is_interfering
    assert [each.requirement for each in plan.broken] == [Requirement.MONOTONIC_EXECUTION]
    assert [(each.transaction, each.batches, each.is_all) for each in plan.lost_input] == [
        ("T2,1", ("a'1",), False)
    ]
    assert [(each.transaction, each.because_of) for each in plan.kept] == [
        ("T2,1", ("a2",)),
        ("T3,1", ("a2", "a3", "a4", "a5", "a6")),
    ]
    assert plan.partially_dropped == ("a1",)


def test_figure_2_option_b_drops_three_batches_and_affects_five() -> None:
    lineage = figure_2()
    plan = plan_compensation(lineage, "a1", "full")
    assert plan.order == ("T3,1", "T2,1", "T1,1")
    assert set(plan.dropped) == names("a1 a'2 b'2 b'3")
    assert [each.batch for each in plan.interference] == ["a2", "a3", "a4", "a5", "a6"]
    assert {each.of for each in plan.broken} == names("a2 a3 a4 a5 a6")
    assert {each.requirement for each in plan.broken} == {Requirement.COMPLETION}
    assert plan.interference == interference(lineage, plan.order, given_up=["a1"])


def test_figure_2_option_c_is_an_independent_scover() -> None:
    lineage = figure_2()
    cover = independent_scover(lineage, "a1")
    assert cover.sources == ("a1", "a2", "a3", "a4", "a5", "a6")
    assert cover.is_independent
    assert cover.closing is Closing.CLOSED
    assert not is_independent(lineage, "a1")
    plan = plan_compensation(lineage, "a1", Mode.INDEPENDENT_COVER)
    assert set(plan.order) == {each.id for each in lineage.transactions()}
    assert plan.order[:4] == ("T3,1", "T2,3", "T2,2", "T2,1")
    assert set(plan.dropped) == set(cover.sources)
    assert not plan.partially_dropped
    assert not plan.broken


# -- figure 3 -----------------------------------------------------------------------------------


def test_figure_3_splits_and_merges_share_one_transaction() -> None:
    lineage = figure_3()
    assert set(composite(lineage, "a1")) == names("T1,1 T2,11 T2,12 T2,13 T3,11 T3,12")
    assert set(composite(lineage, "a2")) == names("T1,2 T2,21 T2,22 T2,23 T3,12 T3,13")
    assert shared_transactions(lineage, "a1", "a2") == ("T3,12",)
    assert not is_independent(lineage, "a1")
    assert not is_independent(lineage, "a2")


def test_figure_3_full_compensation_drops_the_neighbour_in_part() -> None:
    plan = plan_compensation(figure_3(), "a1")
    assert "T3,12" in plan.order
    assert set(plan.dropped) == names("a1 b'21")
    # Of a'_2 two of three parts still count, so that a_2 does in part.
    assert set(plan.partially_dropped) == names("a2 a'2")
    assert [(each.batch, each.shared) for each in plan.interference] == [("a2", ("T3,12",))]
    # "... while preserving the monotonic execution property of both batches."
    assert [each.requirement for each in plan.broken] == [Requirement.COMPLETION]


@pytest.mark.parametrize("batch", ["a1", "a2", "b11", "c12", "c13"])
def test_figure_3_independent_scover_is_both(batch: str) -> None:
    lineage = figure_3()
    assert independent_scover(lineage, batch).sources == ("a1", "a2")
    assert is_independent(lineage, ["a1", "a2"])


def test_figure_3_continued_pairs_stay_apart() -> None:
    lineage = run(chain(p2=Grouping(parts=3), p3=Grouping(size=2, step=2)), 8)
    for batch, cover in (("a3", ("a3", "a4")), ("a8", ("a7", "a8"))):
        found = independent_scover(lineage, batch)
        assert (found.sources, found.closing) == (cover, Closing.CLOSED)
    assert not shared_transactions(lineage, ["a1", "a2"], ["a3", "a4"])


# -- figure 4 -----------------------------------------------------------------------------------


def test_figure_4_overlapping_all_transactions_are_compensated() -> None:
    lineage = figure_4()
    plan = plan_compensation(lineage, "a3")
    listed = "T1,1 T1,2 T1,3 T2,1 T2,2 T3,1 T3,2"
    assert set(plan.order) == names(listed)
    assert plan.order[-1] == "T1,1"
    # a_4 is still to be used in the next batch, a_5 in the next two.
    assert plan.partially_dropped == ("a4", "a5")
    # The figure begins with a_1, so no other transaction uses a_1 and a_2.
    assert plan.dropped == ("a1", "a2", "a3")
    assert {each.batch for each in plan.interference} == names("a1 a2 a4 a5")


def test_figure_4_construction_never_ends_and_the_least_cover_is_chosen() -> None:
    cover = independent_scover(figure_4(), "a3")
    assert cover.closing is Closing.ENDLESS
    assert cover.reached == ("a1", "a2", "a3", "a4", "a5")
    assert cover.sources == cover.derivation == ("a3",)
    assert not cover.is_independent
    assert len(cover.reasons) == 3  # P1, P2, and what follows from them
    assert scover(figure_4(), "c1") == ("a1", "a2", "a3", "a4")


def test_figure_4_non_intrusive_compensation_has_nothing_of_its_own() -> None:
    plan = plan_compensation(figure_4(), "a3", "non-intrusive")
    assert plan.order == ()
    assert {each.transaction for each in plan.kept} == set(composite(figure_4(), "a3"))


def test_figure_4_continued_on_both_sides_is_partially_dropped_on_both() -> None:
    lineage = run(chain(Grouping(size=3, step=1), Grouping(size=2, step=1)), 12)
    plan = plan_compensation(lineage, "a6")
    # Three windows with a_6, "and a few others like those of P2" with what is beside them.
    assert set(plan.order) == names("T1,4 T1,5 T1,6 T2,3 T2,4 T2,5 T2,6 T3,3 T3,4 T3,5 T3,6")
    sources = [id for id in plan.partially_dropped if id.startswith("a")]
    assert sources == ["a3", "a4", "a5", "a7", "a8", "a9"]
    assert [id for id in plan.dropped if id.startswith("a")] == ["a6"]
    cover = independent_scover(lineage, "a6")
    assert cover.closing is Closing.ENDLESS
    assert len(cover.reached) == 12
    assert cover.sources == ("a6",)


def test_figure_4_cut_after_a_round_takes_what_is_found_by_then() -> None:
    lineage = run(chain(Grouping(size=3, step=1), Grouping(size=2, step=1)), 20)
    cover = independent_scover(lineage, "a10", rounds=1)
    assert cover.closing is Closing.CUT
    assert cover.sources == tuple(f"a{i}" for i in range(7, 14))
    assert not cover.is_independent
    wider = independent_scover(lineage, "a10", rounds=2)
    assert set(cover.sources) < set(wider.sources)


def test_figure_4_ended_source_closes_the_cover() -> None:
    lineage = figure_4()
    lineage.end("a")
    cover = independent_scover(lineage, "a3")
    assert cover.closing is Closing.CLOSED
    assert cover.sources == ("a1", "a2", "a3", "a4", "a5")
    assert cover.is_independent


# -- figure 5 -----------------------------------------------------------------------------------

POSSIBLE = [((1, 3), (2, 5), (4, 6)), ((1, 3), (2, 6), (4, 5))]


@pytest.mark.parametrize("groups", POSSIBLE)
def test_figure_5_relaxed_batch_order_covers(groups: tuple[tuple[int, int], ...]) -> None:
    lineage = figure_5(groups)
    assert scover(lineage, "b1") == ("a1", "a3")
    assert scover(lineage, "b1", consecutive=True) == ("a1", "a2", "a3")
    cover = independent_scover(lineage, "b1", consecutive=True)
    assert cover.sources == ("a1", "a2", "a3", "a4", "a5", "a6")
    assert cover.is_independent
    assert cover.closing is Closing.CLOSED


def test_figure_5_without_consecutive_two_batches_are_enough() -> None:
    cover = independent_scover(figure_5(), "b1")
    assert cover.sources == ("a1", "a3")
    assert cover.is_independent


def test_figure_5_consecutive_but_not_independent_cover_is_interfering() -> None:
    lineage = figure_5()
    consecutive = scover(lineage, "b1", consecutive=True)
    plan = plan_compensation(lineage, consecutive)
    assert [each.batch for each in plan.interference] == ["a5"]
    assert not is_independent(lineage, consecutive)
