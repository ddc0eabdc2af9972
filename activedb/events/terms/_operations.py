"""Comparison and arithmetic terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import add, eq, ge, gt, le, lt, mul, ne, sub
from typing import Any

from activedb.errors import BadEvent, PatternError
from activedb.events.terms._literal import Literal
from activedb.events.terms._precedence import ATOM, COMPARISON, PRODUCT, SUM, written
from activedb.events.terms._references import Attribute
from activedb.events.terms._term import Compiled, Term, Value
from activedb.events.terms._values import CALCULATIONS, COMPARISONS

__all__ = ["Arithmetic", "Comparison", "Negative"]

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

        if _is_plain(self.left) and _is_plain(self.right):
            return self._of_two_parts(comparison)
        return comparison

    def _of_two_parts(self, otherwise: Compiled) -> Compiled:
        """Return a function that compares the attributes of two parts directly: a fast path."""
        assert isinstance(self.left, Attribute)
        assert isinstance(self.right, Attribute)
        left, left_name = self.left.part, self.left.name
        right, right_name = self.right.part, self.right.name
        direct = _DIRECT[self.operator]

        def comparison(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            try:
                o, p = parts[left], parts[right]  # type: ignore[index]
                if type(o) is tuple:
                    o = o[-1]
                if type(p) is tuple:
                    p = p[-1]
                a, b = o.params[left_name], p.params[right_name]
            except (KeyError, IndexError):
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
                return -value
            except (TypeError, ArithmeticError):
                raise BadEvent(f"{self!r}: {_shown(value, self.operand)} has no negative") from None

        return negative

    def _text(self) -> tuple[str, int]:
        # Never write two hyphens in a row, which begin a comment, nor a hyphen before the digits of
        # a literal, where it would be the literal's sign.
        if isinstance(self.operand, Attribute):
            return f"-{self.operand!r}", ATOM
        return f"-({self.operand!r})", ATOM


def _is_plain(term: Term) -> bool:
    return isinstance(term, Attribute) and term.part is not None and not term.old


def _check(operator: str, known: Mapping[str, Any], *operands: object) -> None:
    if operator not in known:
        raise PatternError(f"{operator!r} is no operator: write one of {' '.join(known)}")
    for operand in operands:
        if not isinstance(operand, Term):
            raise PatternError(f"{operator} takes terms, not {operand!r}")


def _shown(value: Value, term: Term) -> str:
    """Return a value, with the term that it comes from, for error messages."""
    return repr(value) if isinstance(term, Literal) else f"{term!r} = {value!r}"
