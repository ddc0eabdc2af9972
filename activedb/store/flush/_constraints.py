"""Constraints of a table, from the database's catalog: what they make of the order of writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from sqlalchemy import Connection, text

from activedb.store.flush._change import Change
from activedb.store.sql import Key, Row, TableSpec

__all__ = ["Log", "TableConstraints", "constraints_of", "follows_log"]

Log: TypeAlias = Sequence[tuple[TableSpec, Mapping[Key, Row | None]]]
"""Versions that each statement wrote, in the order of the statements; None is a tombstone."""


class TableConstraints(NamedTuple):
    """Constraints of a table that make the order of writes matter.

    Attributes
    ----------
    place : int, str or None
        What the database calls the table; None if it does not exist.
    depends_on_order : bool
        True if the database may refuse rows in one order and accept them in another: foreign keys,
        unique values, exclusions.
    changed : frozenset of int or str
        Places of the tables in which the database changes rows if a row of this one is deleted.
    """

    place: int | str | None
    depends_on_order: bool
    changed: frozenset[int | str]


_POSTGRES = text("""
    WITH RECURSIVE this AS (
        SELECT name, pg_catalog.to_regclass(name)::oid AS place
        FROM pg_catalog.unnest(CAST(:names AS text[])) name
    ), changed(name, place) AS (
        SELECT name, conrelid FROM pg_catalog.pg_constraint, this
        WHERE contype = 'f' AND confrelid = place AND confdeltype IN ('c', 'n', 'd')
        UNION
        SELECT name, conrelid FROM pg_catalog.pg_constraint, changed
        WHERE contype = 'f' AND confrelid = place AND confdeltype IN ('c', 'n', 'd')
    )
    SELECT name, this.place::int8, changed.place::int8, EXISTS (
        SELECT FROM pg_catalog.pg_constraint WHERE contype IN ('f', 'x') AND conrelid = this.place
    ) OR EXISTS (
        SELECT FROM pg_catalog.pg_index
        WHERE indrelid = this.place AND indisunique AND NOT indisprimary
    )
    FROM this LEFT JOIN changed USING (name)
""")
_SQLITE = text("""
    WITH RECURSIVE this AS (
        SELECT value AS name FROM json_each(:names)
    ), actions(child, parent) AS (
        SELECT m.name, f."table" FROM main.sqlite_master m, pragma_foreign_key_list(m.name) f
        WHERE m.type = 'table' AND f.on_delete IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
    ), changed(name, place) AS (
        SELECT name, child FROM actions, this WHERE parent = name COLLATE NOCASE
        UNION
        SELECT name, child FROM actions, changed WHERE parent = place COLLATE NOCASE
    )
    SELECT name, name, changed.place, EXISTS (SELECT 1 FROM pragma_foreign_key_list(this.name))
        OR EXISTS (SELECT 1 FROM pragma_index_list(this.name) WHERE "unique" AND origin <> 'pk')
    FROM this LEFT JOIN changed USING (name)
""")


def constraints_of(
    connection: Connection, specs: Collection[TableSpec]
) -> dict[TableSpec, TableConstraints]:
    """Return the constraints of tables as they are now. One round trip."""
    if connection.dialect.name == "sqlite":
        names = {spec: str(spec.table.name) for spec in specs}
        found = connection.execute(_SQLITE, {"names": json.dumps(list(names.values()))}).all()
    else:
        quote = connection.dialect.identifier_preparer
        names = {spec: quote.format_table(spec.table).replace("%%", "%") for spec in specs}
        found = connection.execute(_POSTGRES, {"names": list(names.values())}).all()
    known: dict[str, TableConstraints] = {}
    for name, place, changed, depends in found:
        before = known[name].changed if name in known else frozenset()
        more = before if changed is None else before | {changed}
        known[name] = TableConstraints(place, bool(depends), more)
    return {spec: known[name] for spec, name in names.items()}


def follows_log(
    changes: Sequence[Change], log: Log, constraints: Mapping[TableSpec, TableConstraints]
) -> bool:
    """Return whether deletes in `log` make the database change other rows that are written, too.

    Such a row may have been written before or after the delete, which is not the same: a child that
    had been moved to another parent stays. A key that was deleted and inserted again counts, since
    rows that referred to it do not come back.
    """
    cascading = {spec for spec, of_table in constraints.items() if of_table.changed}
    if not cascading:
        return False  # without a look at each statement
    gone = {
        (spec, key)
        for spec, rows in log
        if spec in cascading
        for key, new in rows.items()
        if new is None
    }
    if not gone:
        return False
    changed = frozenset().union(*(constraints[spec].changed for spec, _ in gone))
    return any(
        change.new is not None
        and (
            constraints[change.spec].place in changed
            or (change.old is not None and (change.spec, change.key) in gone)
        )
        for change in changes
    )
