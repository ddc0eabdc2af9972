"""Restrictions of a SELECT to some rows of its tables, from the text that is sent.

A table needs no lock if each mention of it can take rows with certain keys alone, whose rows are
locked instead, or rows that satisfy a certain predicate, which is locked with these rows. The
comparisons that say so are those in the WHERE clause and the joins of the query that mentions the
table::

    SELECT … FROM accounts AS a JOIN owners AS o ON o.id = a.owner WHERE a.id = :id
                                                    ▲                       │
                                  the rows of a, once they are locked ◄─────┘

A row for which a comparison of the WHERE clause does not hold is in no result, whatever is joined,
grouped or computed afterwards. Those of an inner join are like it, and those of an outer join
restrict the side of which only rows that match are taken.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import product
from typing import Any, TypeAlias, TypeGuard

from sqlalchemy import (
    BIGINT,
    BOOLEAN,
    DATE,
    DATETIME,
    DECIMAL,
    DOUBLE,
    DOUBLE_PRECISION,
    FLOAT,
    INTEGER,
    NUMERIC,
    SMALLINT,
    TEXT,
    TIMESTAMP,
    UUID,
    VARCHAR,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Text,
    Unicode,
    UnicodeText,
    Uuid,
)
from sqlalchemy.types import TypeEngine
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

from activedb.errors import InvalidRow
from activedb.store.sql._sql_text import PlainText, folded, is_cte
from activedb.store.sql._tables import Key, Row, TableSpec, instant
from lockmgr import InRange, NullTest, OneOf, Predicate

__all__ = [
    "KEYS_PINNED_MAX",
    "Condition",
    "Mention",
    "form_of",
    "is_plain",
    "keeps_null",
    "mentions_of",
    "restricted_keys",
]

Condition: TypeAlias = OneOf | InRange | NullTest
"""Condition on a column, as a part of a predicate."""

KEYS_PINNED_MAX = 128
"""Upper bound on the rows that a query locks one by one; for more it locks the table."""


@dataclass(frozen=True, slots=True)
class _Placeholder:
    """Value that is sent with the statement.

    Attributes
    ----------
    number : int
        Its number in the text.
    kind : sqlglot.exp.DType or None
        Type to which it is cast; None if to none.
    """

    number: int
    kind: exp.DType | None = None


@dataclass(frozen=True, slots=True)
class _Constant:
    value: bool | int | str


@dataclass(frozen=True, slots=True)
class _ColumnOf:
    """Column of another mention of a table, by its number in the text."""

    mention: int
    column: str


_Operand: TypeAlias = _Placeholder | _Constant | _ColumnOf
_Comparisons: TypeAlias = tuple[tuple[str, str, tuple[_Operand, ...]], ...]
"""Columns, each with an operator, and with operands for one of which the comparison holds."""


@dataclass(frozen=True, slots=True)
class Mention:
    """Place in a statement where a table is read.

    Attributes
    ----------
    spec : TableSpec or None
        None: a table of the server's own.
    comparisons : tuple of (str, str, tuple of operands)
        Columns, each with an operator, and with the operands for one of which the comparison holds
        in every row that the statement takes here.
    values : callable
        Returns the values of a placeholder, by its number; None if they are unknown.
    is_sqlite : bool
        True if the database compares times as text, in whatever form they were sent, decimals as
        floating-point numbers, and truths as 0 and 1.
    """

    spec: TableSpec | None
    comparisons: _Comparisons
    values: Callable[[int], Sequence[Any] | None]
    is_sqlite: bool = False

    def keys(self, values_at: _ValuesAt | None = None) -> list[Key] | None:
        """Return the keys of the only rows that may be taken here; None if they are unknown.

        Parameters
        ----------
        values_at : callable, optional
            Returns the values of a column in the rows taken at another mention, by the mention's
            number and the column's name; None if they are unknown.
        """
        if self.spec is None:
            return None
        if values_at is not None and self._is_empty(values_at):
            return []
        found = self._combinations(self.spec.key_columns, values_at)
        try:
            return None if found is None else [self.spec.key(values) for values in found]
        except InvalidRow:
            return None  # the server decides what such values are equal to

    def unique_values(
        self, values_at: _ValuesAt
    ) -> Iterator[tuple[tuple[str, ...], list[tuple[Any, ...]]]]:
        """Yield the columns of unique constraints, with the only values that they may have here."""
        for columns in () if self.spec is None else self.spec.unique_keys:
            found = self._combinations(columns, values_at)
            if found is not None:
                yield columns, found

    def predicate(self, values_at: _ValuesAt) -> Predicate | None:
        """Return a predicate that all rows taken here satisfy; None if none is known."""
        if self.spec is None:
            return None
        conditions: list[Condition] = []
        for column in self.spec.table.columns:
            if column.computed is not None:
                continue  # rows that are written do not have its value yet
            values, bounds = self._values_in_range(column, values_at), self._range(column)
            nulls = self._nulls(column) if keeps_null(column.type) else []
            if values:
                conditions.append(OneOf(column.name, values))
            elif bounds is not None:
                conditions.append(bounds)
            if values or bounds is not None:
                nulls = [each for each in nulls if not each.negated]
            conditions += nulls
        return Predicate(conditions) if conditions else None

    def _nulls(self, column: Column[Any]) -> list[NullTest]:
        """Return whether a column must be null, or must not."""
        told = {operator for name, operator, _ in self.comparisons if name == column.name}
        return [NullTest(column.name, negated=n) for each, n in _NULLS.items() if each in told]

    def _range(self, column: Column[Any]) -> InRange | None:
        """Return the range in which a column is; None if unknown."""
        low: tuple[Any, bool] | None = None
        high: tuple[Any, bool] | None = None
        for operator, value in self._bounds(column):
            if operator in (">", ">=", "="):
                bound = (value, operator == ">")
                low = bound if low is None else max(low, bound)
            if operator in ("<", "<=", "="):
                bound = (value, operator != "<")
                high = bound if high is None else min(high, bound)
        if low is None and high is None:
            return None
        return InRange(
            column.name,
            None if low is None else low[0],
            None if high is None else high[0],
            with_low=low is None or not low[1],
            with_high=high is None or high[1],
        )

    def _bounds(self, column: Column[Any]) -> Iterator[tuple[str, Any]]:
        """Yield the operators and the single values with which a column is compared."""
        for name, operator, operands in self.comparisons:
            if name != column.name or len(operands) != 1:
                continue
            values = self._values(operands[0], None)
            zone = _ZONES.get(operands[0].kind) if isinstance(operands[0], _Placeholder) else None
            if zone is not None and zone != getattr(column.type, "timezone", None):
                continue  # it is converted by the session's time zone
            value = None if values is None or len(values) != 1 else ordered(values[0], column.type)
            if value is not None and not (self.is_sqlite and isinstance(value, datetime | Decimal)):
                yield operator, value

    def _is_empty(self, values_at: _ValuesAt) -> bool:
        """Return whether no row can be taken here, because a column can have no value."""
        assert self.spec is not None, "only tables have columns"
        columns = self.spec.table.columns
        names = dict.fromkeys(name for name, _, _ in self.comparisons if name in columns)
        return any(self._values_in_range(columns[name], values_at) == [] for name in names)

    def _values_in_range(self, column: Column[Any], values_at: _ValuesAt) -> list[Any] | None:
        """Return the values that a column may have; None if unknown, or too many."""
        values, bounds = self._choices(column, values_at), self._range(column)
        if values is not None and bounds is not None:
            values = [value for value in values if bounds.holds(value)]
        return None if values is None or len(values) > KEYS_PINNED_MAX else values

    def _combinations(
        self, names: Sequence[str], values_at: _ValuesAt | None
    ) -> list[tuple[Any, ...]] | None:
        """Return the values that some columns may have together; None if unknown, or too many."""
        assert self.spec is not None, "only tables have columns"
        choices: list[list[Any]] = []
        for name in names:
            found = self._choices(self.spec.table.columns[name], values_at)
            if found is None:
                return None
            choices.append(found)
        return list(product(*choices)) if math.prod(map(len, choices)) <= KEYS_PINNED_MAX else None

    def _choices(self, column: Column[Any], values_at: _ValuesAt | None) -> list[Any] | None:
        """Return the values that a column may have, without duplicates; None if unknown."""
        if form_of(column.type) is None:
            return None
        known: dict[Any, None] | None = None
        for name, operator, operands in self.comparisons:
            if name != column.name or operator != "=":
                continue
            found: dict[Any, None] = {}
            for operand in operands:
                values = self._values(operand, values_at)
                if self.is_sqlite and form_of(column.type) is bool and _is_bit(values):
                    values = [bool(values[0])]
                if values is None or not all(is_plain(value, column.type) for value in values):
                    break
                found.update(dict.fromkeys(values))
            else:
                known = found if known is None else {each: None for each in known if each in found}
        return None if known is None else list(known)

    def _values(self, operand: _Operand, values_at: _ValuesAt | None) -> Sequence[Any] | None:
        if isinstance(operand, _Constant):
            return [operand.value]
        if isinstance(operand, _Placeholder):
            values, kind = self.values(operand.number), operand.kind
            if kind is None or values is None:
                return values
            # A value of another type is changed by the cast: 1.4 becomes an integer, say.
            return values if all(type(each) is _KEEPING[kind] for each in values) else None
        return None if values_at is None else values_at(operand.mention, operand.column)


_ValuesAt: TypeAlias = Callable[[int, str], Sequence[Any] | None]


def mentions_of(
    plain: PlainText, specs: Sequence[TableSpec | None], parameters: Any
) -> list[Mention]:
    """Return where a statement reads tables.

    Parameters
    ----------
    plain : PlainText
    specs : sequence of TableSpec or None
        The tables, in the order of `SelectAnalysis.references`.
    parameters : mapping or sequence
        The values sent with the statement.
    """
    found = comparisons_of(plain.numbered, plain.language)
    if len(found) != len(specs):
        found = [()] * len(specs)

    def values(number: int) -> Sequence[Any] | None:
        return plain.values(number, parameters)

    as_text = plain.language != "postgres"
    return [Mention(spec, each, values, as_text) for spec, each in zip(specs, found, strict=True)]


def restricted_keys(
    mentions: Sequence[Mention],
    read: Callable[[TableSpec, list[Key]], Iterable[Row | None]],
    find: Callable[[TableSpec, tuple[str, ...], list[tuple[Any, ...]]], list[Key] | None],
    ask: Callable[[TableSpec, Predicate, bool], list[Key] | None],
) -> dict[TableSpec, list[Key] | None]:
    """Return the keys of the only rows that a statement reads, by table, in order.

    None stands for all rows, in place of more than `KEYS_PINNED_MAX`, too. Tables that are joined
    to rows with known keys are restricted by these rows. Predicates are asked for where keys are
    not known.

    Parameters
    ----------
    mentions : sequence of Mention
        All of the statement.
    read : callable
        Locks rows and returns them.
    find : callable
        Locks the rows in which columns have certain values, and returns their keys; None if others
        may come to have them.
    ask : callable
        ``ask(spec, predicate, is_last)`` locks a predicate and the rows that satisfy it, and
        returns their keys; None if there are too many. For the last table, which restricts no
        other, it may return fewer.
    """
    keys: dict[int, list[Key]] = {}
    rows: dict[int, list[Row]] = {}

    def values_at(number: int, name: str) -> Sequence[Any] | None:
        spec = mentions[number].spec
        column = None if spec is None else spec.table.columns.get(name)
        if number not in keys or spec is None or column is None or form_of(column.type) is None:
            return None
        if column.computed is not None:
            return None  # rows that are written do not have its value yet
        if number not in rows:
            rows[number] = [row for row in read(spec, keys[number]) if row is not None]
        return [value for row in rows[number] if (value := row[name]) is not None]

    def keys_at(number: int) -> list[Key] | None:
        mention = mentions[number]
        known = mention.keys(values_at)
        if known is not None or mention.spec is None:
            return known
        by_unique = (find(mention.spec, *each) for each in mention.unique_values(values_at))
        return next((each for each in by_unique if each is not None), None)

    def asked() -> dict[int, list[Key]]:
        """Return the keys of the first mention for which a predicate is known."""
        for number in waiting:
            spec, predicate = mentions[number].spec, mentions[number].predicate(values_at)
            if spec is None or predicate is None or (spec, predicate) in refused:
                continue
            known = ask(spec, predicate, len(waiting) == 1)
            if known is not None:
                return {number: known}
            refused.add((spec, predicate))
        return {}

    refused: set[tuple[TableSpec, Predicate]] = set()
    waiting = list(range(len(mentions)))
    while found := {n: known for n in waiting if (known := keys_at(n)) is not None} or asked():
        keys |= found
        waiting = [number for number in waiting if number not in keys]
    whole = {mentions[number].spec for number in waiting}
    by_table: dict[TableSpec, set[Key]] = {}
    for number, known in keys.items():
        spec = mentions[number].spec
        assert spec is not None, "only tables have keys"
        by_table.setdefault(spec, set()).update(known)
    restricted: dict[TableSpec, list[Key] | None] = {
        spec: None if spec in whole or len(known) > KEYS_PINNED_MAX else spec.in_order(known)
        for spec, known in by_table.items()
    }
    return {**dict.fromkeys(spec for spec in whole if spec is not None), **restricted}


_FORMS: dict[type[Any], type[Any]] = {
    **dict.fromkeys((Boolean, BOOLEAN), bool),
    **dict.fromkeys((Date, DATE), date),
    **dict.fromkeys((Integer, INTEGER, SmallInteger, SMALLINT, BigInteger, BIGINT), int),
    **dict.fromkeys((LargeBinary,), bytes),
    **dict.fromkeys((String, VARCHAR, Text, TEXT, Unicode, UnicodeText), str),
    **dict.fromkeys((Uuid, UUID), uuid.UUID),
}
"""Types of columns whose values have one form each, and of the values as they are here."""


def form_of(kind: TypeEngine[Any]) -> type[Any] | None:
    """Return the Python type of which each value equals one value of a SQL type at most.

    None if there is none: values that look different may be equal at the server then.
    """
    form = _FORMS.get(type(kind))
    if form is None or kind._variant_mapping or getattr(kind, "collation", None) is not None:
        return None
    return form if form is not uuid.UUID or getattr(kind, "as_uuid", False) else None


def is_plain(value: Any, kind: TypeEngine[Any]) -> bool:
    """Return whether a value is of a SQL type as it stands, so that nothing converts it."""
    if type(value) is not form_of(kind):
        return False
    if type(value) is not int:
        return True
    bits = 15 if isinstance(kind, SmallInteger) else 63 if isinstance(kind, BigInteger) else 31
    return -(1 << bits) <= value < 1 << bits


def _is_bit(values: Sequence[Any] | None) -> TypeGuard[Sequence[int]]:
    return values is not None and len(values) == 1 and type(values[0]) is int and 0 <= values[0] < 2


_TIMES = (DateTime, DATETIME, TIMESTAMP)
_DECIMALS = (Numeric, NUMERIC, DECIMAL)
_DOUBLES = (Float, Double, FLOAT, DOUBLE, DOUBLE_PRECISION)
_DOUBLE_MIN = 25  # binary digits from which FLOAT(n) is a double at the server
_EXACT_MAX = 2**53  # up to which each whole number is a double


def ordered(value: Any, kind: TypeEngine[Any]) -> Any:
    """Return a value in the form in which it is compared with those of a SQL type; None if unknown.

    They have the same order here and at the server.
    """
    if kind._variant_mapping:
        return None
    if type(kind) in _TIMES:
        is_one = type(value) is datetime and (value.tzinfo is not None) == getattr(
            kind, "timezone", False
        )
        try:
            return instant(value) if is_one else None
        except (NotImplementedError, OverflowError):  # no offset, or outside the years of UTC
            return None
    if type(kind) in _DECIMALS and getattr(kind, "asdecimal", False):
        is_number = type(value) is int or (type(value) is Decimal and value.is_finite())
        return Decimal(value) if is_number else None
    is_double = (getattr(kind, "precision", None) or _DOUBLE_MIN) >= _DOUBLE_MIN
    if type(kind) in _DOUBLES and is_double and not getattr(kind, "asdecimal", False):
        is_number = type(value) is float or (type(value) is int and abs(value) <= _EXACT_MAX)
        return float(value) if is_number and value == value else None  # not NaN
    return value if form_of(kind) in (int, date) and is_plain(value, kind) else None


def keeps_null(kind: TypeEngine[Any]) -> bool:
    """Return whether None is NULL at the database, and nothing else is: it may be JSON's null."""
    return type(kind) in {*_FORMS, *_TIMES, *_DECIMALS, *_DOUBLES} and not kind._variant_mapping


