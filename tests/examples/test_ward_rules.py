"""The hygiene rules of the paper, from their text, over the events of its examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, String, Table, select

import activedb as adb
from activedb import occurrence

RULES = Path(__file__).resolve().parents[2] / "examples" / "ward.rules"
WORKER: dict[str, Any] = {"HCW-ID": 7}


@pytest.fixture
def ward(db: adb.Database) -> adb.Database:
    """Worker 7 is safe; no reminders; the rules are loaded."""
    Table(
        "workerStatus",
        db.metadata,
        Column("workerID", Integer, primary_key=True),
        Column("status", String),
    )
    Table(
        "reminders",
        db.metadata,
        Column("workerID", Integer, primary_key=True),
        Column("location", String),
    )
    db.create_all()
    with db.transaction() as t:
        t.insert(db.metadata.tables["workerStatus"], {"workerID": 7, "status": "safe"})
    needed = ("HCW-ID", "location")
    types = dict.fromkeys(("ENTER", "EXIT", "MASK", "SANITIZE"), needed)
    db.stream("estream", type="behavior", timestamp="timestamp", types=types)
    db.rules.load_file(RULES)
    return db


def feed(db: adb.Database, *events: tuple[str, float, str]) -> None:
    (stream,) = db.streams
    stream.feed(
        [occurrence(name, timestamp=at, location=place, **WORKER) for name, at, place in events],
    )


def status(db: adb.Database) -> Any:
    with db.transaction() as t:
        row = t.get(db.metadata.tables["workerStatus"], 7)
        assert row is not None
        return row["status"]


def reminders(db: adb.Database) -> list[tuple[Any, ...]]:
    with db.transaction() as t:
        return [tuple(row) for row in t.query(select(db.metadata.tables["reminders"]))]


def test_ward_example_1_warns_at_enter_10(ward: adb.Database) -> None:
    feed(ward, ("EXIT", 2, "room 1"), ("ENTER", 10, "room 2"), ("EXIT", 15, "room 2"))
    assert status(ward) == "warning"


@pytest.mark.parametrize(
    "events",
    [
        [("EXIT", 2, "a"), ("SANITIZE", 5, "hall"), ("ENTER", 10, "b")],
        [("EXIT", 2, "a"), ("ENTER", 10, "a")],
        [("EXIT", 2, "a"), ("ENTER", 47.5, "b")],
        [("ENTER", 2, "a"), ("EXIT", 10, "b")],
    ],
)
def test_ward_worker_who_behaves_stays_safe(ward: adb.Database, events: Any) -> None:
    feed(ward, *events)
    assert status(ward) == "safe"


def test_ward_examples_2_and_3_the_status_is_read_as_of_the_event(ward: adb.Database) -> None:
    # Q2 at EXIT 3 must see "safe", though the events are fed in the wrong order: the warning is
    # of ENTER 10. At EXIT 15 it must see "warning".
    events = [
        ("EXIT", 15, "b"),
        ("ENTER", 10, "b"),
        ("MASK", 12, "b"),
        ("EXIT", 3, "a"),
        ("MASK", 1, "a"),
    ]
    feed(ward, *events[1:2], *events[3:])
    assert (status(ward), reminders(ward)) == ("warning", [])


def test_ward_mask_and_exit_after_the_warning_is_a_violation(ward: adb.Database) -> None:
    feed(
        ward,
        ("EXIT", 15, "b"),
        ("MASK", 12, "b"),
        ("ENTER", 10, "b"),
        ("EXIT", 2, "a"),
    )
    assert status(ward) == "violation"
    assert reminders(ward) == [(7, "b")]


def test_ward_washing_hands_makes_safe_again(ward: adb.Database) -> None:
    feed(ward, ("EXIT", 2, "a"), ("ENTER", 10, "b"), ("SANITIZE", 20, "b"))
    assert status(ward) == "safe"


def test_ward_text_tells_what_its_rules_do(ward: adb.Database) -> None:
    analysis = ward.rules.analyze()
    changes = {p.name: {(c.kind, c.table) for c in p.effects.changes} for p in analysis.rules}
    assert changes == {
        "R1": {("update", "workerStatus")},
        "R2": {("update", "workerStatus"), ("insert", "reminders")},
        "R3": {("update", "workerStatus")},
    }
