"""activedb's own rows: pending firings and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from activedb.store._faults import translated
from activedb.store._store import Store
from activedb.store._system import dead_letters, pending_firings

__all__ = ["Journal", "insert_new"]


def insert_new(connection: Connection, table: Any, rows: list[dict[str, Any]]) -> list[Any]:
    """Insert the rows whose keys are new; returns the keys inserted, by first key column."""
    if not rows:
        return []
    flavour = sqlite_insert if connection.dialect.name == "sqlite" else postgres_insert
    key = next(iter(table.primary_key.columns))
    statement = flavour(table).on_conflict_do_nothing().returning(key)
    return list(connection.execute(statement, rows).scalars())


class Journal:
    """Firings of detached rules that are due, and letters about what failed."""

    def __init__(self, store: Store):
        self._store = store

    def record(self, firings: Iterable[Mapping[str, Any]], *, lazily: bool) -> set[str]:
        """Record firings durably, in a transaction of their own; returns those that are new.

        Parameters
        ----------
        firings : mappings with ``firing``, ``run``, ``rule``, ``occurrence``
        lazily : bool
            Do not wait for the disk, because a replay would record them again.
        """
        rows = [{**firing, "done": 0} for firing in firings]
        with (
            translated("record detached rules"),
            self._store.short(lazily=lazily) as connection,
        ):
            return set(insert_new(connection, pending_firings, rows))

    def pending(self) -> list[Mapping[str, Any]]:
        """Firings that are recorded and not done, oldest name first."""
        statement = (
            select(pending_firings)
            .where(pending_firings.c.done == 0)
            .order_by(pending_firings.c.firing)
        )
        with translated("read the pending rules"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def finish(self, connection: Connection, firing: str, *, keep: bool) -> bool:
        """Mark a firing done within its own transaction; False if somebody did before.

        Parameters
        ----------
        keep : bool
            Keep the row, so that a replay of the triggering batch finds it.
        """
        same = (pending_firings.c.firing == firing) & (pending_firings.c.done == 0)
        if keep:
            return (
                connection.execute(update(pending_firings).where(same).values(done=1)).rowcount == 1
            )
        return connection.execute(delete(pending_firings).where(same)).rowcount == 1

    def forget_done(self, connection: Connection, run_prefix: str) -> None:
        """Delete the done firings of runs that will not be replayed."""
        connection.execute(
            delete(pending_firings).where(
                pending_firings.c.run.startswith(run_prefix, autoescape=True),
                pending_firings.c.done == 1,
            )
        )

    def bury(self, firing: str, letter: Mapping[str, Any], *, keep: bool) -> None:
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
        insert_new(connection, dead_letters, [dict(letter) for letter in letters])
