"""Protocols for a table of arriving events: one row per event, one column per parameter."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["PARAM_PREFIX", "EventColumn", "EventTable"]

PARAM_PREFIX = "p_"


class EventColumn(Protocol):
    """Column of an :class:`EventTable`; ``pyarrow.ChunkedArray`` satisfies it."""

    def to_pylist(self) -> list[Any]:
        """Return the values as Python objects, None for NULL."""


class EventTable(Protocol):
    """Rows of an atomic batch in columns; ``pyarrow.Table`` satisfies it."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""

    def column(self, name: str) -> EventColumn:
        """Return the column called ``name``."""
