"""The base of a hierarchy: committed rows it has read, and what it has locked on the server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from activedb.store.sql import Key, Row, TableSpec

__all__ = ["Base"]

K = TypeVar("K")
V = TypeVar("V")

_NOTHING: Any = object()


class _Table:
    """What is known of one table."""

    __slots__ = ("exclusive", "guards", "has_absent", "rows")

    def __init__(self) -> None:
        self.rows: dict[Key, Row | None] = {}
        self.exclusive: dict[Key, bool] = {}
        self.guards: dict[Key, bool] = {}
        self.has_absent = False


class Base:
    """Committed rows, the locks on them, and the guards of keys that have none.

    Notes only: the hierarchy asks the server, and holds its latch for each call. What is noted
    after a `mark` can be taken back, in O(what was noted).
    """

    def __init__(self) -> None:
        self._tables: dict[TableSpec, _Table] = {}
        self._locked: dict[TableSpec, bool] = {}
        self._guarded: dict[TableSpec, bool] = {}
        self._journal: list[tuple[dict[Any, Any], Any, Any]] | None = None

    # -- rows ------------------------------------------------------------------------------

    def of(self, spec: TableSpec) -> Mapping[Key, Row | None]:
        """All committed rows of a table that have been fetched; None where there is none."""
        return self._of(spec).rows

    def rows(self, spec: TableSpec, keys: Iterable[Key]) -> dict[Key, Row | None]:
        """Committed rows that have been fetched, by key; None where there is none."""
        rows = self._of(spec).rows
        return {key: rows[key] for key in keys}

    def is_absent(self, spec: TableSpec, key: Key) -> bool:
        """Whether nothing is known of the key but that it has no row, if so much."""
        return self._of(spec).rows.get(key) is None

    def unread(self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool) -> list[Key]:
        """Those of `keys` whose rows have not been fetched, or not locked so strongly."""
        table = self._of(spec)
        rows = table.rows
        return [
            key
            for key in keys
            if key not in rows
            or (exclusive and rows[key] is not None and key not in table.exclusive)
        ]

    def fetched(self, spec: TableSpec, rows: Mapping[Key, Row | None], *, exclusive: bool) -> None:
        """Note committed rows, each locked on the server if it is there."""
        table = self._of(spec)
        self._put(table.rows, rows)
        if exclusive:
            self._put(table.exclusive, dict.fromkeys(rows, True))
        if not table.has_absent:
            table.has_absent = None in rows.values()

    def written(self, spec: TableSpec, key: Key, row: Row | None) -> None:
        """Note what this hierarchy has made of a row at the server."""
        self._put(self._tables[spec].rows, {key: row})

    def absent(self, but: Mapping[TableSpec, Collection[Key]]) -> dict[TableSpec, list[Key]]:
        """Keys that were read as absent, but not those of `but`, per table."""
        found: dict[TableSpec, list[Key]] = {}
        for spec, table in self._tables.items():
            if table.has_absent:
                others = but.get(spec, ())
                keys = [k for k, row in table.rows.items() if row is None and k not in others]
                if keys:
                    found[spec] = keys
        return found

    # -- locks -----------------------------------------------------------------------------

    def unguarded(self, spec: TableSpec, keys: Iterable[Key], *, exclusive: bool) -> list[Key]:
        """Those of `keys` that are not guarded yet, or not so strongly."""
        if spec in self._guarded:
            return []
        guards = self._of(spec).guards
        return [key for key in keys if guards.get(key) not in (True, exclusive)]

    def guards(self, spec: TableSpec) -> int:
        """How many keys of a table are guarded one by one."""
        return len(self._of(spec).guards)

    def guarded(self, spec: TableSpec, keys: Iterable[Key] | None, *, exclusive: bool) -> None:
        """Note guards of keys, or with None the one of all keys of the table."""
        if keys is None:
            self._put(self._guarded, {spec: True})
        else:
            self._put(self._of(spec).guards, dict.fromkeys(keys, exclusive))

    def is_locked(self, spec: TableSpec) -> bool:
        """Whether the whole table is locked on the server."""
        return spec in self._locked

    def locked(self, spec: TableSpec) -> None:
        """Note that the whole table is locked on the server."""
        self._put(self._locked, {spec: True})

    # -- taking back -----------------------------------------------------------------------

    def forget(self, *, locks: bool) -> None:
        """Forget all rows, and what is locked on the server, too, if `locks`."""
        for table in self._tables.values():
            table.rows.clear()
            table.exclusive.clear()
            table.has_absent = False
            if locks:
                table.guards.clear()
        if locks:
            self._locked.clear()
            self._guarded.clear()

    def discard(self, spec: TableSpec, keys: Iterable[Key]) -> None:
        """Forget rows. REQUIRES: no mark, and no workspace of the hierarchy has one of `keys`."""
        assert self._journal is None
        table = self._of(spec)
        for key in keys:
            table.rows.pop(key, None)
            table.exclusive.pop(key, None)

    def mark(self) -> None:
        """Remember from now on how to go back; there is one mark at a time."""
        assert self._journal is None
        self._journal = []

    def go_back(self) -> None:
        """Take back what has been noted since the mark."""
        assert self._journal is not None
        for where, key, before in reversed(self._journal):
            if before is _NOTHING:
                del where[key]
            else:
                where[key] = before

    def drop_mark(self) -> None:
        """Do not remember any longer."""
        self._journal = None

    def _of(self, spec: TableSpec) -> _Table:
        table = self._tables.get(spec)
        if table is None:
            table = self._tables[spec] = _Table()
        return table

    def _put(self, where: dict[K, V], what: Mapping[K, V]) -> None:
        if self._journal is not None:
            self._journal += [(where, key, where.get(key, _NOTHING)) for key in what]
        where.update(what)
