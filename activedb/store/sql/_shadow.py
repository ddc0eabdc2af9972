"""Shadow: a table as a sphere sees it, as common table expressions over dirty and committed rows.

For a table of people and the number 1::

    activedb_dirty_1 AS (SELECT * FROM unnest(…one array per column…) AS d (id, name, …gone)),
    activedb_seen_1 AS NOT MATERIALIZED (
        SELECT kept.id, kept.name FROM public.people AS kept
        WHERE NOT EXISTS (SELECT 1 FROM activedb_dirty_1 AS d WHERE d.id = kept.id)
        UNION ALL
        SELECT d.id, d.name FROM activedb_dirty_1 AS d WHERE NOT d.activedb_gone)

It is not materialized, so that the statement's conditions reach the table and its indexes. The
memory twin has no arrays, and SQLite columns convert the values they compare: there the dirty rows
are in a temporary table with the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from sqlalchemy import (
    ARRAY,
    Boolean,
    Column,
    Connection,
    Dialect,
    Enum,
    String,
    Text,
    column,
    insert,
    table,
)
from sqlalchemy.types import TypeEngine

from activedb.errors import UnsupportedStatement
from activedb.store.sql._tables import Key, Row, TableSpec

__all__ = ["Dirty", "Shadow", "shadow_of"]

Dirty: TypeAlias = Mapping[Key, Row | None]
"""Rows by key as a sphere sees them; None is a tombstone."""

_PARAMETERS_MAX = 65_000  # the protocol of Postgres counts parameters in 16 bits
_GONE = "activedb_gone"


@lru_cache(maxsize=1_024)
def shadow_of(spec: TableSpec, dialect: Dialect, schema: str) -> Shadow:
    """Return a table's shadow; cached, because it depends only on the table's columns."""
    return Shadow(spec, dialect, schema)


class Shadow:
    """Generator of the SQL and parameters that show one table with its dirty rows.

    Parameters
    ----------
    spec : TableSpec
    dialect : sqlalchemy.Dialect
    schema : str
        Schema of unqualified tables.
    """

    def __init__(self, spec: TableSpec, dialect: Dialect, schema: str):
        self._spec = spec
        self._dialect = dialect
        quote = dialect.identifier_preparer.quote
        self._columns = list(spec.table.columns)
        self._is_postgres = dialect.name == "postgresql"
        self._quoted = {str(c.name): quote(str(c.name)) for c in self._columns}
        self._casts = [self._cast(c.type) for c in self._columns] if self._is_postgres else []
        self._processors = [self._processor(c.type) for c in self._columns]
        self._is_cellwise = any(isinstance(_plain(c.type, dialect), ARRAY) for c in self._columns)
        real = f"{quote(spec.table.schema or schema)}.{quote(str(spec.table.name))}"
        self._kept = f"SELECT {self._listed('kept')} FROM {real} AS kept"  # noqa: S608  # names, quoted
        computed = {str(c.name): self._computed(c) for c in self._columns if c.computed is not None}
        self._written = f"SELECT {self._listed('d', computed)}"

    # -- SQL for the server ----------------------------------------------------------------

    def seen(self, number: int, dirty: Dirty) -> str:
        """Return the common table expressions that end in ``activedb_seen_<number>``."""
        hint = " NOT MATERIALIZED" if self._is_postgres else ""
        name = f"activedb_seen_{number} AS{hint}"
        if not dirty:
            return f"{name} ({self._kept})"
        source = f"activedb_dirty_{number}"
        before = ""
        if self._is_postgres:
            before = f"{source} ({self._header()}) AS ({self._source(number, len(dirty))}), "
        else:
            source = f"temp.{source}"
        keys = [self._quoted[name] for name in self._spec.key_columns]
        same = " AND ".join(f"d.{key} = kept.{key}" for key in keys)
        absent = f"NOT EXISTS (SELECT 1 FROM {source} AS d WHERE {same})"  # noqa: S608  # names
        written = f"{self._written} FROM {source} AS d WHERE NOT d.{_GONE}"
        return f"{before}{name} ({self._kept} WHERE {absent} UNION ALL {written})"

    def parameters(self, number: int, dirty: Dirty) -> dict[str, Any]:
        """Return the values of the parameters in `seen`. O(dirty rows)."""
        if not self._is_postgres or not dirty:
            return {}
        cells = self._cells(dirty)
        if self._is_cellwise:
            rows = zip(*cells, strict=True)
            flat = (cell for row in rows for cell in row)
            return {f"activedb_{number}_{i}": cell for i, cell in enumerate(flat)}
        return {f"activedb_{number}_{i}": _array(column) for i, column in enumerate(cells)}

    def fill(self, connection: Connection, number: int, dirty: Dirty) -> None:
        """Insert the dirty rows into a temporary table, where `seen` has no parameters for them."""
        if self._is_postgres or not dirty:
            return
        name = f"activedb_dirty_{number}"
        compiler = self._dialect.type_compiler_instance
        columns = ", ".join(
            f"{self._quoted[str(c.name)]} {compiler.process(c.type)}" for c in self._columns
        )
        keys = ", ".join(self._quoted[name] for name in self._spec.key_columns)
        connection.exec_driver_sql(
            f"CREATE TEMPORARY TABLE {name} ({columns}, {_GONE} BOOLEAN, PRIMARY KEY ({keys}))"
        )
        typed = [column(str(c.name), c.type) for c in self._columns]
        target = table(name, *typed, column(_GONE, Boolean), schema="temp")
        connection.execute(insert(target), [self._record(key, row) for key, row in dirty.items()])

    # -- inside ----------------------------------------------------------------------------

    def _record(self, key: Key, row: Row | None) -> dict[str, Any]:
        if row is not None:
            return {**row, _GONE: False}
        known = dict(zip(self._spec.key_columns, key, strict=True))
        return {**{str(c.name): known.get(str(c.name)) for c in self._columns}, _GONE: True}

    def _cells(self, dirty: Dirty) -> list[list[Any]]:
        """Return the values of each column, as the driver takes them, and the tombstone marks."""
        records = [self._record(key, row) for key, row in dirty.items()]
        cells: list[list[Any]] = []
        for c, process in zip(self._columns, self._processors, strict=True):
            values = [record[str(c.name)] for record in records]
            cells.append(values if process is None else [process(value) for value in values])
        return [*cells, [record[_GONE] for record in records]]

    def _source(self, number: int, rows: int) -> str:
        casts = [*self._casts, "BOOLEAN"]
        if not self._is_cellwise:
            arrays = [f"%(activedb_{number}_{i})s::{cast}[]" for i, cast in enumerate(casts)]
            return f"SELECT * FROM unnest({', '.join(arrays)})"  # noqa: S608  # parameters
        if rows * len(casts) > _PARAMETERS_MAX:
            raise UnsupportedStatement(
                f"table {self._spec.name}: {rows} uncommitted rows with arrays in them are too "
                f"many for a query; commit first"
            )
        cell = iter(range(rows * len(casts)))
        lines = [
            ", ".join(f"%(activedb_{number}_{next(cell)})s::{cast}" for cast in casts)
            for _ in range(rows)
        ]
        return f"VALUES {', '.join(f'({line})' for line in lines)}"

    def _header(self) -> str:
        return ", ".join([*self._quoted.values(), _GONE])

    def _listed(self, alias: str, computed: Mapping[str, str] | None = None) -> str:
        parts = []
        for c in self._columns:
            name = self._quoted[str(c.name)]
            part = (computed or {}).get(str(c.name), f"{alias}.{name}")
            collation = getattr(c.type, "collation", None)
            if collation is not None and alias == "d":
                # Otherwise the union would have conflicting collations, and so none.
                part += f" COLLATE {self._dialect.identifier_preparer.quote(collation)}"
            parts.append(part if part.endswith(f".{name}") else f"{part} AS {name}")
        return ", ".join(parts)

    def _computed(self, c: Column[Any]) -> str:
        """Return the SQL that computes a generated column from the other columns of the row."""
        assert c.computed is not None
        compiled = c.computed.sqltext.compile(
            dialect=self._dialect, compile_kwargs={"literal_binds": True, "include_table": False}
        )
        return f"({compiled})"

    def _cast(self, type_: TypeEngine[Any]) -> str:
        plain = _plain(type_, self._dialect)
        if isinstance(plain, String) and not isinstance(plain, Enum):
            # Without a length, which would truncate; without a collation, which a cast cannot have.
            fixed = str(self._dialect.type_compiler_instance.process(type_)).startswith("CHAR")
            if not fixed:
                return "TEXT" if isinstance(plain, Text) else "VARCHAR"
        return str(self._dialect.type_compiler_instance.process(type_))

    def _processor(self, type_: TypeEngine[Any]) -> Any:
        return type_.dialect_impl(self._dialect).bind_processor(self._dialect)


def _array(values: list[Any]) -> Any:
    """Return one parameter for the values of a column.

    Integers, booleans and text are formatted as a Postgres array literal: several times faster
    than the driver's dump of a list, which handles each value separately.
    """
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {int}:
        return "{" + ",".join(["NULL" if v is None else str(v) for v in values]) + "}"
    if kinds == {bool}:
        return "{" + ",".join(["NULL" if v is None else "t" if v else "f" for v in values]) + "}"
    if kinds == {str}:
        return "{" + ",".join(["NULL" if v is None else _quoted(v) for v in values]) + "}"
    return values


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _plain(type_: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    """Return the type itself, without its TypeDecorator."""
    impl = type_.dialect_impl(dialect)
    return getattr(impl, "impl_instance", impl)
