"""activedb's own rows: pending firings and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, exists, select
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from activedb.store._faults import translated
from activedb.store._store import Store
from activedb.store._system import dead_letters, pending_firings

__all__ = ["Journal"]

_NAMES_MAX = 1_000  # in one statement


def _flavour(connection: Connection) -> Any:
    return sqlite_insert if connection.dialect.name == "sqlite" else postgres_insert


class Journal:
    """Firings of detached rules that are due, and letters about what failed.

    Attributes
    ----------
    letters_table : sqlalchemy.Table
        The dead letters, for a transaction that locks and deletes one with its other changes.
    """

    letters_table: Any = dead_letters

    def __init__(self, store: Store):
        self._store = store

    def record(self, firings: Iterable[Mapping[str, Any]]) -> set[str]:
        """Record firings durably, in a transaction of their own; returns those that are new."""
        with translated("record detached rules"), self._store.short() as connection:
            return self.record_on(connection, firings)

    def record_on(self, connection: Connection, firings: Iterable[Mapping[str, Any]]) -> set[str]:
        """Record firings with a commit; returns those that were not there, pending or done."""
        rows = [dict(firing) for firing in firings]
        if not rows:
            return set()
        statement = _flavour(connection)(pending_firings).on_conflict_do_nothing()
        new = connection.execute(statement.returning(pending_firings.c.firing), rows)
        return set(new.scalars())

    def pending(self) -> list[Mapping[str, Any]]:
        """Firings that are recorded and not done, oldest name first."""
        statement = (
            select(pending_firings)
            .where(~pending_firings.c.done)
            .order_by(pending_firings.c.firing)
        )
        with translated("read the pending rules"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def done(self, run_prefix: str) -> list[str]:
        """Names of the firings of a stream's runs that are done."""
        c = pending_firings.c
        statement = select(c.firing).where(
            c.run.startswith(run_prefix, autoescape=True), ~c.run.contains("#"), c.done
        )
        with translated("read the done rules"), self._store.short() as connection:
            return list(connection.execute(statement).scalars())

    def finish(self, connection: Connection, firing: Mapping[str, Any], *, keep: bool) -> bool:
        """Mark a firing done within its own transaction; False if somebody did before.

        Parameters
        ----------
        keep : bool
            Leave a row that says so; it need not be recorded yet. Otherwise the recorded row is
            deleted. The firings that it triggered itself, and that are done, are forgotten: it
            will not trigger them again.
        """
        c = pending_firings.c
        connection.execute(delete(pending_firings).where(c.run == firing["firing"], c.done))
        if not keep:
            gone = delete(pending_firings).where(c.firing == firing["firing"], ~c.done)
            return connection.execute(gone).rowcount == 1
        marked = _flavour(connection)(pending_firings).values(**{**firing, "done": True})
        marked = marked.on_conflict_do_update(
            index_elements=[c.firing], set_={"done": True}, where=~c.done
        )
        return connection.execute(marked.returning(c.firing)).first() is not None

    def forget_done(self, connection: Connection, firings: Sequence[str]) -> None:
        """Delete those of these firings that are done."""
        c = pending_firings.c
        for start in range(0, len(firings), _NAMES_MAX):
            some = firings[start : start + _NAMES_MAX]
            connection.execute(delete(pending_firings).where(c.firing.in_(some), c.done))

    def prune(self, run: str) -> None:
        """Delete the done firings of runs that have ended, in a transaction of its own.

        Parameters
        ----------
        run : str
            Name of a stream's runs; all its batches have committed.
        """
        c = pending_firings.c
        trigger = pending_firings.alias("trigger")
        is_pending = exists().where(trigger.c.firing == c.run, ~trigger.c.done)
        of_rules = c.run.contains("#") & ~is_pending
        with translated("forget done firings"), self._store.short() as connection:
            connection.execute(delete(pending_firings).where((c.run == run) | of_rules, c.done))

    def bury(self, firing: Mapping[str, Any], letter: Mapping[str, Any], *, keep: bool) -> None:
        """Turn a firing into a dead letter, in a transaction of its own; see `finish`."""
        with translated("write a dead letter"), self._store.short() as connection:
            if self.finish(connection, firing, keep=keep):
                self.write_letters(connection, [letter])

    def letters(
        self, *, source: str | None = None, identity: str | None = None, kind: str | None = None
    ) -> list[Mapping[str, Any]]:
        """Committed dead letters by source and identity; those of which all is as asked for."""
        c = dead_letters.c
        asked = [(c.source, source), (c.identity, identity), (c.kind, kind)]
        statement = (
            select(dead_letters)
            .where(*(column == value for column, value in asked if value is not None))
            .order_by(c.source, c.identity)
        )
        with translated("read the dead letters"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def keep_letter(self, letter: Mapping[str, Any]) -> None:
        """Write one dead letter in a transaction of its own."""
        with translated("write a dead letter"), self._store.short() as connection:
            self.write_letters(connection, [letter])

    def write_letters(self, connection: Connection, letters: Iterable[Mapping[str, Any]]) -> None:
        """Write dead letters; one that is there already is left as it is."""
        rows = [dict(letter) for letter in letters]
        if rows:
            connection.execute(_flavour(connection)(dead_letters).on_conflict_do_nothing(), rows)
