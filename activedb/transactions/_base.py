"""Record of what a hierarchy has read, and of its locks on the server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from activedb.store.sql import Key, Row, TableSpec
    from lockmgr import Predicate

__all__ = ["Base", "TableBase"]

K = TypeVar("K")
V = TypeVar("V")

_NOTHING: Any = object()


class _UndoLog:
    """Additions to dictionaries, with what undoes those since a mark."""

    __slots__ = ("_undo",)

    def __init__(self) -> None:
        self._undo: list[tuple[dict[Any, Any], Any, Any]] | None = None

    def mark(self) -> None:
        assert self._undo is None
        self._undo = []

    def go_back(self) -> None:
        assert self._undo is not None
        for where, key, before in reversed(self._undo):
            if before is _NOTHING:
                del where[key]
            else:
                where[key] = before

    def drop_mark(self) -> None:
        self._undo = None

    def put(self, where: dict[K, V], what: Mapping[K, V]) -> None:
        """Add entries to a dictionary."""
        if self._undo is not None:
            self._undo += [(where, key, where.get(key, _NOTHING)) for key in what]
        where.update(what)


class TableBase:
    """Record of the rows, locks and guards of one table.

    Attributes
    ----------
    rows : dict of Key to Row or None
        Committed rows, as read; None for a key without a row.
    exclusive : dict of Key to bool
        Keys of rows that are locked for writing.
    written : dict of Key to bool
        Keys of rows that the hierarchy has written on the server.
    guards : dict of Key to bool
        Keys that are guarded one by one, and whether exclusively.
    has_absent : bool
        True if a key may have been read as absent.
    predicates : dict of Predicate to frozenset of Key
        Predicates of which all rows have been read, with the keys of those rows.
    answers : dict of Key to bool
        The keys of all these rows.
    """

    __slots__ = (
        "_put",
        "answers",
        "exclusive",
        "guards",
        "has_absent",
        "predicates",
        "rows",
        "written",
    )

    def __init__(self, log: _UndoLog) -> None:
        self._put = log.put
        self.predicates: dict[Predicate, frozenset[Key]] = {}
        self.written: dict[Key, bool] = {}
        self.answers: dict[Key, bool] = {}
        self.rows: dict[Key, Row | None] = {}
        self.exclusive: dict[Key, bool] = {}
        self.guards: dict[Key, bool] = {}
        self.has_absent = False

    def is_absent(self, key: Key) -> bool:
        """Return whether the key has no known row: it is unread, or was read as absent."""
        return self.rows.get(key) is None

    def may_be(self, key: Key) -> bool:
        """Return whether there may be a row with the key: it has not been read as absent."""
        return self.rows.get(key, _NOTHING) is not None

    def shared(self, keys: Iterable[Key]) -> set[Key]:
        """Return the `keys` whose rows were read and are locked for reading only."""
        rows, locked = self.rows, self.exclusive
        if len(locked) == len(rows):
            return set()  # every row
        return {key for key in keys if key not in locked and rows.get(key) is not None}

    def is_known(self, key: Key) -> bool:
        """Return whether a row is locked since it was read, or found by a predicate."""
        return self.rows.get(key) is not None or key in self.answers

    def unread(self, keys: Sequence[Key], *, exclusive: bool) -> list[Key]:
        """Return the `keys` whose rows have not been read, or not locked strongly enough."""
        rows, locked = self.rows, self.exclusive
        return [
            key
            for key in keys
            if key not in rows or (exclusive and rows[key] is not None and key not in locked)
        ]

    def fetched(self, rows: Mapping[Key, Row | None], *, exclusive: bool) -> None:
        """Note committed rows; existing ones are locked there, unless it is SERIALIZABLE."""
        put = self._put
        put(self.rows, rows)
        if exclusive:
            put(self.exclusive, dict.fromkeys(rows, True))
        if not self.has_absent:
            self.has_absent = None in rows.values()

    def wrote(self, key: Key, row: Row | None) -> None:
        """Note the version of a row that the hierarchy has written on the server."""
        put = self._put
        for where in (self.exclusive, self.written):
            put(where, {key: True})
        put(self.rows, {key: row})

    def asked(self, predicate: Predicate, keys: Collection[Key]) -> None:
        """Note that all rows which satisfy a predicate have been read, and are locked."""
        put = self._put
        known = self.predicates.get(predicate, frozenset())
        put(self.predicates, {predicate: known.union(keys)})
        put(self.answers, dict.fromkeys(keys, True))

    def discard(self, keys: Iterable[Key]) -> None:
        """Forget rows. REQUIRES: no workspace of the hierarchy has one of `keys`."""
        for key in keys:
            self.rows.pop(key, None)
            self.exclusive.pop(key, None)

    def forget(self, *, locks: bool) -> None:
        """Forget all rows; with `locks`, also the locks and guards on the server."""
        self.rows.clear()
        self.exclusive.clear()
        self.written.clear()
        self.has_absent = False
        if locks:
            self.guards.clear()
            self.predicates.clear()
            self.answers.clear()


class Base:
    """Record of committed rows, the locks on them, and the guards of keys without a row.

    Only a record: the hierarchy calls the server, and holds its latch for each call here. Entries
    added after a `mark` can be undone, in O(entries).
    """

    def __init__(self) -> None:
        self._tables: dict[TableSpec, TableBase] = {}
        self._locked: dict[TableSpec, bool] = {}
        self._guarded: dict[TableSpec, bool] = {}
        # Of all tables: a reference to the base itself would leave both to the garbage collector.
        self._log = _UndoLog()

    def of(self, spec: TableSpec) -> TableBase:
        """Return the record of a table."""
        table = self._tables.get(spec)
        if table is None:
            table = self._tables[spec] = TableBase(self._log)
        return table

    def absent(
        self, but: Mapping[TableSpec, Mapping[Key, Row | None]]
    ) -> dict[TableSpec, list[Key]]:
        """Return the keys read as absent, per table, except those for which `but` has a row."""
        found: dict[TableSpec, list[Key]] = {}
        for spec, table in self._tables.items():
            if table.has_absent:
                new = but.get(spec, {})
                keys = [k for k, row in table.rows.items() if row is None and new.get(k) is None]
                if keys:
                    found[spec] = keys
        return found

    def asked_of(self) -> dict[TableSpec, Mapping[Predicate, Collection[Key]]]:
        """Return the predicates by table, each with the keys of all rows that may satisfy it.

        A row that was read since, and is not among them, does not: see `Hierarchy.read`.
        """
        found: dict[TableSpec, Mapping[Predicate, Collection[Key]]] = {}
        for spec, t in self._tables.items():
            if t.predicates:
                found[spec] = {each: keys.union(t.written) for each, keys in t.predicates.items()}
        return found

    def is_any_shared(self, spec: TableSpec, keys: Iterable[Key]) -> bool:
        """Return whether a row was read before, and is locked for reading only."""
        table = self._tables.get(spec)
        return table is not None and bool(table.shared(keys))

    # -- locks -----------------------------------------------------------------------------

    def unguarded(self, spec: TableSpec, keys: Iterable[Key], *, exclusive: bool) -> list[Key]:
        """Return the `keys` that are not guarded yet, or not strongly enough."""
        if spec in self._guarded:
            return []
        guards = self.of(spec).guards
        return [key for key in keys if guards.get(key) not in (True, exclusive)]

    def guarded(self, spec: TableSpec, keys: Iterable[Key] | None, *, exclusive: bool) -> None:
        """Note guards of keys; None notes the guard of all keys of the table."""
        if keys is None:
            self._log.put(self._guarded, {spec: True})
        else:
            self._log.put(self.of(spec).guards, dict.fromkeys(keys, exclusive))

    def is_locked(self, spec: TableSpec) -> bool:
        """Return whether the whole table is locked on the server."""
        return spec in self._locked

    def locked(self, spec: TableSpec) -> None:
        """Note that the whole table is locked on the server."""
        self._log.put(self._locked, {spec: True})

    # -- undo ------------------------------------------------------------------------------

    def forget(self, *, locks: bool) -> None:
        """Forget all rows; with `locks`, also the locks and guards on the server."""
        for table in self._tables.values():
            table.forget(locks=locks)
        if locks:
            self._locked.clear()
            self._guarded.clear()

    def mark(self) -> None:
        """Set a mark, so that later entries can be undone; only one mark may be set at a time."""
        self._log.mark()

    def go_back(self) -> None:
        """Undo the entries since the mark."""
        self._log.go_back()

    def drop_mark(self) -> None:
        """Remove the mark, and with it the record for the undo."""
        self._log.drop_mark()
