"""Change: a row of a write set."""

from __future__ import annotations

from typing import NamedTuple

from activedb.store.sql import Key, Row, TableSpec

__all__ = ["Change"]


class Change(NamedTuple):
    """Row of a write set: `old` is the committed row, `new` the new one; None: no row.

    `is_shared`: the server has locked the row for reading only.
    """

    spec: TableSpec
    key: Key
    old: Row | None
    new: Row | None
    is_shared: bool = False
