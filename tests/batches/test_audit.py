"""Holding executions against the requirements, each broken once and relaxed once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from activedb.batches import Lineage, Requirement, audit_batches, merged
from activedb.errors import LineageError
from tests.batches.figures import chain, run

EXECUTED = ["T1,1", "T1,2", "T2,1", "T3,1"]


def lineage_of_two(program: str = "", relaxed: str = "") -> Lineage:
    return run(chain(p2=merged(2), relax={program: [relaxed]} if program else {}), 2)


def executions(ids: Iterable[str]) -> list[tuple[str, str]]:
    return [("execute", id) for id in ids]


def test_audit_complete_execution_is_correct() -> None:
    assert audit_batches(lineage_of_two(), executions(EXECUTED)) == ()
    assert audit_batches(lineage_of_two(), []) == ()


@pytest.mark.parametrize(
    ("requirement", "of", "program", "history", "serial"),
    [
        ("serializable", "T2,1", "P2", executions(EXECUTED), ["T1,1", "T1,2", "T3,1"]),
        (
            "transaction order",
            "T3,1",
            "P3",
            executions(EXECUTED),
            ["T1,1", "T1,2", "T3,1", "T2,1"],
        ),
        ("batch order", "T1,2", "P1", executions(["T1,2", "T1,1", "T2,1", "T3,1"]), None),
        ("completion", "a1", "P3", executions(EXECUTED[:3]), None),
        (
            "monotonic execution",
            "T3,1",
            "P3",
            [*executions(EXECUTED), ("compensate", "T2,1"), ("execute", "T2,1")],
            None,
        ),
    ],
)
def test_audit_each_requirement_can_be_broken_and_relaxed(
    requirement: str,
    of: str,
    program: str,
    history: list[tuple[str, str]],
    serial: list[str] | None,
) -> None:
    found = audit_batches(lineage_of_two(), history, serial=serial)
    assert {str(each.requirement) for each in found} == {requirement}
    assert found[0].of in {of, "T1,1"}
    relaxed = audit_batches(lineage_of_two(program, requirement), history, serial=serial)
    assert relaxed == ()


def test_audit_dropping_a_batch_as_a_whole_is_correct() -> None:
    order = ["T3,1", "T2,1", "T1,2", "T1,1"]
    history = [*executions(EXECUTED), *(("compensate", id) for id in order)]
    assert audit_batches(lineage_of_two(), history) == ()


def test_audit_forward_compensation_is_not_monotonic() -> None:
    history = [*executions(EXECUTED), *(("compensate", id) for id in EXECUTED)]
    found = audit_batches(lineage_of_two(), history)
    assert [each.requirement for each in found] == [Requirement.MONOTONIC_EXECUTION] * 2
    assert found[0].record() == {
        "requirement": "monotonic execution",
        "of": "T2,1",
        "reason": "it has stood without T1,1",
    }


def test_audit_impossible_history_is_refused() -> None:
    lineage = lineage_of_two()
    with pytest.raises(LineageError, match="cannot execute T1,1: it does stand"):
        audit_batches(lineage, executions(["T1,1", "T1,1"]))
    with pytest.raises(LineageError, match="cannot compensate T1,1: it does not stand"):
        audit_batches(lineage, [("compensate", "T1,1")])
    with pytest.raises(LineageError, match="has T3,1, which the history has not"):
        audit_batches(lineage, executions(["T1,1"]), serial=["T1,1", "T3,1"])
