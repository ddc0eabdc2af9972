"""Workflows: what is refused, and the order of programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from activedb.batches import (
    Grouping,
    Program,
    Requirement,
    Workflow,
    isolated,
    merged,
    overlapping,
    split,
)
from activedb.errors import DefinedTwice, DefinitionError, UnknownName, WorkflowCycle, WorkflowError


def test_workflow_programs_come_in_an_order_that_agrees_with_both_kinds_of_edges() -> None:
    workflow = Workflow(
        [
            Program("bill", "orders", after="check"),
            Program("report", {"bill": merged(7)}),
            Program("check", ["orders"]),
        ],
        sources="orders",
    )
    assert list(workflow.programs) == ["check", "bill", "report"]
    assert workflow.precedes("check", "report")
    assert not workflow.precedes("report", "check")
    assert [p.name for p in workflow.readers("orders")] == ["check", "bill"]
    assert workflow.readers("report") == workflow.readers("nothing") == ()
    assert dict(workflow.graph().edges) == {
        ("check", "bill"): {"kind": "control"},
        ("bill", "report"): {"kind": "stream"},
    }
    assert workflow.sources_above("report") == {"orders"}
    assert repr(workflow) == "<Workflow orders → check, bill, report>"


@pytest.mark.long
def test_workflow_graph_is_a_copy() -> None:
    workflow = Workflow([Program("p", "a")], sources="a")
    workflow.graph().remove_node("p")
    assert list(workflow.graph()) == ["p"]


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (lambda: Workflow([], sources="a"), WorkflowError, "at least one program"),
        (lambda: Workflow([Program("p", "q")], sources="a"), UnknownName, "reads 'q'"),
        (lambda: Workflow([Program("p", "a", after="q")], sources="a"), UnknownName, "after 'q'"),
        (
            lambda: Workflow([Program("p", "a", after="a")], sources="a"),
            UnknownName,
            "not a program",
        ),
        (lambda: Workflow([Program("p", "a")] * 2, sources="a"), DefinedTwice, "'p' is defined"),
        (lambda: Workflow([Program("a", "a")], sources="a"), DefinedTwice, "'a' is defined"),
        (lambda: Workflow([Program("p", "a")], sources=["a", "a"]), DefinedTwice, "twice"),
        (lambda: Workflow([Program("p", "a")], sources=["a", "b"]), WorkflowError, "source b"),
        (lambda: Program(""), WorkflowError, "not empty"),
        (lambda: Program("p", "a", relax="speed"), WorkflowError, "'monotonic execution'"),
        (lambda: Program("p", {"a": 3}), WorkflowError, "isolated()"),
        (lambda: merged(0), WorkflowError, "whole numbers from 1 on"),
        (lambda: split(True), WorkflowError, "whole numbers"),
        (lambda: overlapping(2, every=3), WorkflowError, "leave pieces out"),
    ],
)
def test_workflow_that_cannot_be_is_refused(
    made: Callable[[], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words.replace("(", r"\(").replace(")", r"\)")):
        made()
    assert issubclass(error, DefinitionError)


def test_workflow_cycle_is_refused_and_told() -> None:
    programs = [Program("p", ["a", "r"]), Program("q", "p"), Program("r", after="q")]
    with pytest.raises(WorkflowCycle, match=r"remove one of their reads= or after=") as caught:
        Workflow(programs, sources="a")
    assert sorted(caught.value.programs) == ["p", "q", "r"]
    with pytest.raises(WorkflowCycle, match="p before p"):
        Workflow([Program("p", ["a", "p"])], sources="a")


def test_program_relaxes_requirements_by_name() -> None:
    program = Program("p", "a", relax=["batch order", Requirement.COMPLETION])
    assert program.relaxed == {Requirement.BATCH_ORDER, Requirement.COMPLETION}
    assert program.requires(Requirement.MONOTONIC_EXECUTION)
    assert not program.requires(Requirement.COMPLETION)


def test_workflow_completion_matters_where_a_follower_requires_it() -> None:
    lax = {"relax": "completion"}
    workflow = Workflow(
        [Program("p", "a", **lax), Program("q", "p"), Program("r", "q", **lax)],  # type: ignore[arg-type]
        sources="a",
    )
    assert [workflow.completion_matters(name) for name in "pqr"] == [True, True, False]


def test_grouping_says_what_it_is() -> None:
    groupings = [
        isolated(),
        split(3),
        merged(2),
        overlapping(3),
        overlapping(6, every=2),
        Grouping(2, 3, 3),
    ]
    assert [str(each) for each in groupings] == [
        "isolated",
        "split in 3",
        "2 merged",
        "3 overlapping, every 1",
        "6 overlapping, every 2",
        "split in 2, 3 merged",
    ]
    assert [each.overlaps for each in groupings] == [False, False, False, True, True, False]
