"""What a transaction does to rows: locked reads, versions in its workspace, statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from activedb.errors import RowExists, RowNotFound
from activedb.store import Key, Row, TableSpec
from activedb.transactions import _statements
from activedb.transactions._node import Node
from lockmgr import Mode

__all__ = ["Transaction"]

_ABSENT: Any = object()


class Transaction(Node):
    """A node of the forest, top-level or subtransaction.

    Reads see the transaction's own versions, then its ancestors', then what is committed.
    Writes stay in its workspace until it commits: a subtransaction delegates them to its
    parent, a top-level transaction flushes them to the store. Tables are SQLAlchemy ``Table``
    objects or mapped classes; a key is a value, or a tuple for a composite primary key.
    """

    def get(self, table: Any, key: Any, *, for_update: bool = False) -> Row | None:
        """The row with this primary key, or None.

        Parameters
        ----------
        for_update : bool
            Take the write lock at once; right for a row that is going to be changed.

        Raises
        ------
        Deadlock, LockTimeout, InvalidRow
        """
        spec = self.forest.tables.spec(table)
        wanted = spec.key(key)
        row = self._read(spec, [wanted], Mode.X if for_update else Mode.S)[wanted]
        return None if row is None else spec.shown(row)

    def get_many(
        self, table: Any, keys: Iterable[Any], *, for_update: bool = False
    ) -> dict[Any, Row | None]:
        """Rows by key, None where absent; one round trip for all of them."""
        spec = self.forest.tables.spec(table)
        wanted = {key: spec.key(key) for key in keys}
        rows = self._read(spec, sorted(wanted.values()), Mode.X if for_update else Mode.S)
        found = {key: rows[normal] for key, normal in wanted.items()}
        return {key: None if row is None else spec.shown(row) for key, row in found.items()}

    def insert(self, table: Any, values: Mapping[str, Any]) -> Row:
        """Insert a row; returns it whole, with defaults and a generated key filled in.

        Raises
        ------
        RowExists, InvalidRow, Deadlock, LockTimeout
        """
        self._check_usable()
        spec = self.forest.tables.spec(table)
        given = dict(values)
        missing = spec.missing_defaults(given)
        session = self.hierarchy.session
        with self.hierarchy.breaking():
            for column in missing:
                given[column] = session.value_of(spec.defaults[column])
            if spec.generated is not None and given.get(spec.generated) is None:
                given[spec.generated] = session.next_key(spec)
        row = spec.complete(given)
        key = spec.key_of(row)
        if self._read(spec, [key], Mode.X)[key] is not None:
            raise RowExists(f"table {spec.name}: a row with key {key!r} exists; update it instead")
        self._write(spec, key, None, row)
        return spec.shown(row)

    def update(self, table: Any, key: Any, /, **values: Any) -> Row:
        """Change columns of one row; returns the new row.

        Raises
        ------
        RowNotFound, InvalidRow, Deadlock, LockTimeout
        """
        spec = self.forest.tables.spec(table)
        key, old = self._existing(spec, key)
        for column, default in spec.onupdates.items():
            if column not in values:
                with self.hierarchy.breaking():
                    values[column] = self.hierarchy.session.value_of(default)
        new = spec.changed(old, values)
        self._write(spec, key, old, new)
        return spec.shown(new)

    def delete(self, table: Any, key: Any) -> None:
        """Delete one row.

        Raises
        ------
        RowNotFound, InvalidRow, Deadlock, LockTimeout
        """
        spec = self.forest.tables.spec(table)
        key, old = self._existing(spec, key)
        self._write(spec, key, old, None)

    def query(self, statement: Any) -> list[Any]:
        """Rows of a SELECT, as the versions this transaction sees imply them.

        Takes S on every table read, so nothing can appear in them before the end. O(dirty rows
        of those tables in this and its ancestors' workspaces) beyond the server's work.

        Raises
        ------
        UnsupportedStatement, Deadlock, LockTimeout, StoreError
        """
        return _statements.query(self, statement)

    def execute(self, statement: Any) -> int:
        """Run an UPDATE, DELETE or INSERT; returns how many rows it wrote.

        The rows are found by a locked read and written one by one into the workspace, so rules
        see each of them.

        Raises
        ------
        UnsupportedStatement, RowExists, InvalidRow, Deadlock, LockTimeout, StoreError
        """
        return _statements.execute(self, statement)

    # -- inside ----------------------------------------------------------------------------

    def lock_table(self, spec: TableSpec, mode: Mode) -> None:
        """Lock a whole table, here and against other processes."""
        self._lock((spec.name,), mode)
        self.hierarchy.lock_table(spec)

    def dirty(self, spec: TableSpec) -> dict[Key, Row | None]:
        """Versions of a table's rows in this and its ancestors' workspaces, nearest first."""
        seen: dict[Key, Row | None] = {}
        node: Transaction | None = self
        with self.hierarchy.latch:
            while node is not None:
                for key, row in node.workspace.rows.get(spec, {}).items():
                    seen.setdefault(key, row)
                node = node.parent
        return seen

    def _existing(self, spec: TableSpec, key: Any) -> tuple[Key, Row]:
        wanted = spec.key(key)
        row = self._read(spec, [wanted], Mode.X)[wanted]
        if row is None:
            raise RowNotFound(f"table {spec.name}: no row has the key {wanted!r}")
        return wanted, row

    def _read(self, spec: TableSpec, keys: list[Key], mode: Mode) -> dict[Key, Row | None]:
        for key in keys:
            self._lock((spec.name, key), mode)
        base = self.hierarchy.read(spec, keys, exclusive=mode is Mode.X)
        return {key: self._visible(spec, key, base) for key in keys}

    def _visible(self, spec: TableSpec, key: Key, base: Mapping[Key, Row | None]) -> Row | None:
        node: Transaction | None = self
        while node is not None:
            rows = node.workspace.rows.get(spec)
            if rows is not None:
                row = rows.get(key, _ABSENT)
                if row is not _ABSENT:
                    return row  # type: ignore[no-any-return]  # the sentinel is excluded
            node = node.parent
        return base[key]

    def _write(self, spec: TableSpec, key: Key, old: Row | None, new: Row | None) -> None:
        self.workspace.write(spec, key, new)
        self.forest.listener.changed(self, spec, old, new)

    def _lock(self, resource: tuple[object, ...], mode: Mode) -> None:
        self._check_usable()
        held = self._held.get(resource)
        if held is not None and _covers(held, mode):
            return
        if len(resource) > 1:
            table_mode = self._held.get(resource[:1])
            if table_mode is not None and _covers(table_mode, mode):
                return
        self.forest.acquire(self, resource, mode)
        self._held[resource] = mode


def _covers(held: Mode, mode: Mode) -> bool:
    """Whether a lock held makes a request superfluous; the lock manager decides the rest."""
    return held is mode or held is Mode.X or (held is Mode.SIX and mode is Mode.S)
