"""Analysis of UPDATE, DELETE and INSERT: rows to lock, values to write.

`execute` analyses statements, so a write is built from the table, its columns and pieces of text;
values accompany the text as bound parameters, and are never part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from sqlalchemy import (
    Column,
    Delete,
    Dialect,
    Insert,
    Select,
    Table,
    TextClause,
    Update,
    bindparam,
    cast,
    delete,
    func,
    insert,
    inspect,
    literal,
    select,
    text,
    tuple_,
    type_coerce,
    update,
)
from sqlalchemy import Sequence as Numbers
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BindParameter, ClauseElement
from sqlalchemy.sql.selectable import FromClause, SelectBase

from activedb.errors import InvalidRow, UnsupportedStatement
from activedb.store.sql._computed_numbers import computed_rows, computed_value
from activedb.store.sql._tables import Key, Row, TableSpec

__all__ = [
    "Parameters",
    "Returning",
    "SqlPiece",
    "StatementPlan",
    "delete_of",
    "insert_of",
    "insert_of_rows",
    "numbering",
    "plan_write",
    "rows_by_default",
    "select_of",
    "update_of",
]


@dataclass(frozen=True, slots=True)
class SqlPiece:
    """Piece of SQL.

    Attributes
    ----------
    sql : str
        Text with ``:name`` for each parameter; any other colon has a backslash before it.
    names : tuple of str
        The parameters in it.
    """

    sql: str
    names: tuple[str, ...] = ()

    def bound(self, values: Mapping[str, Any], *, brackets: bool = True) -> TextClause:
        """Return the piece with the values of its parameters."""
        made = text(f"({self.sql})" if brackets else self.sql)
        return made.bindparams(**{name: values[name] for name in self.names})


def select_of(piece: SqlPiece, values: Mapping[str, Any]) -> Any:
    """Build a SELECT, for `query`."""
    return piece.bound(values, brackets=False)


def update_of(
    table: Table,
    assigned: Mapping[str, SqlPiece],
    where: SqlPiece | None,
    values: Mapping[str, Any],
) -> Any:
    """Build an UPDATE of the columns named in `assigned`, for `execute`."""
    made = update(table).values(_cells(table, assigned, values))
    return made if where is None else made.where(where.bound(values))


def delete_of(table: Table, where: SqlPiece | None, values: Mapping[str, Any]) -> Any:
    """Build a DELETE, for `execute`."""
    made = delete(table)
    return made if where is None else made.where(where.bound(values))


def insert_of_rows(
    table: Table, rows: Sequence[Mapping[str, SqlPiece]], values: Mapping[str, Any]
) -> Any:
    """Build an INSERT of rows, for `execute`."""
    return insert(table).values([_cells(table, row, values) for row in rows])


def insert_of(
    table: Table, columns: Sequence[str], select: SqlPiece, values: Mapping[str, Any]
) -> Any:
    """Build an INSERT of a SELECT's rows, for `execute`."""
    found = select.bound(values, brackets=False).columns(
        *(Column(name, table.c[name].type) for name in columns)
    )
    return insert(table).from_select(list(columns), found)


