"""The streams benchmark at a tiny size: every metric is there, all work done; nothing is timed."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from activedb.columns.program._run import ColumnRun
from activedb.scheduling import At, SerialOrder, SharedState, STransaction, build_s_transaction
from activedb.scheduling.tpg import TPG
from benchmarks import streams
from benchmarks._streams_breakdown import PHASES, SCHEDULERS, Measured
from benchmarks._streams_busy import computed
from benchmarks._streams_compiled import Load, per_s
from benchmarks._streams_driver import drive, drive_columns, percentile
from benchmarks._streams_loads import APPLICATIONS, batches_of
from benchmarks._streams_rules import RuleLoad
from benchmarks._streams_tpg import DECISIONS

TINY = streams.Sizes(
    compiled={"gs": Load(2, 50, 200)},
    busy={"tp": Load(2, 30, 200)},
    python=Load(2, 50, 200),
    rules=RuleLoad(8),
    reads=(1, 6),
    waiting={"batches": 1, "batch": 8, "threads": 2, "waits_ms": (0.1,), "keys": 50},
    memory=(60, 10, 50, 20),
)
BESIDE = {
    "gs_compiled_per_s": "by hand",
    "gs_compiled_1_thread_per_s": "by hand",
    "gs_compiled_in_parallel_per_s": "by hand",
    "sl_python_per_s": "by hand",
    **{
        f"lwm_{granularity}_read{reads}_per_s": "S2PL"
        for granularity in ("table", "row")
        for reads in (1, 6)
    },
    "tp_c10_share_of_bound": "bare loops",
    "gs_0.1ms_tpg_model_per_s": "serial",
    **{f"gs_0.1ms_tpg_{name}_per_s": "serial" for name in DECISIONS},
}
ALONE = {
    "tp_c10_per_s",
    "tp_c10_share_of_cpu",
    *(
        f"{ratio}_{granularity}_read{reads}"
        for ratio in ("lwm_over_s2pl", "s2pl_over_sei")
        for granularity in ("table", "row")
        for reads in (1, 6)
    ),
    *(f"bytes_per_operation{of}" for of in ("", "_serial", "_python", "_tpg", "_lwm")),
    "rss_growth_10_batches",
    "rss_growth_10_batches_tpg",
}


def _needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}")


@pytest.mark.long
@_needs("numba")
def test_streams_benchmark_prints_every_metric_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streams, "Sizes", lambda: TINY)
    streams.main(["--json", "--runs", "1"])
    metrics = json.loads(capsys.readouterr().out)
    assert metrics.keys() == BESIDE.keys() | ALONE
    for name, metric in metrics.items():
        assert math.isfinite(metric["value"])
        assert metric["value"] > 0
        assert metric["runs"] == 1
        assert metric["peer"] == BESIDE.get(name)
    assert metrics["gs_compiled_per_s"]["not_measured_here"] == {"MorphStream, two cores": 132_000}


@pytest.mark.long
def test_streams_benchmark_of_one_part_prints_a_table_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streams, "Sizes", lambda: TINY)
    streams.main(["--runs", "1", "--part", "python"])
    table = capsys.readouterr().out
    assert " sl_python_per_s " in table
    assert "compiled" not in table


@pytest.mark.long
def test_streams_benchmark_at_its_own_size_has_the_metrics_that_are_tracked() -> None:
    sizes = streams.Sizes()
    assert list(sizes.compiled) == list(sizes.busy) == ["sl", "gs", "tp"]
    assert all(load.keys is None and load.batch is None for load in sizes.compiled.values())
    assert 6 in sizes.reads  # lwm_over_s2pl_table_read6, s2pl_over_sei_table_read6
    assert sizes.rules.wait_s == 0.001
    assert sizes.memory[1] == 100  # rss_growth_100_batches


@pytest.mark.long
@pytest.mark.parametrize("name", APPLICATIONS)
def test_loop_by_hand_gives_the_tables_that_the_program_gives(name: str) -> None:
    application = APPLICATIONS[name]
    load = Load(3, 100, 40)
    program: Any = application.module.program(**application.of_size(load.keys))
    events = load.events(application, aborts=0.2)
    run = ColumnRun(program, 1, "python")
    assert per_s(run, load.fed(application, events)) > 0
    by_hand = {
        table.name: dict.fromkeys(range(40), float(table.initial)) for table in program.tables
    }
    application.by_hand(events, by_hand)
    for table in program.tables:
        assert run.state.column(table).tolist() == list(by_hand[table.name].values())


@pytest.mark.long
def test_driver_of_waiting_operations_gives_outcomes_and_latencies_of_all_events() -> None:
    application = APPLICATIONS["sl"]
    events = application.module.columns(40, accounts=10, aborts=0.3)
    program = application.module.program(accounts=10)
    parts = [part for part, _ in events.batches(20)]
    serial = drive(program, parts, SerialOrder())
    waiting = drive(program, parts, TPG(2), wait_s=0.0001)
    over_columns = drive_columns(ColumnRun(program, 1, "python"), batches_of(events, 20))
    assert serial.events == waiting.events == over_columns.events == 40
    assert 0 < serial.aborted == waiting.aborted == over_columns.aborted
    assert [len(batch.latencies_s) for batch in waiting.per_batch] == [20, 20]
    for driven in (serial, waiting, over_columns):
        assert 0 < percentile(driven.latencies_s, 50) <= percentile(driven.latencies_s, 99)


@pytest.mark.long
def test_operations_before_the_one_that_aborts_count_as_computed() -> None:
    application = APPLICATIONS["sl"]
    events = application.module.columns(40, accounts=10, aborts=0.3)
    run = ColumnRun(application.module.program(accounts=10), 1, "python")
    run.feed(events.columns())
    results = run.finish()
    counted = 0
    for code, outcome in zip(results.codes.tolist(), results.outcomes(), strict=True):
        counted += (2, 4)[code] if outcome.committed else 0  # its first operation fails
    assert computed(results) == counted


@pytest.mark.long
@_needs("matplotlib", "numba")
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("wang_6", math.ulp(0)),  # above 0
        ("wang_9", math.ulp(0)),
        ("wang_10", -100.0),  # percents of what it is without a scheduler
        ("wang_11", math.ulp(0)),
        ("wang_12", math.ulp(0)),
        ("mao_13", math.ulp(0)),
        ("mao_16", 0.0),  # not every scheduler has every phase
        ("mao_17", math.ulp(0)),
        ("mao_20", math.ulp(0)),
    ],
)
def test_figure_is_drawn_with_its_data(tmp_path: Path, name: str, least: float) -> None:
    streams.draw_figures(tmp_path, [name], scale=0.05)
    data = json.loads((tmp_path / f"{name}.json").read_text())
    assert data["panels"]
    for panel in data["panels"]:
        assert panel["series"]
        for points in panel["series"].values():
            assert all(value >= least for _, value in points)
    assert (tmp_path / f"{name}.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULERS)
def test_breakdown_of_time_is_no_more_than_the_threads_had(name: str) -> None:
    application = APPLICATIONS["sl"]
    program = application.module.program(accounts=10)
    transactions = []
    for number, event in enumerate(
        application.module.columns(40, accounts=10, aborts=0.5).occurrences()
    ):
        made = build_s_transaction(program, event, At(event.us, "", number))
        assert isinstance(made, STransaction)
        transactions.append(made)
    began_s = time.perf_counter()
    phases = Measured(name, 3, 0.0001).run(transactions, SharedState(program.tables))
    had_s = 3 * (time.perf_counter() - began_s)
    assert tuple(phases) == PHASES
    assert all(seconds >= 0 for seconds in phases.values())
    assert sum(phases.values()) <= had_s
    assert phases["useful"] > 0
    assert phases["abort"] > 0
    assert (phases["lock"] > 0) == (name in ("S2PL", "LWM"))
    assert (phases["construct"] > 0) == name.startswith("TPG")


@pytest.mark.long
def test_figure_without_a_folder_is_a_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        streams.main(["--figure", "mao_11"])
    assert "--plots FOLDER" in capsys.readouterr().err


@pytest.mark.long
def test_every_figure_has_a_title() -> None:
    assert streams.FIGURES.keys() == streams.TITLES.keys()
