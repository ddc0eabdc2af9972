"""GrepSum by every scheduler against a plain loop: plain, with windows, with computed keys."""

from __future__ import annotations

from typing import Any

import pytest

from activedb.columns.program._layout import supports
from activedb.columns.program._run import ColumnRun
from benchmarks._examples import load
from tests.examples.stream_programs import SCHEDULERS, command, one_by_one, wrong

gs = load("grep_sum")
FEW = 40  # keys
WINDOW_S = 0.05


def events_of(variant: str, **more: Any) -> Any:
    """Events over few keys, one in ten of which reads the windows of 12."""
    sizes = {"keys": FEW, "every": 10, "window_keys": 12}
    return gs.columns(300, variant, **sizes, **{"skew": 0.8, "seed": 5, **more})


def program_of(variant: str, **more: Any) -> Any:
    return gs.program(variant, keys=FEW, window_s=WINDOW_S, window_keys=12, **more)


def replay(events: Any) -> Any:
    return gs.replay(events, FEW, WINDOW_S)


PROGRAMS = {variant: program_of(variant) for variant in gs.VARIANTS}  # compiled once for all tests


@pytest.mark.parametrize("by", SCHEDULERS)
@pytest.mark.parametrize("variant", gs.VARIANTS)
def test_every_scheduler_gives_what_the_loop_gives(by: str, variant: str) -> None:
    events = events_of(variant, aborts=0.2, disorder=30)
    assert wrong(PROGRAMS[variant], events, replay, by) == []


@pytest.mark.parametrize("by", ["serial", "tpg"])
@pytest.mark.parametrize("variant", gs.VARIANTS)
def test_long_events_give_what_the_loop_gives(by: str, variant: str) -> None:
    sizes = {"length": 3, "reads": 4}
    events = events_of(variant, **sizes)
    assert wrong(program_of(variant, **sizes), events, replay, by) == []


def test_computed_keys_two_alike_abort_as_the_loop_says() -> None:
    sizes = {"length": 4, "reads": 1}
    events = events_of("computed", **sizes, computed=1.0, aborts=0.0)
    assert False in replay(events).committed
    assert wrong(program_of("computed", **sizes), events, replay, "serial") == []


@pytest.mark.long
@pytest.mark.parametrize("variant", gs.VARIANTS)
def test_every_variant_is_compiled_as_a_whole(variant: str) -> None:
    program, events = PROGRAMS[variant], events_of(variant)
    assert supports(program) is None
    run = ColumnRun(program)
    run.feed(events.columns())
    run.finish()
    assert run.not_compiled is None


def test_a_sum_of_two_keys_and_a_number() -> None:
    program = gs.program(keys=4, reads=2)
    e = {"key0": 0, "number0": 7.0, "read0_0": 1, "read0_1": 2}
    second = {"key0": 3, "number0": 1.0, "read0_0": 0, "read0_1": 0}
    too_little = {**second, "number0": -15.0}
    run, results = one_by_one(program, [("SUM", e), ("SUM", second), ("SUM", too_little)])
    assert [t.outcome.committed for t in results.transactions] == [True, True, False]
    assert run.state.of(program.tables[0]).newest() == {0: 7, 3: 15}


def test_a_key_that_is_computed_when_the_operation_runs() -> None:
    program = gs.program("computed", keys=10, reads=1)
    e = {"key0": 0, "number0": 4.0, "read0_0": 0, "random0": 0}
    run, _ = one_by_one(program, [("SUM", e), ("SUM_SOMEWHERE", {**e, "random0": 5})])
    assert run.state.of(program.tables[0]).newest() == {0: 4, 9: 8}  # at 4 + 5: 4 + 4


def test_windows_reach_back_so_far_and_leave_out_what_aborted() -> None:
    program = gs.program("windowed", keys=4, window_s=0.003, window_keys=2)
    events = [("UPDATE", {"key0": 0, "number0": n}) for n in (1.0, 2.0, -1.0, 4.0)]
    _, results = one_by_one(program, [*events, ("SUM_WINDOWS", {"key0": 0, "key1": 1})])
    assert results.outputs == [6.0]  # from 2 ms on, as the sum is at 5 ms


def test_generator_at_the_defaults_makes_the_paper_s_events() -> None:
    events = gs.columns(10_000)
    assert gs.KEYS == 12_288
    assert events.takes == {"SUM": ("key0", "number0", "read0_0", "read0_1")}
    windowed = gs.columns(10_000, "windowed")
    assert (windowed.codes == 1).sum() == 100
    assert len(windowed.takes["SUM_WINDOWS"]) == 100
    computed = gs.columns(10_000, "computed", computed=0.3)
    assert computed.codes.mean() == pytest.approx(0.3, abs=0.03)


@pytest.mark.long
def test_command_in_a_process_is_right() -> None:
    arguments = ["--variant", "windowed", "--events", "500", "--aborts", "0.1", "--check"]
    status, figures, errors = command("grep_sum", *arguments, "--scheduler", "tpg")
    assert status == 0, errors
    assert figures["check"] == "right"
    assert figures["outputs"] == 5