_NULLS = {"is null": False, "is not null": True}


# -- the text --------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def comparisons_of(text: str, dialect: str) -> Sequence[_Comparisons]:
    """Return the comparisons of each mention, in the order of `SelectAnalysis.references`.

    Without any if the text cannot be analysed. Results are cached.

    Parameters
    ----------
    text : str
        `PlainText.numbered`.
    dialect : str
        sqlglot's name of the dialect.
    """
    language = Dialect.get_or_raise(dialect)
    try:
        tree = language.parser().parse(language.tokenize(text), text)[0]
    except (SqlglotError, RecursionError):
        return ()
    return () if tree is None else tuple(_Reader(tree, dialect).comparisons())


class _Reader:
    """Reader of one syntax tree, in which placeholders are numbered."""

    def __init__(self, tree: exp.Expr, dialect: str):
        self._tree = tree
        self._dialect = dialect
        tables = [
            table
            for table in tree.find_all(exp.Table)
            if isinstance(table.this, exp.Identifier)
            and (table.args.get("db") is not None or not is_cte(table, dialect))
        ]
        self._numbers = {id(table): number for number, table in enumerate(tables)}

    def comparisons(self) -> Iterator[_Comparisons]:
        found: list[list[tuple[str, str, tuple[_Operand, ...]]]] = [[] for _ in self._numbers]
        # NULL may stand for a row without a partner, which says nothing of the rows that have one.
        is_outer = any(join.side for join in self._tree.find_all(exp.Join))
        for select in self._tree.find_all(exp.Select):
            for condition, taken in self._conditions(select):
                for column, operator, operands in self._compared(condition):
                    if operator == "is null" and is_outer:
                        continue
                    number = self._mention(column, select)
                    if number is not None and number in taken:
                        known = [self._operand(operand, select) for operand in operands]
                        name = self._folded(column)
                        sure = tuple(each for each in known if each is not None)
                        if len(sure) == len(known) and not _is_of(number, sure):
                            found[number].append((name, operator, sure))
        return map(tuple, found)

    # -- what restricts what -----------------------------------------------------------------

    def _conditions(self, select: exp.Select) -> Iterator[tuple[exp.Expr, set[int]]]:
        """Yield conditions, each with the mentions that it restricts to rows for which it holds."""
        inside = self._sources(select)
        where = select.args.get("where")
        if where is not None:
            for condition in _conjuncts(where.this):
                yield condition, inside
        yield from self._of_joins(select)

    def _of_joins(self, joined: exp.Expr) -> Iterator[tuple[exp.Expr, set[int]]]:
        """Yield the conditions of the joins of a query, or of a table in parentheses."""
        if isinstance(joined, exp.Table):
            before = self._itself(joined)
        else:
            first = joined.args.get("from_")
            before = set() if first is None else self._within(first.this)
            if first is not None:
                yield from self._nested(first.this)
        for join in joined.args.get("joins") or ():
            added = self._within(join.this)
            side, kind = str(join.side or ""), str(join.kind or "")
            if join.args.get("method") or kind not in ("", "INNER", "OUTER", "CROSS"):
                side = "FULL"
            taken = {"": before | added, "LEFT": added, "RIGHT": before}.get(side, set())
            on = join.args.get("on")
            for condition in () if on is None else _conjuncts(on):
                yield condition, taken
            yield from self._nested(join.this)
            before = before | added

    def _nested(self, source: exp.Expr) -> Iterator[tuple[exp.Expr, set[int]]]:
        """Yield the conditions of joins in parentheses."""
        table = _without_parentheses(source)
        return self._of_joins(table) if isinstance(table, exp.Table) else iter(())

    def _sources(self, select: exp.Select) -> set[int]:
        """Return the mentions in a query's own FROM clause."""
        first = select.args.get("from_")
        found = set() if first is None else self._within(first.this)
        for join in select.args.get("joins") or ():
            found |= self._within(join.this)
        return found

    def _within(self, source: exp.Expr) -> set[int]:
        """Return the mentions that a source consists of: one, or those of joins in parentheses."""
        table = _without_parentheses(source)
        if not isinstance(table, exp.Table):
            return set()
        found = self._itself(table)
        for join in table.args.get("joins") or ():
            found |= self._within(join.this)
        return found

    def _itself(self, table: exp.Table) -> set[int]:
        number = self._numbers.get(id(table))
        return set() if number is None else {number}

    # -- names ---------------------------------------------------------------------------------

    def _mention(self, column: exp.Column, select: exp.Select) -> int | None:
        """Return the mention of a query's own FROM clause to which a column belongs."""
        names = self._names(select)
        if names is None or column.args.get("db") is not None:
            return None
        prefix = column.args.get("table")
        if prefix is not None:
            source = names.get(folded(prefix, self._dialect))
        elif self._dialect == "postgres" and _is_of_server(column.this):
            return None
        else:
            # A column of the only table, if this has such a column: those of a key it has.
            source = next(iter(names.values())) if len(names) == 1 else None
        return None if source is None else self._number(source)

    def _names(self, select: exp.Select) -> dict[str, exp.Expr | None] | None:
        """Return the sources of a query by the names of their columns' prefixes.

        None in place of a source if several have its name, and altogether if there may be other
        names: those of a function without an alias, or inside parentheses with one.
        """
        found: dict[str, exp.Expr | None] = {}
        for source in _all_sources(select):
            own = _own_name(source)
            if _is_group(source):
                if own is not None:
                    return None
            elif own is None:
                return None
            else:
                name = folded(own, self._dialect)
                found[name] = None if name in found else source
        return None if select.args.get("laterals") else found

    def _number(self, source: exp.Expr) -> int | None:
        """Return the number of a mention; None for another source, or with columns renamed."""
        alias = source.args.get("alias")
        is_renamed = alias is not None and bool(alias.args.get("columns"))
        return None if is_renamed else self._numbers.get(id(source))

    def _operand(self, value: exp.Expr, select: exp.Select) -> _Operand | None:
        kind: exp.DType | None = None
        # A server with strict types refuses a comparison for which a cast would matter otherwise.
        if isinstance(value, exp.Cast) and self._dialect == "postgres" and _keeps_values(value.to):
            kind = value.to.this
            value = value.this
            if not isinstance(value, exp.Placeholder):
                return None
        if isinstance(value, exp.Placeholder) and str(value.this).startswith(PlainText.MARK):
            return _Placeholder(int(str(value.this).removeprefix(PlainText.MARK)), kind)
        if isinstance(value, exp.Boolean):
            return _Constant(bool(value.this))
        if isinstance(value, exp.Literal):
            if value.is_string:
                told = str(value.this)
                # Escapes, as in E'…', are the server's to understand.
                return _Constant(told) if told.isprintable() and "\\" not in told else None
            return _Constant(int(value.this)) if str(value.this).isdecimal() else None
        if isinstance(value, exp.Column) and value.args.get("table") is not None:
            return self._column(value, select)
        return None

    def _column(self, column: exp.Column, select: exp.Select) -> _ColumnOf | None:
        """Return a column with a prefix as an operand: of a query, or of one around it."""
        prefix = folded(column.args["table"], self._dialect)
        scope: exp.Select | None = select
        while scope is not None:
            names = self._names(scope)
            if names is None or prefix in names:
                number = self._mention(column, scope)
                return None if number is None else _ColumnOf(number, self._folded(column))
            scope = _outer(scope)
        return None

    def _folded(self, column: exp.Column) -> str:
        return folded(column.this, self._dialect)

    # -- conditions ----------------------------------------------------------------------------

    @staticmethod
    def _compared(condition: exp.Expr) -> Iterator[tuple[exp.Column, str, Sequence[exp.Expr]]]:
        """Yield columns that a condition compares, with the operator and the values."""
        operator = _OPERATORS.get(type(condition))
        if isinstance(condition, exp.Column):
            yield condition, "=", [exp.true()]
        elif isinstance(condition, exp.Is | exp.NullSafeEQ | exp.Not):
            yield from _is_or_not(condition)
        elif operator is not None:
            assert isinstance(condition, exp.Binary)
            left, right = condition.left, condition.right
            if isinstance(left, exp.Column):
                yield left, operator, [right]
            if isinstance(right, exp.Column):
                yield right, _REVERSED[operator], [left]
        elif isinstance(condition, exp.In) and isinstance(condition.this, exp.Column):
            if condition.expressions:
                yield condition.this, "=", condition.expressions
        elif (
            isinstance(condition, exp.Between)
            and isinstance(condition.this, exp.Column)
            and not condition.args.get("symmetric")
        ):
            yield condition.this, ">=", [condition.args["low"]]
            yield condition.this, "<=", [condition.args["high"]]


