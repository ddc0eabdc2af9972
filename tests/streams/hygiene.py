"""The hand hygiene logic of Wang, Rundensteiner, Ellison 2011, figure 1 and section 2.

A healthcare worker's badge is safe (green), warning (yellow) or violation (red). Queries read the
badge as of the time of their last event, and rules on them write it:

- Q1, a worker who is safe leaves a room and enters another without sanitising: R1, warning
- Q2, a worker who is in warning puts on a mask and leaves within five seconds: R2, safe
- Q3, a worker who is in warning touches a patient without having sanitised since: R3, violation
- whoever sanitises is safe again: R4

Beside it the same logic as one loop over the events in the order of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, String, Table, select

import activedb as adb
from tests.ledger import at, event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from activedb import Database, Occurrence, Stream, Transaction

KINDS = ("EXIT", "SANITIZE", "ENTER", "MASK", "TOUCH")
WINDOW_S = 45
MASK_WINDOW_S = 5


@dataclass(frozen=True)
class Ward:
    """A database with the badges of workers 1 and 2, and the stream of their behaviour.

    Attributes
    ----------
    read : list of (query, event time in seconds, status)
        What the queries have read, in the order in which they did.
    """

    db: Database
    badges: Table
    changes: Table
    stream: Stream
    read: list[tuple[str, float, str]]

    def statuses(self) -> dict[int, str]:
        """The badges."""
        with self.db.transaction() as t:
            return {row.worker: row.status for row in t.query(select(self.badges))}

    def history(self) -> list[tuple[float, int, str]]:
        """Each change of a badge: time, worker, new status; in the order in which it was made."""
        with self.db.transaction() as t:
            rows = t.query(select(self.changes).order_by(self.changes.c.id))
            return [(row.ms / 1_000, row.worker, row.status) for row in rows]


def open_ward(db: Database) -> Ward:
    """Tables, stream and rules."""
    badges = Table(
        "badges",
        db.metadata,
        Column("worker", Integer, primary_key=True),
        Column("status", String(20), nullable=False),
    )
    changes = Table(
        "changes",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("ms", Integer, nullable=False),
        Column("worker", Integer, nullable=False),
        Column("status", String(20), nullable=False),
    )
    db.create_all()
    with db.transaction() as t:
        for worker in (1, 2):
            if t.get(badges, worker) is None:
                t.insert(badges, {"worker": worker, "status": "safe"})
    stream = db.stream(
        "ward",
        type="kind",
        timestamp="at",
        types=dict.fromkeys(KINDS, ("worker", "location")),
        delay=timedelta(days=1),
    )
    read: list[tuple[str, float, str]] = []
    ward = Ward(db, badges, changes, stream, read)

    def is_in(query: str, status: str, of: str) -> Callable[[Transaction, Any], bool]:
        def reading(t: Transaction, parts: Any) -> bool:
            o = parts[of]
            row = t.get(badges, o.params["worker"])
            assert row is not None
            read.append((query, seconds(o), row["status"]))
            return bool(row["status"] == status)

        return reading

    def turns(status: str) -> Callable[[Transaction, Occurrence], None]:
        def action(t: Transaction, o: Occurrence) -> None:
            worker = o.params["worker"]
            row = t.get(badges, worker)
            assert row is not None
            if row["status"] == status:  # several sequences of one event may say the same
                return
            t.update(badges, worker, status=status)
            ms = round(seconds(o) * 1_000)
            t.insert(changes, {"ms": ms, "worker": worker, "status": status})

        return action

    exit_, sanitize, enter = adb.event("EXIT"), adb.event("SANITIZE"), adb.event("ENTER")
    q1 = (
        adb.seq(exit_, ~sanitize, enter)
        .same("worker")
        .where(lambda parts: parts["EXIT"].params["location"] != parts["ENTER"].params["location"])
        .reading(is_in("Q1", "safe", "ENTER"))
        .within(WINDOW_S)
    )
    q2 = (
        adb.seq(adb.event("MASK"), exit_)
        .same("worker")
        .reading(is_in("Q2", "warning", "EXIT"))
        .within(MASK_WINDOW_S)
    )
    q3 = (
        adb.seq(enter, ~sanitize, adb.event("TOUCH"))
        .same("worker")
        .reading(is_in("Q3", "warning", "TOUCH"))
        .within(WINDOW_S)
    )
    db.rule(on=q1, name="R1")(turns("warning"))
    db.rule(on=q2, name="R2")(turns("safe"))
    db.rule(on=q3, name="R3")(turns("violation"))

    def is_not_safe(t: Transaction, o: Occurrence) -> bool:
        row = t.get(badges, o.params["worker"])
        return row is not None and row["status"] != "safe"

    db.rule(on=adb.event("SANITIZE", reading=is_not_safe), name="R4")(turns("safe"))
    return ward


def seconds(o: Occurrence) -> float:
    """Time of an event after the start."""
    return (o.us - adb.occurrence("START", timestamp=at(0)).us) / 1_000_000


def behave(kind: str, second: float, worker: int = 1, location: str = "a") -> Occurrence:
    """An event of a worker."""
    return event(kind, second, f"{second:08.3f}", worker=worker, location=location)


def expected(events: Iterable[Occurrence]) -> tuple[dict[int, str], list[tuple[float, int, str]]]:
    """The badges in the end, and their history, as one loop in the order of time says."""
    status = {1: "safe", 2: "safe"}
    history: list[tuple[float, int, str]] = []
    past: dict[int, list[Occurrence]] = {1: [], 2: []}

    def turn(o: Occurrence, new: str) -> None:
        status[o.params["worker"]] = new
        history.append((seconds(o), o.params["worker"], new))

    for o in sorted(events, key=lambda o: (o.us, o.id)):
        before = past[o.params["worker"]]
        now = status[o.params["worker"]]
        if o.name == "SANITIZE" and now != "safe":
            turn(o, "safe")
        if o.name == "ENTER" and now == "safe":
            left = _since(before, o, "EXIT", WINDOW_S, until="SANITIZE")
            if any(e.params["location"] != o.params["location"] for e in left):
                turn(o, "warning")
        if o.name == "EXIT" and now == "warning" and _since(before, o, "MASK", MASK_WINDOW_S):
            turn(o, "safe")
        entered = _since(before, o, "ENTER", WINDOW_S, until="SANITIZE")
        if o.name == "TOUCH" and now == "warning" and entered:
            turn(o, "violation")
        before.append(o)
    return status, history


def _since(
    before: list[Occurrence], o: Occurrence, kind: str, window_s: int, until: str | None = None
) -> list[Occurrence]:
    """Events of a kind before `o` and in its window, with none of another kind in between."""
    found = []
    for e in reversed(before):
        if e.name == until or o.us - e.us > window_s * 1_000_000:
            break
        if e.name == kind:
            found.append(e)
    return found
