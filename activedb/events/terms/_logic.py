"""Conditions: AND, OR, NOT with three truth values, and the predicates of SQL."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from activedb.errors import BadEvent, PatternError
from activedb.events.terms._literal import as_term
from activedb.events.terms._precedence import AND, COMPARISON, NOT, OR, SUM, written
from activedb.events.terms._term import Compiled, Term, Value
from activedb.events.terms._values import equal

__all__ = ["And", "Between", "In", "IsNull", "Like", "NegatedInside", "Not", "Or"]


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
    """Condition that a value equals one of several. If it does not but one is NULL, unknown.

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
            raise PatternError(f"in_() takes several values, not {choices!r}: write in_([…])")
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
    found, characters = "", iter(like)
    for character in characters:
        if character == "%":
            found += ".*"
        elif character == "_":
            found += "."
        elif character == "\\":
            taken = next(characters, None)
            if taken is None:
                return None
            found += re.escape(taken)
        else:
            found += re.escape(character)
    return re.compile(found, re.DOTALL)


def _equal(term: Term, a: Value, b: Value) -> bool:
    try:
        return equal(a, b)
    except (TypeError, ArithmeticError, ValueError):
        raise BadEvent(f"{term!r}: {a!r} and {b!r} do not compare") from None


def _no_condition(term: Term, value: Value) -> BadEvent:
    return BadEvent(f"{term!r} is {value!r}, and not true, false or unknown: compare it")