def _is_or_not(
    condition: exp.Is | exp.NullSafeEQ | exp.Not,
) -> Iterator[tuple[exp.Column, str, list[exp.Expr]]]:
    """Yield as `_Reader._compared` does, for IS, IS NOT, NOT … IS and NOT with a column.

    SQLite's IS 1 is parsed as what the standard calls IS NOT DISTINCT FROM 1.
    """
    is_not = isinstance(condition, exp.Not)
    inner = condition.this if is_not else condition
    while isinstance(inner, exp.Paren):
        inner = inner.this
    if isinstance(inner, exp.Column) and is_not:
        yield inner, "=", [exp.false()]
    elif isinstance(inner, exp.Is | exp.NullSafeEQ) and isinstance(inner.this, exp.Column):
        is_not ^= bool(inner.args.get("negate"))
        if isinstance(inner.expression, exp.Null):
            yield inner.this, "is not null" if is_not else "is null", []
        elif not is_not and isinstance(inner.expression, exp.Boolean | exp.Literal):
            yield inner.this, "=", [inner.expression]


_OF_SERVER = {"current_role", "system_user", "user"}
"""Words that are a value of the server's to Postgres, and to sqlglot a column."""


def _is_of_server(name: exp.Expr) -> bool:
    return not name.args.get("quoted") and folded(name, "postgres") in _OF_SERVER


