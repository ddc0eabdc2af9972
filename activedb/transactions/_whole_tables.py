"""Log of the queries that lock a whole table because no condition of theirs is understood."""

from __future__ import annotations

import logging
import re
import threading

from activedb.store.sql import TableSpec

__all__ = ["WholeTables"]

_LOG = logging.getLogger(__name__)
_TOLD_MAX = 1_000
_CHARS_MAX = 500
_VALUES = re.compile(r"""'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|\b\d+(?:\.\d+)?\b""", re.DOTALL)
"""Values in the text of a statement: strings and numbers."""


class WholeTables:
    """Reporter of such queries; each is told once for each table, up to 1,000.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()
        self._latch = threading.Lock()

    def tell(self, spec: TableSpec, sent: str) -> None:
        """Log that a statement, by its text as it is sent, locks the whole of a table."""
        if len(self._told) >= _TOLD_MAX:
            return
        text = " ".join(_VALUES.sub("…", sent).split())
        with self._latch:
            if (spec.name, text) in self._told:
                return
            self._told.add((spec.name, text))
        _LOG.info(
            "a query locks the whole table %s, and waits for all that write to it: it compares no "
            "column of this table, by =, IN, <, <=, >, >= or BETWEEN, with a value of exactly the "
            "column's type (logged once): %s",
            spec.name,
            text if len(text) <= _CHARS_MAX else f"{text[:_CHARS_MAX]}…",
        )
