"""The events benchmark at a tiny size: every metric is there, all work done; nothing is timed."""

from __future__ import annotations

import importlib.util
import json
import math
import sys

import pytest

from activedb.columns.detect._detector import ColumnarDetector
from activedb.columns.events import EventColumns
from activedb.events import Detector
from benchmarks import events
from benchmarks._events_bobocep import BoboCEP
from benchmarks._events_columnar import DuckDB
from benchmarks._events_memory import Memory
from benchmarks._events_single import kleene_by_hand, seq3_by_hand, single_s
from benchmarks._events_skips import SKIPS, PairsByHand, pairs
from benchmarks._events_streams import CONTEXTS, Events, kleene, seq3

TINY = events.Sizes(
    columnar=Events(600, 5),
    contexts_columnar=Events(300, 5),
    batch=70,
    single=Events(300, 5),
    contexts=Events(100, 5),
    bobocep=Events(200, 3),
    registered=(1, 3, 20),
    stream=Events(200, 3),
    skips=Events(200, 1),
    memory=1_000,
)
BESIDE = {
    "seq3_columnar_per_s": "DuckDB",
    "seq3_single_per_s": "by hand",
    "kleene_per_s": "by hand",
    "seq3_next_single_per_s": "BoboCEP",
    **{f"skip_{skip}_us_after_{count}": "by hand" for skip in SKIPS for count in (20, 180)},
}
ALONE = {
    "kleene_columnar_per_s",
    "patterns_1_per_s",
    "patterns_3_per_s",
    "patterns_20_per_s",
    "patterns_by_constant_20_per_s",
    "peak_rss_mb_100",
    "peak_rss_mb_1000",
    *(f"context_{context}_per_s" for context in CONTEXTS),
    *(f"context_{context}_columnar_per_s" for context in CONTEXTS),
}


def _needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"no {package}")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the benchmark do little."""
    monkeypatch.setattr(events, "Sizes", lambda: TINY)


@pytest.mark.long
@pytest.mark.usefixtures("tiny")
def test_events_benchmark_without_peers_prints_every_metric_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.setitem(sys.modules, "bobocep", None)
    monkeypatch.setitem(sys.modules, "bobocep.cep.engine.decider.decider", None)
    events.main(["--json", "--runs", "1"])
    printed = capsys.readouterr()
    metrics = json.loads(printed.out)
    assert metrics.keys() == BESIDE.keys() | ALONE
    for name, metric in metrics.items():
        assert math.isfinite(metric["value"])
        assert metric["value"] > 0
        assert metric["runs"] == 1
        assert metric["peer"] == ("by hand" if BESIDE.get(name) == "by hand" else None)
    assert "pip install '.[bench]'" in printed.err


@pytest.mark.long
@_needs("duckdb")
@_needs("bobocep")
@pytest.mark.usefixtures("tiny")
def test_events_benchmark_of_two_parts_prints_a_table_of_them_beside_their_peers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events.main(["--runs", "1", "--part", "columnar", "--part", "bobocep"])
    table = capsys.readouterr().out
    for name in ("seq3_columnar_per_s", "seq3_next_single_per_s"):
        [line] = [line for line in table.splitlines() if f" {name} " in line]
        assert BESIDE[name] in line
    assert "seq3_single_per_s" not in table


@pytest.mark.long
def test_events_benchmark_at_its_own_size_has_the_metrics_that_are_tracked() -> None:
    assert events.Sizes().registered == (1, 100, 1_000)  # patterns_1000_per_s, …_by_constant_…
    assert events.Sizes().memory == 50_000_000  # peak_rss_mb_50m
    assert events.Sizes().memory // 10 >= 1_000_000  # peak_rss_mb_5m


@pytest.mark.long
def test_loops_written_by_hand_find_what_detectors_find_one_by_one_and_in_columns() -> None:
    stream = Events(2_000, 20)
    found = stream.occurrences()
    for pattern, by_hand in ((seq3(), seq3_by_hand), (kleene(), kleene_by_hand)):
        expected = by_hand(found)
        assert len(expected) > 50
        assert single_s(pattern, found)[1] == len(expected)
        detector = ColumnarDetector(pattern)
        matches = detector.feed(EventColumns.of_occurrences(found)).occurrences()
        assert [tuple(match.parts.values()) for match in matches] == sorted(
            expected, key=lambda match: (match[-1].us, match[0].us)
        )


@pytest.mark.long
@pytest.mark.parametrize("skip", SKIPS)
def test_loop_with_a_skip_written_by_hand_finds_what_a_detector_finds(skip: str) -> None:
    found = Events(2_000, 1).occurrences()
    detector, by_hand = Detector(pairs(skip, found)), PairsByHand(skip)
    made = [tuple(match.parts.values()) for o in found for match in detector.feed(o)]
    assert made == [match for o in found for match in by_hand.feed(o)]
    assert len(made) > 200


@pytest.mark.long
@_needs("duckdb")
def test_duckdb_finds_as_many_matches_as_the_columnar_detector() -> None:
    [table] = Events(2_000, 20).tables(2_000)
    peer = DuckDB.open(table)
    assert peer is not None
    try:
        matches = ColumnarDetector(seq3()).feed(table)
        assert len(matches) > 100
        assert peer.count() == len(matches)
    finally:
        peer.close()


@pytest.mark.long
@_needs("bobocep")
def test_bobocep_finds_as_many_matches_as_a_detector_that_selects_next() -> None:
    found = Events(500, 5).occurrences()
    peer = BoboCEP.open()
    assert peer is not None
    matches = ColumnarDetector(seq3().selecting("next")).feed(EventColumns.of_occurrences(found))
    assert len(matches) > 20
    assert peer.feed(found) == len(matches)


@pytest.mark.long
def test_memory_part_tells_what_a_process_of_its_own_has_taken() -> None:
    figures = Memory(500, 100)()
    assert set(figures) == {"peak_rss_mb_50", "peak_rss_mb_500"}
    few, many = (figures[f"peak_rss_mb_{events}"].value for events in (50, 500))
    assert 10 < few < 1.1 * many  # two processes that do the same take the same but for a little
