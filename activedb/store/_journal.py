"""activedb's own rows: pending firings and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from activedb.store._faults import translated
from activedb.store._store import Store
from activedb.store._system import dead_letters, pending_firings

__all__ = ["Journal"]


def _insert_new(connection: Connection, table: Any, rows: list[dict[str, Any]]) -> None:
    """Insert the rows whose keys are new."""
    if rows:
        connection.execute(_flavour(connection)(table).on_conflict_do_nothing(), rows)


def _flavour(connection: Connection) -> Any:
    return sqlite_insert if connection.dialect.name == "sqlite" else postgres_insert


class Journal:
    """Firings of detached rules that are due, and letters about what failed."""

    def __init__(self, store: Store):
        self._store = store

    def record(self, firings: Iterable[Mapping[str, Any]]) -> None:
        """Record firings durably, in a transaction of their own."""
        with translated("record detached rules"), self._store.short() as connection:
            self.record_on(connection, firings)

    def record_on(self, connection: Connection, firings: Iterable[Mapping[str, Any]]) -> None:
        """Record firings with a commit; those that are there already are left as they are."""
        _insert_new(connection, pending_firings, [dict(firing) for firing in firings])

    def pending(self) -> list[Mapping[str, Any]]:
        """Firings that are recorded and not done, oldest name first."""
        statement = (
            select(pending_firings)
            .where(pending_firings.c.done == 0)
            .order_by(pending_firings.c.firing)
        )
        with translated("read the pending rules"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def done(self, run_prefix: str) -> list[str]:
        """Names of the firings of these runs that are done."""
        c = pending_firings.c
        statement = select(c.firing).where(
            c.run.startswith(run_prefix, autoescape=True), c.done == 1
        )
        with translated("read the done rules"), self._store.short() as connection:
            return list(connection.execute(statement).scalars())

    def finish(self, connection: Connection, firing: Mapping[str, Any], *, keep: bool) -> bool:
        """Mark a firing done within its own transaction; False if somebody did before.

        Parameters
        ----------
        keep : bool
            Leave a row that says so for a replay of the triggering batch; the firing need not
            be recorded yet. Otherwise the recorded row is deleted.
        """
        c = pending_firings.c
        if not keep:
            gone = delete(pending_firings).where(c.firing == firing["firing"], c.done == 0)
            return connection.execute(gone).rowcount == 1
        marked = _flavour(connection)(pending_firings).values(**{**firing, "done": 1})
        marked = marked.on_conflict_do_update(
            index_elements=[c.firing], set_={"done": 1}, where=c.done == 0
        )
        return connection.execute(marked.returning(c.firing)).first() is not None

    def forget_done(self, connection: Connection, run_prefix: str) -> None:
        """Delete the done firings of runs that will not be replayed."""
        connection.execute(
            delete(pending_firings).where(
                pending_firings.c.run.startswith(run_prefix, autoescape=True),
                pending_firings.c.done == 1,
            )
        )

    def bury(self, firing: Mapping[str, Any], letter: Mapping[str, Any], *, keep: bool) -> None:
        """Turn a firing into a dead letter, in a transaction of its own."""
        with translated("write a dead letter"), self._store.short() as connection:
            if self.finish(connection, firing, keep=keep):
                self.write_letters(connection, [letter])

    def prune(self, run_prefix: str) -> None:
        """`forget_done` in a transaction of its own."""
        with translated("forget done firings"), self._store.short() as connection:
            self.forget_done(connection, run_prefix)

    def write_letters(self, connection: Connection, letters: Iterable[Mapping[str, Any]]) -> None:
        """Write dead letters; one that is there already is left as it is."""
        _insert_new(connection, dead_letters, [dict(letter) for letter in letters])
