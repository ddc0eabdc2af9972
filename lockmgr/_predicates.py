"""Predicates: conditions on the columns of rows, as resources inside the table of these rows.

A predicate lock protects the answer to a question, also from rows that do not exist yet (Eswaran,
Gray, Lorie, Traiger 1976). What it is compared with are rows that are written, not other
predicates, as in precision locks (Jordan, Banerjee, Batman 1981); README, "Predicates".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

__all__ = ["Columns", "InRange", "NullTest", "OneOf", "Predicate", "PredicateIndex"]

Columns: TypeAlias = Mapping[str, Any]
"""Row: the values of its columns by name."""


class OneOf:
    """Condition that a column has one of some values.

    Parameters
    ----------
    column : str
    values : iterable
        At least one, all of one type, and not None.
    """

    __slots__ = ("column", "form", "values")

    def __init__(self, column: str, values: Iterable[Hashable]):
        self.column = column
        self.values = frozenset(values)
        forms = {type(value) for value in self.values}
        if len(forms) != 1 or type(None) in forms:
            raise ValueError(f"{column}: needs values of one type that are not None")
        self.form = forms.pop()

    def holds(self, value: Any) -> bool:
        """Return whether it holds for a value of the column; see `Predicate.covers`."""
        return value is not None and (type(value) is not self.form or value in self.values)

    def parts(self) -> tuple[Any, ...]:
        """Return what it consists of, for comparisons."""
        return ("one of", self.column, self.form, self.values)

    def text(self, show: Callable[[Any], str] = repr) -> str:
        """Return the condition as text, with values as `show` returns them."""
        listed = ", ".join(sorted(map(show, self.values)))
        return (
            f"{self.column} = {listed}" if len(self.values) == 1 else f"{self.column} in {listed}"
        )


class InRange:
    """Condition that the value of a column is in a range.

    Parameters
    ----------
    column : str
    low, high : object or None
        Bounds of one type, at least one of them; None for no bound.
    with_low, with_high : bool
        Whether the range contains its bounds.
    """

    __slots__ = ("column", "form", "high", "low", "with_high", "with_low")

    def __init__(
        self,
        column: str,
        low: Any = None,
        high: Any = None,
        *,
        with_low: bool = True,
        with_high: bool = True,
    ):
        forms = {type(bound) for bound in (low, high) if bound is not None}
        if len(forms) != 1:
            raise ValueError(f"{column}: needs a bound, or two of one type")
        self.column = column
        self.low = low
        self.high = high
        self.with_low = with_low
        self.with_high = with_high
        self.form = forms.pop()

    def holds(self, value: Any) -> bool:
        """Return whether it holds for a value of the column; see `Predicate.covers`."""
        if value is None:
            return False
        if type(value) is not self.form:
            return True
        low, high = self.low, self.high
        try:
            # By order alone: a time in a zone may be equal to none in another zone.
            if low is not None and (value < low if self.with_low else value <= low):
                return False
            return high is None or not (value > high if self.with_high else value >= high)
        except (TypeError, ArithmeticError):
            return True  # times with and without a zone; a decimal that is no number

    def parts(self) -> tuple[Any, ...]:
        """Return what it consists of, for comparisons."""
        bounds = self.low, self.high, self.with_low, self.with_high
        return ("in range", self.column, self.form, *bounds)

    def text(self, show: Callable[[Any], str] = repr) -> str:
        """Return the condition as text, with bounds as `show` returns them."""
        low, high = self.low, self.high
        if high is None:
            return f"{self.column} {'>=' if self.with_low else '>'} {show(low)}"
        above = "" if low is None else f"{show(low)} {'<=' if self.with_low else '<'} "
        return f"{above}{self.column} {'<=' if self.with_high else '<'} {show(high)}"


class NullTest:
    """Condition that a column has no value, or that it has one.

    Parameters
    ----------
    column : str
    negated : bool
        True if it has a value.
    """

    __slots__ = ("column", "negated")

    def __init__(self, column: str, *, negated: bool = False):
        self.column = column
        self.negated = negated

    def holds(self, value: Any) -> bool:
        """Return whether it holds for a value of the column; see `Predicate.covers`."""
        return (value is None) is not self.negated

    def parts(self) -> tuple[Any, ...]:
        """Return what it consists of, for comparisons."""
        return ("is null", self.column, self.negated)

    def text(self, show: Callable[[Any], str] = repr) -> str:
        """Return the condition as text."""
        return f"{self.column} is {'not ' if self.negated else ''}null"


class Predicate:
    """Conjunction of conditions; the last part of a resource's path, after that of the table.

    Predicates with the same conditions are equal, in any order.
    """

    __slots__ = ("_hash", "_parts", "conditions")

    def __init__(self, conditions: Iterable[OneOf | InRange | NullTest]):
        self.conditions: tuple[OneOf | InRange | NullTest, ...] = tuple(conditions)
        if not self.conditions:
            raise ValueError("a predicate needs a condition; lock the table instead")
        self._parts = frozenset(condition.parts() for condition in self.conditions)
        self._hash = hash(self._parts)

    def covers(self, row: Columns) -> bool:
        """Return whether a row satisfies the predicate, or may do so.

        As in SQL, None satisfies no condition but `NullTest`. A value of another type than those of
        the condition satisfies it, because what it is equal to at the database is unknown. A column
        that the row does not have may have any value.
        """
        for condition in self.conditions:
            if condition.column in row and not condition.holds(row[condition.column]):
                return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predicate) and self._parts == other._parts

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.text()

    def text(self, show: Callable[[Any], str] = repr) -> str:
        """Return the conditions as text, with values as `show` returns them."""
        told = sorted((each.column, each.text(show)) for each in self.conditions)
        return f"{{{' and '.join(text for _, text in told)}}}"


class PredicateIndex:
    """Locked predicates of one table, found by the rows that they cover.

    A predicate that says which values a column has is found by these values; the others are tried
    one by one.
    """

    __slots__ = ("_by_value", "_others")

    def __init__(self) -> None:
        self._by_value: dict[tuple[str, type], dict[Hashable, dict[Predicate, None]]] = {}
        """Predicates by a column and the type of its values, then by value."""
        self._others: dict[Predicate, None] = {}

    def __bool__(self) -> bool:
        return bool(self._by_value or self._others)

    def add(self, predicate: Predicate) -> None:
        """Add a predicate."""
        exact = _exact(predicate)
        if exact is None:
            self._others[predicate] = None
            return
        by_value = self._by_value.setdefault((exact.column, exact.form), {})
        for value in exact.values:
            by_value.setdefault(value, {})[predicate] = None

    def remove(self, predicate: Predicate) -> None:
        """Remove a predicate that was added."""
        exact = _exact(predicate)
        if exact is None:
            del self._others[predicate]
            return
        by_value = self._by_value[exact.column, exact.form]
        for value in exact.values:
            del by_value[value][predicate]
            if not by_value[value]:
                del by_value[value]
        if not by_value:
            del self._by_value[exact.column, exact.form]

    def covering(self, rows: Iterable[Columns] | None) -> Iterator[Predicate]:
        """Yield the predicates that cover one of some rows, perhaps repeatedly; for None all.

        O(rows * (columns by which predicates are found + predicates that are tried)).
        """
        if rows is None:
            yield from self._others
            for by_value in self._by_value.values():
                yield from _all(by_value)
            return
        for row in rows:
            for predicate in self._others:
                if predicate.covers(row):
                    yield predicate
            for (column, form), by_value in self._by_value.items():
                value = row.get(column)
                found = by_value.get(value, {}) if type(value) is form else _all(by_value)
                for predicate in found:
                    if predicate.covers(row):
                        yield predicate


def _all(by_value: dict[Hashable, dict[Predicate, None]]) -> Iterator[Predicate]:
    for predicates in by_value.values():
        yield from predicates


def _exact(predicate: Predicate) -> OneOf | None:
    """Return the condition by whose values a predicate is found."""
    for condition in predicate.conditions:
        if isinstance(condition, OneOf):
            return condition
    return None
