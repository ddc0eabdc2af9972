"""The nested-transaction benchmark at a tiny size: every metric is there; nothing is timed."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys

import pytest
from sqlalchemy import create_engine, text

from benchmarks import _nested_parts, nested
from benchmarks._nested_memory import BerkeleyRows, NestedInMemory
from benchmarks._nested_rows import open_server
from benchmarks._report import Metric, show

TINY = nested.Sizes(
    in_memory=20, one_row=3, parallel=1, flushed=40, flush_rounds=1, queried_rows=20, queries=2
)
METRICS = {
    "memory_nested_per_s",
    "pg_one_row_p50_us",
    "pg_one_row_p95_us",
    "pg_one_row_ratio_to_psycopg",
    "pg_one_row_ratio_to_locking",
    "pg_plain_commit_p50_us",
    "parallel_children_speedup_2",
    "parallel_children_speedup_4",
    "parallel_children_speedup_8",
    "parallel_readers_speedup_2",
    "parallel_readers_speedup_4",
    "parallel_readers_speedup_8",
    "flush_rows_per_s",
    "flush_updates_per_s",
    "query_overhead_0_dirty",
    "query_overhead_10_dirty",
    "query_overhead_1000_dirty",
    "query_point_overhead_0_dirty",
    "query_point_overhead_10_dirty",
    "query_point_overhead_1000_dirty",
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, database_url: str) -> str:
    """Let the benchmark do little, on a database of the test's own; returns its URL."""
    monkeypatch.setattr(nested, "Sizes", lambda: TINY)
    monkeypatch.setenv("ACTIVEDB_URL", database_url)
    return database_url


def schemas(url: str) -> set[str]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            named = connection.execute(text("SELECT nspname FROM pg_namespace"))
            return {row.nspname for row in named if row.nspname.startswith("activedb_bench")}
    finally:
        engine.dispose()


@pytest.mark.long
def test_nested_benchmark_without_the_peer_prints_every_metric_as_json_and_as_a_table(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "berkeleydb", None)
    monkeypatch.setitem(sys.modules, "berkeleydb.db", None)
    measured: list[dict[str, Metric]] = []

    def show_and_keep(name: str, metrics: dict[str, Metric], *, as_json: bool) -> None:
        measured.append(metrics)
        show(name, metrics, as_json=as_json)

    monkeypatch.setattr(nested, "show", show_and_keep)
    nested.main(["--json", "--runs", "1"])
    printed = capsys.readouterr()
    metrics = json.loads(printed.out)
    assert metrics.keys() == METRICS
    for metric in metrics.values():
        assert math.isfinite(metric["value"])
        assert metric["value"] > 0
        assert metric["runs"] == 1
    assert metrics["memory_nested_per_s"]["peer"] is None
    assert metrics["pg_one_row_p50_us"]["peer"] == "psycopg"
    assert "no Berkeley DB" in printed.err
    assert "fsync" in printed.err  # which server it was, and whether it waits for the disk
    assert schemas(tiny) == set()
    show("nested", measured[0], as_json=False)
    table = capsys.readouterr().out
    for name in METRICS:
        assert f" {name} " in table


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("berkeleydb") is None, reason="no Berkeley DB")
def test_nested_benchmark_in_memory_with_the_peer_compares_and_keeps_what_both_wrote() -> None:
    peer = BerkeleyRows.open()
    assert isinstance(peer, BerkeleyRows)
    ours = NestedInMemory(10, peer)
    figure = ours()["memory_nested_per_s"]
    assert figure.peer == "Berkeley DB"
    assert figure.peer_value is not None
    assert figure.peer_value > 0
    # Ours has written the values 1000 to 1009, Berkeley DB 1000 to 1099, each to its row.
    assert [ours.balance(row) for row in (0, 9, 10)] == [1000, 1009, 0]
    assert [peer.balance(row) for row in (0, 99, 100)] == [1000, 1099, 0]
    ours.close()
    peer.close()


@pytest.mark.long
def test_open_server_that_fails_inside_drops_its_schema(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTIVEDB_URL", database_url)
    with pytest.raises(RuntimeError, match="inside"), open_server() as server:
        assert schemas(database_url) == {server.schema} == {f"activedb_bench_{os.getpid()}"}
        raise RuntimeError("inside")
    assert schemas(database_url) == set()


@pytest.mark.long
@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://nobody@127.0.0.1:1/x", "postgresql:nonsense"]
)
def test_nested_benchmark_with_an_unusable_server_ends_with_a_line_that_says_so(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTIVEDB_URL", url)
    with pytest.raises(SystemExit, match="cannot measure on the server of ACTIVEDB_URL") as ended:
        nested.main(["--json"])
    assert isinstance(ended.value.code, str)  # printed to standard error, with status 1


@pytest.mark.long
def test_times_in_turn_makes_every_call_once_a_round_and_changes_who_begins() -> None:
    made: list[str] = []
    taken = _nested_parts.times_in_turn(
        [lambda number: made.append(f"a{number}"), lambda number: made.append(f"b{number}")], 3
    )
    assert made == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert [len(times) for times in taken] == [3, 3]


@pytest.mark.long
def test_measure_parts_warms_up_and_keeps_every_measured_run() -> None:
    values = iter([9.0, 1.0, 2.0, 3.0])

    def part() -> dict[str, _nested_parts.Figure]:
        value = next(values)
        return {"one": _nested_parts.Figure(value, "s", "somebody", 2 * value, True)}

    metric = _nested_parts.measure_parts({"part": part}, 3)["one"]
    assert metric.values == [1.0, 2.0, 3.0]
    assert list(metric.peer_values) == [2.0, 4.0, 6.0]
    assert metric.summary()["ratio"] == 2.0


@pytest.mark.long
@pytest.mark.parametrize(("times", "expected"), [([5.0], 5.0), (list(range(1, 101)), 95)])
def test_p95_is_the_time_that_95_of_100_do_not_exceed(times: list[float], expected: float) -> None:
    assert _nested_parts.p95(times) == expected
