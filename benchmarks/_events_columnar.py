"""Detection in columns: batches through `ColumnarDetector`, against DuckDB if it is installed.

DuckDB gets all events at once, as a table, and joins them on one thread; our detector gets them in
batches, as they arrive, and keeps only the window. Both must find the same matches.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

import pyarrow

from activedb.columns.detect._detector import ColumnarDetector
from activedb.events import Sequence
from benchmarks._events_streams import CONTEXTS, WINDOW_S, Events, kleene, seq3
from benchmarks._nested_parts import Figure

__all__ = ["ContextsInColumns", "DuckDB", "InColumns", "columnar_s"]

pa: Any = pyarrow  # it has no types

_WINDOW_US = 1_000_000 * WINDOW_S
# For each event the latest SANITIZE of its worker before it: a match has none after its EXIT.
_SQL = f"""
WITH judged AS MATERIALIZED (
    SELECT event_type, event_time_us AS us, p_worker AS worker,
        max(CASE WHEN event_type = 'SANITIZE' THEN event_time_us END) OVER (
            PARTITION BY p_worker ORDER BY event_time_us
            RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS sanitized_us
    FROM events)
SELECT count(*)
FROM judged AS a
JOIN judged AS b ON b.worker = a.worker AND b.us > a.us AND b.us <= a.us + {_WINDOW_US}
    AND coalesce(b.sanitized_us, -1) <= a.us
JOIN judged AS c ON c.worker = b.worker AND c.us > b.us AND c.us <= a.us + {_WINDOW_US}
WHERE a.event_type = 'EXIT' AND b.event_type = 'ENTER' AND c.event_type = 'TOUCH'
"""  # noqa: S608  # of constants


class DuckDB:
    """The three steps as a SQL query."""

    name = "DuckDB"

    def __init__(self, package: Any, events: Any):
        self._connection = package.connect()
        self._connection.execute("SET threads = 1")
        self._connection.register("events", events)

    @classmethod
    def open(cls, events: Any) -> DuckDB | None:
        """Open DuckDB over these events; print and return None if it is not installed."""
        try:
            package = importlib.import_module("duckdb")
        except ModuleNotFoundError:
            print("no duckdb: pip install '.[bench]'", file=sys.stderr)
            return None
        return cls(package, events)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def count(self) -> int:
        """Run the query; return the number of matches."""
        [(count,)] = self._connection.execute(_SQL).fetchall()
        return int(count)


class InColumns:
    """One run: the three steps, ours and DuckDB's, and the pattern with a Kleene step."""

    def __init__(self, events: Events, batch: int):
        self._tables = list(events.tables(batch))
        self._count = events.count
        self._peer = DuckDB.open(pa.concat_tables(self._tables))

    def close(self) -> None:
        """Close the peer."""
        if self._peer is not None:
            self._peer.close()

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        taken_s, matches = columnar_s(seq3(), self._tables)
        kleene_s, _ = columnar_s(kleene(), self._tables)
        seq = Figure(self._count / taken_s, "events/s")
        if self._peer is not None:
            started_s = time.process_time()
            their_matches = self._peer.count()
            their_rate = self._count / (time.process_time() - started_s)
            assert their_matches == matches, f"DuckDB finds {their_matches}, we {matches}"
            seq = Figure(seq.value, seq.unit, DuckDB.name, their_rate)
        return {
            "seq3_columnar_per_s": seq,
            "kleene_columnar_per_s": Figure(self._count / kleene_s, "events/s"),
        }


class ContextsInColumns:
    """One run: the three steps in each context."""

    def __init__(self, events: Events, batch: int):
        self._tables = list(events.tables(batch))
        self._count = events.count

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        return {
            f"context_{context}_columnar_per_s": Figure(
                self._count / columnar_s(seq3().context(context), self._tables)[0], "events/s"
            )
            for context in CONTEXTS
        }


def columnar_s(pattern: Sequence, tables: list[Any]) -> tuple[float, int]:
    """Return the processor time of a new detector for some batches, and its number of matches."""
    detector = ColumnarDetector(pattern)
    started_s = time.process_time()
    matches = sum(len(detector.feed(table)) for table in tables)
    return time.process_time() - started_s, matches
