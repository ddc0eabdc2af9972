"""Plans, where the figures do not go: failures, relaxations, control order, missing actions."""

from __future__ import annotations

import pytest

from activedb.batches import (
    Closing,
    Forming,
    Lineage,
    LostInput,
    Mode,
    Piece,
    Program,
    Requirement,
    Standing,
    Workflow,
    composite,
    independent_scover,
    is_independent,
    merged,
    overlapping,
    plan_compensation,
    split,
    standing,
)
from activedb.errors import LineageError, NotRecorded
from tests.batches.figures import chain, figure_2, figure_3, run


def test_compensation_of_a_failed_transaction_undoes_what_led_to_it() -> None:
    lineage = Lineage(chain(p2=merged(2)))
    for i in (1, 2):
        lineage.arrive("a", i, id=f"a{i}")
        lineage.execute("P1", [f"a{i}"], id=f"T1,{i}", output=f"a'{i}")
    failed = lineage.fail("P2", [["a'1", "a'2"]], id="T2,1")
    alone = plan_compensation(lineage, failed.id)
    assert (alone.order, alone.never_executed) == ((), ("T2,1",))
    assert alone.dropped == ("a'1", "a'2")
    assert alone.partially_dropped == ("a1", "a2")
    plan = plan_compensation(lineage, failed.id, "independent cover")
    assert plan.given_up == ("a1", "a2")
    assert (plan.order, plan.never_executed) == (("T1,2", "T1,1"), ("T2,1",))
    assert plan.dropped == ("a1", "a2")
    assert "Never executed, and given up: T2,1." in plan.explain()
    lineage.compensate(plan.transactions)
    assert plan_compensation(lineage, "a1").transactions == ()


def test_compensation_of_what_waits_takes_it_from_its_reader() -> None:
    lineage = run(chain(p2=merged(2)), 3)
    plan = plan_compensation(lineage, "a3")
    assert plan.order == ("T1,3",)
    assert plan.to_withdraw == ("T1,3'",)
    assert independent_scover(lineage, "a3").closing is Closing.GROWING
    sliding = plan_compensation(run(chain(overlapping(2)), 3), "a3")
    assert sliding.to_withdraw == ("a3",)


def test_compensation_carried_out_leaves_the_batch_dropped_for_good() -> None:
    workflow = chain(merged(2))
    lineage, forming = Lineage(workflow), Forming(workflow)
    forming.offer(lineage.arrive("a"))
    plan = plan_compensation(lineage, "a#1")
    assert (plan.order, plan.to_withdraw, plan.dropped) == ((), ("a#1",), ("a#1",))
    forming.withdraw(plan.to_withdraw)
    lineage.withdraw(plan.to_withdraw)
    assert standing(lineage, "a#1") is Standing.DROPPED
    (due,) = forming.offer(lineage.arrive("a"))
    assert due.inputs == ((Piece("a#2"),),)
    lineage.execute(due.program, due.inputs)
    assert composite(lineage, "a#1") == ()
    assert independent_scover(lineage, "a#2").sources == ("a#2",)
    assert Lineage.of(workflow, lineage.records()).batch("a#1").is_withdrawn


def test_compensation_after_another_one_finds_less() -> None:
    lineage = figure_3()
    lineage.compensate(plan_compensation(lineage, "a1").transactions)
    plan = plan_compensation(lineage, "a2")
    assert plan.order == ("T3,13", "T2,23", "T2,22", "T2,21", "T1,2")
    assert not plan.is_interfering
    assert independent_scover(lineage, "a2").sources == ("a2",)


def test_compensation_relaxed_completion_is_nobodys_interference() -> None:
    lineage = run(chain(p2=merged(2), relax={"P2": ["completion"], "P3": ["completion"]}), 2)
    assert is_independent(lineage, "a1")
    assert independent_scover(lineage, "a1").sources == ("a1",)
    plan = plan_compensation(lineage, "a1", Mode.NON_INTRUSIVE)
    assert plan.order == ("T3,1", "T2,1", "T1,1")
    assert plan.partially_dropped == ("a2",)
    assert not plan.is_interfering
    assert not plan.broken


def test_compensation_relaxed_completion_in_between_still_links_what_follows() -> None:
    lineage = run(chain(p2=merged(2), relax={"P2": ["completion"]}), 2)
    assert independent_scover(lineage, "a1").sources == ("a1", "a2")
    plan = plan_compensation(lineage, "a1", Mode.NON_INTRUSIVE)
    assert plan.order == ("T2,1", "T1,1")
    assert [(each.transaction, each.because_of) for each in plan.kept] == [("T3,1", ("a2",))]


def test_compensation_relaxed_monotonic_execution_is_not_broken() -> None:
    lineage = run(chain(p2=merged(2), relax={"P2": ["monotonic execution"]}), 2)
    plan = plan_compensation(lineage, "a1", Mode.NON_INTRUSIVE)
    assert [each.transaction for each in plan.lost_input] == ["T2,1"]
    assert not plan.broken


