"""What the pipeline benchmark needs of a workload: events, a stream for them, what has to come."""

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
"""Does one event, a tuple of its time in microseconds, its type and its parameters, and commits."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A workload on a database.

    Attributes
    ----------
    db : Database
    stream : Stream
        With its source.
    run : StreamRun
    """

    db: Database
    stream: Stream
    run: StreamRun

    def close(self) -> None:
        """Close the database."""
        self.db.close()


class Workload(Protocol):
    """A workload, the same events every time.

    Attributes
    ----------
    name : str
        As metrics begin.
    params : tuple of str
        Parameters of events, in the order in which `PerEvent` takes them.
    """

    @property
    def name(self) -> str: ...

    @property
    def params(self) -> tuple[str, ...]: ...

    def events(self, count: int) -> Any:
        """So many events, an ``EventColumns``, in the order of time."""

    def open(self, server: Server, source: Files) -> Opened:
        """Make its tables in a schema, its stream, and what processes it."""

    def per_event(self, connection: psycopg.Connection) -> PerEvent:
        """Make the same tables in a schema; return the same logic, one SQL transaction per event.

        Parameters
        ----------
        connection : psycopg.Connection
            Commits by itself.
        """

    def expected(self, columns: Any) -> Rows:
        """What has to be in the tables after these events: a plain loop over them."""

    def found(self, connection: psycopg.Connection) -> Rows:
        """What is in the tables."""
