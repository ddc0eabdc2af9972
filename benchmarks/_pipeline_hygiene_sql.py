"""Hygiene logic as SQL: one statement, so one round trip and one transaction, per event.

The state of earlier events is kept in one row per worker: when the worker has left which room since
sanitising, the last of these times after which another room was entered, and when a mask was put
on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg

__all__ = ["SqlWard"]

_TABLES: Final = (
    "CREATE TABLE badges (worker integer PRIMARY KEY, status varchar(20) NOT NULL)",
    "CREATE TABLE changes (us bigint, worker integer, status varchar(20) NOT NULL, "
    "PRIMARY KEY (us, worker))",
    "CREATE TABLE steps (worker integer PRIMARY KEY, left_us bigint[] NOT NULL, "
    "rooms integer[] NOT NULL, entered_us bigint, masked_us bigint) WITH (fillfactor = 45)",
)
_FILL: Final = (
    "INSERT INTO badges SELECT worker, 'safe' FROM generate_series(0, %s) AS worker",
    "INSERT INTO steps SELECT worker, '{}', '{}' FROM generate_series(0, %s) AS worker",
)

# Each ends with the badge that it has turned, if any.
_STEPS: Final = {
    "EXIT": """
WITH step AS (
    UPDATE steps SET left_us = left_us || %(us)s::bigint, rooms = rooms || %(location)s::integer
    WHERE worker = %(worker)s RETURNING masked_us),
turned AS (
    UPDATE badges SET status = 'safe' FROM step
    WHERE worker = %(worker)s AND status = 'warning' AND masked_us >= %(us)s - %(within_us)s
    RETURNING status)
""",
    "ENTER": """
WITH found AS (
    SELECT max(l.us) AS us FROM steps, unnest(left_us, rooms) AS l(us, room)
    WHERE worker = %(worker)s AND l.room <> %(location)s),
step AS (
    UPDATE steps SET entered_us = greatest(entered_us, found.us) FROM found
    WHERE worker = %(worker)s AND found.us IS NOT NULL),
turned AS (
    UPDATE badges SET status = 'warning' FROM found
    WHERE worker = %(worker)s AND status = 'safe' AND found.us >= %(us)s - %(within_us)s
    RETURNING status)
""",
    "TOUCH": """
WITH turned AS (
    UPDATE badges AS b SET status = 'violation' FROM steps AS s
    WHERE b.worker = %(worker)s AND s.worker = %(worker)s AND status = 'warning'
        AND entered_us >= %(us)s - %(within_us)s
    RETURNING status)
""",
    "SANITIZE": """
WITH before AS (SELECT entered_us FROM steps WHERE worker = %(worker)s),
step AS (
    UPDATE steps SET left_us = '{}', rooms = '{}', entered_us = NULL WHERE worker = %(worker)s),
turned AS (
    UPDATE badges SET status = 'safe' FROM before
    WHERE worker = %(worker)s AND status <> 'safe' AND entered_us >= %(us)s - %(within_us)s
    RETURNING status)
""",
}
_CHANGED: Final = (
    "INSERT INTO changes (us, worker, status) SELECT %(us)s, %(worker)s, status FROM turned"
)
_MASK: Final = "UPDATE steps SET masked_us = %(us)s WHERE worker = %(worker)s"
_STATEMENTS: Final = {kind: steps + _CHANGED for kind, steps in _STEPS.items()} | {"MASK": _MASK}


class SqlWard:
    """The tables, created and filled, with a function for one event.

    Parameters
    ----------
    connection : psycopg.Connection
        A connection in autocommit mode.
    workers : int
    within_us : mapping of str to int
        For each kind of event that ends a pattern: how long before it the pattern may begin.
    """

    def __init__(self, connection: psycopg.Connection, workers: int, within_us: Mapping[str, int]):
        for statement in _TABLES:
            connection.execute(statement)
        for statement in _FILL:
            connection.execute(statement, (workers - 1,))
        connection.execute("ANALYZE")
        self._cursor = connection.cursor()
        self._within_us = within_us

    def do(self, event: tuple[Any, ...]) -> None:
        """Process an event: time in microseconds, type, worker, location."""
        us, type_, worker, location = event
        given = {"us": us, "worker": worker, "location": location}
        if type_ in self._within_us:
            given["within_us"] = self._within_us[type_]
        self._cursor.execute(_STATEMENTS[type_], given, prepare=True)
