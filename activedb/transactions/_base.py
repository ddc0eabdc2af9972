"""Record of what a hierarchy has read, and of its locks on the server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from activedb.store.sql import Key, Row, TableSpec
    from lockmgr import Predicate

__all__ = ["Base"]

K = TypeVar("K")
V = TypeVar("V")

_NOTHING: Any = object()


class _TableEntries:
    """Rows, locks and guards of one table."""

    __slots__ = ("answers", "exclusive", "guards", "has_absent", "predicates", "rows", "written")

    def __init__(self) -> None:
        self.predicates: dict[Predicate, frozenset[Key]] = {}
        self.written: dict[Key, bool] = {}
        self.answers: dict[Key, bool] = {}
        self.rows: dict[Key, Row | None] = {}
        self.exclusive: dict[Key, bool] = {}
        self.guards: dict[Key, bool] = {}
        self.has_absent = False


class Base:
    """Record of committed rows, the locks on them, and the guards of keys without a row.

    Only a record: the hierarchy calls the server, and holds its latch for each call here. Entries
    added after a `mark` can be undone, in O(entries).
    """

    def __init__(self) -> None:
        self._tables: dict[TableSpec, _TableEntries] = {}
        self._locked: dict[TableSpec, bool] = {}
        self._guarded: dict[TableSpec, bool] = {}
        self._journal: list[tuple[dict[Any, Any], Any, Any]] | None = None

    # -- rows ------------------------------------------------------------------------------

    def of(self, spec: TableSpec) -> Mapping[Key, Row | None]:
        """Return all fetched committed rows of a table; None for a key without a row."""
        return self._of(spec).rows

    def rows(self, spec: TableSpec, keys: Iterable[Key]) -> dict[Key, Row | None]:
        """Return fetched committed rows by key; None for a key without a row."""
        rows = self._of(spec).rows
        return {key: rows[key] for key in keys}

    def is_absent(self, spec: TableSpec, key: Key) -> bool:
        """Return whether the key has no known row: it is unfetched, or was fetched as absent."""
        return self._of(spec).rows.get(key) is None

    def may_be(self, spec: TableSpec, key: Key) -> bool:
        """Return whether there may be a row with the key: it has not been fetched as absent."""
        return self._of(spec).rows.get(key, _NOTHING) is not None

    def is_shared(self, spec: TableSpec, key: Key) -> bool:
        """Return whether the row was fetched and is locked for reading only."""
        table = self._of(spec)
        return table.rows.get(key) is not None and key not in table.exclusive

    def unread(self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool) -> list[Key]:
        """Return the `keys` whose rows have not been fetched, or not locked strongly enough."""
        table = self._of(spec)
        rows = table.rows
        return [
            key
            for key in keys
            if key not in rows
            or (exclusive and rows[key] is not None and key not in table.exclusive)
        ]

    def fetched(self, spec: TableSpec, rows: Mapping[Key, Row | None], *, exclusive: bool) -> None:
        """Note committed rows; existing ones are locked there, unless it is SERIALIZABLE."""
        table = self._of(spec)
        self._put(table.rows, rows)
        if exclusive:
            self._put(table.exclusive, dict.fromkeys(rows, True))
        if not table.has_absent:
            table.has_absent = None in rows.values()

    def written(self, spec: TableSpec, key: Key, row: Row | None) -> None:
        """Note the version of a row that this hierarchy has written on the server."""
        table = self._tables[spec]
        for where in (table.exclusive, table.written):
            self._put(where, {key: True})
        self._put(table.rows, {key: row})

    def absent(self, but: Mapping[TableSpec, Collection[Key]]) -> dict[TableSpec, list[Key]]:
        """Return the keys read as absent, per table, except the keys of `but`."""
        found: dict[TableSpec, list[Key]] = {}
        for spec, table in self._tables.items():
            if table.has_absent:
                others = but.get(spec, ())
                keys = [k for k, row in table.rows.items() if row is None and k not in others]
                if keys:
                    found[spec] = keys
        return found

    # -- predicates ------------------------------------------------------------------------

    def asked(self, spec: TableSpec, predicate: Predicate, keys: Collection[Key]) -> None:
        """Note that all rows which satisfy a predicate have been fetched, and are locked."""
        table = self._of(spec)
        known = table.predicates.get(predicate, frozenset())
        self._put(table.predicates, {predicate: known.union(keys)})
        self._put(table.answers, dict.fromkeys(keys, True))

    def predicates(self, spec: TableSpec) -> Collection[Predicate]:
        """Return the predicates of which all rows have been fetched."""
        return self._of(spec).predicates.keys()

    def is_known(self, spec: TableSpec, key: Key) -> bool:
        """Return whether a row is locked since it was fetched, or found by a predicate."""
        table = self._of(spec)
        return table.rows.get(key) is not None or key in table.answers

    def asked_of(self) -> dict[TableSpec, Mapping[Predicate, Collection[Key]]]:
        """Return the predicates by table, each with the keys of all rows that may satisfy it.

        A row that was fetched since, and is not among them, does not: see `Hierarchy.read`.
        """
        return {
            spec: {each: keys.union(t.written) for each, keys in t.predicates.items()}
            for spec, t in self._tables.items()
            if t.predicates
        }

    # -- locks -----------------------------------------------------------------------------

    def unguarded(self, spec: TableSpec, keys: Iterable[Key], *, exclusive: bool) -> list[Key]:
        """Return the `keys` that are not guarded yet, or not strongly enough."""
        if spec in self._guarded:
            return []
        guards = self._of(spec).guards
        return [key for key in keys if guards.get(key) not in (True, exclusive)]

    def guards(self, spec: TableSpec) -> int:
        """Return the number of individually guarded keys of a table."""
        return len(self._of(spec).guards)

    def guarded(self, spec: TableSpec, keys: Iterable[Key] | None, *, exclusive: bool) -> None:
        """Note guards of keys; None notes the guard of all keys of the table."""
        if keys is None:
            self._put(self._guarded, {spec: True})
        else:
            self._put(self._of(spec).guards, dict.fromkeys(keys, exclusive))

    def is_locked(self, spec: TableSpec) -> bool:
        """Return whether the whole table is locked on the server."""
        return spec in self._locked

    def locked(self, spec: TableSpec) -> None:
        """Note that the whole table is locked on the server."""
        self._put(self._locked, {spec: True})

    # -- undo ------------------------------------------------------------------------------

    def forget(self, *, locks: bool) -> None:
        """Forget all rows; with `locks`, also the locks and guards on the server."""
        for table in self._tables.values():
            table.rows.clear()
            table.exclusive.clear()
            table.written.clear()
            table.has_absent = False
            if locks:
                table.guards.clear()
                table.predicates.clear()
                table.answers.clear()
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
        """Set a mark, so that later entries can be undone; only one mark may be set at a time."""
        assert self._journal is None
        self._journal = []

    def go_back(self) -> None:
        """Undo the entries since the mark."""
        assert self._journal is not None
        for where, key, before in reversed(self._journal):
            if before is _NOTHING:
                del where[key]
            else:
                where[key] = before

    def drop_mark(self) -> None:
        """Remove the mark, and with it the record for the undo."""
        self._journal = None

    def _of(self, spec: TableSpec) -> _TableEntries:
        table = self._tables.get(spec)
        if table is None:
            table = self._tables[spec] = _TableEntries()
        return table

    def _put(self, where: dict[K, V], what: Mapping[K, V]) -> None:
        if self._journal is not None:
            self._journal += [(where, key, where.get(key, _NOTHING)) for key in what]
        where.update(what)
