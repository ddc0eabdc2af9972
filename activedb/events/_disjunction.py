"""Disjunction: any one of several events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from activedb.errors import PatternError
from activedb.events._expression import Expression
from activedb.events._kleene import Kleene
from activedb.events._primitives import Negation, Primitive

__all__ = ["Disjunction", "operand_of"]


@dataclass(frozen=True, slots=True, repr=False)
class Disjunction(Expression):
    """Disjunction: any one of several events.

    The occurrence is the event itself, once, however many of the parts take it.

    Attributes
    ----------
    parts : tuple of Expression
        At least one part; no duplicates.
    """

    parts: tuple[Expression, ...]

    @classmethod
    def of(cls, *parts: object) -> Disjunction:
        """Build from expressions, flattening other disjunctions."""
        found: list[Expression] = []
        for part in parts:
            checked = operand_of(part, "any_of() and |")
            found += checked.parts if isinstance(checked, Disjunction) else [checked]
        return cls(tuple(dict.fromkeys(found)))

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return frozenset().union(*(part.keys for part in self.parts))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.names))

    @property
    def children(self) -> tuple[Expression, ...]:
        return self.parts

    @property
    def reach_us(self) -> int | None:
        return _longest(part.reach_us for part in self.parts)

    @property
    def is_primitive(self) -> bool:
        """True if all parts are primitive events."""
        return all(isinstance(part, Primitive) for part in self.parts)

    def check(self) -> None:
        for part in self.parts:
            part.check()

    def context(self, context: str) -> Disjunction:
        """Set the context of the parts that have one."""
        return Disjunction(
            tuple(
                part if isinstance(part, Primitive) else part.context(context)
                for part in self.parts
            )
        )

    def many(self, minimum: int = 1, maximum: int | None = None, *, greedy: bool = True) -> Kleene:
        """Return several of these events in time order, as a part of a sequence; see `many`."""
        from activedb.events._operators import many

        return many(self, minimum, maximum, greedy=greedy)

    def __invert__(self) -> Negation:
        if not self.is_primitive:
            raise PatternError(
                f"~ negates primitive events, not {self!r}: negate each of them at its place"
            )
        return Negation(self)

    def __repr__(self) -> str:
        return f"ANY({', '.join(map(repr, self.parts))})"


def operand_of(part: object, what: str) -> Expression:
    """Return `part` if it is valid as an operand of `what`, where order does not matter.

    Raises
    ------
    PatternError
        If it is no expression, or a negation or Kleene part.
    """
    if isinstance(part, Expression) and not isinstance(part, Negation | Kleene):
        return part
    hint = " (write many() and ~ inside seq() only)" if isinstance(part, Expression) else ""
    raise PatternError(f'{what} take events, such as event("A"), not {part!r}{hint}')


def _longest(reaches: Iterable[int | None]) -> int | None:
    found = list(reaches)
    return None if None in found else max((us for us in found if us is not None), default=0)
