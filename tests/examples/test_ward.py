"""The hospital ward: its generator, its recount, and its rules against the recount."""

from __future__ import annotations

import csv
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.demo import (
    BEHAVIOURS,
    DELAY,
    Sighting,
    Ward,
    compare,
    define,
    replay,
    write_files,
)

if TYPE_CHECKING:
    from pathlib import Path

    from activedb.demo import FileFormat

MORNING = datetime(2011, 8, 29, 6, tzinfo=UTC)


def seen(*steps: str) -> list[Sighting]:
    """Return one worker's sightings, each step given as ``"second BEHAVIOUR room"``."""
    sightings = []
    for number, step in enumerate(steps):
        second, behaviour, room = step.split()
        at = MORNING + timedelta(seconds=int(second))
        sightings.append(Sighting(f"e{number:03d}", "ann", behaviour, room, at))
    return sightings


def history(*steps: str) -> list[tuple[int, str]]:
    """Return the recounted changes of one worker's status as (second, new status)."""
    audit = replay(seen(*steps), late_ids=())["status_audit"]
    return [((at - MORNING) // timedelta(seconds=1), status) for _, at, status, _ in audit]


WARNED = ("0 EXIT a", "10 ENTER b")  # in warning from second 10 on
VIOLATED = (*WARNED, "20 EXIT b", "30 ENTER c")  # in violation from second 30 on


def test_ward_same_numbers_give_the_same_sightings() -> None:
    assert Ward(5, 300, seed=7).sightings() == Ward(5, 300, seed=7).sightings()
    assert Ward(5, 300, seed=7).sightings() != Ward(5, 300, seed=8).sightings()


def test_ward_sightings_are_as_many_as_asked_with_distinct_ids() -> None:
    sightings = Ward(workers=7, events=300, seed=1).sightings()
    assert len({s.event_id for s in sightings}) == len(sightings) == 300
    assert {s.worker for s in sightings} == {f"w{number:04d}" for number in range(7)}
    assert {s.behaviour for s in sightings} == set(BEHAVIOURS)


def test_ward_ids_sort_as_the_events_happened() -> None:
    sightings = sorted(Ward(5, 1_000, seed=2).sightings(), key=lambda s: s.event_id)
    assert all(a.at <= b.at for a, b in pairwise(sightings))


def test_ward_sightings_arrive_out_of_order_and_few_of_them_late() -> None:
    sightings = Ward(10, 5_000, seed=3).sightings()
    newest = sightings[0].at
    disordered = late = 0
    for sighting in sightings:
        disordered += sighting.at < newest
        late += sighting.at < newest - DELAY
        newest = max(newest, sighting.at)
    assert disordered > 1_000
    assert 0.005 <= late / len(sightings) <= 0.01


def test_ward_without_late_share_has_every_sighting_within_the_delay() -> None:
    newest = MORNING
    for sighting in Ward(10, 5_000, seed=3, late_share=0).sightings():
        assert sighting.at >= newest - DELAY
        newest = max(newest, sighting.at)


def test_ward_sightings_tie_between_workers_and_within_one() -> None:
    sightings = Ward(10, 5_000, seed=4).sightings()
    per_worker = Counter((s.worker, s.at) for s in sightings)
    assert max(per_worker.values()) > 1
    assert len({s.at for s in sightings}) < len(per_worker)


@pytest.mark.parametrize("seed", range(3))
def test_ward_makes_every_change_of_status_frequent(seed: int) -> None:
    audit = replay(Ward(20, 10_000, seed).sightings(), late_ids=())["status_audit"]
    changes = Counter((previous, status) for _, _, status, previous in audit)
    assert set(changes) == {
        ("safe", "warning"),
        ("warning", "violation"),
        ("warning", "safe"),
        ("violation", "safe"),
    }
    assert min(changes.values()) >= 100


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_write_files_names_in_order_hold_the_sightings_in_order(
    tmp_path: Path, file_format: FileFormat
) -> None:
    sightings = Ward(4, 103, seed=5).sightings()
    paths = write_files(sightings, tmp_path / "in", files=10, file_format=file_format)
    assert paths == sorted((tmp_path / "in").iterdir())
    read: list[dict[str, str]] = []
    for path in paths:
        with path.open(newline="") as lines:
            rows = list(csv.DictReader(lines) if file_format == "csv" else map(json.loads, lines))
        assert len(rows) in (10, 11)
        read += rows
    assert [
        Sighting(
            row["event_id"],
            row["worker"],
            row["behaviour"],
            row["room"],
            datetime.fromisoformat(row["at"]),
        )
        for row in read
    ] == sightings


def test_replay_first_event_makes_a_worker_safe() -> None:
    tables = replay(seen("5 MASK a"), late_ids=())
    assert tables["worker_status"] == [("ann", "safe", MORNING + timedelta(seconds=5))]
    assert tables["status_audit"] == tables["status_tally"] == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(WARNED, [(10, "warning")], id="unsanitised change of rooms"),
        pytest.param(("0 EXIT a", "10 ENTER a"), [], id="back into the same room"),
        pytest.param(("0 EXIT a", "5 SANITIZE a", "10 ENTER b"), [], id="sanitised"),
        pytest.param(("0 EXIT a", "45 ENTER b"), [(45, "warning")], id="in 45 seconds"),
        pytest.param(("0 EXIT a", "46 ENTER b"), [], id="in more than 45 seconds"),
        pytest.param(
            ("0 EXIT a", "0 SANITIZE a", "10 ENTER b"), [(10, "warning")], id="not in between"
        ),
        pytest.param(("0 EXIT a", "0 ENTER b"), [], id="at once is not one after the other"),
        pytest.param(VIOLATED, [(10, "warning"), (30, "violation")], id="warned, then again"),
        pytest.param(
            ("0 EXIT a", "10 EXIT b", "20 ENTER c"), [(20, "warning")], id="one step per event"
        ),
        pytest.param(
            (*WARNED, "15 MASK b", "20 EXIT b"), [(10, "warning"), (20, "violation")], id="mask"
        ),
        pytest.param((*WARNED, "15 MASK b", "21 EXIT b"), [(10, "warning")], id="mask, 6 seconds"),
        pytest.param(("0 MASK a", "3 EXIT a"), [], id="mask of a safe worker"),
        pytest.param(
            (*WARNED, "60 EXIT b", "65 SANITIZE x", "70 ENTER b"),
            [(10, "warning"), (70, "safe")],
            id="sanitised change of rooms",
        ),
        pytest.param(
            (*WARNED, "12 EXIT b", "14 SANITIZE x", "16 EXIT c", "18 ENTER d"),
            [(10, "warning"), (18, "violation")],
            id="the worse news wins",
        ),
        pytest.param(
            (*VIOLATED, "40 SANITIZE c", "50 SANITIZE c"),
            [(10, "warning"), (30, "violation"), (50, "safe")],
            id="sanitised twice",
        ),
        pytest.param(
            (*VIOLATED, "40 SANITIZE c", "100 SANITIZE c"),
            [(10, "warning"), (30, "violation"), (100, "safe")],
            id="sanitised twice in a minute",
        ),
        pytest.param(
            (*VIOLATED, "40 SANITIZE c", "101 SANITIZE c"),
            [(10, "warning"), (30, "violation")],
            id="sanitised twice in more than a minute",
        ),
        pytest.param(
            (*VIOLATED, "40 SANITIZE c", "45 EXIT c", "50 ENTER d", "55 SANITIZE d"),
            [(10, "warning"), (30, "violation")],
            id="a room entered in between",
        ),
    ],
)
def test_replay_status_changes_only_as_defined(
    steps: tuple[str, ...], expected: list[tuple[int, str]]
) -> None:
    assert history(*steps) == expected


