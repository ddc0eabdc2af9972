"""Tables of a slot: its publication, and the triggers that mark changes with raised events."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, TextClause, text

from activedb.errors import ConfigurationError
from activedb.store.server import execute_alone, literal, quoted
from activedb.store.sql import TableSpec, guard_number

__all__ = [
    "FOLLOWED",
    "RAISED",
    "FollowedTable",
    "Publication",
    "mark_prefix",
    "session_mark",
    "set_local_mark",
    "set_session_mark",
]

_LOG = logging.getLogger(__name__)

RAISED = "activedb.raised"
"""Setting of a connection with the rules that have seen the events of its writes."""

_TABLE = text(
    """
    SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relreplident::text AS identity,
           c.relkind::text AS kind,
           ARRAY(
               SELECT a.attname::text FROM pg_index i
               JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
               WHERE i.indrelid = c.oid AND CASE c.relreplident
                   WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
           ) AS identified_by,
           ARRAY(
               SELECT DISTINCT a.attgenerated::text FROM pg_attribute a
               WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND NOT a.attisdropped
           ) AS generated
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(:name)
    """
)
# Changes of partitions come under the table's name, with the old rows that the partition sends.
_NOT_WHOLE = text(
    """
    SELECT p.relid::regclass::text FROM pg_partition_tree(:oid) p
    JOIN pg_class c ON c.oid = p.relid
    WHERE p.isleaf AND p.relid <> :oid AND c.relreplident <> 'f' ORDER BY 1
    """
)
_PUBLISHED = text(
    """
    SELECT r.prrelid FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    WHERE p.pubname = :publication
    """
)
# Followed by other slots of this schema, each of which triggers the rules of its follower.
_OF_OTHERS = text(
    """
    SELECT r.prrelid, f.slot FROM pg_publication_rel r
    JOIN pg_publication p ON p.oid = r.prpubid JOIN activedb_followers f ON f.slot = p.pubname
    WHERE p.pubname <> :publication
    """
)
_EXISTS = text("SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = :publication)")
_MARKED = text("SELECT tgrelid FROM pg_trigger WHERE tgname = :trigger AND NOT tgisinternal")
# Marked, but no longer in the publication of any slot of this schema.
_LEFT = text(
    """
    SELECT t.tgrelid::regclass::text FROM pg_trigger t
    WHERE t.tgname = :trigger AND NOT t.tgisinternal AND NOT EXISTS (
        SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
        JOIN activedb_followers f ON f.slot = p.pubname
        WHERE r.prrelid = t.tgrelid
    )
    """
)
_MARK = """
    CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $mark$
    DECLARE
        raised text := pg_catalog.current_setting('{setting}', true);
    BEGIN
        -- Writes of the server's own triggers and cascades have raised no event.
        IF raised <> '' THEN
            PERFORM pg_catalog.pg_logical_emit_message(true, TG_ARGV[0],
                CASE WHEN (TG_WHEN = 'BEFORE') = (pg_catalog.pg_trigger_depth() = 1)
                THEN raised ELSE '' END);
        END IF;
        RETURN NULL;
    END $mark$
"""
FOLLOWED = text(
    """
    SELECT current_setting('transaction_isolation'),
        EXTRACT(epoch FROM clock_timestamp() - transaction_timestamp())::float8,
        EXISTS (SELECT FROM activedb_followers)
    """
)
"""A transaction's isolation level, its age in seconds, and whether there is any follower."""

_RAISE_HERE = text(f"SELECT set_config('{RAISED}', :raised, true)")
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(:number)")


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """Table that a slot follows.

    Attributes
    ----------
    spec : TableSpec
    oid : int
    schema, name : str
        Names at the server.
    is_whole : bool
        True if old rows are sent whole (REPLICA IDENTITY FULL).
    identified_by : tuple of str
        Columns of old rows that are sent otherwise.
    """

    spec: TableSpec
    oid: int
    schema: str
    name: str
    is_whole: bool
    identified_by: tuple[str, ...]


def set_session_mark(connection: Connection, raised: str) -> None:
    """Set the mark for all later writes of a connection that is in no transaction.

    One round trip if the mark changes; a mark costs nothing unless there is a follower.
    """
    if session_mark(connection) != raised:
        # Below the cursor, which would begin a transaction whose rollback would undo the setting.
        execute_alone(
            connection, b"SELECT set_config($1, $2, false)", [RAISED.encode(), raised.encode()]
        )
        connection.info[RAISED] = raised


def session_mark(connection: Connection) -> str:
    """Return the mark of a connection's writes, as last set by `set_session_mark`."""
    said: str = connection.info.get(RAISED, "")  # of the driver's connection: gone if it reconnects
    return said


def set_local_mark(connection: Connection, raised: str) -> None:
    """Set the mark for further writes of the connection's transaction; empty: no mark."""
    connection.execute(_RAISE_HERE, {"raised": raised})


def mark_prefix(schema: str) -> str:
    """Return the prefix of the notes in the log about events raised for activedb's schema."""
    return f"activedb {schema}"


