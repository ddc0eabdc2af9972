"""Overview of all of activedb's tables, read without opening the database.

Reading creates, migrates and locks nothing: it is safe beside running programs. In tables of older
versions, missing parts are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    case,
    distinct,
    func,
    inspect,
    literal,
    select,
    text,
)

from activedb.clock import moment_of
from activedb.store.server import (
    Migrations,
    migrations,
    missing_rights,
    plain_connection,
    translate_errors,
)
from activedb.store.system import (
    batch_transactions,
    batches,
    dead_letters,
    decisions,
    detector_states,
    followers,
    late_events,
    ledger,
    owned_tables,
    partials,
    pending_firings,
    producers,
    rules,
    staged_batches,
    stream_events,
)

__all__ = ["Overview", "database_migrations", "lacking_rights", "read_overview"]

_LIVING = text(
    """
    SELECT (l.classid::bigint << 32) | l.objid::bigint AS number, a.pid, a.backend_start AS since,
        coalesce(host(a.client_addr), '') AS address
    FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted AND l.objsubid = 1
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND a.application_name LIKE 'activedb%'
    """
)
_CONNECTIONS = text(
    """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'activedb%'
        AND pid <> pg_backend_pid()
    """
)
_UNDER_LEASES = {pending_firings: "firings", detector_states: "detectors", partials: "partials"}
_SLOTS = text(
    """
    SELECT slot_name AS slot, active, wal_status,
        pg_current_wal_lsn() - confirmed_flush_lsn AS behind_bytes
    FROM pg_replication_slots WHERE database = current_database()
    """
)


@dataclass(frozen=True, slots=True)
class Overview:
    """Contents of activedb's tables at one moment: JSON-serialisable mappings in a fixed order.

    Attributes
    ----------
    schema : str or None
        Schema that was read.
    migrations : Migrations
        Version of the tables.
    streams, rules, pending, letters, decisions : list of mapping
    leases, followers, owned, workflows : list of mapping
        Empty if there are none, or the tables do not exist.
    connections : int
        Connections that activedb's processes have open to the database at this moment.
    """

    schema: str | None
    migrations: Migrations
    streams: list[dict[str, Any]]
    rules: list[dict[str, Any]]
    pending: list[dict[str, Any]]
    letters: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    leases: list[dict[str, Any]]
    connections: int
    followers: list[dict[str, Any]]
    owned: list[dict[str, Any]]
    workflows: list[dict[str, Any]]


def read_overview(url: str, schema: str | None = None) -> Overview:
    """Read an overview. O(rows of activedb's tables), on the server; a dozen round trips.

    Raises
    ------
    InvalidURL, ServerUnreachable
    """
    with plain_connection(url, schema) as connection, translate_errors("look at activedb's tables"):
        looked = _Look(connection)
        alive = looked.living()
        return Overview(
            schema=connection.scalar(select(func.current_schema())),
            migrations=migrations(connection),
            streams=looked.streams(),
            rules=looked.rules(),
            pending=looked.pending(set(alive)),
            letters=looked.letters(),
            decisions=looked.decisions(),
            leases=looked.leases(alive),
            connections=looked.connections(),
            followers=looked.followers(),
            owned=looked.owned(),
            workflows=looked.workflows(),
        )


def database_migrations(url: str | None, schema: str | None = None) -> Migrations:
    """Return the version of the tables behind a URL and the missing migrations; None: no database.

    Raises
    ------
    InvalidURL, ServerUnreachable
    """
    if url is None:
        return migrations(None)
    with plain_connection(url, schema) as connection, translate_errors("look at activedb's tables"):
        return migrations(connection)


def lacking_rights(url: str, schema: str | None = None) -> list[tuple[str, str]]:
    """Return the rights on activedb's tables, (table, right), that the role lacks to run rules.

    Raises
    ------
    InvalidURL, ServerUnreachable
    """
    with plain_connection(url, schema) as connection, translate_errors("look at the rights"):
        return missing_rights(connection)


class _Look:
    """Reader of the tables that exist."""

    def __init__(self, connection: Connection):
        self._connection = connection
        look = inspect(connection)
        self._columns = {
            name: {column["name"] for column in look.get_columns(name)}
            for name in look.get_table_names()
            if name.startswith("activedb_")
        }

    def _has(self, *columns: Any) -> bool:
        return all(c.name in self._columns.get(c.table.name, ()) for c in columns)

    def _rows(self, statement: Select[Any]) -> Iterator[dict[str, Any]]:
        for row in self._connection.execute(statement).mappings():
            yield {name: _shown(value) for name, value in row.items()}

    def _counts(self, table: Table, *where: ColumnElement[bool]) -> dict[str, int]:
        """Return the number of rows by stream; none if the table does not exist."""
        if not self._has(table.c.stream):
            return {}
        c = table.c.stream
        statement = select(c, func.count()).where(*where).group_by(c)
        return dict(self._connection.execute(statement).all())

    def streams(self) -> list[dict[str, Any]]:
        """Return each stream's counts, punctuation, waiting events and position."""
        c = ledger.c
        if not self._has(c.stream, c.committed_at):
            return []
        head = (
            select(
                c.stream.label("name"),
                func.sum(c.events).label("events"),
                func.sum(c.late).label("late"),
                func.sum(c.dead).label("dead"),
                func.count(distinct(func.concat(c.query_id, "/", c.batch_id))).label("batches"),
                func.max(c.punctuation_us).label("punctuation"),
                func.max(c.committed_at).label("last_commit"),
            )
            .group_by(c.stream)
            .order_by(c.stream)
        )
        passed = (
            select(c.stream, func.max(c.punctuation_us).label("us")).group_by(c.stream).subquery()
        )
        waiting = self._counts(
            stream_events,
            stream_events.c.us
            >= func.coalesce(
                select(passed.c.us)
                .where(passed.c.stream == stream_events.c.stream)
                .scalar_subquery(),
                0,
            ),
        )
        members, staged = self._counts(producers), self._counts(staged_batches)
        kept_late = self._counts(late_events)
        undecided = self._counts(decisions, decisions.c.status == "open")
        found = []
        for row in self._rows(head):
            name = row["name"]
            row |= {n: int(row[n] or 0) for n in ("events", "late", "dead", "batches")}
            us = row["punctuation"]
            row["punctuation"] = None if us is None else moment_of(int(us)).isoformat()
            row["waiting"] = waiting.get(name, 0)
            row["late_kept"] = kept_late.get(name, 0)
            row["undecided"] = undecided.get(name, 0)
            row["producers"] = members.get(name, 0)
            row["staged_batches"] = staged.get(name, 0)
            row["position"] = self._position(name)
            found.append(row)
        return found

    def _position(self, stream: str) -> Mapping[str, Any]:
        """Return the last micro-batch, and the source's position after it if that is known."""
        c = ledger.c
        columns = [c.query_id, c.batch_id, c.sequence]
        if self._has(c.position):
            columns.append(c.position)
        statement = select(*columns).where(c.stream == stream).order_by(c.sequence.desc())
        return next(self._rows(statement.limit(1)))

    def rules(self) -> list[dict[str, Any]]:
        """Return each rule as last defined or changed, by any program."""
        c = rules.c
        if not self._has(c.quarantine):
            return []
        columns = [c.name, c.version, c.enabled, c.quarantine, c.coupling, c.priority, c.event]
        return list(self._rows(select(*columns, c.changed_at).order_by(c.name)))

    def pending(self, living: set[int]) -> list[dict[str, Any]]:
        """Return the number of firings by rule and holder status, and the time of the oldest."""
        c = pending_firings.c
        if not self._has(c.intent, c.holder, c.recorded_at):
            return []
        is_held = c.holder.in_(sorted(living))
        standing = case(
            (c.intent, "intent"), (c.holder.is_(None), "free"), (is_held, "held"), else_="left"
        )

        def count(which: str) -> ColumnElement[int]:
            return func.count().filter(standing == which).label(which)

        statement = (
            select(
                c.rule,
                *map(count, ("free", "held", "left", "intent")),
                func.min(c.recorded_at).label("oldest"),
            )
            .where(~c.done)
            .group_by(c.rule)
            .order_by(c.rule)
        )
        return list(self._rows(statement))

    def letters(self) -> list[dict[str, Any]]:
        """Return the number of dead letters by kind, source and error."""
        c = dead_letters.c
        if not self._has(c.kind, c.error):
            return []
        names = (c.kind, c.source, c.error)
        counted = func.count().label("count")
        return list(self._rows(select(*names, counted).group_by(*names).order_by(*names)))

    def decisions(self) -> list[dict[str, Any]]:
        """Return the unresolved choices by rule and status, and the time of the oldest."""
        c = decisions.c
        if not self._has(c.status):
            return []
        names = (c.rule, c.status)
        counted, oldest = func.count().label("count"), func.min(c.recorded_at).label("oldest")
        statement = select(*names, counted, oldest).where(c.status != "resolved")
        return list(self._rows(statement.group_by(*names).order_by(*names)))

    def living(self) -> dict[int, dict[str, Any]]:
        """Return the leases that are held now, by number, each with its connection."""
        return {
            row["number"]: {name: _shown(row[name]) for name in ("pid", "since", "address")}
            for row in self._connection.execute(_LIVING).mappings()
        }

    def leases(self, living: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
        """Return each lease under which rows are recorded, and whether its process is alive."""
        counts: dict[int, dict[str, int]] = {}
        for table, what in _UNDER_LEASES.items():
            c = table.c.holder
            if self._has(c):
                statement = select(c, func.count()).where(c.is_not(None), c != 0).group_by(c)
                for number, count in self._connection.execute(statement):
                    counts.setdefault(number, {})[what] = count
        nobody = {"pid": None, "since": None, "address": None}
        return [
            {"number": n, "alive": n in living, **living.get(n, nobody), **counts[n]}
            for n in sorted(counts)
        ]

    def connections(self) -> int:
        """Return the number of connections of activedb processes to this database."""
        return int(self._connection.scalar(_CONNECTIONS) or 0)

    def followers(self) -> list[dict[str, Any]]:
        """Return the replication slots that are followed for this schema, and their lag."""
        c = followers.c
        if not self._has(c.slot):
            return []
        slots = {
            row["slot"]: {name: _shown(row[name]) for name in ("active", "wal_status")}
            | {"behind_bytes": int(row["behind_bytes"] or 0)}
            for row in self._connection.execute(_SLOTS).mappings()
        }
        gone = {"active": False, "wal_status": "gone", "behind_bytes": None}
        return [
            {**row, **slots.get(row["slot"], gone)}
            for row in self._rows(select(c.slot, c.since).order_by(c.slot))
        ]

    def owned(self) -> list[dict[str, Any]]:
        """Return the tables that a process keeps, or was the last to keep, in its memory."""
        c = owned_tables.c
        if not self._has(c.name):
            return []
        return list(self._rows(select(c.name, c.owner, c.owned_since).order_by(c.name)))

    def workflows(self) -> list[dict[str, Any]]:
        """Return the number of each workflow's batches and transactions, by state."""
        c, t = batches.c, batch_transactions.c
        if not self._has(c.workflow, t.workflow):
            return []
        batch = select(c.workflow, literal("batch").label("what"), c.state, func.count().label("n"))
        run = select(t.workflow, literal("transaction").label("what"), t.state, func.count())
        both = batch.group_by(c.workflow, c.state).union_all(run.group_by(t.workflow, t.state))
        found: dict[str, dict[str, Any]] = {}
        for workflow, what, state, count in self._connection.execute(both):
            of = found.setdefault(workflow, {"name": workflow, "batches": {}, "transactions": {}})
            of["batches" if what == "batch" else "transactions"][state] = count
        return [found[name] for name in sorted(found)]


def _shown(value: Any) -> Any:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
