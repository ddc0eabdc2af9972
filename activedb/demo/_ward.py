"""Rules of the hospital ward (Wang, Rundensteiner, Ellison 2011, figure 1, section 3.1).

A worker is safe, in warning or in violation. Patterns over the worker's actions change the status,
and the status decides which patterns count::

            unsanitised change of rooms              unsanitised change of rooms,
                                                     or took the mask out
        ┌──────┐ ───────────────────────► ┌─────────┐ ───────────────────────► ┌───────────┐
        │ safe │                          │ warning │                          │ violation │
        └──────┘ ◄─────────────────────── └─────────┘                          └───────────┘
            ▲       sanitised change of rooms                                        │
            └────────────────────────────────────────────────────────────────────────┘
                        sanitised twice without entering a room in between
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, DateTime, Integer, Table, Text, select

import activedb as adb
from activedb.demo._generator import BEHAVIOURS, DELAY, FileFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["WardTables", "define"]


@dataclass(frozen=True, slots=True)
class WardTables:
    """The tables of the ward.

    Attributes
    ----------
    worker_status : Table
        worker (key), status, since when.
    status_tally : Table
        hour, old and new status (key): how many changes. Kept by a deferred rule.
    status_audit : Table
        worker, at, status (key), previous status. Written by a detached rule.
    """

    worker_status: Table
    status_tally: Table
    status_audit: Table

    def contents(self, db: adb.Database) -> dict[str, list[tuple[Any, ...]]]:
        """Return the committed rows of each table, by its name."""
        rows = {}
        with db.transaction() as t:
            for field in fields(self):
                rows[field.name] = [
                    tuple(row) for row in t.query(select(getattr(self, field.name)))
                ]
        return rows


def define(db: adb.Database, file_format: FileFormat = "csv") -> WardTables:
    """Declare the ward's tables, rules and its stream ``ward`` on `db`.

    Parameters
    ----------
    db : Database
        Database to declare them on; the tables are not created yet.
    file_format : {"csv", "json"}
        The format of the files that the stream reads, as `write_files` writes them.
    """
    tables = WardTables(
        worker_status=Table(
            "worker_status",
            db.metadata,
            Column("worker", Text, primary_key=True),
            Column("status", Text, nullable=False),
            Column("since", DateTime(timezone=True), nullable=False),
        ),
        status_tally=Table(
            "status_tally",
            db.metadata,
            Column("hour", DateTime(timezone=True), primary_key=True),
            Column("old_status", Text, primary_key=True),
            Column("new_status", Text, primary_key=True),
            Column("changes", Integer, nullable=False),
        ),
        status_audit=Table(
            "status_audit",
            db.metadata,
            Column("worker", Text, primary_key=True),
            Column("at", DateTime(timezone=True), primary_key=True),
            Column("status", Text, primary_key=True),
            Column("previous", Text, nullable=False),
        ),
    )
    _enrol_at_first_event(db, tables.worker_status)
    _change_status(db, tables.worker_status)
    _keep_books(db, tables)
    _declare_stream(db, file_format)
    return tables


def _enrol_at_first_event(db: adb.Database, worker_status: Table) -> None:
    def is_new(t: adb.Transaction, o: adb.Occurrence) -> bool:
        return t.get(worker_status, o.params["worker"]) is None

    def enrol(t: adb.Transaction, o: adb.Occurrence) -> None:
        row = {"worker": o.params["worker"], "status": "safe", "since": o.timestamp}
        t.insert(worker_status, row)

    for behaviour in BEHAVIOURS:
        # Before all other rules, which rely on the row.
        db.rule(
            on=adb.event(behaviour), when=is_new, priority=9, name=f"enrol_{behaviour.lower()}"
        )(enrol)


def _change_status(db: adb.Database, worker_status: Table) -> None:
    def in_status(status: str) -> Callable[[adb.Transaction, adb.Occurrence], bool]:
        # One event may complete a pattern several times, and the patterns of several rules. The
        # lock serialises the matches; `since` lets only the first one change the status.
        def condition(t: adb.Transaction, o: adb.Occurrence) -> bool:
            row = t.get(worker_status, o.params["worker"], for_update=True)
            return row is not None and row["status"] == status and row["since"] < o.timestamp

        return condition

    def become(t: adb.Transaction, o: adb.Occurrence, status: str) -> None:
        t.update(worker_status, o.params["worker"], status=status, since=o.timestamp)

    unsanitised = adb.seq(adb.event("EXIT"), ~adb.event("SANITIZE"), adb.event("ENTER"))
    unsanitised = unsanitised.same("worker").where(_other_room).within(45)
    sanitised = adb.seq(adb.event("EXIT"), adb.event("SANITIZE"), adb.event("ENTER"))
    sanitised = sanitised.same("worker").within(45)
    mask_out = adb.seq(adb.event("MASK"), adb.event("EXIT")).same("worker").within(5)
    twice = adb.seq(
        adb.event("SANITIZE", alias="first"), ~adb.event("ENTER"), adb.event("SANITIZE")
    )
    twice = twice.same("worker").within(60)

    # Priorities: if one event completes both, the worse status wins.
    @db.rule(on=unsanitised, when=in_status("warning"), priority=5)
    def violated(t: adb.Transaction, o: adb.Occurrence) -> None:
        become(t, o, "violation")

    @db.rule(on=mask_out, when=in_status("warning"), priority=4)
    def took_mask_out(t: adb.Transaction, o: adb.Occurrence) -> None:
        become(t, o, "violation")

    @db.rule(on=unsanitised, when=in_status("safe"), priority=3)
    def warned(t: adb.Transaction, o: adb.Occurrence) -> None:
        become(t, o, "warning")

    @db.rule(on=sanitised, when=in_status("warning"), priority=2)
    def heeded(t: adb.Transaction, o: adb.Occurrence) -> None:
        become(t, o, "safe")

    @db.rule(on=twice, when=in_status("violation"), priority=1)
    def cleaned(t: adb.Transaction, o: adb.Occurrence) -> None:
        become(t, o, "safe")


def _keep_books(db: adb.Database, tables: WardTables) -> None:
    changed = adb.updated(tables.worker_status, "status")

    @db.rule(on=changed, coupling="deferred")
    def tally(t: adb.Transaction, o: adb.Occurrence) -> None:
        old, new = o.old or {}, o.params
        key = (new["since"].replace(minute=0, second=0), old["status"], new["status"])
        row = t.get(tables.status_tally, key, for_update=True)
        if row is None:
            names = ("hour", "old_status", "new_status", "changes")
            t.insert(tables.status_tally, dict(zip(names, (*key, 1), strict=True)))
        else:
            t.update(tables.status_tally, key, changes=row["changes"] + 1)

    @db.rule(on=changed, coupling="detached")
    def audit(t: adb.Transaction, o: adb.Occurrence) -> None:
        old, new = o.old or {}, o.params
        key = (new["worker"], new["since"], new["status"])
        # It survives an abort of the batch: the second run of the batch finds the row.
        if t.get(tables.status_audit, key) is None:
            row = dict(zip(("worker", "at", "status"), key, strict=True))
            t.insert(tables.status_audit, row | {"previous": old["status"]})


def _declare_stream(db: adb.Database, file_format: FileFormat) -> None:
    db.stream(
        "ward",
        source=adb.Files(
            format=file_format,
            schema="event_id STRING, worker STRING, behaviour STRING, room STRING, at STRING",
            glob=f"*.{file_format}",
            options={"header": "true"} if file_format == "csv" else {},
            per_batch=1,
        ),
        type="behaviour",
        timestamp="CAST(at AS TIMESTAMP)",
        id="event_id",
        params={"worker": "worker", "room": "room"},
        types=dict.fromkeys(BEHAVIOURS, ("worker", "room")),
        delay=DELAY,
    )


def _other_room(parts: Mapping[str, adb.Occurrence]) -> bool:
    return bool(parts["EXIT"].params["room"] != parts["ENTER"].params["room"])
