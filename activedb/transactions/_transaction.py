"""Row operations of a transaction: locking reads, versions in its workspace, statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never

from activedb.errors import (
    ConditionWrites,
    InvalidRow,
    LockNotAvailable,
    RowExists,
    RowNotFound,
    TableOwned,
    UnsupportedStatement,
)
from activedb.store.sql import Key, Parameters, Row, TableSpec
from activedb.transactions import _statements
from activedb.transactions._at_once import lock_free_rows
from activedb.transactions._nesting import Nesting
from lockmgr import Mode

__all__ = ["Transaction"]


_ABSENT: Any = object()


class Transaction(Nesting):
    """Transaction of the forest, top-level or subtransaction.

    Reads see the transaction's own versions, then its ancestors', then the committed rows.
    Writes stay in its workspace until it commits: a subtransaction delegates them to its
    parent, a top-level transaction flushes them to the store. Tables are SQLAlchemy ``Table``
    objects or mapped classes; a key is a value, or a tuple for a composite primary key.

    Attributes
    ----------
    running : object or None
        The work that the layer above runs in it.
    writer : str or None
        Its identity for tables that only certain transactions may write; see `Forest.writers`.
    """

    running: Any = None
    writer: str | None = None

    def get(
        self, table: Any, key: Any, *, for_update: bool = False, nowait: bool = False
    ) -> Row | None:
        """Return the row with this primary key, or None.

        Parameters
        ----------
        for_update : bool
            Take the write lock at once; recommended for a row that is about to be changed.
        nowait : bool
            With `for_update`: do not wait for a transaction that has the row locked, here or in
            another process.

        Raises
        ------
        LockNotAvailable
            With `nowait`, if another transaction has the row locked; this transaction goes on.
        Deadlock, LockTimeout, InvalidRow
        """
        self._check_usable()
        spec = self.forest.tables.spec(table)
        wanted = spec.key(key)
        row = self._got(spec, [wanted], for_update=for_update, nowait=nowait)[wanted]
        return None if row is None else spec.shown(row)

    def get_many(
        self, table: Any, keys: Iterable[Any], *, for_update: bool = False, nowait: bool = False
    ) -> dict[Any, Row | None]:
        """Return rows by key, None where absent, in one round trip. See `get`."""
        self._check_usable()
        spec = self.forest.tables.spec(table)
        wanted = {key: spec.key(key) for key in keys}
        rows = self._got(spec, spec.in_order(wanted.values()), for_update=for_update, nowait=nowait)
        found = {key: rows[normal] for key, normal in wanted.items()}
        return {key: None if row is None else spec.shown(row) for key, row in found.items()}

    def insert(self, table: Any, values: Mapping[str, Any]) -> Row:
        """Insert a row; return it complete, with defaults and a generated key.

        Raises
        ------
        RowExists, InvalidRow, Deadlock, LockTimeout
        """
        self._check_usable()
        if self.condition_of is not None:
            self.refuse_write("an insert")
        spec = self.forest.tables.spec(table)
        if type(values) is not dict and not isinstance(values, Mapping):
            raise InvalidRow(
                f"table {spec.name}: insert() takes one row, a mapping of columns to values, not "
                f"{type(values).__name__}; for several rows call it for each, or "
                f"t.execute(insert(table), rows)"
            )
        given = dict(values)
        missing = spec.missing_defaults(given)
        session = self.hierarchy.session
        for column in missing:
            given[column] = session.value_of(spec.defaults[column])
        if spec.generated is not None and given.get(spec.generated) is None:
            given[spec.generated] = session.next_key(spec)
        row = spec.complete(given)
        key = spec.key_of(row)
        if self._read(spec, [key], Mode.X, inserting=True)[key] is not None:
            raise RowExists(f"table {spec.name}: a row with key {key!r} exists; update it instead")
        self._write(spec, key, None, row)
        return spec.shown(row)

    def update(self, table: Any, key: Any, /, *wrong: Any, **values: Any) -> Row:
        """Change columns of one row; return the new row.

        Raises
        ------
        RowNotFound, InvalidRow, Deadlock, LockTimeout
        """
        if wrong:
            raise InvalidRow(
                f"update() takes the new values by the names of their columns, "
                f"t.update(table, key, balance=5) or **{{...}}, not {wrong[0]!r}"
            )
        if self.condition_of is not None:
            self.refuse_write("an update")
        spec = self.forest.tables.spec(table)
        key, old = self._existing(spec, key)
        for column, default in spec.onupdates.items():
            if column not in values:
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
        if self.condition_of is not None:
            self.refuse_write("a delete")
        spec = self.forest.tables.spec(table)
        key, old = self._existing(spec, key)
        self._write(spec, key, old, None)

    def query(self, statement: Any, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the rows of a SELECT over the versions that this transaction sees.

        Takes S on every table read, so no phantoms can appear before the end. Beyond the server's
        work, O(dirty rows of those tables in the workspaces of this transaction and its
        ancestors). A server-side function that reads tables itself sees committed rows only.

        Parameters
        ----------
        statement : SELECT
            Built with SQLAlchemy from Tables or mapped classes, or ``text("SELECT …")`` over
            tables that are declared in ``db.metadata`` or were used before. Rows of mapped
            classes hold their objects, loaded and detached.

            ``with_for_update()`` locks the rows of a SELECT from one table for writing. With
            ``skip_locked=True`` it leaves out rows locked by other transactions; with
            ``nowait=True`` it fails at once if there are any. Neither takes the lock on the
            table, as job queues need it, so phantoms may appear.
        parameters : mapping of str to value, optional
            Values for parameters in the statement.

        Raises
        ------
        UnsupportedStatement
            If the statement is not a SELECT, or not supported; nothing has been sent.
        LockNotAvailable
            With ``nowait=True``.
        Deadlock, LockTimeout, StoreError
        """
        self._check_usable()
        return _statements.query(self, statement, parameters)

    def execute(self, statement: Any, parameters: Parameters = None) -> Any:
        """Run an UPDATE, DELETE or INSERT; return the number of rows written.

        With RETURNING, return its values for each row, in the order of the writes: the order of
        the keys, or for an INSERT the order of its rows. One read finds and locks the rows; then
        they are checked, written into the workspace together, and shown to the rules one by one.

        Parameters
        ----------
        statement : UPDATE, DELETE or INSERT
            On one Table or mapped class; it may read others.
        parameters : mapping, or sequence of mappings, optional
            Values for parameters in the statement, or the rows of an INSERT.

        Raises
        ------
        UnsupportedStatement, RowExists, InvalidRow, Deadlock, LockTimeout, StoreError
            No row of the statement is written then.
        """
        self._check_usable()
        if self.condition_of is not None:
            self.refuse_write("execute()")
        return _statements.execute(self, statement, parameters)

    # -- inside ----------------------------------------------------------------------------

    def refuse_write(self, what: str) -> Never:
        """Raise `ConditionWrites`. REQUIRES: `condition_of`."""
        rule = self.condition_of
        raise ConditionWrites(
            f"rule {rule}: its condition (when=) may only read, and makes {what}; move that into "
            f"the action",
            rule=rule or "",
        )

    def lock_rows(self, spec: TableSpec, keys: list[Key]) -> dict[Key, Row | None]:
        """Return rows by key, None where absent, locked for writes made directly on the server."""
        self._check_usable()
        self._check_may_write(spec)
        rows = self._read(spec, keys, Mode.X)
        if self._log is not None:
            self._log.operated(self, "write", spec.name, keys)
        return rows

    def lock_table(self, spec: TableSpec, mode: Mode) -> None:
        """Lock a whole table, in this process and on the server."""
        self._lock((spec.name,), mode)
        if self._log is not None:
            self._log.operated(self, "read", spec.name)
        self.hierarchy.lock_table(spec)

    def dirty(self, spec: TableSpec) -> dict[Key, Row | None]:
        """Return the nearest versions of a table's rows in this and its ancestors' workspaces."""
        seen: dict[Key, Row | None] = {}
        node: Transaction | None = self
        with self.kin.latch:
            while node is not None:
                for key, row in node.workspace.rows.get(spec, {}).items():
                    seen.setdefault(key, row)
                node = node.parent
        return seen

    def lock_detector(self, rule: str) -> None:
        """Lock the detector of a rule against other hierarchies, until the end of this one."""
        self._lock((f"detector of rule {rule}",), Mode.X)

    def lock_rows_of(self, spec: TableSpec) -> None:
        """Take the intention lock to lock single rows of a table for writing."""
        self._lock((spec.name,), Mode.IX)

    def read_locked(
        self, spec: TableSpec, keys: Sequence[Key], *, inserting: bool = False
    ) -> dict[Key, Row | None]:
        """Return rows by key, locked for writing, in a few round trips for any number of keys."""
        return self._read(spec, spec.in_order(keys), Mode.X, inserting=inserting)

    def write_all(self, spec: TableSpec, versions: Sequence[_statements.Version]) -> None:
        """Write rows that are locked and checked, then show them to the rules."""
        self._check_may_write(spec)
        with self.kin.latch:
            for key, _, new in versions:
                self.workspace.write(spec, key, new)
        if self._log is not None:
            for key, old, new in versions:
                self._log.operated(self, _kind(old, new), spec.name, (key,))
        if self._observer is not None:
            for key, old, new in versions:
                self._observer.wrote(self, _kind(old, new), spec.name, key)
        self.forest.listener.changed_all(self, spec, versions)

    def _got(
        self, spec: TableSpec, keys: list[Key], *, for_update: bool, nowait: bool
    ) -> dict[Key, Row | None]:
        if not nowait:
            return self._read(spec, keys, Mode.X if for_update else Mode.S)
        if not for_update:
            raise UnsupportedStatement("nowait goes together with for_update=True")
        found = lock_free_rows(self, spec, keys)
        if self._log is not None:
            self._log.operated(self, "read", spec.name, found)
        for key in keys:
            if key not in found:
                raise LockNotAvailable(f"table {spec.name}: another transaction has row {key!r}")
        return found

    def _existing(self, spec: TableSpec, key: Any) -> tuple[Key, Row]:
        wanted = spec.key(key)
        row = self._read(spec, [wanted], Mode.X)[wanted]
        if row is None:
            raise RowNotFound(f"table {spec.name}: no row has the key {wanted!r}")
        return wanted, row

    def _read(
        self, spec: TableSpec, keys: list[Key], mode: Mode, *, inserting: bool = False
    ) -> dict[Key, Row | None]:
        for key in keys:
            self._lock((spec.name, key), mode)
        if self._log is not None:
            self._log.operated(self, "read", spec.name, keys)
        base = self.hierarchy.read(spec, keys, exclusive=mode is Mode.X, inserting=inserting)
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
        self._check_may_write(spec)
        with self.kin.latch:
            self.workspace.write(spec, key, new)
        if self._log is not None:
            self._log.operated(self, _kind(old, new), spec.name, (key,))
        if self._observer is not None:
            self._observer.wrote(self, _kind(old, new), spec.name, key)
        self.forest.listener.changed(self, spec, old, new)

    def _check_may_write(self, spec: TableSpec) -> None:
        writers = self.forest.writers
        if writers and spec in writers and writers[spec] != self.writer:
            raise TableOwned(
                f"table {spec.name} is written by {writers[spec]} alone, which has its rows in "
                "memory: feed it an event that makes the change"
            )

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
        if self._observer is not None:
            self._observer.granted(self, resource, mode)


def _kind(old: Row | None, new: Row | None) -> str:
    return "insert" if old is None else "delete" if new is None else "write"


def _covers(held: Mode, mode: Mode) -> bool:
    """Return whether a held lock covers a request without asking the lock manager."""
    return held is mode or held is Mode.X or (held is Mode.SIX and mode is Mode.S)