_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
}
_REVERSED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


def _conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    waiting = [condition]
    while waiting:
        found = waiting.pop()
        if isinstance(found, exp.Paren):
            waiting.append(found.this)
        elif isinstance(found, exp.And):
            waiting += [found.right, found.left]
        else:
            yield found


def _is_of(number: int, operands: Iterable[_Operand]) -> bool:
    """Return whether an operand is a column of the same mention, which says nothing of its rows."""
    return any(isinstance(each, _ColumnOf) and each.mention == number for each in operands)


def _without_parentheses(source: exp.Expr) -> exp.Expr:
    """Return what stands in parentheses. With an alias they hide the names inside."""
    while _is_group(source) and not source.alias:
        source = source.this
    return source


def _all_sources(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield all that a query's FROM clause names, also inside parentheses."""
    first = select.args.get("from_")
    waiting = [] if first is None else [first.this]
    waiting += [join.this for join in select.args.get("joins") or ()]
    while waiting:
        source = waiting.pop()
        yield source
        inside = _without_parentheses(source)
        if inside is not source:
            waiting.append(inside)
        else:
            waiting += [join.this for join in source.args.get("joins") or ()]


def _is_group(source: exp.Expr) -> bool:
    """Return whether a source is joins in parentheses."""
    return isinstance(source, exp.Subquery) and isinstance(source.this, exp.Table | exp.Subquery)


def _outer(select: exp.Select) -> exp.Select | None:
    """Return the query around a subquery whose columns it sees; None for a subquery in FROM.

    That sees the columns of others only if it is LATERAL, which is not worth the while.
    """
    around = select.parent
    while around is not None and not isinstance(around, exp.Select):
        if isinstance(around, exp.With | exp.From | exp.Join | exp.Lateral):
            return None
        around = around.parent
    return around


def _own_name(source: exp.Expr) -> Any:
    """Return the identifier by which columns of a source are qualified, None without one."""
    alias = source.args.get("alias")
    if alias is not None and alias.this is not None:
        return alias.this
    if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
        return source.this
    return None


_ZONES: dict[exp.DType | None, bool] = {
    exp.DType.TIMESTAMP: False,
    exp.DType.TIMESTAMPTZ: True,
}
_KEEPING: dict[exp.DType, type[Any]] = {
    **dict.fromkeys((exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ), datetime),
    exp.DType.BIGINT: int,
    exp.DType.BOOLEAN: bool,
    exp.DType.DATE: date,
    exp.DType.INT: int,
    exp.DType.SMALLINT: int,
    exp.DType.TEXT: str,
    exp.DType.UUID: uuid.UUID,
    exp.DType.VARBINARY: bytes,
    exp.DType.VARCHAR: str,
}
"""Types of casts that leave the values of one Python type as they are, and that type."""


def _keeps_values(kind: exp.DataType) -> bool:
    """Return whether a cast leaves the values of its own type as they are."""
    return kind.this in _KEEPING and not kind.expressions
