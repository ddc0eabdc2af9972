"""The rows of an owned table, in the memory of the one process that uses it; see `_ownership`."""

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
    """The committed rows of an owned table.

    Attributes
    ----------
    spec : TableSpec
    epoch : int
        Grows with each owner the table has had.

    Latch: ``_latch``, held while rows are read, with nothing else taken under it.
    """

    def __init__(self, spec: TableSpec, epoch: int):
        self.spec = spec
        self.epoch = epoch
        self._latch = threading.Lock()
        self._rows: dict[Key, Row] = {}
        self._doubtful: set[Key] | None = None  # None: all
        self._is_plain = all(_is_plain(column) for column in spec.table.columns)

    @property
    def is_loaded(self) -> bool:
        """Whether every row is known as the server has it."""
        doubtful = self._doubtful
        return doubtful is not None and not doubtful

    def load(self, connection: Connection) -> None:
        """Read what is not known: all rows, or those in doubt. O(rows read)."""
        # Under the latch, so that nothing that is committed meanwhile is overwritten.
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
        """Have all rows read anew before they are used again."""
        # Who is about to read rows that are locked already may go on with those known.
        with self._latch:
            self._doubtful = None

    def doubt(self, keys: Iterable[Key]) -> None:
        """Have these rows read anew before any is used again."""
        with self._latch:
            if self._doubtful is not None:
                self._doubtful.update(keys)

    def rows(self, keys: Iterable[Key]) -> dict[Key, Row | None]:
        """Committed rows by key, None where absent. O(keys)."""
        return {key: self._rows.get(key) for key in keys}

    def put(self, key: Key, row: Row | None) -> None:
        """Take over what has been committed."""
        with self._latch:
            if self._doubtful is None:
                return
            self._set(key, row)
            if row is not None and not self._is_plain:
                self._doubtful.add(key)  # the server may have made something else of it

    def _set(self, key: Key, row: Row | None) -> None:
        if row is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = row


def _is_plain(column: Column[Any]) -> bool:
    """Whether the server returns of each value that the column takes that same value."""
    return type(column.type) in _PLAIN and column.computed is None
