"""Keys and predicates to which a SELECT restricts tables, and the rows that FOR UPDATE locks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Column, Select, Table, TextClause, inspect, tuple_
from sqlalchemy.exc import CompileError
from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    BooleanClauseList,
    ClauseElement,
    Null,
    Tuple,
)
from sqlalchemy.sql.selectable import LABEL_STYLE_DEFAULT, CompoundSelect, Join, TextualSelect
from sqlalchemy.types import TupleType

from activedb.errors import UnsupportedStatement
from activedb.store.sql._restrictions import (
    KEYS_PINNED_MAX,
    Condition,
    form_of,
    is_plain,
    keeps_null,
)
from activedb.store.sql._tables import Key
from lockmgr import InRange, NullTest, OneOf, Predicate

__all__ = ["LockingRead", "PinnedKeys", "pinned_keys", "plan_locks"]


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
