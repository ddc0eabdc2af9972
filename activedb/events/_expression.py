"""Base class of all event expressions: common properties and combinators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from activedb.clock import timedelta_us
from activedb.errors import PatternError
from activedb.events._timestamps import seconds_us

if TYPE_CHECKING:
    from activedb.events._conjunction import Conjunction
    from activedb.events._disjunction import Disjunction
    from activedb.events._temporal import Plus

__all__ = ["Constituent", "Expression", "PartsPredicate", "Reader", "window_us_of"]

Constituent = Any
"""The value of a part: an `Occurrence`, or for a Kleene part a tuple of them in time order."""
PartsPredicate = Callable[[Mapping[str, Constituent]], object]
Reader = Any
"""The transaction through which a predicate reads the shared store."""


class Expression(ABC):
    """An event expression; immutable, compared by value.

    ::

        Expression
        ├── Primitive     event("EXIT"), inserted(t), updated(t, "balance"), deleted(t),
        │                 late(stream), at(moment), every(seconds), cron("0 * * * *")
        ├── Query         query("Q1", pattern, returns): a pattern with a name and an output
        ├── Disjunction   a | b, any_of(a, b)
        ├── Conjunction   a & b, all_of(a, b); some_of(2, a, b, c)
        ├── Sequence      seq(...), aperiodic(...)
        ├── Plus          after(seconds, a)
        ├── Periodic      periodic(a, seconds, c)
        ├── TimedOut      sequence.timed_out()
        ├── Negation      ~a      only as a part of a sequence
        └── Kleene        many(a) only as a part of a sequence
    """

    __slots__ = ()

    @property
    @abstractmethod
    def keys(self) -> frozenset[tuple[str, str]]:
        """The keys of the primitive events in the expression, negated ones included.

        ``("event", name)`` for application and stream events; ``("insert" | "update" | "delete",
        full table name)`` for data changes; ``("late", stream)`` for late events. Clock events have
        no key here: a detector makes them itself.
        """

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the positive parts, in the order in which they are written."""

    @property
    @abstractmethod
    def children(self) -> tuple[Expression, ...]:
        """The subexpressions, in the order in which they are written."""

    @property
    @abstractmethod
    def reach_us(self) -> int | None:
        """Upper bound on the duration of an occurrence, in microseconds; None: unbounded."""

    @abstractmethod
    def check(self) -> None:
        """Raise `PatternError` if the expression cannot stand on its own.

        This method, not the constructor, rejects what a later call can still correct: a sequence
        that starts with a negation, for example, needs `within`. A `Detector` checks its
        expression.
        """

    def __invert__(self) -> Expression:
        """Negate: as a part of a sequence, demand that no such event occurs there."""
        raise PatternError(
            f"~ negates a primitive event, not {self!r}: write seq(a, ~event('B'), c)"
        )

    def __or__(self, other: object) -> Disjunction:
        """Return the disjunction of both, as `any_of`."""
        from activedb.events._disjunction import Disjunction

        return Disjunction.of(self, other)

    def __and__(self, other: object) -> Conjunction:
        """Return the conjunction of both, in any order, as `all_of`."""
        from activedb.events._conjunction import Conjunction

        return Conjunction.of(self, other)

    def after(self, delay: float | timedelta) -> Plus:
        """Return the event that occurs `delay` after each occurrence of this one (plus)."""
        from activedb.events._temporal import Plus

        return Plus(self, window_us_of(delay, "after()"))

    def same(self, *attributes: str) -> Expression:
        """Demand equal values of the given parameters in all parts."""
        raise PatternError(
            f"same() relates the parts of a sequence or conjunction: write seq({self!r}, …).same()"
        )

    def where(self, predicate: PartsPredicate) -> Expression:
        """Demand a predicate over the parts."""
        raise PatternError(
            f"where() takes the parts of a sequence or conjunction: for {self!r} alone write "
            "event(…, where=lambda o: …)"
        )

    def within(self, window: float | timedelta) -> Expression:
        """Limit the time from the first to the last part."""
        raise PatternError(
            f"within() bounds the parts of a sequence or conjunction: write "
            f"seq({self!r}, …).within()"
        )

    def context(self, context: str) -> Expression:
        """Choose the possible matches that a terminator makes (Chakravarthy et al. 1994)."""
        raise PatternError(
            f"context() chooses among combinations of parts: write seq({self!r}, …).context()"
        )

    def __bool__(self) -> bool:
        raise PatternError(
            f"{self!r} is no truth value: write & for and, | for or, ~ for not, and seq(a, b) "
            "instead of comparing"
        )


def window_us_of(window: float | timedelta, what: str) -> int:
    """Return a positive duration in microseconds, from seconds or a timedelta.

    Raises
    ------
    PatternError
        If it is not finite or shorter than a microsecond. The message names the method, `what`.
    """
    if isinstance(window, timedelta):
        us: int | None = timedelta_us(window)
    elif isinstance(window, int | float) and not isinstance(window, bool):
        us = seconds_us(window)
    else:
        raise PatternError(f"{what} takes seconds or a timedelta, not {window!r}")
    if us is None or us <= 0:
        raise PatternError(f"{what} takes a finite time of at least a microsecond, not {window!r}")
    return us
