"""Overlay of a sphere's dirty rows over the committed ones, for the SELECTs it runs.

The text that is about to be sent is analysed, whatever produced it; each reference to a table with
dirty rows is replaced by a common table expression, the table's *shadow*::

    SELECT … FROM people AS p JOIN pay ON …
    WITH activedb_dirty_1 AS (…), activedb_seen_1 AS (…)
    SELECT … FROM activedb_seen_1 AS p JOIN pay ON …

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

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import (
    ARRAY,
    Boolean,
    Column,
    Connection,
    Dialect,
    Enum,
    Select,
    String,
    Table,
    Text,
    TextClause,
    column,
    event,
    insert,
    table,
)
from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql import visitors
from sqlalchemy.sql.selectable import CompoundSelect, TextualSelect
from sqlalchemy.types import TypeEngine

from activedb.errors import UnsupportedStatement
from activedb.store.server import converting
from activedb.store.sql._restrictions import Mention, mentions_of
from activedb.store.sql._sql_text import (
    Edit,
    Namespace,
    PlainText,
    Reference,
    SelectAnalysis,
    TableNames,
    analyse_select,
)
from activedb.store.sql._tables import Key, Row, Tables, TableSpec, differ

__all__ = ["Dirty", "LockedRows", "Shadow", "Sphere", "Unlocked", "shadow_of", "tables_of"]


Dirty: TypeAlias = Mapping[Key, Row | None]
"""Rows by key as a sphere sees them; None is a tombstone."""

_PARAMETERS_MAX = 65_000  # the protocol of Postgres counts parameters in 16 bits
_GONE = "activedb_gone"
_SAME = "activedb_same"

Same: TypeAlias = Sequence[Sequence[bool]]
"""Marks of the inexact columns with their committed value: a list for each dirty row."""


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
        names = [str(c.name) for c in self._columns]
        self._key_places = [names.index(name) for name in spec.key_columns]
        self._casts = [self._cast(c.type) for c in self._columns] if self._is_postgres else []
        self._processors = [self._processor(c.type) for c in self._columns]
        self._is_cellwise = any(isinstance(_plain(c.type, dialect), ARRAY) for c in self._columns)
        self._real = f"{quote(spec.table.schema or schema)}.{quote(str(spec.table.name))}"
        self._kept = f"SELECT {self._listed('kept')} FROM {self._real} AS kept"  # noqa: S608  # names, quoted
        computed = {str(c.name): self._computed(c) for c in self._columns if c.computed is not None}
        self._written = f"SELECT {self._listed('d', computed)}"

    # -- SQL for the server ----------------------------------------------------------------

    def same(self, dirty: Dirty, committed: Dirty) -> Same | None:
        """Return which values of inexact columns have not changed; None if all have."""
        names = self._spec.inexact
        if not names or not self._is_postgres:
            return None
        found: list[list[bool]] = []
        for key, row in dirty.items():
            was = committed.get(key)
            if row is None or was is None:
                found.append([False] * len(names))
            else:
                found.append([was[n] is row[n] or not differ(was[n], row[n]) for n in names])
        return found if any(map(any, found)) else None

    def seen(
        self,
        number: int,
        dirty: Dirty,
        only: Collection[Key] | None = None,
        same: Same | None = None,
    ) -> str:
        """Return the common table expressions that end in ``activedb_seen_<number>``.

        Parameters
        ----------
        only : collection of Key, optional
            Keys of the only committed rows to show; on Postgres.
        same : sequence of sequence of bool, optional
            Values that are taken from the committed rows.
        """
        hint = " NOT MATERIALIZED" if self._is_postgres else ""
        name = f"activedb_seen_{number} AS{hint}"
        among = "" if only is None else self._among(number)
        if not dirty:
            return f"{name} ({self._kept}{' WHERE ' if among else ''}{among})"
        source = f"activedb_dirty_{number}"
        before = ""
        if self._is_postgres:
            rows = self._source(number, len(dirty), same)
            before = f"{source} ({self._header()}) AS ({rows}), "
        else:
            source = f"temp.{source}"
        absent = f"NOT EXISTS (SELECT 1 FROM {source} AS d WHERE {self._same_key()})"  # noqa: S608  # names
        written = f"{self._written} FROM {source} AS d WHERE NOT d.{_GONE}"
        absent += f" AND {among}" if among else ""
        return f"{before}{name} ({self._kept} WHERE {absent} UNION ALL {written})"

    def parameters(
        self,
        number: int,
        dirty: Dirty,
        only: Collection[Key] | None = None,
        same: Same | None = None,
    ) -> dict[str, Any]:
        """Return the values of the parameters in `seen`. O(dirty rows + keys)."""
        return {**self._of_dirty(number, dirty, same), **self._of_keys(number, only)}

    def _same_key(self) -> str:
        keys = [self._quoted[name] for name in self._spec.key_columns]
        return " AND ".join(f"d.{key} = kept.{key}" for key in keys)

    def _among(self, number: int) -> str:
        """Return the condition that a committed row is among those shown."""
        keys = [self._quoted[name] for name in self._spec.key_columns]
        arrays = [
            f"%(activedb_{number}_key_{i})s::{self._casts[place]}[]"
            for i, place in enumerate(self._key_places)
        ]
        if len(keys) == 1:
            return f"kept.{keys[0]} = ANY({arrays[0]})"
        columns = ", ".join(f"kept.{key}" for key in keys)
        return f"({columns}) IN (SELECT * FROM unnest({', '.join(arrays)}))"  # noqa: S608  # parameters

    def _of_keys(self, number: int, only: Collection[Key] | None) -> dict[str, Any]:
        if only is None:
            return {}
        found: dict[str, Any] = {}
        for i, place in enumerate(self._key_places):
            process = self._processors[place]
            values = [key[i] if process is None else process(key[i]) for key in only]
            found[f"activedb_{number}_key_{i}"] = _array(values)
        return found

    def _of_dirty(self, number: int, dirty: Dirty, same: Same | None) -> dict[str, Any]:
        if not self._is_postgres or not dirty:
            return {}
        cells = self._cells(dirty)
        if same is not None:
            cells += map(list, zip(*same, strict=True))
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
        with converting():
            records = [self._record(key, row) for key, row in dirty.items()]
            connection.execute(insert(target), records)

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

    def _source(self, number: int, rows: int, same: Same | None) -> str:
        marks = [] if same is None else [f"{_SAME}_{i}" for i in range(len(self._spec.inexact))]
        casts = [*self._casts, *["BOOLEAN"] * (1 + len(marks))]
        sent = self._sent(number, rows, casts)
        if not marks:
            return sent if self._is_cellwise else f"SELECT * FROM {sent}"  # noqa: S608  # parameters
        kept = dict(zip(self._spec.inexact, marks, strict=True))
        key = self._quoted[self._spec.key_columns[0]]
        columns = ", ".join(
            f"CASE WHEN d.{kept[name]} AND kept.{key} IS NOT NULL "
            f"THEN kept.{quoted} ELSE d.{quoted} END"
            if name in kept
            else f"d.{quoted}"
            for name, quoted in self._quoted.items()
        )
        sent = f"({sent})" if self._is_cellwise else sent
        return (
            f"SELECT {columns}, d.{_GONE} FROM {sent} AS d ({self._header()}, {', '.join(marks)}) "  # noqa: S608  # names, quoted
            f"LEFT JOIN {self._real} AS kept ON {self._same_key()}"
        )

    def _sent(self, number: int, rows: int, casts: Sequence[str]) -> str:
        """Return the SQL of the dirty rows and their marks as they are sent."""
        if not self._is_cellwise:
            arrays = [f"%(activedb_{number}_{i})s::{cast}[]" for i, cast in enumerate(casts)]
            return f"unnest({', '.join(arrays)})"
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


_OURS = ("activedb_seen_", "activedb_dirty_")

_known_tables: WeakKeyDictionary[Any, Sequence[Table]] = WeakKeyDictionary()

_laid_over: WeakKeyDictionary[Connection, Sphere | None] = WeakKeyDictionary()
"""Connections with a listener, and the sphere over the current statements of each.