class Publication:
    """Publication of a slot, changed within one transaction.

    Parameters
    ----------
    connection : sqlalchemy.Connection
    schema : str
        Schema of activedb's tables.
    name : str
    """

    def __init__(self, connection: Connection, schema: str, name: str):
        self._connection = connection
        self._schema = schema
        self._name = name
        self._format = connection.dialect.identifier_preparer.format_table
        number = f"{guard_number(f'marks of {schema}') & (2**64 - 1):016x}"
        self._triggers = {
            "BEFORE": f"activedb_mark_{number}_before",
            "AFTER": f"activedb_mark_{number}_after",
        }
        self._function = f"{quoted(schema)}.activedb_mark"
        connection.execute(_ONE_AT_A_TIME, {"number": guard_number(f"followers of {schema}")})

    def exists(self) -> bool:
        """Return whether a publication of this name exists."""
        return bool(self._connection.scalar(_EXISTS, {"publication": self._name}))

    def create(self) -> None:
        """Create the publication, without tables.

        Raises
        ------
        ConfigurationError
            If a publication of this name exists.
        """
        if self.exists():
            raise ConfigurationError(
                f"there is a publication {self._name} that is not activedb's: choose another name "
                f"with slot="
            )
        options = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
        if int(self._connection.scalar(text("SHOW server_version_num")) or 0) >= 180_000:
            # Otherwise the server refuses updates if the identity includes generated columns.
            options += ", publish_generated_columns = stored"
        self._run(f"CREATE PUBLICATION {quoted(self._name)} WITH ({options})")

    def set(
        self, specs: Sequence[TableSpec], *, whole: bool
    ) -> tuple[tuple[FollowedTable, ...], bool]:
        """Replace the published tables; return them, and whether any was unmarked before."""
        found = [(self._look(spec, whole), spec) for spec in dict.fromkeys(specs)]
        wanted = {row.oid: self._named(row) for row, _ in found}
        for row, spec in found:
            if whole and row.identity != "f":
                self._run(f"ALTER TABLE {wanted[row.oid]} REPLICA IDENTITY FULL")
            if whole or row.identity == "f":
                self._make_partitions_whole(row, spec, whole)
        published = set(self._scalars(_PUBLISHED, publication=self._name))
        for oid, slot in self._connection.execute(_OF_OTHERS, {"publication": self._name}):
            if oid in wanted.keys() - published:
                _LOG.warning(
                    "slot %s follows table %s, too: a rule that the followers of both define runs "
                    "once for each slot; if they share rules, use one slot",
                    slot,
                    wanted[oid],
                )
        if published != wanted.keys():
            self._run(
                f"ALTER PUBLICATION {quoted(self._name)} SET TABLE "
                f"{', '.join(sorted(wanted.values()))}"
            )
        marked = set(self._scalars(_MARKED, trigger=self._triggers["AFTER"]))
        marked &= set(self._scalars(_MARKED, trigger=self._triggers["BEFORE"]))
        new = sorted(table for oid, table in wanted.items() if oid not in marked)
        if new:
            self._run(_MARK.format(function=self._function, setting=RAISED))
        for table in new:
            self._mark(table)
        self._tidy()
        return tuple(self._followed(row, spec, whole) for row, spec in found), bool(new)

    def drop(self) -> None:
        """Drop the publication, and the triggers that no other slot of the schema needs.

        REQUIRES: the slot's row in the table of followers is deleted.
        """
        self._run(f"DROP PUBLICATION IF EXISTS {quoted(self._name)}")
        self._tidy()

    # -- inside ----------------------------------------------------------------------------

    def _make_partitions_whole(self, row: Row[Any], spec: TableSpec, whole: bool) -> None:
        """Have partitions send whole old rows, or raise `ConfigurationError` if not `whole`."""
        for partition in self._scalars(_NOT_WHOLE, oid=row.oid):
            if not whole:
                raise ConfigurationError(
                    f"table {spec.name} sends whole old rows, and its partition {partition} does "
                    f"not: ALTER TABLE {partition} REPLICA IDENTITY FULL, or pass whole_rows=True"
                )
            self._run(f"ALTER TABLE {partition} REPLICA IDENTITY FULL")

    def _look(self, spec: TableSpec, whole: bool) -> Row[Any]:
        name = self._format(spec.table).replace("%%", "%")
        row = self._connection.execute(_TABLE, {"name": name}).first()
        if row is None:
            raise ConfigurationError(
                f"there is no table {spec.name} at the server to follow: create it first"
            )
        is_whole = whole or row.identity == "f"
        if is_whole and "v" in row.generated:
            raise ConfigurationError(
                f"table {spec.name} has columns that are computed when they are read, so the "
                f"server would refuse every update and delete of its rows while whole rows of it "
                f"are followed: use STORED columns, or follow it with its primary key alone, "
                f"ALTER TABLE {self._named(row)} REPLICA IDENTITY DEFAULT"
            )
        if not is_whole and not row.identified_by:
            raise ConfigurationError(
                f"table {spec.name} has no replica identity, so the server would refuse every "
                f"update and delete of its rows while it is followed: "
                f"ALTER TABLE {self._named(row)} REPLICA IDENTITY FULL"
            )
        return row

    def _followed(self, row: Row[Any], spec: TableSpec, whole: bool) -> FollowedTable:
        return FollowedTable(
            spec,
            row.oid,
            row.schema,
            row.name,
            whole or row.identity == "f",
            tuple(row.identified_by),
        )

    def _named(self, row: Row[Any]) -> str:
        return f"{quoted(row.schema)}.{quoted(row.name)}"

    def _mark(self, table: str) -> None:
        prefix = literal(mark_prefix(self._schema))
        for when, trigger in self._triggers.items():
            self._run(
                f"CREATE OR REPLACE TRIGGER {trigger} {when} INSERT OR UPDATE OR DELETE "
                f"ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {self._function}({prefix})"
            )

    def _tidy(self) -> None:
        """Drop the triggers of tables that no slot of this schema follows."""
        for trigger in self._triggers.values():
            for table in self._scalars(_LEFT, trigger=trigger):
                self._run(f"DROP TRIGGER {trigger} ON {table}")

    def _scalars(self, statement: TextClause, **values: object) -> list[Any]:
        return list(self._connection.execute(statement, values).scalars())

    def _run(self, statement: str) -> None:
        self._connection.exec_driver_sql(statement.replace("%", "%%"), {})
