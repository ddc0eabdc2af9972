"""Terms that take values from events or the shared store: attributes, aggregates, subqueries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from activedb.errors import BadEvent, PatternError, StoreError
from activedb.events._names import name_text
from activedb.events._occurrence import Occurrence
from activedb.events.terms._term import ATOM, SUM, Compiled, NegatedInside, Term, Value, written
from activedb.events.terms._values import CALCULATIONS, NotComparable, equal, is_quantity

__all__ = [
    "FUNCTIONS",
    "Aggregate",
    "Attribute",
    "Exists",
    "InSubquery",
    "KeyRead",
    "PartReference",
    "Subquery",
    "attr",
    "part",
]


@dataclass(frozen=True, eq=False, repr=False)
class Attribute(Term):
    """Parameter of an event.

    For a Kleene part it is that of the last element. It is NULL for an empty Kleene part, and for a
    part that has not occurred. (While an element is evaluated, the part ends with that element.)

    Attributes
    ----------
    part : str or None
        The part's name; None: the event itself.
    name : str
        The parameter's name; for a data change, the column's.
    old : bool
        True for the value before an update or delete.
    """

    part: str | None
    name: str
    old: bool = False

    def __post_init__(self) -> None:
        for name in (self.name, *(() if self.part is None else (self.part,))):
            if not isinstance(name, str) or not name:
                raise PatternError(f"parts and attributes have names, not {name!r}")

    @property
    def operands(self) -> tuple[Term, ...]:
        return ()

    @property
    def is_attribute(self) -> bool:
        return True

    @property
    def part_value(self) -> tuple[str, str] | None:
        return None if self.part is None or self.old else (self.part, self.name)

    @cached_property
    def part_names(self) -> frozenset[str]:
        return frozenset(() if self.part is None else (self.part,))

    @cached_property
    def uses_this(self) -> bool:
        return self.part is None

    def first(self) -> Aggregate:
        """Return the attribute of the first element of a Kleene part."""
        return self._aggregate("first")

    def last(self) -> Aggregate:
        """Return the attribute of the last element of a Kleene part."""
        return self._aggregate("last")

    def prev(self) -> Aggregate:
        """Return the attribute of the element before the last, which is being evaluated."""
        return self._aggregate("prev")

    def count(self) -> Aggregate:
        """Return the number of elements of a Kleene part whose attribute is not NULL."""
        return self._aggregate("count")

    def sum(self) -> Aggregate:
        """Return the sum over a Kleene part."""
        return self._aggregate("sum")

    def avg(self) -> Aggregate:
        """Return the mean over a Kleene part: a float, or a Decimal for decimals."""
        return self._aggregate("avg")

    def min(self) -> Aggregate:
        """Return the least value over a Kleene part."""
        return self._aggregate("min")

    def max(self) -> Aggregate:
        """Return the greatest value over a Kleene part."""
        return self._aggregate("max")

    def _aggregate(self, function: str) -> Aggregate:
        if self.part is None:
            raise PatternError(
                f"{function}() is over the elements of a Kleene part: part('B').{self.name}"
            )
        return Aggregate(function, self.part, self.name, self.old)

    def _compiled(self) -> Compiled:
        part, name, get = self.part, self.name, self.getter
        if part is None:

            def of_this(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
                if this is None:
                    raise PatternError(
                        f"{self!r} is an attribute of the event itself: of a pattern's part write "
                        f"part('A')[{name!r}]"
                    )
                return get(this)

            def of_this_params(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
                try:
                    return this.params[name]
                except (KeyError, AttributeError):
                    return of_this(parts, this, reader)

            return of_this if self.old else of_this_params

        def of_part(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            o = parts.get(part)
            if type(o) is tuple:
                o = o[-1] if o else None
            return None if o is None else get(o)

        if self.old:
            return of_part

        def of_part_params(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            o = parts.get(part)
            if type(o) is Occurrence:
                try:
                    return o.params[name]
                except KeyError:
                    pass
            return of_part(parts, this, reader)

        return of_part_params

    @property
    def getter(self) -> Callable[[Occurrence], Value]:
        """The function that returns the attribute of an event, or raises `BadEvent`."""
        return _getter(self.name, self.old)

    def _text(self) -> tuple[str, int]:
        return _attribute_text(self.part, self.name, self.old), ATOM


@dataclass(frozen=True, eq=False, repr=False)
class Aggregate(Term):
    """Aggregate over the elements of a Kleene part.

    As in SQL, NULLs do not count, and the sum, mean, least or greatest of no values is NULL. A part
    that is a single event counts as one element; a part that has not occurred as none. For the
    least and the greatest, NaN is greater than all other numbers, as in PostgreSQL.

    Attributes
    ----------
    function : {"first", "last", "prev", "count", "sum", "avg", "min", "max"}
    part : str
    name : str or None
        The parameter's name; None for the count of the elements themselves.
    old : bool
        As in `Attribute`.
    """

    function: str
    part: str
    name: str | None
    old: bool = False

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise PatternError(
                f"{self.function!r} is not an aggregate: write one of {', '.join(FUNCTIONS)}"
            )
        if self.name is None and (self.function != "count" or self.old):
            raise PatternError(f"{self.function}() needs an attribute: part('B').x.sum()")

    @property
    def operands(self) -> tuple[Term, ...]:
        return ()

    @cached_property
    def part_names(self) -> frozenset[str]:
        return frozenset((self.part,))

    @cached_property
    def aggregated(self) -> frozenset[str]:
        # Only prev concerns the element being evaluated, not the complete part.
        return frozenset() if self.uses_prev else self.part_names

    @cached_property
    def uses_prev(self) -> bool:
        return self.function == "prev"

    def _compiled(self) -> Compiled:
        part, name = self.part, self.name
        get = None if name is None else _getter(name, self.old)
        place = _OF_ONE.get(self.function)
        if place is not None:
            assert get is not None
            least = 2 if place == -2 else 1

            def of_one(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
                found = _elements(parts, part)
                return get(found[place]) if len(found) >= least else None

            return of_one
        if get is None:
            return lambda parts, this, reader: len(_elements(parts, part))
        function = FUNCTIONS[self.function]

        def of_all(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            values = [v for v in map(get, _elements(parts, part)) if v is not None]
            try:
                return function(values)
            except (TypeError, ArithmeticError, ValueError):
                raise BadEvent(f"{self!r} cannot be computed of {_some(values)}") from None

        return of_all

    def _text(self) -> tuple[str, int]:
        if self.name is None:
            return f"COUNT({name_text(self.part)})", ATOM
        inner = _attribute_text(self.part, self.name, self.old)
        return f"{self.function.upper()}({inner})", ATOM


def attr(name: str, *, old: bool = False) -> Attribute:
    """Return an attribute of the event itself, for a predicate over one event.

    Parameters
    ----------
    name : str
        A parameter's name; for a data change, a column's.
    old : bool
        True for the value before an update.

    Examples
    --------
    >>> attr("location") != "hall"
    location != 'hall'
    """
    return Attribute(None, name, old)


def _getter(name: str, old: bool) -> Callable[[Occurrence], Value]:
    if old:

        def get_old(o: Occurrence) -> Value:
            row = o.old
            if row is None or name not in row:
                what = "old row" if row is None else f"{name!r} in its old row"
                raise BadEvent(f"event {o.name!r} at {o.timestamp} has no {what}")
            return row[name]

        return get_old

    def get(o: Occurrence) -> Value:
        try:
            return o.params[name]
        except KeyError:
            known = ", ".join(map(repr, o.params)) or "none"
            raise BadEvent(
                f"event {o.name!r} at {o.timestamp} has no attribute {name!r}; it has {known}"
            ) from None

    return get


def _elements(parts: Mapping[str, Any], part: str) -> tuple[Occurrence, ...]:
    found = parts.get(part)
    if type(found) is tuple:
        return found
    return () if found is None else (found,)


def _sum(values: list[Value]) -> Value:
    """Return the sum from left to right, so that it does not depend on how Python adds floats."""
    if not values:
        return None
    plus, total = CALCULATIONS["+"], values[0]
    if not is_quantity(total):  # no addition would refuse a single value
        raise NotComparable
    for value in values[1:]:
        kind = type(value)
        same = kind is type(total) and (kind is int or kind is float)
        total = total + value if same else plus(total, value)
    return total


def _mean(values: list[Value]) -> Value:
    total = _sum(values)
    if isinstance(total, int):  # true division gives the float nearest to the quotient
        return total / len(values)
    return None if total is None else CALCULATIONS["/"](total, len(values))


def _least(values: list[Value]) -> Value:
    return min(values, key=_rank, default=None)


def _greatest(values: list[Value]) -> Value:
    return max(values, key=_rank, default=None)


def _rank(value: Value) -> tuple[Value, bool]:
    """Return what orders values as PostgreSQL does: NaN is greater than all other numbers."""
    return (value, False) if value == value else (math.inf, True)


def _none(values: Iterable[Value]) -> Value:
    raise AssertionError("first, last and prev are of one element")


_OF_ONE: Mapping[str, int] = {"first": 0, "last": -1, "prev": -2}
FUNCTIONS: Mapping[str, Callable[[list[Value]], Value]] = {
    **dict.fromkeys(_OF_ONE, _none),
    "count": len,
    "sum": _sum,
    "avg": _mean,
    "min": _least,
    "max": _greatest,
}
"""The aggregates by name."""


def _some(values: list[Value]) -> str:
    return ", ".join(map(repr, values[:5])) + (", …" if len(values) > 5 else "")


def _attribute_text(part: str | None, name: str, old: bool) -> str:
    if part is None:
        text = name_text(name)
    else:
        text = f"{name_text(part)}.{name_text(name, after_dot=True)}"
    return f"OLD({text})" if old else text


# -- references to the parts of a pattern, and their attributes ------------------------------------


class PartReference:
    """Reference to a part of a pattern: ``part("A").x``, ``part("A")["HCW-ID"]``.

    Brackets also accept names that are methods of this class: ``part("A")["count"]``.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = name

    def __getitem__(self, name: str) -> Attribute:
        return Attribute(self._name, name)

    def __getattr__(self, name: str) -> Attribute:
        if name.startswith("__"):  # copy and pickle look these up
            raise AttributeError(name)
        return Attribute(self._name, name)

    def old(self, name: str) -> Attribute:
        """Return the attribute `name` of the row before an update or delete."""
        return Attribute(self._name, name, old=True)

    def count(self) -> Aggregate:
        """Return the number of elements of a Kleene part."""
        return Aggregate("count", self._name, None)

    def __repr__(self) -> str:
        return f"part({self._name!r})"


