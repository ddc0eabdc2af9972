"""Stores, and write sets that are flushed to them without any transaction above."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData, Table, select, text

from activedb.config import Settings
from activedb.store.flush import Change
from activedb.store.session import Store, open_store
from activedb.store.sql import Key, Row, Tables, TableSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@contextlib.contextmanager
def opened(server_url: str | None) -> Iterator[Store]:
    """Yield a store with nothing in it; server_url None means memory."""
    url = "memory://" if server_url is None else server_url
    schema = None if server_url is None else f"w{secrets.token_hex(5)}"
    store = open_store(MetaData(), Settings.load(url=url, db_schema=schema))
    try:
        yield store
    finally:
        store.close()


class WriteSet:
    """Steps made one after another, and the resulting write set."""

    def __init__(self, store: Store):
        self._store = store
        self._tables = Tables()
        self._old: dict[tuple[TableSpec, Key], Row | None] = {}
        self._new: dict[tuple[TableSpec, Key], Row | None] = {}
        self.log: list[tuple[TableSpec, dict[Key, Row | None]]] = []
        self._is_joined = False

    def insert(self, table: Table, values: Mapping[str, Any]) -> WriteSet:
        """Add a row that is not there."""
        spec = self._tables.spec(table)
        row = spec.complete(values)
        return self._step(spec, None, spec.key_of(row), row)

    def update(self, table: Table, old: Mapping[str, Any], **values: Any) -> WriteSet:
        """Change a row that is there."""
        spec = self._tables.spec(table)
        return self._step(spec, old, spec.key_of(old), spec.changed(old, values))

    def delete(self, table: Table, old: Mapping[str, Any]) -> WriteSet:
        """Remove a row that is there."""
        spec = self._tables.spec(table)
        return self._step(spec, old, spec.key_of(old), None)

    def _step(
        self, spec: TableSpec, old: Mapping[str, Any] | None, key: Key, new: Row | None
    ) -> WriteSet:
        self._old.setdefault((spec, key), old)
        self._new[spec, key] = new
        if self._is_joined:
            self.log[-1][1][key] = new
        else:
            self.log.append((spec, {key: new}))
        return self

    @contextlib.contextmanager
    def statement(self, table: Table) -> Iterator[None]:
        """Make the steps of the block, all of one kind, parts of one statement."""
        self.log.append((self._tables.spec(table), {}))
        self._is_joined = True
        yield
        self._is_joined = False

    @property
    def changes(self) -> list[Change]:
        """The committed and the newest version of each row."""
        return [Change(s, k, self._old[s, k], new) for (s, k), new in self._new.items()]

    def commit(self) -> None:
        """Flush and commit."""
        session = self._store.session()
        try:
            session.commit(self.changes, self.log)
        finally:
            session.close()


def is_asleep(store: Store, backend: int | None) -> bool:
    """Return whether a process of the server sleeps.

    A transaction sees one state only, so this looks in a new one.
    """
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid AND wait_event = 'PgSleep'"
    )
    with store.short() as connection:
        return bool(connection.scalar(query, {"pid": backend}) == 1)


def rows_of(store: Store, table: Table) -> list[dict[str, Any]]:
    """Committed rows by key."""
    with store.short() as connection:
        found = connection.execute(select(table).order_by(*table.primary_key.columns))
        return [dict(row) for row in found.mappings()]


def insert_rows(store: Store, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    """Commit new rows through a write set."""
    steps = WriteSet(store)
    for row in rows:
        steps.insert(table, row)
    steps.commit()
