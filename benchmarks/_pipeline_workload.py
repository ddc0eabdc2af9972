"""Interface of a workload of the pipeline benchmark: events, a stream, the expected result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import psycopg

from activedb import Database
from activedb.streams import Files, Stream, StreamRun
from benchmarks._nested_rows import Server

__all__ = ["Opened", "PerEvent", "Rows", "Workload"]

Rows: TypeAlias = Mapping[str, list[tuple[Any, ...]]]
"""Rows by table, in the order of their keys."""

PerEvent: TypeAlias = Callable[[tuple[Any, ...]], object]
"""Callable that processes and commits one event: its time in microseconds, type and parameters."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A workload on a database.

    Attributes
    ----------
    db : Database
    stream : Stream
        The stream, with its source.
    run : StreamRun
    """

    db: Database
    stream: Stream
    run: StreamRun

    def close(self) -> None:
        """Close the database."""
        self.db.close()


class Workload(Protocol):
    """A workload, with the same events every time.

    Attributes
    ----------
    name : str
        Prefix of its metrics.
    params : tuple of str
        Parameters of events, in the order in which `PerEvent` takes them.
    """

    @property
    def name(self) -> str: ...

    @property
    def params(self) -> tuple[str, ...]: ...

    def events(self, count: int) -> Any:
        """Return `count` events, an ``GeneratedEvents``, in the order of time."""

    def open(self, server: Server, source: Files) -> Opened:
        """Create its tables in a schema, its stream, and the rules or program on it."""

    def per_event(self, connection: psycopg.Connection) -> PerEvent:
        """Create the same tables; return the same logic, as one SQL transaction per event.

        Parameters
        ----------
        connection : psycopg.Connection
            A connection in autocommit mode.
        """

    def expected(self, columns: Any) -> Rows:
        """Return the expected contents of the tables after these events, from a plain loop."""

    def found(self, connection: psycopg.Connection) -> Rows:
        """Return the contents of the tables."""
