"""Terms: the base class, literals, comparison and arithmetic, conditions of three truth values."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property, lru_cache
from math import isfinite
from operator import add, eq, ge, gt, le, lt, mul, ne, sub
from typing import Any, Self

from activedb.clock import timedelta_us
from activedb.errors import BadEvent, PatternError
from activedb.events._names import seconds_text
from activedb.events._occurrence import Occurrence
from activedb.events.terms._values import CALCULATIONS, COMPARISONS, equal, negated

__all__ = [
    "AND",
    "ATOM",
    "COMPARISON",
    "NOT",
    "OR",
    "PRODUCT",
    "SUM",
    "And",
    "Arithmetic",
    "Between",
    "Comparison",
    "Compiled",
    "In",
    "IsNull",
    "Like",
    "Literal",
    "NegatedInside",
    "Negative",
    "Not",
    "Or",
    "Term",
    "Value",
    "as_term",
    "written",
]


Value = Any
"""A number, string, boolean, date, time, duration or bytes; None is NULL (unknown)."""
Compiled = Callable[[Mapping[str, Any], Occurrence | None, Any], Value]
"""A term as a function of the parts, the event itself, and the reader."""

OR, AND, NOT, COMPARISON, SUM, PRODUCT, ATOM = range(7)
"""Operators from the loosest to the tightest, as in SQL."""

_NO_PARTS: Mapping[str, Any] = {}


class Term(ABC):
    """Value or condition computed from the events of a match; immutable.

    ::

        Term
        ├── Literal       5, 'safe'
        ├── Attribute     attr("x"): of the event itself; part("A").x: of a part
        ├── Aggregate     part("B").x.sum(), .avg(), .min(), .max(), .count(), .first(), .last(),
        │                 .prev(); part("B").count()
        ├── Comparison    = != < <= > >=
        ├── Arithmetic    + - * / %      Negative    -a
        ├── And, Or, Not  & | ~
        ├── IsNull, In, Between, Like
        └── Subquery, Exists, InSubquery   SELECTs over the shared store: such a term is a reading

    Terms are compared structurally. ``a == b`` is a term itself, a `Comparison`; ``bool(a == b)``
    is True if `a` and `b` are the same term. So tuples and dataclasses of terms can be compared,
    and terms can be dictionary keys. No other term has a truth value.
    """

    # -- properties ------------------------------------------------------------------------

    @property
    @abstractmethod
    def operands(self) -> tuple[Term, ...]:
        """The subterms, in the order in which they are written."""

    @abstractmethod
    def _compiled(self) -> Compiled:
        """Return the function that computes the term: nested closures, no generated code."""

    @abstractmethod
    def _text(self) -> tuple[str, int]:
        """Return the text in the rule language and its binding strength (`OR` to `ATOM`)."""

    def walk(self) -> Iterator[Term]:
        """Yield the term and all its subterms, outermost first."""
        yield self
        for operand in self.operands:
            yield from operand.walk()

    @cached_property
    def part_names(self) -> frozenset[str]:
        """The names of the parts to which the term refers."""
        return frozenset().union(*(operand.part_names for operand in self.operands))

    @cached_property
    def aggregated(self) -> frozenset[str]:
        """The parts under an aggregate other than `prev`: the term needs them complete."""
        return frozenset().union(*(operand.aggregated for operand in self.operands))

    @cached_property
    def uses_prev(self) -> bool:
        """True if it compares an element of a Kleene part with the element before it."""
        return any(operand.uses_prev for operand in self.operands)

    @cached_property
    def uses_this(self) -> bool:
        """True if it uses an attribute of the event itself, not of a part."""
        return any(operand.uses_this for operand in self.operands)

    @cached_property
    def is_reading(self) -> bool:
        """True if it reads the shared store."""
        return any(operand.is_reading for operand in self.operands)

    @property
    def is_attribute(self) -> bool:
        """True if it is an attribute, of the event itself or of a part."""
        return False

    @property
    def part_value(self) -> tuple[str, str] | None:
        """Part and name, if it is a parameter of a part, or a column's new value."""
        return None

    @property
    def is_junction(self) -> bool:
        """True if it joins several conditions with AND or OR."""
        return False

    # -- evaluation ------------------------------------------------------------------------

    @cached_property
    def compiled(self) -> Compiled:
        """The term as a function of the parts, the event itself and the reader."""
        return self._compiled()

    def evaluate(
        self,
        parts: Mapping[str, Any],
        this: Occurrence | None = None,
        reader: Any = None,
    ) -> Value:
        """Return the value of the term.

        Parameters
        ----------
        parts : mapping of str to Occurrence or tuple of Occurrence
            The constituents by part name. All attributes of a missing part are NULL.
        this : Occurrence, optional
            The event itself, for `attr`.
        reader : Transaction, optional
            The transaction through which readings read.

        Returns
        -------
        value
            None is NULL; a condition is True, False, or None if unknown.

        Raises
        ------
        BadEvent
            If an event lacks an attribute, or its type does not fit the operation.
        """
        return self.compiled(parts, this, reader)

    def __call__(self, subject: Any, read: Any = None, /) -> bool:
        """Return whether it is true: ``term(o)``, ``term(parts)``, ``term(reader, o or parts)``."""
        reader = None
        if read is not None:
            reader, subject = subject, read
        if type(subject) is Occurrence or isinstance(subject, Occurrence):
            value = self.compiled(subject.parts, subject, reader)
        else:
            value = self.compiled(subject, None, reader)
        if value is None or value is True or value is False:
            return value is True
        raise _no_condition(self, value)

    # -- structure -------------------------------------------------------------------------

    def _structure(self) -> tuple[Any, ...]:
        """Return the fields that determine whether two terms are the same."""
        return (type(self), *(getattr(self, field.name) for field in fields(self)))  # type: ignore[arg-type]

    def same_as(self, other: object) -> bool:
        """Return whether `other` is the same term."""
        return self is other or (
            isinstance(other, Term)
            and type(self) is type(other)
            and hash(self) == hash(other)
            and self._structure() == other._structure()
        )

    @cached_property
    def _hash(self) -> int:
        return hash(self._structure())

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __bool__(self) -> bool:
        raise PatternError(
            f"{self!r} has no truth value: write & for and, | for or, ~ for not, in brackets, and "
            "call it to judge it"
        )

    def __repr__(self) -> str:
        return self._text()[0]

    # -- operators -------------------------------------------------------------------------

    def __eq__(self, other: object) -> Comparison:  # type: ignore[override]
        return self._compared("=", other)

    def __ne__(self, other: object) -> Comparison:  # type: ignore[override]
        return self._compared("!=", other)

    def __lt__(self, other: object) -> Comparison:
        return self._compared("<", other)

    def __le__(self, other: object) -> Comparison:
        return self._compared("<=", other)

    def __gt__(self, other: object) -> Comparison:
        return self._compared(">", other)

    def __ge__(self, other: object) -> Comparison:
        return self._compared(">=", other)

    def __add__(self, other: object) -> Arithmetic:
        return self._computed("+", self, other)

    def __radd__(self, other: object) -> Arithmetic:
        return self._computed("+", other, self)

    def __sub__(self, other: object) -> Arithmetic:
        return self._computed("-", self, other)

    def __rsub__(self, other: object) -> Arithmetic:
        return self._computed("-", other, self)

    def __mul__(self, other: object) -> Arithmetic:
        return self._computed("*", self, other)

    def __rmul__(self, other: object) -> Arithmetic:
        return self._computed("*", other, self)

    def __truediv__(self, other: object) -> Arithmetic:
        return self._computed("/", self, other)

    def __rtruediv__(self, other: object) -> Arithmetic:
        return self._computed("/", other, self)

    def __mod__(self, other: object) -> Arithmetic:
        return self._computed("%", self, other)

    def __rmod__(self, other: object) -> Arithmetic:
        return self._computed("%", other, self)

    def __neg__(self) -> Negative:
        return Negative(self)

    def __and__(self, other: object) -> And:
        return And.of(self, other)

    def __rand__(self, other: object) -> And:
        return And.of(other, self)

    def __or__(self, other: object) -> Or:
        return Or.of(self, other)

    def __ror__(self, other: object) -> Or:
        return Or.of(other, self)

    def __invert__(self) -> Not:
        return Not(self)

    def is_null(self) -> IsNull:
        """Return the condition that the value is NULL; it is never unknown."""
        return IsNull(self)

    def in_(self, choices: Any) -> In:
        """Return the condition that it equals one of `choices`, an iterable of values or terms."""
        return In.of(self, choices)

    def between(self, low: Any, high: Any) -> Between:
        """Return the condition ``low <= self <= high``."""
        return Between(self, as_term(low), as_term(high))

    def like(self, pattern: Any) -> Like:
        r"""Return the condition that it matches a pattern with %, _ and backslash (see `Like`)."""
        return Like(self, as_term(pattern))

    def _compared(self, operator: str, other: object) -> Comparison:
        if not isinstance(other, Term) and not is_literal(other):
            return NotImplemented  # type: ignore[no-any-return]  # operators may return it
        return Comparison(operator, self, as_term(other))

    @staticmethod
    def _computed(operator: str, left: object, right: object) -> Arithmetic:
        return Arithmetic(operator, as_term(left), as_term(right))


