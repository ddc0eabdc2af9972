"""Base of sequences and conjunctions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self

from activedb.errors import PatternError
from activedb.events._choices import Context, one_of
from activedb.events._disjunction import Disjunction
from activedb.events._expression import (
    Constituent,
    Expression,
    PartsPredicate,
    Reader,
    window_us_of,
)
from activedb.events._kleene import Kleene
from activedb.events._names import name_text, repeated
from activedb.events._primitives import Negation, Primitive, seconds_text, where_text
from activedb.events._query import Query
from activedb.functions import checked_function

__all__ = ["Combination", "PartsReading"]

PartsReading = Callable[[Reader, Mapping[str, Constituent]], object]


@dataclass(frozen=True, slots=True, repr=False)
class Combination(Expression):
    """Base of sequences and conjunctions.

    Attributes
    ----------
    parts : tuple of Expression
    attributes : tuple of str
        Parameters that must be equal in all parts.
    predicates : tuple of callable or Term
        ``predicate(parts) -> bool`` over the positive parts; pure; all must be true.
    readings : tuple of callable
        ``reading(t, parts) -> bool``; they read the shared store as of the match's last event.
    window_us : int or None
        The longest time from the beginning of the first to the end of the last positive part, in
        microseconds, inclusive.
    consumption : Context
        The choice among possible matches.
    """

    parts: tuple[Expression, ...]
    attributes: tuple[str, ...] = ()
    predicates: tuple[PartsPredicate, ...] = ()
    readings: tuple[PartsReading, ...] = ()
    window_us: int | None = None
    consumption: Context = Context.UNRESTRICTED

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return frozenset().union(*(part.keys for part in self.parts))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.names)

    @property
    def children(self) -> tuple[Expression, ...]:
        return self.parts

    @property
    def reach_us(self) -> int | None:
        return self.window_us

    def same(self, *attributes: str) -> Self:
        """Demand that parameters have equal values in all parts, negated parts included.

        A negated event with other values does not prevent a match.

        Parameters
        ----------
        *attributes : str
            Parameter names, at least one; they add to those of earlier calls. Values are compared
            like dictionary keys, so they must be hashable and equal to themselves.
        """
        for attribute in attributes:
            if not isinstance(attribute, str) or not attribute:
                raise PatternError(f"same() takes parameter names, not {attribute!r}")
        if not attributes:
            raise PatternError('same() needs at least one parameter name: .same("worker")')
        return replace(self, attributes=tuple(dict.fromkeys(self.attributes + attributes)))

    def where(self, predicate: PartsPredicate) -> Self:
        """Demand ``predicate(parts)``, a mapping of part names to the positive constituents.

        The predicate must be pure: it is called for every combination that satisfies the other
        conditions, and its result must depend on the parts alone. Predicates add to those of
        earlier calls. A `Term` is evaluated as soon as the parts that it names are known, a
        function when all parts are.
        """
        if not callable(predicate):
            raise PatternError(f"where() takes a function of the parts, not {predicate!r}")
        checked_function(predicate, "the predicate given to where()")
        if getattr(predicate, "uses_this", False):
            raise PatternError(
                f"{predicate!r} is about one event, and {self!r} has several: write "
                "part('A').x for attr('x')"
            )
        if getattr(predicate, "is_reading", False):
            return self.reading(predicate)  # type: ignore[arg-type]  # a Term can be either
        unknown = sorted(frozenset(getattr(predicate, "part_names", ())) - set(self.names))
        if unknown:
            raise PatternError(
                f"{predicate!r} names the part {unknown[0]!r}, which {self!r} does not have: "
                f"write one of {', '.join(self.names)}"
            )
        return replace(self, predicates=(*self.predicates, predicate))

    def reading(self, reading: PartsReading) -> Self:
        """Demand ``reading(t, parts)``, which reads the shared store as of the match's last event.

        `t` is the transaction that processes that event; it is read-only.
        """
        if not callable(reading):
            raise PatternError(f"reading() takes a function of (t, parts), not {reading!r}")
        checked_function(reading, "the function given to reading()")
        return replace(self, readings=(*self.readings, reading))

    def within(self, window: float | timedelta) -> Self:
        """Limit the time from the first to the last positive part, inclusive.

        Parameters
        ----------
        window : int, float or timedelta
            Seconds (to the nearest microsecond) or a timedelta; positive.
        """
        if self.window_us is not None:
            raise PatternError(f"{self!r} has its window already: call within() once")
        return replace(self, window_us=window_us_of(window, "within()"))

    def context(self, context: str) -> Self:
        """Choose which possible matches are made, here and in the parts.

        Parameters
        ----------
        context : {"unrestricted", "recent", "chronicle", "continuous", "cumulative"}
        """
        return replace(
            self,
            consumption=one_of(Context, context, "a context"),
            parts=tuple(
                part if isinstance(part, Primitive | Negation | Kleene) else part.context(context)
                for part in self.parts
            ),
        )

    def _conditions(self) -> str:
        text = ""
        if self.attributes:
            names = ", ".join(map(name_text, self.attributes))
            # Without brackets the comma would seem to start the next part of an outer sequence.
            text += f" SAME {names}" if len(self.attributes) == 1 else f" SAME ({names})"
        text += where_text((*self.predicates, *self.readings))
        if self.window_us is not None:
            text += f" WITHIN {seconds_text(self.window_us)}s"
        return text

    def _choices(self) -> str:
        if self.consumption is Context.UNRESTRICTED:
            return ""
        return f" CONTEXT {self.consumption.value}"

    def _check_parts(self) -> None:
        name = repeated(self.names)
        if name is not None:
            raise PatternError(
                f"two parts of {self!r} are called {name!r}: "
                'tell them apart with alias="…", say alias="first"'
            )
        for part in self.parts:
            if isinstance(part, Kleene) and part.alias is None and len(part.alternatives) > 1:
                raise PatternError(
                    f"{part!r} is several kinds of events, so it has no name: write .named(…)"
                )
            clock = _moment_of(part)
            if clock is not None and self.attributes:
                raise PatternError(
                    f"{clock!r} is a moment and has no parameters, so {self.attributes[0]!r} "
                    "cannot be the same there: leave out same(), or compare with where()"
                )
            if not isinstance(part, Negation | Kleene):
                part.check()


def _moment_of(part: Expression) -> Primitive | None:
    """Return the clock event that may be the only constituent of a part, or None."""
    if isinstance(part, Primitive):
        return part if part.schedule is not None else None
    if isinstance(part, Query) or (len(part.children) > 1 and not isinstance(part, Disjunction)):
        return None  # it has its own parameters, or those of other constituents
    return next(
        (found for child in part.children if (found := _moment_of(child)) is not None), None
    )
