"""Static properties of expressions: how far back they reach, and what their nodes depend on."""

from __future__ import annotations

from collections.abc import Iterator

from activedb.events._choices import Context, SkipTo
from activedb.events._conjunction import Conjunction
from activedb.events._disjunction import Disjunction
from activedb.events._expression import Expression
from activedb.events._kleene import Kleene
from activedb.events._primitives import Negation, Primitive
from activedb.events._query import Query
from activedb.events._sequence import Sequence
from activedb.events._temporal import Periodic, Plus, TimedOut

__all__ = [
    "begins_negated",
    "durations_of",
    "ends_by_time",
    "horizon_of",
    "is_timed",
    "lasting_us",
    "reads",
    "remembers",
    "walk",
    "window_of",
]


def ends_by_time(sequence: Sequence) -> bool:
    """Return whether a match can end with a negation, as all parts after it may be empty."""
    for part in reversed(sequence.parts):
        if isinstance(part, Negation):
            return True
        if not (isinstance(part, Kleene) and part.minimum == 0):
            return False
    return False


def begins_negated(sequence: Sequence) -> bool:
    """Return whether a negation can come before the first constituent."""
    for part in sequence.parts:
        if isinstance(part, Negation):
            return True
        if not (isinstance(part, Kleene) and part.minimum == 0):
            return False
    return False


def window_of(
    expression: Sequence | Conjunction, bound_us: int | None, *, times_out: bool = False
) -> int | None:
    """Return how far before the end of its occurrences a combination must keep events.

    That is its window; or twice the window, if negations before the first constituent are evaluated
    at the end of the window. If its parent has no use for longer occurrences, it is that bound.
    """
    window_us = expression.window_us
    if isinstance(expression, Sequence) and begins_negated(expression):
        # The whole window is kept, whatever the bound.
        if window_us is not None and (times_out or ends_by_time(expression)):
            return 2 * window_us
        return window_us
    return lasting_us(expression, bound_us)


def lasting_us(expression: Sequence | Conjunction, bound_us: int | None) -> int | None:
    """Return the longest duration of occurrences that are useful, here and in the parent."""
    window_us = expression.window_us
    depends = expression.consumption is not Context.UNRESTRICTED or (
        isinstance(expression, Sequence) and expression.skip.to is not SkipTo.NONE
    )
    # Otherwise earlier matches may influence later ones.
    if bound_us is None or depends:
        return window_us
    return bound_us if window_us is None else min(window_us, bound_us)


def horizon_of(expression: Expression, bound_us: int | None = None) -> int | None:
    """Return how far before an occurrence the events that decide it reach; None: unbounded."""
    if isinstance(expression, Primitive):
        return 0
    if isinstance(expression, Plus):
        inner_us = horizon_of(expression.operand, bound_us)
        return None if inner_us is None else inner_us + expression.delay_us
    if isinstance(expression, Disjunction | Query):
        return _longest([horizon_of(part, bound_us) for part in expression.children])
    times_out = isinstance(expression, TimedOut)
    if isinstance(expression, TimedOut):
        expression, bound_us = expression.sequence, None
    if isinstance(expression, Sequence | Conjunction):
        window_us = window_of(expression, bound_us, times_out=times_out)
        if window_us is None:
            return None
        inner_us = _longest(
            [
                horizon_of(part, lasting_us(expression, bound_us))
                for part in expression.children
                if not isinstance(part, Negation | Kleene)
            ]
        )
        return None if inner_us is None else window_us + inner_us
    return None


def durations_of(expression: Expression) -> int:
    """Return the sum of all windows, gaps and delays: events further apart do not interact."""
    names = ("window_us", "gap_us", "delay_us")
    return sum(getattr(each, name, None) or 0 for each in walk(expression) for name in names)


def _longest(reaches: list[int | None]) -> int | None:
    return None if None in reaches else max((us for us in reaches if us is not None), default=0)


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield the expression and all its subexpressions, parents first."""
    yield expression
    for child in expression.children:
        yield from walk(child)


def is_timed(expression: Expression) -> bool:
    """Return whether time completes its occurrences; clock events do not count."""
    if isinstance(expression, Sequence):
        return ends_by_time(expression)
    if isinstance(expression, Periodic):
        return not expression.collected
    return isinstance(expression, Plus | TimedOut)


def remembers(expression: Expression) -> bool:
    """Return whether its earlier matches influence later ones."""
    if isinstance(expression, Sequence) and expression.skip.to is not SkipTo.NONE:
        return True
    return (
        isinstance(expression, Sequence | Conjunction)
        and expression.consumption is not Context.UNRESTRICTED
    )


def reads(expression: Expression) -> bool:
    """Return whether one of its own predicates reads the shared store."""
    if isinstance(expression, Primitive):
        return expression.reading is not None
    return isinstance(expression, Sequence | Conjunction) and bool(expression.readings)
