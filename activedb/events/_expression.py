"""The base of all event expressions: what can be asked of each, and how they are combined."""

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
"""What stands for a part: an `Occurrence`, of a Kleene part a tuple of them in time order."""
PartsPredicate = Callable[[Mapping[str, Constituent]], object]
Reader = Any
"""What a predicate that reads the shared store reads through: a transaction."""


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
        """The keys of the primitive events it listens to, negated ones included.

        ``("event", name)`` for application and stream events; ``("insert" | "update" | "delete",
        full table name)`` for data changes; ``("late", stream)`` for late events. Clock events
        have none: a detector makes them itself.
        """

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of its positive parts, in the order in which they are written."""

    @property
    @abstractmethod
    def children(self) -> tuple[Expression, ...]:
        """The expressions that it is made of, in the order in which they are written."""

    @property
    @abstractmethod
    def reach_us(self) -> int | None:
        """How long one of its occurrences lasts at most, in microseconds; None: without bound."""

    @abstractmethod
    def check(self) -> None:
        """Raise `PatternError` if the expression cannot stand on its own.

        What a later method may still mend (a sequence that starts with a negation needs
        `within`) is judged here and not while the expression is being written; a `Detector`
        checks its expression.
        """

    def __invert__(self) -> Expression:
        """Negate: as a part of a sequence, no such event may occur there."""
        raise PatternError(
            f"~ negates a primitive event, not {self!r}: write seq(a, ~event('B'), c)"
        )

    def __or__(self, other: object) -> Disjunction:
        """Either of two, as `any_of`."""
        from activedb.events._disjunction import Disjunction

        return Disjunction.of(self, other)

    def __and__(self, other: object) -> Conjunction:
        """Both of two, in any order, as `all_of`."""
        from activedb.events._conjunction import Conjunction

        return Conjunction.of(self, other)

    def after(self, delay: float | timedelta) -> Plus:
        """What occurs this long after each of its occurrences (plus)."""
        from activedb.events._temporal import Plus

        return Plus(self, window_us_of(delay, "after()"))

    def same(self, *attributes: str) -> Expression:
        """Demand equal values of parameters in all parts."""
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
        """Bound the time from the first to the last part."""
        raise PatternError(
            f"within() bounds the parts of a sequence or conjunction: write "
            f"seq({self!r}, …).within()"
        )

    def context(self, context: str) -> Expression:
        """Say which of the possible matches a terminator makes (Chakravarthy et al. 1994)."""
        raise PatternError(
            f"context() chooses among combinations of parts: write seq({self!r}, …).context()"
        )

    def __bool__(self) -> bool:
        raise PatternError(
            f"{self!r} is no truth value: write & for and, | for or, ~ for not, and seq(a, b) "
            "instead of comparing"
        )


def window_us_of(window: float | timedelta, what: str) -> int:
    """A positive time in microseconds, from seconds or a timedelta.

    Raises
    ------
    PatternError
        Naming the method `what`, if it is not a finite time of at least a microsecond.
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
