"""Let a statement see the versions of a sphere: dirty rows shadow the table of the same name.

A common table expression named like the table hides it from the whole statement, so joins,
subqueries and aggregates need no rewriting::

    WITH activedb_dirty_accounts (id, balance, activedb_gone) AS (…dirty rows and tombstones…),
         accounts AS (SELECT * FROM public.accounts a
                      WHERE NOT EXISTS (SELECT 1 FROM activedb_dirty_accounts d WHERE d.id = a.id)
                      UNION ALL
                      SELECT id, balance FROM activedb_dirty_accounts WHERE NOT activedb_gone)
    SELECT … FROM accounts …
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    Boolean,
    Column,
    Executable,
    MetaData,
    Select,
    Table,
    TableClause,
    TextClause,
    and_,
    bindparam,
    column,
    exists,
    func,
    select,
    union_all,
    values,
)
from sqlalchemy.sql import visitors
from sqlalchemy.sql.selectable import CompoundSelect

from activedb.errors import UnsupportedStatement
from activedb.store._tables import Key, Row, TableSpec

__all__ = ["overlaid", "tables_of"]

_FROM = re.compile(r"\b(from|join)\b", re.IGNORECASE)
_VARIABLES_MAX = 32_000  # SQLite takes 32,766 bound variables in one statement

Dirty = Mapping[Key, Row | None]
"""Rows by key as a sphere sees them; None is a tombstone."""


def tables_of(statement: Executable) -> list[Table]:
    """Tables a statement reads, each once, in a stable order.

    Raises
    ------
    UnsupportedStatement
        If the statement is not a SELECT built with SQLAlchemy.
    """
    if not isinstance(statement, Select | CompoundSelect):
        raise UnsupportedStatement(
            "query() takes a SELECT built with sqlalchemy.select(); use execute() for writes"
        )
    found: dict[str, Table] = {}
    for element in visitors.iterate(statement):
        if isinstance(element, Table):
            found[element.fullname] = element
        elif _names_a_table_in_text(element):
            raise UnsupportedStatement(
                f"query() cannot tell which tables {str(element)!r} reads, and so neither lock "
                f"them nor show uncommitted rows; use Table objects in the FROM clause"
            )
    return [found[name] for name in sorted(found)]


def _names_a_table_in_text(element: Any) -> bool:
    if isinstance(element, Select):
        return any(isinstance(f, TextClause) for f in element.get_final_froms())
    if isinstance(element, TextClause):
        return _FROM.search(element.text) is not None
    return isinstance(element, TableClause)


def overlaid(
    statement: Executable, dirty: Mapping[TableSpec, Dirty], *, schema: str, arrays: bool
) -> Executable:
    """`statement` over the committed rows with `dirty` laid over them.

    Parameters
    ----------
    statement : SELECT
    dirty : mapping of TableSpec to (key to row or None)
        What the sphere wrote, per table that the statement reads.
    schema : str
        Schema in which unqualified tables lie.
    arrays : bool
        Whether the server takes arrays (one parameter per column), as Postgres does.
    """
    assert isinstance(statement, Select | CompoundSelect)
    for spec, rows in dirty.items():
        if not rows:
            continue
        if spec.table.schema is not None:
            raise UnsupportedStatement(
                f"table {spec.name}: a query over uncommitted rows of a table with an explicit "
                f"schema is not supported; leave the schema to the search path"
            )
        source = _dirty_source(spec, rows, arrays=arrays)
        shadow = _shadow(spec, source, schema)
        statement = statement.add_cte(source, shadow)
    return statement


def _dirty_source(spec: TableSpec, rows: Dirty, *, arrays: bool) -> CTE:
    columns: list[Column[Any]] = list(spec.table.columns)
    records = [_record(spec, key, row) for key, row in rows.items()]
    name = f"activedb_dirty_{spec.table.name}"
    gone = Column("activedb_gone", Boolean)
    if arrays:
        per_column = list(zip(*records, strict=True))
        arguments = [
            bindparam(None, list(cells), type_=ARRAY(c.type))
            for c, cells in zip([*columns, gone], per_column, strict=True)
        ]
        names = [column(c.name, c.type) for c in [*columns, gone]]
        unnested = func.unnest(*arguments).table_valued(*names, name="dirty").render_derived()
        return select(unnested).cte(name)
    if len(records) * (len(columns) + 1) > _VARIABLES_MAX:
        raise UnsupportedStatement(
            f"table {spec.name}: {len(records)} uncommitted rows are too many for a query on the "
            f"memory store; commit first, or use Postgres"
        )
    typed = values(*[column(c.name, c.type) for c in [*columns, gone]], name=name)
    return typed.data(records).cte(name)


def _record(spec: TableSpec, key: Key, row: Row | None) -> tuple[Any, ...]:
    if row is not None:
        return (*(row[c.name] for c in spec.table.columns), False)
    known = dict(zip(spec.key_columns, key, strict=True))
    return (*(known.get(c.name) for c in spec.table.columns), True)


def _shadow(spec: TableSpec, dirty: CTE, schema: str) -> CTE:
    real = spec.table.to_metadata(MetaData(), schema=schema).alias("kept")
    same_key = and_(*(dirty.c[name] == real.c[name] for name in spec.key_columns))
    kept = select(*real.columns).where(~exists().where(same_key))
    written = select(*(dirty.c[c.name] for c in spec.table.columns)).where(~dirty.c.activedb_gone)
    return union_all(kept, written).cte(spec.table.name)
