"""Detection of patterns in which one event may complete so many matches that it is refused."""

from __future__ import annotations

import math

from activedb.events import (
    MATCHES_MAX,
    Conjunction,
    Context,
    Expression,
    Kleene,
    Primitive,
    Selection,
    Sequence,
    SkipTo,
    TimedOut,
)
from activedb.rules import OnMany, Rule

__all__ = ["why_many"]

_BOUND = "bound it with .within(seconds), or say matches_max= or on_many= of the rule"


def why_many(rule: Rule) -> str | None:
    """Return why one event may complete very many matches of a rule, and the remedy, or None.

    Rules with an explicit bound are exempt. Predicates and the number of events are not evaluated:
    a window is assumed to hold few events, the absence of a window any number. O(parts).
    """
    if (rule.matches_max, rule.on_many) != (MATCHES_MAX, OnMany.REFUSE):
        return None
    waiting: list[Expression] = [rule.on]
    while waiting:
        expression = waiting.pop()
        if isinstance(expression, TimedOut):  # tracks one beginning of a match, never all of them
            expression = expression.sequence
        elif isinstance(expression, Sequence | Conjunction):
            why = _why(expression)
            if why is not None:
                return why
        waiting += reversed(expression.children)
    return None


def _why(pattern: Sequence | Conjunction) -> str | None:
    if isinstance(pattern, Conjunction):
        if pattern.consumption is Context.CHRONICLE:
            return None
        free = float(pattern.count - 1)
        choose = 'choose .context("chronicle")'
    else:
        if _needs_few(pattern):
            return None
        endless = next((part for part in pattern.positives if _most(part) == math.inf), None)
        choose = 'select .selecting("next"), or choose .context("chronicle") or a skip'
        if endless is not None:
            return (
                f"{endless!r} in {pattern!r} takes any of the events there are: n of them are in "
                f"2ⁿ − 1 matches; {choose}, give it a maximum, or "
                "say matches_max= or on_many= of the rule"
            )
        free = sum(map(_most, pattern.positives)) - 1
    if free > math.log2(MATCHES_MAX):
        return (
            f"{pattern!r} takes up to {free:.0f} events before the last one: with two for each of "
            f"them there are 2 to the power of {free:.0f} matches; {choose}, shorten it, or say "
            "matches_max= or on_many= of the rule"
        )
    if pattern.window_us is None and free > 1:
        return (
            f"{pattern!r} has no window and takes {free:.0f} events before the last one: each that "
            f"there ever was is combined with all others; {choose}, or {_BOUND}"
        )
    return None


def _most(part: Expression) -> float:
    """Return the largest number of events that a part of a sequence takes."""
    if not isinstance(part, Kleene):
        return 1
    return math.inf if part.maximum is None else part.maximum


def _needs_few(sequence: Sequence) -> bool:
    """Return whether the choice needs only a few matches per first event."""
    context = sequence.consumption
    if sequence.selection is not Selection.ANY or context in (
        Context.CHRONICLE,
        Context.CONTINUOUS,
    ):
        return True
    if sequence.skip.to is not SkipTo.NONE:
        return context is not Context.CUMULATIVE
    # For single events without a condition over several of them, the search keeps no others.
    return (
        context is not Context.UNRESTRICTED
        and not (sequence.predicates or sequence.readings)
        and all(isinstance(part, Primitive) for part in sequence.positives)
    )
