"""Rows of activedb itself: rules, their detectors' state, and choices that detectors left open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import Connection, bindparam, delete, func, insert, inspect, or_, select, update
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from activedb.store.server import translate_errors
from activedb.store.session import Session, Store
from activedb.store.system import dead_letters, decisions, detector_states, partials, rules

__all__ = ["Adopted", "DecisionRows", "DetectorRows", "RuleRows"]


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
            # Without IN, whose parameters cannot be repeated for each of several ids.
            is_among = or_(*[c.status == status for status in statuses])
            statement = (
                update(decisions)
                .where(c.id == bindparam("of_id"), is_among)
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


# -- rows of activedb itself: state and events that detectors keep for later matches ---------------


States: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Rule to the fingerprint of its event and the state of its detector."""
_OF_STREAM = 0
"""Holder of the state of a rule that follows a stream: whichever process feeds the stream."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """State of a rule's detector left by a process that has ended.

    Attributes
    ----------
    state : mapping or None
        State of a rule whose state is kept as a whole.
    occurrences : list of mapping
        Encoded events of a rule whose state is derived from them, in the order of time.
    """

    state: Mapping[str, Any] | None
    occurrences: list[Mapping[str, Any]]


class DetectorRows:
    """States of detectors, and the event occurrences that they keep.

    Parameters
    ----------
    store : Store

    Attributes
    ----------
    is_durable : bool
        True if data outlives this process; if not, only data of streams is written.
    """

    def __init__(self, store: Store):
        self._store = store
        self.is_durable = store.is_shared

    def take_lease(self) -> int:
        """Return the number of the lease under which this process keeps its rows."""
        return self._store.lease.take()

    # -- of streams ------------------------------------------------------------------------

    def of_stream(self, stream: str) -> dict[str, tuple[str, dict[str, Any]]]:
        """Return rule to (event, state), for rules that follow the time of a stream."""
        c = detector_states.c
        statement = select(c.rule, c.event, c.state).where(c.stream == stream)
        with translate_errors("read the states of detectors"), self._store.short() as connection:
            return {row.rule: (row.event, row.state) for row in connection.execute(statement)}

    def write_of_stream(self, connection: Connection, stream: str, states: States) -> None:
        """Write states with a part of a stream; one statement."""
        self._write(connection, stream, _OF_STREAM, states)

    def forget_of_stream(self, connection: Connection, stream: str) -> None:
        """Delete the states of rules that follow a stream's time; one statement."""
        connection.execute(delete(detector_states).where(detector_states.c.stream == stream))

    # -- of processes ----------------------------------------------------------------------

    def write(self, connection: Connection, states: States) -> None:
        """Write states of this process's detectors with a commit; one statement."""
        self._write(connection, "", self.take_lease(), states)

    def add(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write occurrences that detectors of this process keep; one statement."""
        holder = self.take_lease()
        connection.execute(insert(partials), [{**row, "holder": holder} for row in rows])

    def trim(self, connection: Connection, before_us: Mapping[str, int]) -> None:
        """Delete each rule's occurrences before the rule's given time; one statement."""
        c = partials.c
        holder = self.take_lease()
        connection.execute(
            delete(partials).where(
                c.rule == bindparam("of_rule"), c.holder == holder, c.us < bindparam("before_us")
            ),
            [{"of_rule": rule, "before_us": us} for rule, us in before_us.items()],
        )

    def trim_alone(self, before_us: Mapping[str, int]) -> None:
        """Call `trim` in a separate transaction."""
        with translate_errors("forget partial matches"), self._store.short() as connection:
            self.trim(connection, before_us)

    def forget(self, connection: Connection, rules: Collection[str]) -> None:
        """Delete all data of the rules' detectors, here and for streams; they start again."""
        holder = self.take_lease()
        states, kept = detector_states.c, partials.c
        connection.execute(
            delete(detector_states).where(
                states.rule.in_(rules), states.holder.in_((_OF_STREAM, holder))
            )
        )
        connection.execute(delete(partials).where(kept.rule.in_(rules), kept.holder == holder))

    # -- what others have left -------------------------------------------------------------

    def rules(self) -> set[str]:
        """Return the rules for which any process keeps or has left rows; one round trip."""
        if not self.is_durable:
            return set()
        found = select(detector_states.c.rule).where(detector_states.c.stream == "")
        statement = found.union(select(partials.c.rule))
        with translate_errors("read the states of detectors"), self._store.short() as connection:
            return set(connection.execute(statement).scalars())

    def adopt(self, rule: str, event: str, *, is_whole: bool, with_ours: bool) -> Adopted:
        """Take over the rows that ended processes have left for a rule's detector.

        If states are kept as a whole, only one state is taken over; the others stay for other
        processes. Rows about a different event are deleted.

        Parameters
        ----------
        event : str
            Fingerprint of the event that the rule detects.
        is_whole : bool
            Whether the rule's state is kept as a whole.
        with_ours : bool
            Also take over the rows that this process has written: the detector is new.
        """
        with translate_errors("take over partial matches"), self._store.short() as connection:
            ours = self.take_lease()
            c = detector_states.c
            with_states = connection.execute(
                select(c.holder).where(c.rule == rule, c.stream == "").distinct()
            )
            holders = set(with_states.scalars())
            with_partials = connection.execute(
                select(partials.c.holder).where(partials.c.rule == rule).distinct()
            )
            holders |= set(with_partials.scalars())
            free = sorted(self._store.lease.dead(connection, holders))
            if with_ours and ours in holders:
                free.insert(0, ours)
            if not free:
                return Adopted(None, [])
            open_ones = decisions.c.rule == rule, decisions.c.stream == ""
            connection.execute(
                update(decisions)
                .where(*open_ones, decisions.c.holder.in_(free))
                .values(holder=ours)
            )
            for table, is_used in ((detector_states, is_whole), (partials, not is_whole)):
                old = delete(table).where(table.c.rule == rule, table.c.holder.in_(free))
                connection.execute(old.where(table.c.event != event) if is_used else old)
            if is_whole:
                return Adopted(self._adopt_state(connection, rule, free, ours), [])
            rows = connection.execute(
                update(partials)
                .where(partials.c.rule == rule, partials.c.holder.in_(free))
                .values(holder=ours)
                .returning(partials.c.us, partials.c.number, partials.c.occurrence)
            ).all()
        return Adopted(None, [row[2] for row in sorted(rows, key=lambda row: (row[0], row[1]))])

    def _adopt_state(
        self, connection: Connection, rule: str, free: list[int], ours: int
    ) -> Mapping[str, Any] | None:
        c = detector_states.c
        there = connection.execute(
            select(c.holder).where(c.rule == rule, c.stream == "", c.holder.in_(free))
        )
        holders = set(there.scalars())
        chosen = next((holder for holder in free if holder in holders), None)
        if chosen is None:
            return None
        state: Mapping[str, Any] | None = connection.scalar(
            update(detector_states)
            .where(c.rule == rule, c.stream == "", c.holder == chosen)
            .values(holder=ours)
            .returning(c.state)
        )
        return state

    def _write(
        self,
        connection: Connection,
        stream: str,
        holder: int,
        states: States,
    ) -> None:
        flavour: Any = sqlite_insert if connection.dialect.name == "sqlite" else postgres_insert
        statement = flavour(detector_states)
        statement = statement.on_conflict_do_update(
            index_elements=["rule", "stream", "holder"],
            set_={"event": statement.excluded.event, "state": statement.excluded.state},
        )
        connection.execute(
            statement,
            [
                {"rule": rule, "stream": stream, "holder": holder, "event": event, "state": state}
                for rule, (event, state) in states.items()
            ],
        )


# -- rows of activedb itself: the rules with their versions ----------------------------------------


class RuleRows:
    """Access to the table of rules.

    Attributes
    ----------
    table : sqlalchemy.Table
        Table that transactions write like any other: a change of a rule commits or is undone with
        its transaction, and the rule's row is locked until then.
    """

    table: Any = rules
    # The source of a dead letter is "rule " and its name.
    name_length_max: int = dead_letters.c.source.type.length - len("rule ")  # type: ignore[attr-defined]

    def __init__(self, store: Store):
        self._store = store

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the committed rows by name; one round trip."""
        with translate_errors("read the rules"), self._store.short() as connection:
            rows = connection.execute(select(rules)).mappings()
            return {row["name"]: dict(row) for row in rows}

    def missing_tables(self, session: Session, names: Iterable[str]) -> list[str]:
        """Return the `names` for which the flat transaction of `session` finds no table."""
        wanted = sorted(names)
        if not wanted:
            return []
        with session.reading("look for tables") as connection:
            look = inspect(connection)
            return [name for name in wanted if not look.has_table(*_split(name))]


def _split(name: str) -> tuple[str, str | None]:
    """Split a full name into (table, schema)."""
    schema, _, table = name.rpartition(".")
    return table, schema or None
