"""Rows of activedb itself: choices that detectors have left open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from activedb.store.server import translate_errors
from activedb.store.session import Store
from activedb.store.system import decisions

__all__ = ["DecisionRows"]


class DecisionRows:
    """The table of decisions.

    Parameters
    ----------
    store : Store

    Attributes
    ----------
    table : sqlalchemy.Table
            The table itself, for transactions that lock a row and change it with their other work.
        is_shared : bool
            True if other processes may decide, too.
    """

    table: Any = decisions

    def __init__(self, store: Store):
        self._store = store
        self.is_shared = store.is_shared

    @property
    def holder(self) -> int:
        """Number of the lease under which this process has its detectors."""
        return self._store.lease.take()

    def is_dead(self, holder: int) -> bool:
        """Return whether the process that had a detector has ended."""
        with (
            translate_errors("look for the process that has a rule"),
            self._store.short() as connection,
        ):
            return holder in self._store.lease.dead(connection, [holder])

    def record(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write open choices with a commit; existing rows are left unchanged."""
        made = list(rows)
        if made:
            flavour: Any = sqlite_insert if _is_sqlite(connection) else postgres_insert
            connection.execute(flavour(decisions).on_conflict_do_nothing(), made)

    def settle(
        self,
        connection: Connection,
        decided: Mapping[str, list[int]],
        by: str,
        at: datetime,
        *,
        statuses: Iterable[str] = ("open",),
    ) -> None:
        """Record, with a commit, the outcomes of choices that resolved themselves, by id."""
        if decided:
            c = decisions.c
            statement = (
                update(decisions)
                .where(c.id == bindparam("of_id"), c.status.in_(list(statuses)))
                .values(
                    status="resolved",
                    chosen=bindparam("numbers", type_=decisions.c.chosen.type),
                    decided_by=by,
                    decided_at=at,
                )
            )
            connection.execute(
                statement, [{"of_id": id, "numbers": found} for id, found in decided.items()]
            )

    def applied(
        self, connection: Connection, ids: Collection[str], status: str, *, made: bool = True
    ) -> None:
        """Record, with a commit, that decisions have been applied or have been reopened.

        Parameters
        ----------
        status : str
            New status; ``open`` also erases the choice, its author and its time.
        made : bool
            Whether the chosen occurrences were made; if not, ``chosen`` becomes empty.
        """
        if not ids:
            return
        c = decisions.c
        values: dict[str, Any] = {"status": status}
        if status == "open":
            values |= {"chosen": None, "decided_by": None, "decided_at": None}
        elif not made:
            values["chosen"] = []
        where = (c.id == bindparam("of_id"), c.status == "chosen")
        statement = update(decisions).where(*where).values(**values)
        connection.execute(statement, [{"of_id": id} for id in ids])

    def read(
        self,
        *,
        id: str | None = None,
        rule: str | None = None,
        statuses: Iterable[str] | None = None,
        stream: str | None = None,
    ) -> list[Mapping[str, Any]]:
        """Return the committed rows that match all the given values, in the order of time."""
        c = decisions.c
        statement = select(decisions).order_by(c.us, c.rule, c.id)
        for column, value in ((c.id, id), (c.rule, rule), (c.stream, stream)):
            if value is not None:
                statement = statement.where(column == value)
        if statuses is not None:
            statement = statement.where(c.status.in_(list(statuses)))
        with translate_errors("read the decisions"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def open_by_rule(self) -> dict[str, int]:
        """Return the number of open choices by rule; rules without any are left out."""
        c = decisions.c
        statement = select(c.rule, func.count()).where(c.status == "open").group_by(c.rule)
        with translate_errors("count the decisions"), self._store.short() as connection:
            return {row[0]: row[1] for row in connection.execute(statement.order_by(c.rule))}

    def unresolved_rules(self) -> list[str]:
        """Return the names of the rules with open choices, or with unapplied decisions."""
        c = decisions.c
        statement = select(c.rule).where(c.status != "resolved").distinct()
        with translate_errors("look for decisions"), self._store.short() as connection:
            return list(connection.execute(statement).scalars())


def _is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite"
