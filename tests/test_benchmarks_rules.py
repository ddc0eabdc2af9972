"""The rules benchmark at a tiny size: every metric is there, all work is done; nothing is timed."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from contextlib import closing

import pytest

from benchmarks import rules
from benchmarks._nested_rows import open_server
from benchmarks._rules_detached import DetachedRules
from benchmarks._rules_procrastinate import Procrastinate

TINY = rules.Sizes(immediate=3, parallel=1, registered=(1, 3, 10), events=4, firings=3)
COMPARED = {
    "immediate_rule_per_s",
    "immediate_audit_per_s",
    "parallel_rules_1_ms",
    "parallel_rules_2_ms",
    "parallel_rules_4_ms",
    "parallel_rules_8_ms",
}
QUEUED = {"detached_per_s", "sequential_per_s", "sequential_batch_per_s"}
ALONE = {
    "immediate_rule_ratio_to_trigger",
    "immediate_audit_ratio_to_trigger",
    "parallel_rules_speedup_1",
    "parallel_rules_speedup_2",
    "parallel_rules_speedup_4",
    "parallel_rules_speedup_8",
    "dispatch_per_s_1_rules",
    "dispatch_per_s_3_rules",
    "dispatch_per_s_10_rules",
    "dispatch_flatness",
}
has_procrastinate = pytest.mark.skipif(
    importlib.util.find_spec("procrastinate") is None, reason="no procrastinate"
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """Let the benchmark do little, on a database of the test's own."""
    monkeypatch.setattr(rules, "Sizes", lambda: TINY)
    monkeypatch.setenv("ACTIVEDB_URL", database_url)


@pytest.mark.long
@pytest.mark.usefixtures("tiny")
def test_rules_benchmark_without_procrastinate_prints_every_metric_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "procrastinate", None)
    rules.main(["--json", "--runs", "1"])
    printed = capsys.readouterr()
    metrics = json.loads(printed.out)
    assert metrics.keys() == COMPARED | QUEUED | ALONE
    for name, metric in metrics.items():
        assert math.isfinite(metric["value"])
        assert metric["value"] > 0
        assert metric["runs"] == 1
        assert metric["peer"] == ("trigger" if name in COMPARED else None)
    said = [line for line in printed.err.splitlines() if "no procrastinate" in line]
    assert len(said) == 1
    assert "pip install '.[bench]'" in said[0]
    assert "fsync" in printed.err  # which server it was, and whether it waits for the disk


@pytest.mark.long
@has_procrastinate
@pytest.mark.usefixtures("tiny")
def test_rules_benchmark_with_procrastinate_prints_a_table_with_every_metric_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rules.main(["--runs", "1"])
    table = capsys.readouterr().out
    assert "fsync" in table
    for name in COMPARED | QUEUED | ALONE:
        assert f" {name} " in table
    for name in QUEUED:
        assert "procrastinate" in next(line for line in table.splitlines() if f" {name} " in line)


@pytest.mark.long
def test_rules_benchmark_at_its_own_size_has_the_metrics_that_are_tracked() -> None:
    assert rules.Sizes().registered == (1, 100, 10_000)  # dispatch_per_s_10000_rules


@pytest.mark.long
@has_procrastinate
@pytest.mark.usefixtures("tiny")
def test_detached_part_leaves_a_row_for_each_rule_and_each_job_and_nothing_queued() -> None:
    with open_server() as server:
        peer = Procrastinate.open(server, 2)
        assert peer is not None
        with closing(peer), closing(DetachedRules(server, 5, peer)) as ours:
            ours()
            done = peer.done()
            assert done > 0
            assert done % 10 == 0  # one by one and together
            assert ours.written("sequential") == done
            assert ours.written("detached") == done // 2
        with server.connection() as connection:
            for queue in ("activedb_pending_firings", "procrastinate_jobs"):
                left = connection.execute(f"SELECT count(*) FROM {queue}").fetchone()
                assert left == (0,)