def test_replay_counts_changes_by_hour() -> None:
    steps = ("0 EXIT a", "10 ENTER b", "3590 EXIT b", "3601 ENTER c")
    hours = [MORNING, MORNING + timedelta(hours=1)]
    assert replay(seen(*steps), late_ids=())["status_tally"] == [
        (hours[0], "safe", "warning", 1),
        (hours[1], "warning", "violation", 1),
    ]


def test_replay_leaves_late_events_out() -> None:
    tables = replay(seen("0 EXIT a", "5 SANITIZE a", "10 ENTER b"), late_ids={"e001"})
    assert [row[2] for row in tables["status_audit"]] == ["warning"]


def test_compare_equal_tables_in_any_order_says_nothing() -> None:
    assert compare({"t": [(1, "a"), (2, "b")]}, {"t": [(2, "b"), (1, "a")]}) == []


def test_compare_different_tables_says_what_differs() -> None:
    expected = {"gone": [], "t": [(1, MORNING), (2, MORNING), (2, MORNING)]}
    assert compare(expected, {"more": [], "t": [(2, MORNING), (3, MORNING)]}) == [
        "table gone is missing",
        "table more was not expected",
        "t lacks the row 1, 2011-08-29T06:00:00+00:00",
        "t lacks the row 2, 2011-08-29T06:00:00+00:00",
        "t has the row 3, 2011-08-29T06:00:00+00:00, which was not expected",
    ]


def as_events(sightings: list[Sighting]) -> list[adb.Occurrence]:
    """Return sightings as the stream's events."""
    return [
        adb.Occurrence(s.behaviour, s.at, {"worker": s.worker, "room": s.room}, id=s.event_id)
        for s in sightings
    ]


@pytest.mark.long
def test_rules_out_of_order_batches_with_late_events_give_the_recounted_tables(
    scale: int,
) -> None:
    sightings = Ward(workers=8, events=1_200 * scale, seed=11).sightings()
    db = adb.connect("memory://")
    tables = define(db)
    db.create_all()
    late_ids = set()
    punctuation = MORNING - DELAY
    for start in range(0, len(sightings), 100):
        batch = sightings[start : start + 100]
        late_ids |= {s.event_id for s in batch if s.at < punctuation}
        punctuation = max(punctuation, *(s.at - DELAY for s in batch))
        db.streams["ward"].feed(as_events(batch), punctuation=punctuation)
    db.streams["ward"].feed([])
    db.wait_idle()
    actual = tables.contents(db)
    found_late = {late.occurrence.id for late in db.streams["ward"].run.late_events()}
    db.close()
    assert found_late == late_ids != set()
    assert compare(replay(sightings, late_ids), actual) == []
    assert compare(replay(sightings, ()), actual) != []


def test_rules_any_order_of_arrival_gives_the_same_tables() -> None:
    sightings = Ward(workers=3, events=200, seed=12).sightings()
    expected = replay(sightings, late_ids=())
    for order in (sightings, sightings[::-1]):
        db = adb.connect("memory://")
        tables = define(db)
        db.create_all()
        db.streams["ward"].feed(as_events(order))
        db.wait_idle()
        actual = tables.contents(db)
        db.close()
        assert compare(expected, actual) == []
