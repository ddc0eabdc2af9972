"""Rows of an owned table, in the memory of the one process that uses it; see `_ownership`."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Date,
    Integer,
    Numeric,
    SmallInteger,
    String,
    Text,
    Unicode,
    UnicodeText,
    select,
)

from activedb.store.session._by_key import rows_by_key
from activedb.store.sql import Key, Row, TableSpec

__all__ = ["OwnedTable"]

_PLAIN = (
    *(Boolean, SmallInteger, Integer, BigInteger, Numeric, Date),
    *(String, Text, Unicode, UnicodeText),
)


class OwnedTable:
    """Committed rows of an owned table.

    Attributes
    ----------
    spec : TableSpec
    epoch : int
        Increases with each owner of the table.

    Latch: ``_latch``, held while rows are read; no other latch is taken under it.
    """

    def __init__(self, spec: TableSpec, epoch: int):
        self.spec = spec
        self.epoch = epoch
        self._latch = threading.Lock()
        self._rows: dict[Key, Row] = {}
        self._doubtful: set[Key] | None = None  # None: all keys
        self._is_plain = all(_is_plain(column) for column in spec.table.columns)

    @property
    def is_loaded(self) -> bool:
        """True if every row is known as the server has it."""
        doubtful = self._doubtful
        return doubtful is not None and not doubtful

    def load(self, connection: Connection) -> None:
        """Read the unknown rows: all of them, or those in doubt. O(rows read)."""
        # Under the latch, so that concurrent commits are not overwritten.
        with self._latch:
            spec = self.spec
            if self._doubtful is None:
                rows = map(spec.row, connection.execute(select(spec.table)))
                self._rows = {spec.key_of(row): row for row in rows}
            else:
                keys = list(self._doubtful)
                found = rows_by_key(connection, spec, spec.plain_select, keys)
                for key in keys:
                    self._set(key, found.get(key))
            self._doubtful = set()

    def forget(self) -> None:
        """Require that all rows are read again before they are used."""
        # A reader whose rows are locked already may continue with the known ones.
        with self._latch:
            self._doubtful = None

    def doubt(self, keys: Iterable[Key]) -> None:
        """Require that these rows are read again before any row is used."""
        with self._latch:
            if self._doubtful is not None:
                self._doubtful.update(keys)

    def rows(self, keys: Iterable[Key]) -> dict[Key, Row | None]:
        """Return the committed rows by key, None where absent. O(keys)."""
        return {key: self._rows.get(key) for key in keys}

    def put(self, key: Key, row: Row | None) -> None:
        """Store a committed row; None: it was deleted."""
        with self._latch:
            if self._doubtful is None:
                return
            self._set(key, row)
            if row is not None and not self._is_plain:
                self._doubtful.add(key)  # the server may have changed the value

    def _set(self, key: Key, row: Row | None) -> None:
        if row is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = row


def _is_plain(column: Column[Any]) -> bool:
    """Return whether the server returns every value of the column unchanged."""
    return type(column.type) in _PLAIN and column.computed is None