def written(term: Term, binds: int) -> str:
    """Return the text of a term, bracketed if it binds more loosely than `binds`."""
    text, strength = term._text()
    return text if strength >= binds else f"({text})"


# -- literals: constant values in a term -------------------------------------------------------


_TYPES = (bool, int, float, Decimal, str, bytes, datetime, date, time, timedelta)


@dataclass(frozen=True, eq=False, repr=False)
class Literal(Term):
    """Constant value.

    Attributes
    ----------
    value : bool, int, float, Decimal, str, bytes, datetime, date, time, timedelta or None
        The type must be exactly one of these.
    """

    value: Value

    def __post_init__(self) -> None:
        if not is_literal(self.value):
            raise PatternError(
                f"a term takes a number, string, boolean, date, time, timedelta, bytes or None, "
                f"not {self.value!r}"
            )
        if isinstance(self.value, Decimal) and self.value.is_snan():
            raise PatternError("a term takes NaN, but no signalling NaN, which compares to nothing")
        try:
            _written(self.value)
        except ValueError:  # an integer beyond `sys.get_int_max_str_digits`
            raise PatternError(
                "a term takes integers of as many digits as Python writes "
                f"({sys.get_int_max_str_digits()}): use a shorter one"
            ) from None

    @property
    def operands(self) -> tuple[Term, ...]:
        return ()

    def _structure(self) -> tuple[Any, ...]:
        # 1, 1.0 and True are equal, as are -0.0 and 0.0, but they are written differently.
        return (Literal, type(self.value), _written(self.value))

    def _compiled(self) -> Compiled:
        value = self.value

        def literal(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            return value

        return literal

    def _text(self) -> tuple[str, int]:
        return _written(self.value), ATOM


def is_literal(value: object) -> bool:
    """Return whether a value can be a literal."""
    return value is None or type(value) in _TYPES


def as_term(value: object) -> Term:
    """Return a term unchanged, and a value as a literal.

    Raises
    ------
    PatternError
        If the value cannot be a literal.
    """
    return value if isinstance(value, Term) else Literal(value)


def _written(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return repr(value) if isfinite(value) else f"FLOAT '{value!r}'"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return f"DECIMAL '{value}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, timedelta):
        us = timedelta_us(value)
        return f"INTERVAL '{'-' if us < 0 else ''}{seconds_text(abs(us))}s'"
    kind = {datetime: "TIMESTAMP", date: "DATE", time: "TIME"}[type(value)]
    return f"{kind} '{value.isoformat()}'"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# -- comparison and arithmetic terms -----------------------------------------------------------


_ALIKE = frozenset((int, str, float, bool))
"""Types whose values can be compared with values of the same type without errors."""
_DIRECT: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
    "+": add,
    "-": sub,
    "*": mul,
}
"""Operators for two values of one such type."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Term):
    """Comparison of two values for equality or order.

    Numbers are compared exactly, whatever their types; NaN equals nothing. A comparison with NULL
    is unknown.

    Attributes
    ----------
    operator : {"=", "!=", "<", "<=", ">", ">="}
    left, right : Term
    """

    operator: str
    left: Term
    right: Term

    def __post_init__(self) -> None:
        _check(self.operator, COMPARISONS, self.left, self.right)

    def __bool__(self) -> bool:
        """Return whether ``a == b``, or ``a != b``, holds for the terms `a` and `b` themselves."""
        if self.operator == "=":
            return self.left.same_as(self.right)
        if self.operator == "!=":
            return not self.left.same_as(self.right)
        return super().__bool__()

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.left, self.right)

    def _compiled(self) -> Compiled:
        compare = COMPARISONS[self.operator]
        left, right = self.left.compiled, self.right.compiled

        def judged(a: Value, b: Value) -> bool:
            try:
                return bool(compare(a, b))
            except (TypeError, ArithmeticError, ValueError):
                raise self._not_comparable(a, b) from None

        if isinstance(self.right, Literal) and type(self.right.value) in _ALIKE:
            return self._with_literal(left, self.right.value, judged)
        direct = _DIRECT[self.operator]

        def comparison(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            a = left(parts, this, reader)
            b = right(parts, this, reader)
            kind = type(a)
            if kind is type(b) and kind in _ALIKE:
                return direct(a, b)
            return None if a is None or b is None else judged(a, b)

        one, other = self.left.part_value, self.right.part_value
        if one is not None and other is not None:
            return self._of_two_parts(*one, *other, comparison)
        return comparison

    def _of_two_parts(
        self, left: str, left_name: str, right: str, right_name: str, otherwise: Compiled
    ) -> Compiled:
        """Return a function that compares the attributes of two parts directly: a fast path."""
        direct = _DIRECT[self.operator]

        def comparison(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            try:
                o, p = parts[left], parts[right]
                if type(o) is tuple:
                    o = o[-1]
                if type(p) is tuple:
                    p = p[-1]
                a, b = o.params[left_name], p.params[right_name]
            except (KeyError, IndexError, AttributeError):
                return otherwise(parts, this, reader)
            kind = type(a)
            if kind is type(b) and kind in _ALIKE:
                return direct(a, b)
            return otherwise(parts, this, reader)

        return comparison

    def _with_literal(
        self, left: Compiled, b: Value, judged: Callable[[Value, Value], bool]
    ) -> Compiled:
        """Return a function that compares with a constant: a fast path."""
        alike, direct = type(b), _DIRECT[self.operator]

        def comparison(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            a = left(parts, this, reader)
            if type(a) is alike:
                return direct(a, b)
            return None if a is None else judged(a, b)

        return comparison

    def _not_comparable(self, a: Value, b: Value) -> BadEvent:
        return BadEvent(
            f"{self!r}: {_shown(a, self.left)} and {_shown(b, self.right)} do not compare"
        )

    def _text(self) -> tuple[str, int]:
        left, right = (written(side, SUM) for side in self.operands)
        return f"{left} {self.operator} {right}", COMPARISON


@dataclass(frozen=True, eq=False, repr=False)
class Arithmetic(Term):
    """Sum, difference, product, quotient or remainder.

    Integers and decimals are computed exactly; ``/`` of two integers drops the fraction, and ``%``
    has the sign of its left side, as in SQL. A float cannot be combined with a decimal, or with an
    integer that no float equals, as the result would be rounded silently. The result is NULL if an
    operand is.

    Attributes
    ----------
    operator : {"+", "-", "*", "/", "%"}
    left, right : Term
    """

    operator: str
    left: Term
    right: Term

    def __post_init__(self) -> None:
        _check(self.operator, CALCULATIONS, self.left, self.right)

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.left, self.right)

    def _compiled(self) -> Compiled:
        left, right = self.left.compiled, self.right.compiled
        calculate = CALCULATIONS[self.operator]
        direct = _DIRECT.get(self.operator, calculate)

        def arithmetic(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            a = left(parts, this, reader)
            b = right(parts, this, reader)
            kind = type(a)
            if kind is type(b) and (kind is int or kind is float):
                operation = direct
            elif a is None or b is None:
                return None
            else:
                operation = calculate
            try:
                return operation(a, b)
            except ZeroDivisionError:
                raise BadEvent(f"{self!r} divides {_shown(a, self.left)} by zero") from None
            except (TypeError, ArithmeticError, ValueError):
                raise BadEvent(
                    f"{self!r}: {_shown(a, self.left)} and {_shown(b, self.right)} cannot be "
                    f"computed with {self.operator} exactly"
                ) from None

        return arithmetic

    def _text(self) -> tuple[str, int]:
        strength = SUM if self.operator in "+-" else PRODUCT
        left, right = written(self.left, strength), written(self.right, strength + 1)
        return f"{left} {self.operator} {right}", strength


@dataclass(frozen=True, eq=False, repr=False)
class Negative(Term):
    """Negative of a number or duration.

    Attributes
    ----------
    operand : Term
    """

    operand: Term

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.operand,)

    def _compiled(self) -> Compiled:
        operand = self.operand.compiled

        def negative(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            value = operand(parts, this, reader)
            if value is None:
                return None
            try:
                return negated(value)
            except (TypeError, ArithmeticError):
                raise BadEvent(f"{self!r}: {_shown(value, self.operand)} has no negative") from None

        return negative

    def _text(self) -> tuple[str, int]:
        # Never write two hyphens in a row, which begin a comment, nor a hyphen before the digits of
        # a literal, where it would be the literal's sign.
        if self.operand.is_attribute:
            return f"-{self.operand!r}", ATOM
        return f"-({self.operand!r})", ATOM


def _check(operator: str, known: Mapping[str, Any], *operands: object) -> None:
    if operator not in known:
        raise PatternError(f"{operator!r} is not an operator: write one of {' '.join(known)}")
    for operand in operands:
        if not isinstance(operand, Term):
            raise PatternError(f"{operator} takes terms, not {operand!r}")


def _shown(value: Value, term: Term) -> str:
    """Return a value, with the term that it comes from, for error messages."""
    return repr(value) if isinstance(term, Literal) else f"{term!r} = {value!r}"


# -- conditions: AND, OR, NOT with three truth values, and the predicates of SQL ---------------


@dataclass(frozen=True, eq=False, repr=False)
class _Junction(Term):
    """Base of AND and OR.

    Attributes
    ----------
    conditions : tuple of Term
        At least two. They are evaluated from left to right until the result is known.
    """

    conditions: tuple[Term, ...]

    def __post_init__(self) -> None:
        if len(self.conditions) < 2 or not all(isinstance(c, Term) for c in self.conditions):
            raise PatternError(f"and, or take at least two terms, not {self.conditions!r}")

    @property
    def is_junction(self) -> bool:
        return True

    @classmethod
    def of(cls, *conditions: object) -> Self:
        """Build from conditions, flattening junctions of the same kind."""
        found: list[Term] = []
        for condition in map(as_term, conditions):
            found += condition.conditions if isinstance(condition, cls) else (condition,)
        return cls(tuple(found))

    @property
    def operands(self) -> tuple[Term, ...]:
        return self.conditions

    def _decided_by(self, decisive: bool) -> Compiled:
        """Return `decisive` if one condition is; else unknown if one is; else the opposite."""
        judges = [(c, c.compiled) for c in self.conditions]

        def junction(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            value: Value = not decisive
            for condition, judge in judges:
                found = judge(parts, this, reader)
                if found is decisive:
                    return decisive
                if found is None:
                    value = None
                elif found is not True and found is not False:
                    raise _no_condition(condition, found)
            return value

        return junction


@dataclass(frozen=True, eq=False, repr=False)
class And(_Junction):
    """Conjunction: true if all conditions are; false if one is; otherwise unknown."""

    def _compiled(self) -> Compiled:
        return self._decided_by(False)

    def _text(self) -> tuple[str, int]:
        return " AND ".join(written(c, NOT) for c in self.conditions), AND


@dataclass(frozen=True, eq=False, repr=False)
class Or(_Junction):
    """Disjunction: true if one condition is; otherwise unknown if one is; otherwise false."""

    def _compiled(self) -> Compiled:
        return self._decided_by(True)

    def _text(self) -> tuple[str, int]:
        return " OR ".join(written(c, AND) for c in self.conditions), OR


@dataclass(frozen=True, eq=False, repr=False)
class Not(Term):
    """Negation of a condition; unknown if the condition is.

    Attributes
    ----------
    condition : Term
    """

    condition: Term

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.condition,)

    def _compiled(self) -> Compiled:
        condition = self.condition
        judge = condition.compiled

        def negated(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            found = judge(parts, this, reader)
            if found is None:
                return None
            if found is not True and found is not False:
                raise _no_condition(condition, found)
            return not found

        return negated

    def _text(self) -> tuple[str, int]:
        if isinstance(self.condition, NegatedInside):
            return self.condition._test_text("NOT "), COMPARISON
        return f"NOT {written(self.condition, NOT)}", NOT


class NegatedInside(Term):
    """Test with an inner negation: IS NOT NULL, NOT IN, NOT BETWEEN, NOT LIKE."""

    @abstractmethod
    def _test_text(self, negation: str) -> str:
        """Return the text with `negation` (``NOT`` or the empty string) in its place."""

    def _text(self) -> tuple[str, int]:
        return self._test_text(""), COMPARISON


@dataclass(frozen=True, eq=False, repr=False)
class IsNull(NegatedInside):
    """Condition that a value is NULL.

    Attributes
    ----------
    operand : Term
    """

    operand: Term

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.operand,)

    def _compiled(self) -> Compiled:
        operand = self.operand.compiled
        return lambda parts, this, reader: operand(parts, this, reader) is None

    def _test_text(self, negation: str) -> str:
        return f"{written(self.operand, SUM)} IS {negation}NULL"


@dataclass(frozen=True, eq=False, repr=False)
class In(NegatedInside):
    """Condition that a value equals one of several; unknown if it equals none and one is NULL.

    Attributes
    ----------
    operand : Term
    choices : tuple of Term
        At least one.
    """

    operand: Term
    choices: tuple[Term, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise PatternError(f"{self.operand!r} IN () is never true: give at least one value")

    @classmethod
    def of(cls, operand: Term, choices: Iterable[object]) -> In:
        """Build from an operand and an iterable of values or terms."""
        if isinstance(choices, str | bytes | Term) or not isinstance(choices, Iterable):
            raise PatternError(
                f"in_() takes an iterable of values, not {choices!r}: write in_([…])"
            )
        return cls(operand, tuple(map(as_term, choices)))

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.operand, *self.choices)

    def _compiled(self) -> Compiled:
        operand = self.operand.compiled
        choices = [choice.compiled for choice in self.choices]

        def one_of(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            value = operand(parts, this, reader)
            if value is None:
                return None
            found: Value = False
            for choice in choices:
                other = choice(parts, this, reader)
                if other is None:
                    found = None
                elif _equal(self, value, other):
                    return True
            return found

        return one_of

    def _test_text(self, negation: str) -> str:
        choices = ", ".join(written(choice, SUM) for choice in self.choices)
        return f"{written(self.operand, SUM)} {negation}IN ({choices})"


@dataclass(frozen=True, eq=False, repr=False)
class Between(NegatedInside):
    """Condition ``low <= operand <= high``.

    Attributes
    ----------
    operand, low, high : Term
    """

    operand: Term
    low: Term
    high: Term

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.operand, self.low, self.high)

    def _compiled(self) -> Compiled:
        return ((self.operand >= self.low) & (self.operand <= self.high)).compiled

    def _test_text(self, negation: str) -> str:
        operand, low, high = (written(term, SUM) for term in self.operands)
        return f"{operand} {negation}BETWEEN {low} AND {high}"


@dataclass(frozen=True, eq=False, repr=False)
class Like(NegatedInside):
    r"""Condition that a whole text matches a pattern.

    Attributes
    ----------
    operand, pattern : Term
        In the pattern, ``%`` is any text, ``_`` any character; a backslash escapes the next one.
    """

    operand: Term
    pattern: Term

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.operand, self.pattern)

    def _compiled(self) -> Compiled:
        operand, pattern = self.operand.compiled, self.pattern.compiled

        def matches(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            text, like = operand(parts, this, reader), pattern(parts, this, reader)
            if text is None or like is None:
                return None
            if not isinstance(text, str) or not isinstance(like, str):
                raise BadEvent(f"{self!r}: LIKE compares texts, not {text!r} and {like!r}")
            found = _expression_of(like)
            if found is None:
                raise BadEvent(f"{self!r}: the pattern {like!r} ends with its escape, a backslash")
            return found.fullmatch(text) is not None

        return matches

    def _test_text(self, negation: str) -> str:
        operand, pattern = (written(term, SUM) for term in self.operands)
        return f"{operand} {negation}LIKE {pattern}"


@lru_cache(maxsize=256)
def _expression_of(like: str) -> re.Pattern[str] | None:
    segments, characters = [""], iter(like)
    for character in characters:
        if character == "%":
            segments.append("")
        elif character == "_":
            segments[-1] += "."
        elif character == "\\":
            taken = next(characters, None)
            if taken is None:
                return None
            segments[-1] += re.escape(taken)
        else:
            segments[-1] += re.escape(character)
    first, *others = segments
    if not others:
        return re.compile(first, re.DOTALL)
    *middle, last = others
    # If any place suits a middle segment, its first one does: without the atomic groups, the time
    # would grow exponentially with the number of segments.
    found = "".join(f"(?>.*?{segment})" for segment in middle if segment)
    return re.compile(f"{first}{found}.*{last}", re.DOTALL)


def _equal(term: Term, a: Value, b: Value) -> bool:
    try:
        return equal(a, b)
    except (TypeError, ArithmeticError, ValueError):
        raise BadEvent(f"{term!r}: {a!r} and {b!r} do not compare") from None


def _no_condition(term: Term, value: Value) -> BadEvent:
    return BadEvent(
        f"{term!r} is {value!r}, which is not true, false or unknown: write a comparison"
    )