def test_compensation_of_what_has_called_another_says_that_this_one_stands_without_it() -> None:
    workflow = Workflow(
        [
            Program("p", "a"),
            Program("q", {"p": merged(2)}, relax=["completion"]),
            Program("called", after="q"),
        ],
        sources="a",
    )
    lineage = Lineage(workflow)
    for i in (1, 2):
        lineage.arrive("a", i)
        lineage.execute("p", [f"a#{i}"])
    lineage.execute("q", [["p#1'", "p#2'"]])
    lineage.execute("called", triggered_by=["q#1"])
    plan = plan_compensation(lineage, "a#1", Mode.NON_INTRUSIVE)
    assert plan.order == ("q#1", "p#1")
    assert plan.lost_input == (LostInput("called#1", (), ("q#1",), True),)
    assert "called#1 is kept without all of its triggering transactions: q#1." in plan.explain()


def test_compensation_overlap_without_completion_closes() -> None:
    lax = {name: ["completion"] for name in ("P1", "P2", "P3")}
    lineage = run(chain(overlapping(3), relax=lax), 9)
    assert lineage.is_still_due("a9")
    for batch in ("a5", "a9"):
        cover = independent_scover(lineage, batch)
        assert (cover.closing, cover.sources) == (Closing.CLOSED, (batch,))


def test_compensation_control_order_triggers_within_one_composite_transaction() -> None:
    workflow = Workflow(
        [
            Program("bill", "orders"),
            Program("ship", {"orders": merged(2)}, after="bill"),
            Program("mail", "bill"),
        ],
        sources="orders",
    )
    lineage = Lineage(workflow)
    for i in (1, 2, 3):
        lineage.arrive("orders", i, id=f"o{i}")
        lineage.execute("bill", [f"o{i}"], id=f"bill{i}", output=f"b{i}")
        lineage.execute("mail", [f"b{i}"], id=f"mail{i}", output="")
    lineage.execute("ship", [["o1", "o2"]], id="ship1", output="")
    assert composite(lineage, "o1") == ("bill1", "ship1", "mail1")
    assert composite(lineage, "b1") == ("mail1",)
    assert composite(lineage, "bill1") == ("bill1", "ship1", "mail1")
    assert composite(lineage, "bill3") == ("bill3", "mail3")
    plan = plan_compensation(lineage, "o1", Mode.NON_INTRUSIVE)
    assert plan.order == ("mail1", "bill1")
    assert [(each.requirement, each.of) for each in plan.broken] == [
        (Requirement.MONOTONIC_EXECUTION, "ship1")
    ]
    assert plan.lost_input == ()


@pytest.mark.parametrize(
    ("relax", "given_up", "order"),
    [
        ([], ("o1", "o2"), ("ship#2", "ship#1", "tally#1")),
        (["completion"], ("o1",), ("ship#2", "ship#1", "tally#1")),
        (["monotonic execution"], ("o1",), ("ship#1", "tally#1")),
    ],
)
def test_compensation_of_a_cover_takes_what_would_stand_behind_it_in_control_order(
    relax: list[str], given_up: tuple[str, ...], order: tuple[str, ...]
) -> None:
    workflow = Workflow(
        [
            Program("tally", {"orders": merged(2)}, relax=["completion"]),
            Program("ship", "orders", after="tally", relax=relax),
        ],
        sources="orders",
    )
    lineage = Lineage(workflow)
    for i in (1, 2, 3):
        lineage.arrive("orders", i, id=f"o{i}")
    lineage.execute("tally", [["o1", "o2"]])
    for i in (1, 2, 3):
        lineage.execute("ship", [f"o{i}"])
    plan = plan_compensation(lineage, "o1", Mode.INDEPENDENT_COVER)
    assert (plan.given_up, plan.order) == (given_up, order)
    assert plan.broken == ()
    assert plan.interference == ()
    assert plan.cover is not None
    assert plan.cover.is_independent


def test_compensation_without_action_is_told_beforehand() -> None:
    workflow = Workflow([Program("p", "a"), Program("print", "p", compensable=False)], sources="a")
    lineage = Lineage(workflow)
    lineage.arrive("a")
    lineage.execute("p", ["a#1"])
    lineage.execute("print", ["p#1'"])
    plan = plan_compensation(lineage, "a#1")
    assert plan.not_compensable == ("print#1",)
    assert not plan.is_possible
    assert "no compensating action for print#1" in plan.explain()[-1]


def test_compensation_of_several_batches_is_one_plan() -> None:
    lineage = figure_2()
    plan = plan_compensation(lineage, ["a2", "a1"], Mode.NON_INTRUSIVE)
    assert plan.asked == plan.given_up == ("a1", "a2")
    assert plan.order == ("T2,1", "T1,2", "T1,1")


