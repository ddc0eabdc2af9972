"""Hygiene workload of the pipeline: hospital workers, their badges, and rules over their actions.

After (Wang, Rundensteiner, Ellison 2011, figure 1). A badge is safe, warning or violation:

- a safe worker leaves a room and enters another one without sanitising in between: warning
- a worker in warning puts on a mask and leaves within five seconds: safe
- a worker in warning who has entered so touches a patient without having sanitised: violation
- a worker who has entered so sanitises: safe

Each change of a badge is also stored as a row. A worker comes to another room every 40 seconds;
nearly all sanitise in between, so that one event in a hundred completes a pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import psycopg
from sqlalchemy import BigInteger, Column, Integer, String, Table

import activedb
from activedb import Transaction, part, seq
from activedb import event as of_type
from benchmarks._examples import load
from benchmarks._nested_rows import Server
from benchmarks._pipeline_hygiene_sql import SqlWard
from benchmarks._pipeline_places import TIME, TYPE
from benchmarks._pipeline_workload import Opened, PerEvent, Rows

__all__ = ["Hygiene"]

_EXAMPLE: Any = load("_columns")
KINDS: Final = ("EXIT", "SANITIZE", "ENTER", "MASK", "TOUCH")
# Time before an event that ends a pattern at which the pattern may begin.
_WITHIN_S: Final = {"ENTER": 45, "EXIT": 5, "TOUCH": 60, "SANITIZE": 90}
_WITHIN_US: Final = {kind: seconds * 1_000_000 for kind, seconds in _WITHIN_S.items()}
_NEVER_US: Final = -(2**62)
_ROOMS: Final = 50
_VISIT_US: Final = 40_000_000
_MOMENT_US: Final = 1_000
# Steps of a visit, with their times in seconds after its begin. The first visit is correct.
_VISITS: Final = (
    (("EXIT", 0), ("SANITIZE", 4), ("ENTER", 8), ("TOUCH", 16)),
    (("EXIT", 0), ("ENTER", 8), ("TOUCH", 16)),
    (("EXIT", 0), ("ENTER", 8), ("MASK", 20), ("EXIT", 23)),
    (("EXIT", 0), ("ENTER", 8), ("SANITIZE", 12), ("TOUCH", 16)),
)


@dataclass(frozen=True, slots=True)
class Hygiene:
    """Workload of `workers` workers, each with four events in 40 seconds.

    Parameters
    ----------
    workers : int
        Number of workers; 10,000 make 1,000 events for each second of their time.
    violations : float
        The share of visits without sanitising before.
    columns : bool
        Whether patterns are detected in columns.
    """

    workers: int = 10_000
    violations: float = 0.015
    columns: bool = True
    name: str = "hygiene"
    params: tuple[str, ...] = ("worker", "location")

    def events(self, count: int) -> Any:
        """Return `count` events, no two of them at the same time."""
        rng = np.random.default_rng(1)
        steps_max = max(map(len, _VISITS))
        visits = count // (3 * self.workers) + 2  # of each worker, and more than there are events
        kinds = np.where(
            rng.random((visits, self.workers)) < self.violations,
            rng.integers(1, len(_VISITS), (visits, self.workers)),
            0,
        )
        codes = np.full((len(_VISITS), steps_max), -1)
        offsets = np.zeros((len(_VISITS), steps_max), np.int64)
        for number, visit in enumerate(_VISITS):
            for step, (kind, second) in enumerate(visit):
                codes[number, step] = KINDS.index(kind)
                offsets[number, step] = second * 1_000_000
        begins = np.arange(visits)[:, None] * _VISIT_US + rng.integers(
            0, _VISIT_US, self.workers, endpoint=False
        )
        jitter = rng.integers(0, 1_000_000, (visits, self.workers, steps_max))
        us = begins[:, :, None] + offsets[kinds] + jitter
        rooms = rng.integers(0, _ROOMS, self.workers) + np.arange(visits + 1)[:, None]
        # An EXIT leaves the room of the visit before.
        room = np.where(
            codes[kinds] == KINDS.index("EXIT"), rooms[:-1, :, None], rooms[1:, :, None]
        )
        worker = np.broadcast_to(np.arange(self.workers)[:, None], us.shape)
        there = (codes[kinds] >= 0).ravel()
        order = np.argsort(us.ravel()[there], kind="stable")[:count]

        def column(values: Any) -> Any:
            return np.ascontiguousarray(values.ravel()[there][order]).astype(np.int64)

        # Events of the same moment are put one after the other.
        at = np.maximum.accumulate(column(us) - np.arange(count)) + np.arange(count) + _MOMENT_US
        return _EXAMPLE.GeneratedEvents(
            dict.fromkeys(KINDS, self.params),
            column(codes[kinds]),
            at,
            {"worker": column(worker), "location": column(room % _ROOMS)},
        )

    def open(self, server: Server, source: Any) -> Opened:
        """Create the tables, a badge for each worker, the stream and the rules."""
        db = server.database(threads=4)
        badges = Table(
            "badges",
            db.metadata,
            Column("worker", Integer, primary_key=True, autoincrement=False),
            Column("status", String(20), nullable=False),
        )
        changes = Table(
            "changes",
            db.metadata,
            Column("us", BigInteger, primary_key=True, autoincrement=False),
            Column("worker", Integer, primary_key=True, autoincrement=False),
            Column("status", String(20), nullable=False),
        )
        db.create_all()
        with server.connection() as connection:
            connection.execute(
                "INSERT INTO badges SELECT worker, 'safe' FROM generate_series(0, %s) AS worker",
                (self.workers - 1,),
            )
        db.admin.own(badges, changes)
        stream = db.stream(
            "ward",
            source=source,
            type=TYPE,
            timestamp=TIME,
            params={name: name for name in self.params},
            types=dict.fromkeys(KINDS, self.params),
            columns=self.columns,
        )
        _define(db, badges, changes)
        return Opened(db, stream, stream.run)

    def per_event(self, connection: psycopg.Connection) -> PerEvent:
        """Create the same tables, with the state of earlier events; return the SQL per event."""
        return SqlWard(connection, self.workers, _WITHIN_US).do

    def expected(self, columns: Any) -> Rows:
        """Return badges and their changes, computed by one loop in the order of time."""
        status = ["safe"] * self.workers
        changes: list[tuple[int, int, str]] = []
        # Per worker, since sanitising: rooms left, with times; the last of these times after which
        # another room was entered. And the time at which a mask was put on.
        left: list[list[tuple[int, int]]] = [[] for _ in range(self.workers)]
        entered = [_NEVER_US] * self.workers
        masked = [_NEVER_US] * self.workers
        rows = (columns.params[name].tolist() for name in self.params)
        kinds = [KINDS[code] for code in columns.codes.tolist()]
        for us, kind, worker, room in zip(columns.us.tolist(), kinds, *rows, strict=True):
            now = new = status[worker]
            if kind == "EXIT":
                if now == "warning" and us - masked[worker] <= _WITHIN_US["EXIT"]:
                    new = "safe"
                left[worker].append((us, room))
            elif kind == "ENTER":
                since = max((at for at, of in left[worker] if of != room), default=_NEVER_US)
                if now == "safe" and us - since <= _WITHIN_US["ENTER"]:
                    new = "warning"
                entered[worker] = max(entered[worker], since)
            elif kind == "TOUCH":
                if now == "warning" and us - entered[worker] <= _WITHIN_US["TOUCH"]:
                    new = "violation"
            elif kind == "SANITIZE":
                if us - entered[worker] <= _WITHIN_US["SANITIZE"]:
                    new = "safe"
                left[worker].clear()
                entered[worker] = _NEVER_US
            else:
                masked[worker] = us
            if new != now:
                status[worker] = new
                changes.append((us, worker, new))
        return {"badges": list(enumerate(status)), "changes": changes}

    def found(self, connection: psycopg.Connection) -> Rows:
        """Return badges and their changes."""
        return {
            "badges": connection.execute("SELECT * FROM badges ORDER BY worker").fetchall(),
            "changes": connection.execute("SELECT * FROM changes ORDER BY us").fetchall(),
        }


def _define(db: activedb.Database, badges: Table, changes: Table) -> None:
    """Define the rules."""
    exit_, sanitize, enter = of_type("EXIT"), of_type("SANITIZE"), of_type("ENTER")
    moved = part("EXIT").location != part("ENTER").location
    before = (exit_, ~sanitize, enter, ~sanitize)

    def is_(*statuses: str) -> Callable[[Transaction, Any], bool]:
        def has(t: Transaction, o: Any) -> bool:
            row = t.get(badges, o.params["worker"])
            return row is not None and row["status"] in statuses

        return has

    def turn(status: str, *before: str) -> Callable[[Transaction, Any], None]:
        has = is_(*before)

        def action(t: Transaction, o: Any) -> None:
            if not has(t, o):  # another sequence that ends with this event has turned it
                return
            worker = o.params["worker"]
            t.update(badges, worker, status=status)
            t.insert(changes, {"us": o.us, "worker": worker, "status": status})

        return action

    for name, pattern, status, statuses in (
        ("entered", seq(*before[:3]).where(moved).within(_WITHIN_S["ENTER"]), "warning", ("safe",)),
        ("masked", seq(of_type("MASK"), exit_).within(_WITHIN_S["EXIT"]), "safe", ("warning",)),
        (
            "touched",
            seq(*before, of_type("TOUCH")).where(moved).within(_WITHIN_S["TOUCH"]),
            "violation",
            ("warning",),
        ),
        (
            "sanitised",
            seq(*before, of_type("SANITIZE", alias="then"))
            .where(moved)
            .within(_WITHIN_S["SANITIZE"]),
            "safe",
            ("warning", "violation"),
        ),
    ):
        on = pattern.same("worker")
        db.rule(on=on, when=is_(*statuses), name=name)(turn(status, *statuses))
