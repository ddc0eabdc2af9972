"""The lock benchmark at a tiny size: every metric and both figures are there; nothing is timed."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

from benchmarks import _figures, _lockmgr, _report, locks
from benchmarks._berkeley import Berkeley
from lockmgr import Mode

TINY = locks.Sizes(
    acquired=200,
    nested=3,
    inherited=5,
    predicates=20,
    handovers=3,
    detected=(2, 4),
    detected_by_both=3,
    queued=3,
    others=(2, 9),
    weighed=10,
)
COMPARED = {
    "acquire_release_per_s",
    "nested_per_s",
    "inherit_5_ms",
    "handover_us",
    "detect_ms_at_3",
}
ALONE = {
    "declared_write_per_s",
    "predicate_lock_per_s",
    "detect_ms_at_2",
    "detect_ms_at_4",
    "deadlock_ms_at_4",
    "detect_queue_ms_at_3",
    "detect_unreached_ms_at_4",
    "commit_10_us_among_2",
    "commit_10_us_among_9",
    "commit_growth",
    "bytes_per_lock",
    "bytes_per_lock_and_path",
}


@pytest.fixture
def without_berkeley(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "berkeleydb", None)
    monkeypatch.setitem(sys.modules, "berkeleydb.db", None)


@pytest.mark.long
@pytest.mark.usefixtures("without_berkeley")
def test_locks_benchmark_without_the_peer_prints_every_metric_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "Sizes", lambda: TINY)
    locks.main(["--json", "--runs", "2"])
    printed = capsys.readouterr()
    metrics = json.loads(printed.out)
    assert metrics.keys() >= COMPARED | ALONE
    for metric in metrics.values():
        assert math.isfinite(metric["value"])
        assert metric["value"] > 0
        assert metric["peer"] is metric["peer_value"] is metric["ratio"] is None
    said = [line for line in printed.err.splitlines() if "Berkeley DB" in line]
    assert len(said) == 1
    assert "pip install '.[berkeleydb]'" in said[0]


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("berkeleydb") is None, reason="no Berkeley DB")
def test_locks_benchmark_with_the_peer_compares_what_both_can_do() -> None:
    metrics = {name: metric.summary() for name, metric in locks.measure(1, TINY).items()}
    assert {name for name, metric in metrics.items() if metric["peer"]} >= COMPARED
    for name in COMPARED:
        assert metrics[name]["peer"] == "Berkeley DB"
        assert math.isfinite(metrics[name]["peer_value"])
        assert metrics[name]["peer_value"] > 0
    for name in ALONE:
        assert metrics[name]["peer"] is None


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("berkeleydb") is None, reason="no Berkeley DB")
def test_berkeley_child_that_commits_leaves_its_locks_with_its_parent_until_that_commits() -> None:
    peer = Berkeley.open()
    assert peer is not None
    parent = peer._env.txn_begin()
    child = peer._env.txn_begin(parent)
    peer._env.lock_get(child.id(), b"1", peer._write)
    child.commit()
    assert peer._env.lock_stat()["nlocks"] == 1
    parent.commit()
    assert peer._env.lock_stat()["nlocks"] == 0
    peer.close()


@pytest.mark.long
def test_locks_benchmark_at_its_own_size_has_the_metrics_that_are_tracked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_lockmgr, "is_compiled", lambda: True)
    names = {one.name for one in locks.measurements(locks.Sizes())}
    assert names >= {
        "acquire_release_per_s",
        "nested_per_s",
        "inherit_1000_ms",
        "detect_ms_at_10000",
        "handover_us",
        "nested_compiled_per_s",
    }


@pytest.mark.long
def test_locks_benchmark_without_a_compiled_build_says_so_and_leaves_its_metrics_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_lockmgr, "is_compiled", lambda: False)
    names = {one.name for one in locks.measurements(TINY)}
    assert not any("compiled" in name for name in names)
    assert "--compiled" in capsys.readouterr().err


@pytest.mark.long
def test_compiled_option_with_a_folder_without_such_a_build_is_refused(tmp_path: Path) -> None:
    nested = {one.name: one for one in locks.measurements(TINY, None, tmp_path)}
    with pytest.raises(SystemExit, match="no compiled lockmgr there"):
        nested["nested_compiled_per_s"].ours()


@pytest.mark.long
def test_compiled_option_measures_the_build_of_that_folder_not_the_imported_one(
    tmp_path: Path,
) -> None:
    package = tmp_path / "lockmgr"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('this one')\n")
    nested = {one.name: one for one in locks.measurements(TINY, None, tmp_path)}
    with pytest.raises(SystemExit, match="this one"):
        nested["nested_compiled_per_s"].ours()


@pytest.mark.long
def test_figures_at_a_tiny_size_are_written_with_their_points_and_flatness(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    metrics = _figures.draw(tmp_path / "new", 2, objects=60, fanouts=(1, 2, 3), transactions=(5, 7))
    assert metrics.keys() == {
        "fanout_1_cpu_s",
        "fanout_2_cpu_s",
        "fanout_3_cpu_s",
        "transactions_5_cpu_s",
        "transactions_7_cpu_s",
        "figure_11_flatness",
        "figure_11_flatness_of_best",
        "figure_12_flatness",
        "figure_12_flatness_of_best",
    }
    for metric in metrics.values():
        assert math.isfinite(metric.summary()["value"])
    for name in ("figure_11.svg", "figure_12.svg"):
        assert "<svg" in (tmp_path / "new" / name).read_text()


@pytest.mark.long
def test_figures_without_matplotlib_name_the_extra_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match=r"\.\[bench\]"):
        locks.main(["--figures", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_hierarchy_accesses_each_object_once_and_writes_a_fifth() -> None:
    hierarchy = _figures._generate(7, 100)
    assert {len(accesses) for accesses in hierarchy} == {14, 15}
    accesses = [access for transaction in hierarchy for access in transaction]
    assert len({resource for resource, _ in accesses}) == 100
    assert sum(mode is Mode.X for _, mode in accesses) == 20


@pytest.mark.long
def test_measure_in_turn_warms_up_then_alternates_with_the_peer() -> None:
    calls: list[str] = []

    def called(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    one = _report.Measurement("one", "s", lambda: called("ours"), lambda: called("peer"))
    two = _report.Measurement("two", "s", lambda: called("alone"))
    metrics = _report.measure_in_turn([one, two], 2, "somebody")
    assert calls == ["ours", "peer", "alone"] * 3
    assert metrics["one"].values == [4.0, 7.0]
    assert list(metrics["one"].peer_values) == [5.0, 8.0]
    assert metrics["one"].peer == "somebody"
    assert metrics["two"].peer is None


@pytest.mark.long
@pytest.mark.parametrize(("smaller_is_better", "ratio"), [(False, 0.5), (True, 2.0)])
def test_metric_ratio_above_one_is_in_our_favour(smaller_is_better: bool, ratio: float) -> None:
    metric = _report.Metric([1.0, 2.0, 3.0], "s", "somebody", [4.0], smaller_is_better)
    summary = metric.summary()
    assert summary["value"] == 2.0
    assert summary["peer_value"] == 4.0
    assert summary["ratio"] == ratio
    assert summary["spread"] == 1.0
