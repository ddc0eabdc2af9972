"""Analysis of UPDATE, DELETE, INSERT and SELECT … FOR UPDATE: rows to lock, values to write.

`execute` analyses statements, so a write is built from the table, its columns and pieces of text;
values accompany the text as bound parameters, and are never part of it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from itertools import product
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import (
    Column,
    Delete,
    Dialect,
    Float,
    Insert,
    Integer,
    Numeric,
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
from sqlalchemy.exc import CompileError
from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    BooleanClauseList,
    ClauseElement,
    Label,
    Null,
    Tuple,
)
from sqlalchemy.sql.selectable import (
    LABEL_STYLE_DEFAULT,
    CompoundSelect,
    FromClause,
    Join,
    SelectBase,
    TextualSelect,
)
from sqlalchemy.types import NullType, TupleType, TypeDecorator, TypeEngine

from activedb.errors import InvalidRow, UnsupportedStatement
from activedb.store.sql._defaults import processed, undecorated
from activedb.store.sql._restrictions import (
    KEYS_PINNED_MAX,
    Condition,
    form_of,
    is_plain,
    keeps_null,
)
from activedb.store.sql._tables import Key, Row, TableSpec, decimal_form
from lockmgr import InRange, NullTest, OneOf, Predicate

__all__ = [
    "LockingRead",
    "Parameters",
    "PinnedKeys",
    "Returning",
    "SqlPiece",
    "StatementPlan",
    "delete_of",
    "insert_of",
    "insert_of_rows",
    "numbering",
    "pinned_keys",
    "plan_locks",
    "plan_write",
    "rows_by_default",
    "select_of",
    "update_of",
]


class LockingRead:
    """SELECT that locks the rows it returns.

    Attributes
    ----------
    table : sqlalchemy.Table
        Table whose rows are locked.
    plain : SELECT
        The statement without its locks.
    pinned : PinnedKeys
        Keys to which it restricts tables.
    limit : int or None
        Maximum number of rows.
    skip_locked, nowait : bool
    """

    def __init__(self, statement: Any, table: Table, plain: Any, pinned: PinnedKeys):
        wish = statement._for_update_arg
        self.table = table
        self.skip_locked = bool(wish.skip_locked)
        self.nowait = bool(wish.nowait)
        self.plain = plain
        self.pinned = pinned
        plain_columns = pinned.columns is not None
        key = table.primary_key.columns
        self._keys = list(key) if plain_columns else _key_columns(statement, table)
        # A column by whose name rows are ordered is selected, too.
        self._others: Sequence[Any] = ()
        if any(
            each.__visit_name__ == "textual_label_reference"
            for clause in statement._order_by_clauses
            for each in visitors.iterate(clause)
        ):
            self._others = list(plain.selected_columns)
        try:
            self.limit: int | None = statement._limit
        except CompileError as error:
            raise UnsupportedStatement("with_for_update() takes a number as limit()") from error

    def keys(self, limit: int | None) -> Any:
        """Return a SELECT of the first rows, in the statement's order; `key` reads their keys."""
        return self._only_keys(self.plain).limit(limit)

    def keys_among(self, keys: Sequence[Key]) -> Any:
        """Return a SELECT of those `keys` whose rows the statement selects; `key` reads them."""
        return self._only_keys(self.rows(keys))

    def key(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the key at the end of a row that `keys` or `keys_among` selects."""
        return tuple(row)[-len(self._keys) :]

    def _only_keys(self, statement: Any) -> Any:
        columns = (*self._others, *self._keys)
        return statement.with_only_columns(*columns, maintain_column_froms=True)

    def rows(self, keys: Sequence[Key]) -> Any:
        """Return the statement restricted to the rows with these keys."""
        whole = self.plain.limit(None)
        if len(self._keys) == 1:
            return whole.where(self._keys[0].in_([key[0] for key in keys]))
        return whole.where(tuple_(*self._keys).in_(list(keys)))


def plan_locks(statement: Any, parameters: Mapping[str, Any] | None = None) -> LockingRead | Any:
    """Analyse a SELECT … FOR UPDATE; return any other statement unchanged.

    FOR SHARE is left out: a query locks that way anyway.

    Parameters
    ----------
    parameters : mapping, optional
        Values of the statement's named parameters.

    Raises
    ------
    UnsupportedStatement
        If it does not select rows of exactly one table.
    """
    wish = getattr(statement, "_for_update_arg", None)
    if wish is None:
        return statement
    if wish.read and not (wish.nowait or wish.skip_locked):
        return _without_locks(statement)
    froms: Sequence[Any] = ()
    plain = _without_locks(statement)
    pinned = pinned_keys(plain, parameters)
    if isinstance(statement, Select):
        # Otherwise the statement would be compiled to find out.
        known = pinned.columns
        froms = [known[0].table] if known else statement.get_final_froms()
    if len(froms) != 1 or not isinstance(froms[0], Table):
        raise UnsupportedStatement(
            "with_for_update() takes a select() from one table, without joins; lock rows of the "
            "others with get(…, for_update=True)"
        )
    for part, name in (
        ("_distinct", "distinct()"),
        ("_group_by_clauses", "group_by()"),
        ("_having_criteria", "having()"),
        ("_offset_clause", "offset()"),
        ("_fetch_clause", "fetch()"),
    ):
        value = getattr(statement, part, None)
        if value is not None and value is not False and value != ():
            raise UnsupportedStatement(f"with_for_update() does not go together with {name}")
    return LockingRead(statement, froms[0], plain, pinned)


@dataclass(frozen=True, slots=True)
class PinnedKeys:
    """Primary keys to which the WHERE clause of a SELECT restricts tables.

    Attributes
    ----------
    by_table : dict of Table to list of tuple
        Keys by table; tables without such a restriction are left out. They apply to each mention of
        the table in the statement's own FROM clause; there is only one, unless the table is also
        read under an alias or in a subquery.
    columns : tuple of Column or None
        Columns that the statement returns, if it returns plain columns of all rows of its only
        table that have the keys, or satisfy the predicate, and does nothing else.
    predicate : Predicate or None
        With `columns`: the condition of the statement, if that is not about keys.
    may_restrict : bool
        False if the statement is not worth a look at the text that is sent: it has no condition.
    """

    by_table: Mapping[Table, list[tuple[Any, ...]]]
    columns: tuple[Column[Any], ...] | None
    may_restrict: bool
    predicate: Predicate | None = None


def pinned_keys(statement: Any, parameters: Mapping[str, Any] | None = None) -> PinnedKeys:
    """Return the primary keys to which a statement restricts tables. O(conditions, keys).

    Parameters
    ----------
    parameters : mapping, optional
        Values of the statement's named parameters.
    """
    if isinstance(statement, CompoundSelect | TextClause | TextualSelect | FromStatement):
        return PinnedKeys({}, None, may_restrict=True)
    if not isinstance(statement, Select):
        return PinnedKeys({}, None, may_restrict=False)
    given = parameters or {}
    used: set[str] = set()
    single: dict[Table, dict[str, Sequence[Any]]] = {}
    found: dict[Table, list[tuple[Any, ...]]] = {}
    conditions = 0
    compared: list[tuple[Column[Any], Condition]] = []
    for condition in _conjuncts(statement._where_criteria):
        conditions += 1
        equated, values = _equation(condition, given, used)
        simple = _comparison(condition, given, used) if values is None else None
        if simple is not None:
            compared.append(simple)
        elif values and len(equated) == 1:
            compared.append((equated[0], OneOf(equated[0].name, values)))
        tables = {column.table for column in equated}
        if values is None or len(tables) != 1:
            continue
        table: Any = tables.pop()
        if not isinstance(table, Table):
            continue  # an alias, or a subquery
        names = [column.name for column in equated]
        key = [column.name for column in table.primary_key.columns]
        if len(names) == 1 and names[0] in key:
            single.setdefault(table, {})[names[0]] = values
        elif sorted(names) == sorted(key):
            places = [names.index(name) for name in key]
            found[table] = [tuple([value[place] for place in places]) for value in values]
    for table, by_name in single.items():
        pinned = [by_name.get(column.name, ()) for column in table.primary_key.columns]
        if 0 < math.prod(map(len, pinned)) <= KEYS_PINNED_MAX:
            found[table] = list(product(*pinned))
    found = {table: keys for table, keys in found.items() if len(keys) <= KEYS_PINNED_MAX}
    columns: tuple[Column[Any], ...] | None = None
    predicate: Predicate | None = None
    # Further parameters may be meant for values that SQLAlchemy has named.
    if len(found) == 1 and used.issuperset(given):
        (table,) = found
        if conditions == (len(single[table]) if table in single else 1):  # there is no other one
            columns = _plain_columns(statement, table)
    elif not found and conditions == len(compared) and used.issuperset(given):
        predicate = _predicate(compared)
        if predicate is not None:
            columns = _plain_columns(statement, compared[0][0].table)
    may_restrict = conditions > 0 or _has_conditions(statement)
    return PinnedKeys(found, columns, may_restrict, None if columns is None else predicate)


def _predicate(compared: Sequence[tuple[Column[Any], Condition]]) -> Predicate | None:
    """Return conditions on columns of one table as a predicate; None if it is not that simple."""
    names = {column.name for column, _ in compared}
    tables: set[Any] = {column.table for column, _ in compared}
    if len(names) < len(compared) or len(tables) != 1 or not isinstance(tables.pop(), Table):
        return None
    for column, condition in compared:
        is_long = isinstance(condition, OneOf) and len(condition.values) > KEYS_PINNED_MAX
        if column.computed is not None or is_long:
            return None
    return Predicate(condition for _, condition in compared)


_CLAUSES = {name for name, _ in Select._traverse_internals} - {
    "_label_style",
    "_raw_columns",
    "_where_criteria",
} | {"_execution_options"}
"""Attributes that a SELECT of columns with a WHERE clause alone does not set."""


def _plain_columns(statement: Select[Any], table: Table) -> tuple[Column[Any], ...] | None:
    """Return the selected columns if they are plain columns of a table, and nothing else is."""
    for name, value in vars(statement).items():
        if name in _CLAUSES and (isinstance(value, ClauseElement) or value):
            return None
    if statement._label_style is not LABEL_STYLE_DEFAULT:
        return None
    chosen: list[Any] = []
    for each in statement._raw_columns:
        chosen += each.c if type(each) is Table else [each]
    is_plain = all(type(c) is Column and c.table is table and c.computed is None for c in chosen)
    return tuple(chosen) if is_plain and len({c.name for c in chosen}) == len(chosen) else None


def _conjuncts(conditions: Iterable[Any]) -> Iterator[Any]:
    for condition in conditions:
        if isinstance(condition, BooleanClauseList) and condition.operator is operators.and_:
            yield from _conjuncts(condition.clauses)
        else:
            yield condition


def _comparison(
    condition: Any, parameters: Mapping[str, Any], used: set[str]
) -> tuple[Column[Any], Condition] | None:
    """Return a comparison of a column with NULL, or in the order of whole numbers or dates.

    Adds the name of the parameter to `used`.
    """
    if not isinstance(condition, BinaryExpression) or not isinstance(condition.left, Column):
        return None
    column: Column[Any] = condition.left._deannotate()
    right = condition.right
    if condition.operator in (operators.is_, operators.is_not) and isinstance(right, Null):
        if not keeps_null(column.type):
            return None
        return column, NullTest(column.name, negated=condition.operator is operators.is_not)
    bounds = _BOUNDS.get(condition.operator)
    if bounds is None or not isinstance(right, BindParameter):
        return None
    used.add(right.key)
    value = parameters.get(right.key, right.effective_value)
    form = form_of(column.type)
    if form not in (int, date) or form_of(right.type) is not form:
        return None
    return (column, bounds(column.name, value)) if is_plain(value, column.type) else None


_BOUNDS: Mapping[Any, Callable[[str, Any], InRange]] = {
    operators.gt: lambda name, value: InRange(name, value, with_low=False),
    operators.ge: lambda name, value: InRange(name, value),
    operators.lt: lambda name, value: InRange(name, high=value, with_high=False),
    operators.le: lambda name, value: InRange(name, high=value),
}


def _equation(
    condition: Any, parameters: Mapping[str, Any], used: set[str]
) -> tuple[list[Column[Any]], Sequence[Any] | None]:
    """Return the columns of an equation or an IN with values, and these; None: it is another.

    Adds the name of the parameter to `used`.
    """
    if not isinstance(condition, BinaryExpression):
        return [], None
    left, right = condition.left, condition.right
    if condition.operator is operators.eq and isinstance(left, BindParameter):
        left, right = right, left
    sides = list(left.clauses) if isinstance(left, Tuple) else [left]
    columns = [side for side in sides if isinstance(side, Column)]
    if not isinstance(right, BindParameter) or len(columns) < len(sides):
        return [], None
    used.add(right.key)
    value = parameters.get(right.key, right.effective_value)
    if condition.operator is operators.eq and len(columns) == 1:
        values: Any = [value]
    elif condition.operator is operators.in_op and isinstance(value, list | tuple | set):
        values = list(value)
    else:
        return [], None
    kinds = [column.type for column in columns]
    sent = right.type.types if isinstance(right.type, TupleType) else [right.type]
    forms = [form_of(kind) for kind in kinds]
    if None in forms or forms != [form_of(kind) for kind in sent]:
        return [], None  # they are converted on their way
    for each in values:
        cells = each if isinstance(left, Tuple) and isinstance(each, tuple | list) else [each]
        if len(cells) != len(kinds) or not all(map(is_plain, cells, kinds)):
            return [], None  # or still to come
    return [column._deannotate() for column in columns], values


_restricting: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""Statements seen before, and whether a part of them may have conditions on rows."""


def _has_conditions(statement: Any) -> bool:
    found = _restricting.get(statement)
    if found is None:
        found = any(map(_restricts, visitors.iterate(statement)))
        _restricting[statement] = found
    return found


def _restricts(part: Any) -> bool:
    """Return whether a part of a statement may have conditions on rows."""
    if isinstance(part, Select):
        return bool(part._where_criteria or part._setup_joins)
    return isinstance(part, Join | TextClause)


def _without_locks(statement: Any) -> Any:
    copied = statement.with_for_update()
    copied._for_update_arg = None
    return copied


def _key_columns(statement: Any, table: Table) -> list[Any]:
    """Return the primary key; for a mapped class its attributes, which select only its rows."""
    entities = (d.get("entity") for d in statement.column_descriptions)
    entity = next((e for e in entities if e is not None), None)
    columns = list(table.primary_key.columns)
    if entity is None:
        return columns
    mapper = inspect(entity)
    if getattr(mapper, "is_aliased_class", False) or mapper.local_table is not table:
        raise UnsupportedStatement("with_for_update() takes a class that is mapped to one table")
    return [getattr(entity, mapper.get_property_by_column(c).key) for c in columns]


# -- statements built from checked pieces of SQL text: those of the rule language ------------------


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
        assigned[name] = _computed(element, table, name)
    return assigned


class _ComputedNumber(TypeDecorator[Any]):
    """Type of a number that the database computes for a column, whichever type it gives it.

    A value is converted as the assignment to the column would on Postgres.

    Parameters
    ----------
    kind : TypeEngine
        Type of the column.
    is_double : bool
        False unless the number is known to be a double, which SQLite does not tell from a decimal.
    """

    impl = Numeric
    cache_ok = True

    def __init__(self, kind: TypeEngine[Any], is_double: bool = False):
        super().__init__()
        self.kind = kind
        self.is_double = is_double

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(self.kind)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        kind = undecorated(self.kind)
        is_single = coltype == _FLOAT4
        convert: Callable[[Any], Any]
        if isinstance(kind, Integer):
            is_half_even = dialect.name == "postgresql" or self.is_double
            convert = partial(_as_whole, is_half_even=is_half_even)
        elif isinstance(kind, Float):
            convert = partial(_as_double, is_single=is_single)
        else:
            digits = 6 if is_single else 15
            convert = partial(_as_decimal, digits=digits, kind=kind)
        if kind is self.kind:
            return convert
        return lambda value: processed(self.kind, "process_result_value", convert(value), dialect)


_FLOAT4 = 700
"""Number of the type at a Postgres server; of its values we get the shortest form."""


def _as_whole(value: Any, *, is_half_even: bool) -> Any:
    """Return a number as a column of whole numbers takes it; anything else as it is.

    A double is rounded to the nearest even number, a decimal away from 0.
    """
    if not isinstance(value, float | Decimal) or not math.isfinite(value):
        return value
    if isinstance(value, float) and is_half_even:
        return round(value)
    return int(Decimal(str(value)).to_integral_value(ROUND_HALF_UP))


def _as_double(value: Any, *, is_single: bool) -> Any:
    """Return a number as a column of doubles takes it; anything else as it is."""
    if is_single and isinstance(value, float):
        return struct.unpack("f", struct.pack("f", value))[0]
    return float(value) if isinstance(value, Decimal) and not value.is_snan() else value


def _as_decimal(value: Any, *, digits: int, kind: Any) -> Any:
    """Return a number as a column of decimals takes it; anything else as it is.

    Postgres takes so many digits of a double.
    """
    if isinstance(value, float):
        value = Decimal(format(value, f".{digits}g"))
    if type(value) is int or isinstance(value, Decimal):
        value = decimal_form(kind)(value)
    return value if kind.asdecimal else _as_double(value, is_single=False)


def _computed(element: Any, table: Table, name: str) -> Any:
    """Return a value for a column, which the database computes."""
    if isinstance(element, Label):
        return _computed(element.element, table, name).label(element.name)
    column: Column[Any] | None = table.c.get(name)
    if column is None or not _is_number(column.type):
        return element
    value = None
    if isinstance(element, BindParameter) and not element.required:
        value = element.effective_value
        if isinstance(undecorated(column.type), Integer) and not isinstance(value, float | Decimal):
            return element
    if not _is_number(element.type) and not isinstance(element.type, NullType):
        return element
    is_double = isinstance(value, float) or isinstance(undecorated(element.type), Float)
    return type_coerce(element, _ComputedNumber(column.type, is_double))


def _is_number(kind: Any) -> bool:
    return isinstance(undecorated(kind), Integer | Numeric | Float)


def _computed_rows(rows: Any, table: Table, names: Sequence[str], *, is_part: bool = False) -> Any:
    """Return a SELECT of rows for the named columns, which the database computes.

    Its text stays the same. `is_part`: of a UNION, say, whose parts have different types.
    """
    if isinstance(rows, CompoundSelect):
        first, *others = rows.selects  # the types are those of the first
        changed = rows._generate()
        changed.selects = [_computed_rows(first, table, names, is_part=True), *others]
        return changed
    if not isinstance(rows, Select | TextualSelect):
        return rows
    found: list[Any] = list(
        rows._raw_columns if isinstance(rows, Select) else rows.selected_columns
    )
    if len(found) != len(names):
        found = list(rows.selected_columns)
    is_read = is_part or isinstance(rows, TextualSelect)  # whose types are not known
    computed = [
        element
        if not is_read and _is_kept(element, table, name)
        else _computed(element, table, name)
        for element, name in zip(found, names, strict=False)
    ]
    if all(each is element for each, element in zip(computed, found, strict=False)):
        return rows
    if isinstance(rows, Select):
        return rows.with_only_columns(*computed, *found[len(names) :])
    columns = (Column(f"new_{n}", each.type) for n, each in enumerate(computed))
    return rows.element.columns(*columns)


def _is_kept(element: Any, table: Table, name: str) -> bool:
    """Return whether a row takes a plain column of the same type, or NULL, as it comes back."""
    if not isinstance(element, Column) or name not in table.c:
        return isinstance(element, Null)
    kinds = element.type, table.c[name].type
    return all(isinstance(kind, Integer) for kind in kinds) or repr(kinds[0]) == repr(kinds[1])


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
        chosen = _computed_rows(statement.select, table, names)
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
    cells = [_computed(_cell(rows[i][j]), table, columns[j]) for i, j in places]
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
