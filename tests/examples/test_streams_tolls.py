"""Toll Processing by every scheduler against a plain loop."""

from __future__ import annotations

import pytest

from activedb.columns.program._layout import supports
from activedb.columns.program._run import ColumnRun
from benchmarks._examples import load
from tests.examples.stream_programs import SCHEDULERS, command, one_by_one, wrong

tp = load("toll_processing")
FEW = 30  # segments
PROGRAM = tp.program(FEW)  # compiled once for all tests


@pytest.mark.parametrize("by", SCHEDULERS)
def test_every_scheduler_gives_what_the_loop_gives(by: str) -> None:
    events = tp.columns(300, segments=FEW, skew=0.8, aborts=0.2, disorder=40, seed=11)
    assert wrong(PROGRAM, events, lambda e: tp.replay(e, FEW), by) == []


@pytest.mark.parametrize("by", ["lwm", "tpg"])
def test_reports_about_three_segments_give_what_the_loop_gives(by: str) -> None:
    events = tp.columns(300, segments=FEW, length=6, aborts=0.1, seed=12)
    assert wrong(tp.program(FEW, 6), events, lambda e: tp.replay(e, FEW), by) == []


@pytest.mark.parametrize("by", ["serial", "columns"])
def test_slower_functions_give_the_same(by: str) -> None:
    events = tp.columns(100, segments=FEW, aborts=0.2)
    slow = tp.program(FEW, turns=10)
    assert supports(slow) is None
    assert wrong(slow, events, lambda e: tp.replay(e, FEW), by) == []


def test_tolls_by_hand() -> None:
    program = tp.program(4)
    speeds, counts = program.tables
    reports = [(1, 60.0), (1, 20.0), (1, 30.0), (1, -1.0), (1, 5.0), (2, 5.0)]
    run, results = one_by_one(
        program, [("REPORT", {"segment0": s, "speed0": v}) for s, v in reports]
    )
    # Averages 60, 40, 35, 20: the first two are free, then 3 and 4 reports, and a segment's first.
    assert results.outputs == [0, 0, 8, 18, 0]
    assert run.state.of(speeds).newest() == {1: 20, 2: 5}
    assert run.state.of(counts).newest() == {1: 4, 2: 1}


def test_tolls_of_columns_are_those_of_post_processing() -> None:
    assert supports(PROGRAM) is None
    events = tp.columns(200, segments=FEW, aborts=0.1)
    run = ColumnRun(PROGRAM)
    run.feed(events.columns())
    results = run.finish()
    assert run.not_compiled is None
    tolls = tp.toll(results.values("REPORT", 0), results.values("REPORT", 1))
    expected = tp.replay(events, FEW)
    assert tolls[results.committed].tolist() == expected.outputs
    assert max(expected.outputs) > 0
    assert expected.committed.count(False) > 0


def test_generator_at_the_defaults_makes_the_paper_s_events() -> None:
    events = tp.columns(10_000)
    assert tp.SEGMENTS == 495_120
    assert tp.BATCH == 40_960
    assert (events.params["speed0"] < 0).mean() == pytest.approx(0.01, abs=0.005)
    assert 0 <= events.params["segment0"].min() <= events.params["segment0"].max() < tp.SEGMENTS


@pytest.mark.long
def test_command_in_a_process_is_right() -> None:
    arguments = ["--events", "500", "--skew", "1.0", "--disorder", "9", "--batch", "100"]
    status, figures, errors = command("toll_processing", *arguments, "--check")
    assert status == 0, errors
    assert figures["check"] == "right"
    assert figures["outputs"] == figures["committed"] < 500