def _cells(
    table: Table, pieces: Mapping[str, SqlPiece], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return values by column: a lone parameter stays as it is, to get the column's type."""
    return {
        name: values[piece.names[0]]
        if piece.names and piece.sql == f":{piece.names[0]}"
        else type_coerce(piece.bound(values), table.c[name].type)
        for name, piece in pieces.items()
    }


# -- analysis of UPDATE, DELETE and INSERT: the rows to read and the values to write ---------------


Parameters: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
"""Values for the parameters of a statement; for an INSERT also the rows to insert."""

_EXPRESSIONS_MAX = 1_000  # columns in one SELECT


@dataclass(frozen=True, slots=True)
class StatementPlan:
    """Rows and values that a write statement amounts to.

    Attributes
    ----------
    kind : {"insert", "update", "delete"}
    table : sqlalchemy.Table
    columns : sequence of str
        Names of the columns written, in the order of the values.
    select : SELECT or None
        For update and delete: primary key, then new values. For insert: the rows to insert, or
        the values of `places`.
    rows : list of list or None
        Rows of an INSERT … VALUES.
    places : list of (int, int)
        Row and column of the values in `rows` that the database has to compute.
    returning : Returning or None
    """

    kind: Literal["insert", "update", "delete"]
    table: Table
    columns: Sequence[str]
    select: Any = None
    rows: list[list[Any]] | None = None
    places: list[tuple[int, int]] = field(default_factory=list)
    returning: Returning | None = None


class Returning:
    """RETURNING clause of a write statement.

    Attributes
    ----------
    names : tuple of str or None
        Returned columns; None unless all of them are plain columns of a row.
    """

    def __init__(self, statement: Insert | Update | Delete, table: Table):
        if any("parententity" in e._annotations for e in _whole(statement._returning)):
            raise UnsupportedStatement(
                "RETURNING gives no objects of mapped classes: name the attributes, or query() the "
                "objects afterwards"
            )
        self._table = table
        self._elements: list[Any] = list(statement._all_selected_columns)
        for element in self._elements:
            _check_returned(element, table)
        plain = [e for e in self._elements if isinstance(e, Column) and e.computed is None]
        is_plain = len(plain) == len(self._elements)
        self.names = tuple(str(e.name) for e in plain) if is_plain else None

    def values(self, row: Row) -> tuple[Any, ...]:
        """Return the row's values in RETURNING. REQUIRES: `names`."""
        assert self.names is not None
        return tuple([row[name] for name in self.names])

    def select(self, keys: Sequence[Key]) -> Select[Any]:
        """Return a SELECT of primary key and returned values, for the rows with these keys."""
        columns = list(self._table.primary_key.columns)
        if len(columns) == 1:
            chosen = columns[0].in_([key[0] for key in keys])
        else:
            chosen = tuple_(*columns).in_(list(keys))
        return select(*columns, *self._elements).where(chosen)


def _whole(elements: Iterable[Any]) -> Iterator[FromClause]:
    return (e for e in elements if isinstance(e, FromClause))


def _check_returned(element: Any, table: Table) -> None:
    for part in visitors.iterate(element):
        if isinstance(part, SelectBase | TextClause) or (
            isinstance(part, Column) and part.table is not None and part.table.name != table.name
        ):
            raise UnsupportedStatement(
                f"RETURNING takes columns of {table.fullname} and expressions of them, not "
                f"{element}; query() the rest afterwards"
            )


def plan_write(statement: Any, parameters: Parameters = None) -> StatementPlan:
    """Analyse a write statement.

    Raises
    ------
    UnsupportedStatement
        If it is not an INSERT, UPDATE or DELETE built with SQLAlchemy, or uses an unsupported
        feature.
    """
    if not isinstance(statement, Insert | Update | Delete) or not isinstance(
        statement.table, Table
    ):
        raise UnsupportedStatement(
            "execute() takes sqlalchemy.insert(), update() or delete() of one table; "
            "use query() for a SELECT"
        )
    if statement._independent_ctes:
        raise UnsupportedStatement("add_cte() is not supported here; use the CTE in a subquery")
    table = statement.table
    mapper = _mapper(statement)
    returning = Returning(statement, table) if statement._returning else None
    if isinstance(statement, Insert):
        return _plan_insert(statement, table, mapper, parameters, returning)
    if parameters is not None and not isinstance(parameters, Mapping):
        raise UnsupportedStatement("update() and delete() take one set of parameters")
    keys = [_attribute(column, mapper) for column in table.primary_key.columns]
    condition = statement.whereclause
    assigned = _assigned(statement, table, mapper) if isinstance(statement, Update) else {}
    chosen = select(*keys, *(value.label(f"new_{n}") for n, value in assigned.items()))
    if condition is not None:
        chosen = chosen.where(condition)
    kind: Literal["update", "delete"] = "delete" if isinstance(statement, Delete) else "update"
    return StatementPlan(
        kind, table, list(assigned), select=chosen.order_by(*keys), returning=returning
    )


def _mapper(statement: Insert | Update | Delete) -> Any:
    """Return the mapper of the statement's class, or None for a Table."""
    entity = statement.entity_description.get("entity")
    if entity is None:
        return None
    mapper = inspect(entity)
    if mapper.local_table is not mapper.persist_selectable:
        raise UnsupportedStatement(
            f"{entity.__name__} lies in several tables (joined-table inheritance); write the "
            f"rows of each table by itself"
        )
    return mapper


def _attribute(column: Any, mapper: Any) -> Any:
    """Return a column as an attribute of its class, which for a subclass selects only its rows."""
    if mapper is None:
        return column
    return getattr(mapper.class_, mapper.get_property_by_column(column).key)


def _name(key: Any, table: Table, mapper: Any) -> str:
    """Return the name of the column that a key of values() means."""
    if not isinstance(key, str):
        return str(getattr(key, "name", key))
    if mapper is not None and key in mapper.column_attrs:
        return str(mapper.column_attrs[key].columns[0].name)
    return str(table.c[key].name) if key in table.c else key


def _assigned(statement: Update, table: Table, mapper: Any) -> dict[str, Any]:
    values = statement._values or dict(getattr(statement, "_ordered_values", None) or ())
    if not values:
        raise UnsupportedStatement("update() without values() changes nothing; add values()")
    assigned: dict[str, Any] = {}
    for key, value in values.items():
        name = _name(key, table, mapper)
        if isinstance(value, TextClause):
            raise UnsupportedStatement(
                f"values() takes no text() for {name}; use literal_column() or an expression"
            )
        element = value if isinstance(value, ClauseElement) else literal(value)
        if isinstance(element, BindParameter) and not element.required and name in table.c:
            element = literal(element.effective_value, type_=table.c[name].type)
        assigned[name] = computed_value(element, table, name)
    return assigned


def _plan_insert(
    statement: Insert,
    table: Table,
    mapper: Any,
    parameters: Parameters,
    returning: Returning | None,
) -> StatementPlan:
    if getattr(statement, "_post_values_clause", None) is not None:
        raise UnsupportedStatement("ON CONFLICT is not supported; get() the row, then decide")
    if statement.select is not None:
        names = [_name(c, table, mapper) for c in statement._select_names or ()]
        chosen = computed_rows(statement.select, table, names)
        return StatementPlan("insert", table, names, select=chosen, returning=returning)
    named = [
        {_name(key, table, mapper): _plain(value, given) for key, value in record.items()}
        for record, given in _records(statement, parameters)
    ]
    if mapper is not None and mapper.polymorphic_on is not None:
        kind = str(mapper.polymorphic_on.name)
        named = [{kind: mapper.polymorphic_identity, **record} for record in named]
    columns = list(named[0]) if named else []
    if any(record.keys() != named[0].keys() for record in named):
        raise UnsupportedStatement("every row of an insert() needs the same columns")
    rows = [[record[name] for name in columns] for record in named]
    places = [
        (i, j)
        for i, row in enumerate(rows)
        for j, value in enumerate(row)
        if isinstance(value, ClauseElement)
    ]
    if len(places) > _EXPRESSIONS_MAX:
        raise UnsupportedStatement(
            f"an insert() of values takes {_EXPRESSIONS_MAX} expressions at most; use from_select()"
        )
    cells = [computed_value(_cell(rows[i][j]), table, columns[j]) for i, j in places]
    computed = select(*cells) if places else None
    return StatementPlan("insert", table, columns, computed, rows, places, returning)


def _records(
    statement: Insert, parameters: Parameters
) -> Iterator[tuple[dict[Any, Any], Mapping[str, Any]]]:
    """Yield the rows of an INSERT … VALUES, or those passed as parameters.

    Each comes with the values of the named parameters that it may use.
    """
    given = parameters if isinstance(parameters, Mapping) else {}
    multiple = [record for group in statement._multi_values for record in group]
    names = list(statement.table.columns.keys())
    for record in multiple:
        if not isinstance(record, Mapping) and len(record) != len(names):
            raise UnsupportedStatement(
                f"a row of values() has {len(record)} values, and the table {len(names)} columns"
            )
        yield (
            dict(record if isinstance(record, Mapping) else zip(names, record, strict=True)),
            given,
        )
    if multiple:
        return
    common = dict(statement._values or {})
    used = {each.key for value in common.values() for each in _required(value)}
    for each in _several(parameters):
        yield common | {name: value for name, value in each.items() if name not in used}, each


def _several(parameters: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rows that are passed as parameters, or the only values of parameters."""
    if parameters is None or isinstance(parameters, Mapping):
        yield parameters or {}
        return
    if not isinstance(parameters, Iterable):
        raise InvalidRow(
            f"an insert() takes a row, or a list of rows, mappings of columns to values, not "
            f"{type(parameters).__name__}"
        )
    for each in parameters:
        if not isinstance(each, Mapping):
            raise InvalidRow(
                f"a row of an insert() is a mapping of columns to values, not {type(each).__name__}"
            )
        yield each


def _required(value: Any) -> list[BindParameter[Any]]:
    """Return the parameters in a value or expression that have no value yet."""
    parts = visitors.iterate(value) if isinstance(value, ClauseElement) else ()
    return [part for part in parts if isinstance(part, BindParameter) and part.required]


def _plain(value: Any, parameters: Mapping[str, Any]) -> Any:
    """Return a value, or an expression whose parameters have values."""
    used = {each.key for each in _required(value)}
    missing = sorted(used - parameters.keys())
    if missing:
        raise UnsupportedStatement(f"give a value for the parameter {missing[0]}")
    if isinstance(value, BindParameter):
        return parameters[value.key] if used else value.effective_value

    def given(element: Any, **_: Any) -> Any:
        is_open = isinstance(element, BindParameter) and element.required
        if not is_open:
            return None
        value = parameters[element.key]
        return bindparam(None, value, type_=element.type, unique=True, expanding=element.expanding)

    return visitors.replacement_traverse(value, {}, given) if used else value


def _cell(value: Any) -> Any:
    if isinstance(value, TextClause):
        raise UnsupportedStatement("values() takes no text(); use literal_column()")
    return value.scalar_subquery() if isinstance(value, SelectBase) else value


def rows_by_default(columns: Sequence[Select[Any]], count: int) -> Select[Any]:
    """Return a SELECT that computes `columns` on the server, again for each of `count` rows."""
    numbers = select(literal(1).label("number")).cte("activedb_numbers", recursive=True)
    numbers = numbers.union_all(select(numbers.c.number + 1).where(numbers.c.number < count))
    return select(*(c for s in columns for c in s.selected_columns)).select_from(numbers)


def numbering(dialect: Dialect, spec: TableSpec, name: str) -> Select[Any]:
    """Return a SELECT of the next number of a column that a Postgres server generates.

    It is NULL if the column has no sequence.
    """
    column = spec.table.columns[name]
    if isinstance(column.default, Numbers):
        return select(column.default.next_value())
    declared: Any = getattr(column.server_default, "arg", None)
    if isinstance(declared, ClauseElement):
        return select(cast(declared, column.type))
    table = dialect.identifier_preparer.format_table(spec.table).replace("%%", "%")
    return select(func.nextval(func.pg_get_serial_sequence(table, name)))