def part(name: str) -> PartReference:
    """Return a reference to the part called `name`; its attributes are terms.

    Examples
    --------
    >>> part("EXIT").location != part("ENTER").location
    EXIT.location != ENTER.location
    >>> part("B")["HCW-ID"].count() > 2
    COUNT(B.HCW-ID) > 2
    """
    return PartReference(name)


# -- terms that read the shared store as of the event's time ---------------------------------------


@dataclass(frozen=True, slots=True)
class KeyRead:
    """Read of a single row by its key, equivalent to a SELECT.

    Attributes
    ----------
    table : Table
    key : Term
    key_type : type
        The key column's type; a key of another type is left to SQL.
    column : str or None
        The column that is read; None: only whether the row exists.
    """

    table: Any
    key: Term
    key_type: type
    column: str | None

    def row(self, parts: Mapping[str, Any], this: Any, reader: Any) -> tuple[bool, Any]:
        """Return whether the key determines the row, and the row (None if it does not exist)."""
        key = self.key.compiled(parts, this, reader)
        if reader is None or type(key) is not self.key_type:
            return False, None
        return True, reader.get(self.table, key)


@dataclass(frozen=True, eq=False, repr=False)
class Subquery(Term):
    """SELECT over the shared store, with values from events; built by the rule language.

    Its value is that of the single column of its single row, or NULL if there is no row.

    Attributes
    ----------
    sql : str
        The text as written.
    statement : str
        The statement sent: tables and columns as declared, ``:ref_1``, ``:ref_2``, … for references
        to events, and a backslash before any other colon.
    references : tuple of Term
        The terms that the ``:ref_…`` placeholders stand for.
    reads : frozenset of (str, str or None)
        The tables and columns read.
    by_key : KeyRead or None
        An equivalent read without SQL, under the lock of one row, if there is one. It does not
        count in comparisons of terms.
    """

    sql: str
    statement: str
    references: tuple[Term, ...] = ()
    reads: frozenset[tuple[str, str | None]] = frozenset()
    by_key: KeyRead | None = None

    def _structure(self) -> tuple[Any, ...]:
        return (Subquery, self.sql, self.statement, self.references, self.reads)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "by_key": None}

    @property
    def operands(self) -> tuple[Term, ...]:
        return self.references

    @cached_property
    def is_reading(self) -> bool:
        return True

    def rows(self, parts: Mapping[str, Any], this: Any, reader: Any) -> list[Any]:
        """Return the rows of the SELECT, read through `reader`.

        Raises
        ------
        PatternError
            If there is no reader.
        StoreError
            If the store refuses the statement, which the message names.
        """
        # Imported here, so that events alone need no database library.
        from activedb.store.sql import SqlPiece, select_of

        if reader is None:
            raise PatternError(
                f"{self!r} reads the shared store: judge it in a transaction, as a rule does, or "
                "give detect() a reader="
            )
        values = {
            f"ref_{number}": reference.compiled(parts, this, reader)
            for number, reference in enumerate(self.references, 1)
        }
        select = select_of(SqlPiece(self.statement, tuple(values)), values)
        try:
            found: list[Any] = reader.query(select)
        except StoreError as error:
            raise error.during(f"in {self!r}") from error.__cause__
        return found

    def _compiled(self) -> Compiled:
        by_key = self.by_key

        def scalar(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            if by_key is not None and by_key.column is not None:
                is_told, row = by_key.row(parts, this, reader)
                if is_told:
                    return None if row is None else row[by_key.column]
            rows = self.rows(parts, this, reader)
            if len(rows) > 1:
                raise BadEvent(
                    f"{self!r} finds {len(rows)} rows where a value is needed: narrow it, use an "
                    "aggregate, or IN"
                )
            return rows[0][0] if rows else None

        return scalar

    def _text(self) -> tuple[str, int]:
        # A comment at the end of the text must not swallow the bracket.
        ends_in_comment = "--" in self.sql.rpartition("\n")[2]
        return f"({self.sql}\n)" if ends_in_comment else f"({self.sql})", ATOM


@dataclass(frozen=True, eq=False, repr=False)
class Exists(Term):
    """Condition that a SELECT finds a row.

    Attributes
    ----------
    subquery : Subquery
    """

    subquery: Subquery

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.subquery,)

    def _compiled(self) -> Compiled:
        by_key, rows = self.subquery.by_key, self.subquery.rows

        def exists(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            if by_key is not None:
                is_told, row = by_key.row(parts, this, reader)
                if is_told:
                    return row is not None
            return bool(rows(parts, this, reader))

        return exists

    def _text(self) -> tuple[str, int]:
        return f"EXISTS {self.subquery!r}", ATOM


@dataclass(frozen=True, eq=False, repr=False)
class InSubquery(NegatedInside):
    """Condition that a SELECT finds a value. If it does not but finds NULL, unknown.

    Attributes
    ----------
    operand : Term
    subquery : Subquery
        A SELECT of one column.
    """

    operand: Term
    subquery: Subquery

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.operand, self.subquery)

    def _compiled(self) -> Compiled:
        operand, rows = self.operand.compiled, self.subquery.rows

        def found_by(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            value = operand(parts, this, reader)
            if value is None:
                return None
            found: Value = False
            for row in rows(parts, this, reader):
                try:
                    if row[0] is None:
                        found = None
                    elif equal(value, row[0]):
                        return True
                except (TypeError, ArithmeticError, ValueError):
                    raise BadEvent(f"{self!r}: {value!r} and {row[0]!r} do not compare") from None
            return found

        return found_by

    def _test_text(self, negation: str) -> str:
        return f"{written(self.operand, SUM)} {negation}IN {self.subquery!r}"
