"""Program runs: their post-processing, and how they go on with a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from activedb.events import Occurrence, event, occurrence, seq
from activedb.scheduling import (
    Access,
    Outcome,
    Program,
    ProgramRun,
    SerialOrder,
    SharedTable,
    View,
)

COUNTS = SharedTable("counts", key=str, initial=0)


@pytest.fixture
def counting() -> Program:
    program = Program("counting", [COUNTS])

    @program.on("COUNT")
    def count(e: Mapping[str, Any], access: Access) -> None:
        access.write(COUNTS[e["key"]], lambda n: n + 1)

    return program


def test_post_processing_that_raises_costs_its_own_output_alone(counting: Program) -> None:
    @counting.post_process
    def tell(type_: str, params: Mapping[str, Any], outcome: Outcome) -> Any:
        return 10 // (outcome.results[0] - 2)

    run = ProgramRun(counting, SerialOrder())
    results = run.feed([occurrence("COUNT", timestamp=n, key="a") for n in range(3)], 10_000_000)
    assert results.outputs == [-10, 10]
    (failed,) = results.failed_outputs
    assert failed.transaction.at.us == 1_000_000
    assert isinstance(failed.error, ZeroDivisionError)
    assert [t.outcome for t in results.transactions] == [Outcome((n,)) for n in (1, 2, 3)]
    assert len(run.state.of(COUNTS)) == 1  # trimmed


def test_run_that_has_finished_takes_nothing_older_also_of_what_completed_nothing() -> None:
    program = Program("pairs", [COUNTS])

    @program.rule(seq(event("A"), event("B")), writes=lambda o: [COUNTS["pairs"]])
    def pair(t: View, o: Occurrence) -> None:
        t.write(COUNTS["pairs"], t.read(COUNTS["pairs"]) + 1)

    run = ProgramRun(program, SerialOrder())
    run.feed([occurrence("A", timestamp=10)])
    assert run.finish().transactions == []
    older = [occurrence("A", timestamp=3), occurrence("B", timestamp=5)]
    assert [r.event for r in run.feed([*older, occurrence("B", timestamp=20)]).refused] == older
    assert len(run.finish().transactions) == 1
    assert run.state.of(COUNTS).newest() == {"pairs": 1}


def test_run_that_goes_on_with_a_state_comes_after_it(counting: Program) -> None:
    first = ProgramRun(counting, SerialOrder())
    first.feed([occurrence("COUNT", timestamp=5, key="a") for _ in range(3)], 5_000_001)
    second = ProgramRun(counting, SerialOrder(), first.state, first.punctuation_us)
    events = [occurrence("COUNT", timestamp=at, key="a") for at in (4, 6)]
    results = second.feed(events, 7_000_000)
    assert [refusal.event for refusal in results.refused] == events[:1]
    assert second.state.of(COUNTS).newest() == {"a": 4}

    third = ProgramRun(counting, SerialOrder(), first.state)  # and not told up to where
    third.feed([occurrence("COUNT", timestamp=6, key="a")], 7_000_000)
    assert third.state.of(COUNTS).newest() == {"a": 5}
