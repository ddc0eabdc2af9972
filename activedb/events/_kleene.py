"""Kleene closure: several events of one kind, as a part of a sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from activedb.errors import PatternError
from activedb.events._expression import Expression
from activedb.events._names import name_text
from activedb.events._primitives import Primitive, checked_alias

if TYPE_CHECKING:
    from activedb.events._disjunction import Disjunction

__all__ = ["Kleene"]


@dataclass(frozen=True, slots=True, repr=False)
class Kleene(Expression):
    """Kleene closure: several events of one kind, as a part of a sequence.

    Attributes
    ----------
    operand : Primitive, or Disjunction of some
        The events that the elements are.
    minimum, maximum : int, int or None
        The number of elements, inclusive; None: unbounded.
    greedy : bool
        True if a longer binding is preferred to a shorter one.
    alias : str or None
        The part's name. None: the name of the operand, which is then a primitive event.
    """

    operand: Primitive | Disjunction
    minimum: int
    maximum: int | None
    greedy: bool = True
    alias: str | None = None

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return self.operand.keys

    @property
    def name(self) -> str:
        """The part's name."""
        return self.operand.names[0] if self.alias is None else self.alias

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.operand,)

    @property
    def reach_us(self) -> int | None:
        return None

    @property
    def alternatives(self) -> tuple[Primitive, ...]:
        """The primitive events that an element may be."""
        found = self.operand.children or (self.operand,)
        return tuple(part for part in found if isinstance(part, Primitive))

    def named(self, alias: str) -> Kleene:
        """Return this part under another name."""
        return replace(self, alias=checked_alias(alias))

    def check(self) -> None:
        raise PatternError(
            f"{self!r} alone has no end: make it a part of a sequence, as in seq(a, many(b), c)"
        )

    def __invert__(self) -> Expression:
        raise PatternError(f"~ negates a primitive event, not {self!r}: leave out many()")

    def __repr__(self) -> str:
        bounds = {(1, None): "+", (0, None): "*", (0, 1): "?"}.get((self.minimum, self.maximum))
        if bounds is None:
            most = "" if self.maximum is None else str(self.maximum)
            bounds = f"{{{self.minimum},{most}}}"
        text = f"({self.operand!r}){bounds}" + ("" if self.greedy else "?")
        return text if self.alias is None else f"{text} AS {name_text(self.alias)}"