Adding a listener for each query would take a tenth of a small query's time.
"""


class Unlocked(Exception):
    """Statement that reads tables or rows not locked for it yet; nothing was sent.

    Attributes
    ----------
    mentions : sequence of Mention
        Each place in the statement where a table is read.
    sent : tuple
        The statement's text, and its values.
    """

    def __init__(self, mentions: Sequence[Mention], sent: Sent):
        super().__init__(", ".join(sorted({m.spec.name for m in mentions if m.spec is not None})))
        self.mentions = mentions
        self.sent = sent


Sent: TypeAlias = tuple[str, Any]
"""Text of a statement, and the values sent with it."""


@dataclass(slots=True)
class LockedRows:
    """Rows that are locked for a query in place of their whole tables.

    Attributes
    ----------
    keys : dict of TableSpec to set of tuple
        Their keys; no statement may need other rows of these tables.
    asked : set of TableSpec
        Tables of which a statement may find other rows, too, that satisfy a predicate only now.
        If `others_may_add`, it is shown none but the locked ones.
    checked : list of Sent
        Statements known to need no others. For all others, each mention is looked at.
    others_may_add : bool
        True if other processes may have added such rows since the keys were found.
    """

    keys: dict[TableSpec, set[Key]] = field(default_factory=dict)
    asked: set[TableSpec] = field(default_factory=set)
    checked: list[Sent] = field(default_factory=list)
    others_may_add: bool = True

    def keys_of_dirty(self, spec: TableSpec) -> set[Key] | None:
        """Return the keys of the uncommitted rows to show; None for all.

        Of those that satisfied a predicate, some may do so no longer.
        """
        return None if spec in self.asked else self.keys.get(spec)


def tables_of(statement: Any, store: Namespace, tables: Tables) -> Sequence[Table]:
    """Return the tables that a statement is known to read, without duplicates, in a stable order.

    Further tables, in SQL text or loaded by a mapped class, show up as it runs: `Unlocked`.

    Raises
    ------
    UnsupportedStatement
        If it is not a SELECT, or is SQL text that cannot be analysed or reads unknown tables.
    """
    if isinstance(statement, str):
        raise UnsupportedStatement("query() takes text as sqlalchemy.text(…)")
    if not isinstance(
        statement, Select | CompoundSelect | TextClause | TextualSelect | FromStatement
    ):
        raise UnsupportedStatement(
            "query() takes a SELECT: sqlalchemy.select() or text(); use execute() for writes"
        )
    if isinstance(statement, TextClause):
        return _in_order(_tables_of_text(statement, store, tables))
    known = _known_tables.get(statement)  # programs repeat the same statement
    if known is None:
        known = _in_order(e for e in visitors.iterate(statement) if isinstance(e, Table))
        _known_tables[statement] = known
    return known


def _tables_of_text(statement: TextClause, store: Namespace, tables: Tables) -> Iterator[Table]:
    sql = str(statement.compile(dialect=store.engine.dialect))
    if "__[POSTCOMPILE" in sql:
        return  # the list of an IN is not expanded yet
    plain = PlainText(sql, store.engine.dialect.name)
    names = TableNames(store, tables)
    for reference in analyse_select(plain).references:
        table = names.table(reference)
        if table is not None:
            yield table


def _in_order(tables: Iterable[Table]) -> Sequence[Table]:
    """Return `tables` without duplicates, by name."""
    found = {table.fullname: table for table in tables}
    return [found[name] for name in sorted(found)]


class Sphere:
    """Rows visible to one query.

    Parameters
    ----------
    store : Namespace
    tables : Tables
    dirty : mapping of TableSpec to (key to row or None)
        Tables that are locked for the query, with the sphere's writes to them.
    locked : LockedRows, optional
        Rows that are locked in place of some of those tables.
    committed : mapping of TableSpec to (key to row or None), optional
        Committed rows of the tables with inexact columns, as they were read.

    Attributes
    ----------
    may_write : bool
        True if a statement sent so far calls a function that may write.
    """

    def __init__(
        self,
        store: Namespace,
        tables: Tables,
        dirty: Mapping[TableSpec, Dirty],
        locked: LockedRows | None = None,
        committed: Mapping[TableSpec, Dirty] | None = None,
    ):
        self.may_write = False
        self._committed = committed or {}
        self._locked = locked or LockedRows()
        self._names = TableNames(store, tables)
        self._schema = store.schema
        self._tables = tables
        self._dirty = dirty
        in_order = sorted(dirty, key=lambda spec: spec.name)
        self._numbers = {spec: number for number, spec in enumerate(in_order, start=1)}

    @contextmanager
    def laid_over(self, connection: Connection) -> Iterator[None]:
        """Make every SELECT sent over the connection in the block see the sphere; refuse the rest.

        Raises
        ------
        Unlocked, UnsupportedStatement
            From the call that would have sent a statement.
        """
        self._names.refuse_views(connection, self._dirty)
        if connection not in _laid_over:
            event.listen(connection, "before_cursor_execute", _before, retval=True)
        is_filled = connection.dialect.name != "postgresql" and any(self._dirty.values())
        with self._filled(connection) if is_filled else nullcontext():
            _laid_over[connection] = self
            try:
                yield
            finally:
                _laid_over[connection] = None

    @contextmanager
    def _filled(self, connection: Connection) -> Iterator[None]:
        """Provide the dirty rows, inside the block, where the shadows look for them."""
        connection.exec_driver_sql("SAVEPOINT activedb_seen")
        try:
            for spec, dirty in self._dirty.items():
                if dirty:
                    self._shadow(spec, connection).fill(connection, self._numbers[spec], dirty)
            yield
        finally:
            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT activedb_seen")
            connection.exec_driver_sql("RELEASE SAVEPOINT activedb_seen")

    def edited(self, connection: Connection, sql: str, parameters: Any) -> tuple[str, Any]:
        """Return the rewritten statement and its parameters."""
        plain = PlainText(sql, connection.dialect.name)
        understood = analyse_select(plain)
        self.may_write |= understood.may_write
        targets = self._targets(understood)
        self._check_locks(plain, targets, (sql, parameters))
        named = {spec for _, spec in targets if spec is not None}
        _check(understood, named)
        locked = self._locked
        closed = locked.asked & locked.keys.keys() if locked.others_may_add else set()
        seen = [
            spec
            for spec in self._numbers
            if spec in named and (self._dirty[spec] or understood.is_whole or spec in closed)
        ]
        if not seen and not understood.comments and not understood.ctes:
            return sql, parameters
        expressions: list[str] = []
        more: dict[str, Any] = {}
        for spec in seen:
            number, dirty = self._numbers[spec], self._dirty[spec]
            shadow = self._shadow(spec, connection)
            only = self._locked.keys[spec] if spec in closed else None
            same = shadow.same(dirty, self._committed.get(spec, {}))
            expressions.append(shadow.seen(number, dirty, only, same))
            more |= shadow.parameters(number, dirty, only, same)
        shadows = {spec: f"activedb_seen_{self._numbers[spec]}" for spec in seen}
        edits = edits_of(plain, understood, targets, shadows, self._names, expressions)
        return plain.edited(edits), {**parameters, **more} if more else parameters

    def _targets(self, understood: SelectAnalysis) -> Targets:
        found = [(ref, self._names.table(ref)) for ref in understood.references]
        return [(ref, None if t is None else self._tables.spec(t)) for ref, t in found]

    def _check_locks(self, plain: PlainText, targets: Targets, sent: Sent) -> None:
        """Raise `Unlocked` unless all that a statement reads is locked."""
        keys = self._locked.keys
        named = {spec for _, spec in targets if spec is not None}
        is_locked = named <= self._dirty.keys()
        if is_locked and keys.keys().isdisjoint(named):
            return
        if is_locked and sent in self._locked.checked:
            return
        mentions = mentions_of(plain, [spec for _, spec in targets], sent[1])
        for mention in mentions if is_locked else ():
            if mention.spec in keys:
                known = mention.keys()
                if known is None or not keys[mention.spec].issuperset(known):
                    raise Unlocked(mentions, sent)
        if not is_locked:
            raise Unlocked(mentions, sent)

    def _shadow(self, spec: TableSpec, connection: Connection) -> Shadow:
        return shadow_of(spec, connection.dialect, self._schema)


def _before(
    connection: Connection,
    cursor: Any,
    sql: str,
    parameters: Any,
    context: Any,
    executemany: bool,
) -> tuple[str, Any]:
    """Return the statement to send, and its parameters; SQLAlchemy calls it before each one."""
    sphere = _laid_over.get(connection)
    return (sql, parameters) if sphere is None else sphere.edited(connection, sql, parameters)


def _check(understood: SelectAnalysis, named: Iterable[TableSpec]) -> None:
    known = {str(c.name) for spec in named for c in spec.table.columns}
    for name in understood.hidden_columns - known:
        raise UnsupportedStatement(
            f"the statement reads the system column {name}, which uncommitted rows do not have; "
            f"use the primary key"
        )
    for name in understood.ctes:
        if name.startswith(_OURS):
            raise UnsupportedStatement(f"names like {name} are kept for activedb; use another")


# -- rewriting of a statement's text so that it names the shadows of tables --------------------


Targets: TypeAlias = Sequence[tuple[Reference, TableSpec | None]]
"""Meaning of each reference; None for a system table of the server."""


def edits_of(
    plain: PlainText,
    understood: SelectAnalysis,
    targets: Targets,
    shadows: Mapping[TableSpec, str],
    names: TableNames,
    expressions: Sequence[str],
) -> list[Edit]:
    """Return the edits to the text; everything else stays as it was written.

    Parameters
    ----------
    shadows : mapping of TableSpec to str
        Names that replace the tables.
    expressions : sequence of str
        Common table expressions that define these names.

    Raises
    ------
    UnsupportedStatement
        If a column's table is ambiguous.
    """
    rewriting = _Rewriting(plain, understood, targets, shadows, names)
    edits = [*understood.comments, *rewriting.of_tables()]
    edits += rewriting.of_columns()
    if expressions:
        head, listed = understood.head, ", ".join(expressions)
        edits.append(Edit(head, head, f" {listed}," if understood.has_with else f"WITH {listed} "))
    return edits


class _Rewriting:
    """Edits of one statement.

    Each table keeps its alias, or gets its own name as one; so the columns need no change, unless
    they are also qualified with a schema.
    """

    def __init__(
        self,
        plain: PlainText,
        understood: SelectAnalysis,
        targets: Targets,
        shadows: Mapping[TableSpec, str],
        names: TableNames,
    ):
        self._plain = plain
        self._understood = understood
        self._targets = targets
        self._shadows = shadows
        self._names = names
        self._double = _of_two_tables(targets)
        self._prefixes: dict[TableSpec, str] = {}

    def of_tables(self) -> Iterator[Edit]:
        """Yield the edits that replace table names by their shadows."""
        for reference, spec in self._targets:
            if spec is None:
                continue
            if spec in self._shadows:
                name = self._shadows[spec]
            elif self._names.must_qualify and self._is_hidden(reference):
                name = self._names.real(spec)
            else:
                continue
            alias = self._alias(reference, spec)
            if reference.grouping is not None and spec in self._shadows:
                yield from self._of_grouping(reference, spec, alias or name)
            if alias is not None and not reference.is_named and reference.takes_alias:
                self._prefixes[spec] = alias
                name = f"{name} AS {alias}"
            elif not reference.is_named:
                self._prefixes[spec] = name
            yield Edit(reference.start, reference.end, name)

    def of_columns(self) -> Iterator[Edit]:
        """Yield the edits of qualified columns, for the new names. REQUIRES: `of_tables`."""
        for qualified in self._understood.qualified:
            table = self._names.find(qualified)
            for spec, prefix in self._prefixes.items():
                if spec.table is table:
                    yield Edit(qualified.start, qualified.end, prefix)

    def _is_hidden(self, reference: Reference) -> bool:
        """Return whether a common table expression elsewhere has the table's name."""
        return reference.schema is None and reference.name in self._understood.ctes

    def _alias(self, reference: Reference, spec: TableSpec) -> str | None:
        """Return the table's alias in the statement; None to use the name of its shadow."""
        grouping = reference.grouping
        if reference.is_named:
            return None if grouping is None else grouping.prefix
        if reference.name in self._double and spec in self._shadows:
            if reference.name in self._understood.prefixes:
                raise UnsupportedStatement(
                    f"the statement reads several tables called {reference.name}, some of them "
                    f"with uncommitted rows: give each an alias"
                )
            return None
        return self._plain.restored(reference.written)

    def _of_grouping(self, reference: Reference, spec: TableSpec, prefix: str) -> Iterator[Edit]:
        """Add the columns to GROUP BY that functionally depend on the table's primary key."""
        grouping = reference.grouping
        assert grouping is not None
        places = dict(grouping.columns)
        if not places.keys() >= set(spec.key_columns):
            return
        more = [
            f", {prefix}.{self._names.quoted(name)}"
            for name in (str(c.name) for c in spec.table.columns)
            if name not in places and (grouping.has_star or name in grouping.named)
        ]
        end = places[spec.key_columns[-1]]
        yield Edit(end, end, "".join(more))


def _of_two_tables(targets: Targets) -> set[str]:
    """Return the names under which more than one table is read without an alias."""
    meanings: dict[str, set[Any]] = {}
    for reference, spec in targets:
        if not reference.is_named:
            meant = (reference.schema, reference.name) if spec is None else spec
            meanings.setdefault(reference.name, set()).add(meant)
    return {name for name, meant in meanings.items() if len(meant) > 1}
