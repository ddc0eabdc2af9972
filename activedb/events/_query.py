"""Named patterns with an output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from activedb.errors import PatternError
from activedb.events._expression import Expression
from activedb.events._kleene import Kleene
from activedb.events._names import name_text
from activedb.events._primitives import Negation, Primitive

__all__ = ["Query"]


@dataclass(frozen=True, slots=True, repr=False)
class Query(Expression):
    """Named pattern with an output (Wang, Rundensteiner, Ellison 2011, appendix B).

    Its occurrences are composite events of this name, with the returned parameters.

    Attributes
    ----------
    name : str
    pattern : Expression
    returns : tuple of (str, Term)
        The output parameters and the terms that give their values; empty: all parameters of the
        parts.
    stream : str or None
        The stream that the query is on, if given.
    """

    name: str
    pattern: Expression
    returns: tuple[tuple[str, Any], ...] = ()
    stream: str | None = None

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return self.pattern.keys

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.pattern,)

    @property
    def reach_us(self) -> int | None:
        return self.pattern.reach_us

    def context(self, context: str) -> Query:
        """Set the context of the pattern."""
        if isinstance(self.pattern, Primitive):
            return self
        return replace(self, pattern=self.pattern.context(context))

    def check(self) -> None:
        if isinstance(self.pattern, Negation | Kleene):
            raise PatternError(f"query {self.name}: {self.pattern!r} cannot stand alone")
        self.pattern.check()
        for name, term in self.returns:
            unknown = sorted(frozenset(term.part_names) - set(self.pattern.names))
            if unknown:
                raise PatternError(
                    f"query {self.name}: it returns {name!r} of the part {unknown[0]!r}, which "
                    f"its pattern does not have; write one of {', '.join(self.pattern.names)}"
                )

    def __repr__(self) -> str:
        return f"OUTPUT {name_text(self.name)}"