def test_compensation_plan_made_again_is_equal_unless_something_has_changed() -> None:
    lineage = run(chain(p2=merged(2)), 3)
    first = plan_compensation(lineage, "a3", "independent cover")
    assert plan_compensation(lineage, "a3", "independent cover") == first
    lineage.arrive("a", id="a4")
    assert plan_compensation(lineage, "a3", "independent cover") == first
    lineage.execute("P1", ["a4"], id="T1,4")
    lineage.execute("P2", [["T1,3'", "T1,4'"]])
    assert plan_compensation(lineage, "a3", "independent cover") != first


def test_compensation_explains_itself() -> None:
    assert plan_compensation(figure_3(), "a1").explain() == [
        "Full compensation of a1.",
        "1. Compensate T3,12 (P3), which used c12; a2 would lose it.",
        "2. Compensate T3,11 (P3), which used c11.",
        "3. Compensate T2,13 (P2), which used b13.",
        "4. Compensate T2,12 (P2), which used b12.",
        "5. Compensate T2,11 (P2), which used b11.",
        "6. Compensate T1,1 (P1), which used a1.",
        "Dropped: a1, b'21.",
        "Partially dropped: a2, a'2.",
        "Withdrawn: a'1, b'11, b'12, b'13, c'11, c'12.",
        "Interfering: a2 would lose T3,12.",
        "Broken, completion of a2: T3,12 would be missing.",
    ]
    endless = plan_compensation(run(chain(overlapping(2)), 4), "a2", "independent cover").explain()
    assert any("never ends: input batches of P1 overlap" in line for line in endless)
    assert any("the least cover is chosen: a2" in line for line in endless)


def test_compensation_bad_questions_are_refused() -> None:
    lineage = figure_2()
    with pytest.raises(NotRecorded, match="'a9'"):
        plan_compensation(lineage, "a9")
    with pytest.raises(LineageError, match="no batch is given"):
        plan_compensation(lineage, [])
    with pytest.raises(LineageError, match="'full', 'non-intrusive', 'independent cover'"):
        plan_compensation(lineage, "a1", "gentle")
    with pytest.raises(LineageError, match="apply only to covers"):
        plan_compensation(lineage, "a1", "full", consecutive=True)
    with pytest.raises(LineageError, match="at least one round"):
        independent_scover(lineage, "a1", rounds=0)


def test_compensation_of_a_derived_batch_says_what_batches_beside_it_would_lose() -> None:
    lineage = figure_3()
    plan = plan_compensation(lineage, "b12")
    assert plan.order == ("T3,11", "T2,12")
    assert [str(each) for each in plan.interference] == ["b11 would lose T3,11"]
    assert plan.steps[0].also_for == ("b11",)
    assert [(each.requirement, each.of) for each in plan.broken] == [(Requirement.COMPLETION, "a1")]
    assert "No other batch is affected." not in plan.explain()


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.NON_INTRUSIVE])
@pytest.mark.parametrize("asked", ["report#1", "clean#1'", "clean>report#1"])
def test_compensation_of_a_derived_batch_takes_nothing_it_is_made_of_from_others(
    asked: str, mode: Mode
) -> None:
    workflow = Workflow(
        [
            Program("clean", "s"),
            Program("report", {"clean": split(2)}),
            Program("list", {"clean": merged(2)}),
            Program("bill", {"s": merged(2)}),
        ],
        sources="s",
    )
    lineage, forming = Lineage(workflow), Forming(workflow)
    forming.offer(lineage.arrive("s"))
    forming.offer(lineage.batch(lineage.execute("clean", ["s#1"]).output))
    for part in (1, 2):
        lineage.execute("report", [[Piece("clean#1'", part, 2)]])
    plan = plan_compensation(lineage, asked, mode)
    assert plan.given_up == (asked,)
    assert plan.to_withdraw == (("clean#1'",) if asked == "clean#1'" else ())
    assert "s#1" in plan.partially_dropped
    cover = plan_compensation(lineage, asked, Mode.INDEPENDENT_COVER)
    assert (cover.given_up, cover.to_withdraw) == (("s#1",), ("s#1", "clean#1'"))


def test_compensation_of_a_derived_batch_non_intrusively_leaves_what_others_need() -> None:
    lineage = figure_3()
    plan = plan_compensation(lineage, "b12", Mode.NON_INTRUSIVE)
    assert plan.order == ("T2,12",)
    assert [(each.transaction, each.because_of) for each in plan.kept] == [("T3,11", ("b11",))]
    assert not plan.is_interfering
    merged_with_another_source = plan_compensation(lineage, "b'13", Mode.NON_INTRUSIVE)
    assert [(each.transaction, each.because_of) for each in merged_with_another_source.kept] == [
        ("T3,12", ("a2",))
    ]
