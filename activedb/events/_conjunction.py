"""Conjunction: several events in any order, all of them or some."""

from __future__ import annotations

from dataclasses import dataclass

from activedb.events._combination import Combination
from activedb.events._disjunction import operand_of
from activedb.events._expression import Expression

__all__ = ["Conjunction"]


@dataclass(frozen=True, slots=True, repr=False)
class Conjunction(Combination):
    """Conjunction: several events in any order, all of them or some.

    Attributes
    ----------
    count : int
        The number of parts that must occur; the number of parts if all must.
    """

    count: int = 0

    @classmethod
    def of(cls, *parts: object) -> Conjunction:
        """Build the conjunction of all `parts`, flattening plain conjunctions among them."""
        found: list[Expression] = []
        for part in parts:
            checked = operand_of(part, "all_of() and &")
            plain = isinstance(checked, Conjunction) and checked == cls(
                checked.parts, count=len(checked.parts)
            )
            found += checked.children if plain else [checked]
        made = cls(tuple(found), count=len(found))
        made._check_parts()
        return made

    def check(self) -> None:
        self._check_parts()

    def __repr__(self) -> str:
        parts = ", ".join(map(repr, self.parts))
        text = f"ALL({parts})" if self.count == len(self.parts) else f"SOME({self.count}, {parts})"
        return text + self._conditions() + self._choices()
