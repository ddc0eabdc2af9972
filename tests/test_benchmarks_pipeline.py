"""The pipeline benchmark at a tiny size: every metric is there, what was written is right."""

from __future__ import annotations

import importlib.util
import json
import math
from typing import Any

import numpy as np
import pytest

from benchmarks import pipeline
from benchmarks._nested_rows import open_server
from benchmarks._pipeline_hygiene import Hygiene
from benchmarks._pipeline_latency import HalfLoad
from benchmarks._pipeline_ledger import Ledger
from benchmarks._pipeline_memory import Kept
from benchmarks._pipeline_places import fresh_schema
from benchmarks._pipeline_spark import Applied, Ran, check
from benchmarks._pipeline_throughput import PEER, Load
from benchmarks._report import Metric

TINY = pipeline.Sizes(
    workloads=(Ledger(50), Hygiene(20, violations=0.3)),
    loads=dict.fromkeys(("sl", "hygiene"), Load(60, 4, 2, 30)),
    half_load=HalfLoad(seconds=1.0, skipped_s=0.2, file_s=0.1),
    kept=Kept(events=180, batch=60),
    warm_up=False,
)
OF_EACH = {
    "pipeline_per_s",
    "whole_per_s",
    "replayed_batch_ms",
    "batch_spark_ms",
    "batch_python_ms",
    "batch_postgres_ms",
    "e2e_p50_ms_half_load",
    "e2e_p99_ms_half_load",
    "python_mb",
    "jvm_mb",
    "python_growth",
    "jvm_growth",
    "jvm_live_growth",
}
OF_ALL = {"pipeline_over_per_event_sql", "replayed_batch_ms", "e2e_p99_ms_half_load"}

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="columns need numba"
)


@pytest.mark.spark
def test_pipeline_benchmark_prints_every_metric_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str
) -> None:
    monkeypatch.setattr(pipeline, "Sizes", lambda: TINY)
    monkeypatch.setenv("ACTIVEDB_URL", database_url)
    pipeline.main(["--json", "--runs", "1"])
    printed = capsys.readouterr()
    metrics = json.loads(printed.out)
    assert metrics.keys() == OF_ALL | {f"{w}_{name}" for w in ("sl", "hygiene") for name in OF_EACH}
    for name, metric in metrics.items():
        assert math.isfinite(metric["value"])
        assert metric["value"] > 0
        assert metric["peer"] == (PEER if name.endswith("_pipeline_per_s") else None)
    assert "fsync" in printed.err


@pytest.mark.long
def test_pipeline_benchmark_at_its_own_size_has_the_workloads_as_they_are_tracked() -> None:
    sizes = pipeline.Sizes()
    ledger, hygiene = sizes.workloads
    assert isinstance(ledger, Ledger)
    assert isinstance(hygiene, Hygiene)
    assert ledger.accounts == 122_880
    assert hygiene.columns
    assert set(sizes.loads) == {ledger.name, hygiene.name} == {"sl", "hygiene"}
    assert all(load.skipped + 2 < load.batches for load in sizes.loads.values())


@pytest.mark.long
def test_hygiene_events_are_in_order_and_about_one_in_a_hundred_turns_a_badge() -> None:
    hygiene = Hygiene(workers=200)
    events = hygiene.events(20_000)
    assert len(events) == 20_000
    assert (np.diff(events.us) > 0).all()
    expected = hygiene.expected(events)
    assert 0.005 < len(expected["changes"]) / len(events) < 0.015
    assert {status for _, _, status in expected["changes"]} == {"safe", "warning", "violation"}


@pytest.mark.long
@pytest.mark.parametrize(
    "workload", [Ledger(20), Hygiene(10, violations=0.5)], ids=["sl", "hygiene"]
)
def test_sql_per_event_gives_the_tables_that_the_plain_loop_gives(
    workload: Ledger | Hygiene, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    monkeypatch.setenv("ACTIVEDB_URL", database_url)
    events = workload.events(300)
    params = (events.params[name].tolist() for name in workload.params)
    types = [list(events.takes)[code] for code in events.codes]
    with (
        open_server() as server,
        fresh_schema(server, "peer") as schema,
        schema.connection() as connection,
    ):
        connection.autocommit = True
        do = workload.per_event(connection)
        for event in zip(events.us.tolist(), types, *params, strict=True):
            do(event)
        found = workload.found(connection)
    check(found, workload.expected(events), "SQL")


@pytest.mark.long
def test_check_of_wrong_or_missing_rows_says_what_is_wrong() -> None:
    expected = {"badges": [(1, "safe"), (2, "safe")]}
    check(expected, expected, "ours")
    with pytest.raises(AssertionError, match=r"ours: badges has 1 rows, not 2"):
        check({"badges": [(1, "safe")]}, expected, "ours")
    with pytest.raises(AssertionError, match=r"1 wrong rows, the first: .*\(2, 'warning'\)"):
        check({"badges": [(1, "safe"), (2, "warning")]}, expected, "ours")


@pytest.mark.long
def test_steady_rate_counts_events_that_were_committed_after_the_first_batches() -> None:
    # Batches of 10 events, one each second; what a batch brings is committed with the next one.
    us = np.arange(40, dtype=np.int64)
    reached: list[Any] = [None, 10, 20, 30, None]
    ran = Ran([Applied(s, s + 0.5, 0.1, until) for s, until in enumerate(reached)])
    assert ran.steady_per_s(us, 2) == 10.0
    assert ran.medians_ms(2) == pytest.approx({"spark": 500, "python": 100, "postgres": 400})


@pytest.mark.long
def test_worst_of_the_workloads_is_told_run_by_run() -> None:
    found = pipeline.with_worst(
        {
            "sl_pipeline_per_s": Metric([10, 30], "1/s", "SQL", [1, 2]),
            "hygiene_pipeline_per_s": Metric([8, 60], "1/s", "SQL", [1, 2]),
            "sl_replayed_batch_ms": Metric([1, 5], "ms"),
            "hygiene_replayed_batch_ms": Metric([2, 3], "ms"),
        }
    )
    assert found["pipeline_over_per_event_sql"].values == [8, 15]
    assert found["replayed_batch_ms"].values == [2, 5]
    assert "e2e_p99_ms_half_load" not in found
