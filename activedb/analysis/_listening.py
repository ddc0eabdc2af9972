"""Primitive events that a rule listens to, and the role of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from activedb.analysis._effects import Change, Outside, Signal
from activedb.events import (
    Conjunction,
    Disjunction,
    Expression,
    Kleene,
    Negation,
    Periodic,
    Plus,
    Primitive,
    Query,
    Sequence,
    TimedOut,
)

__all__ = ["TIME", "Listening", "Role", "event_text", "is_timed", "listening_of"]

TIME = ("time", "")
"""Key of the passing of time, for rules that time triggers."""
_OUTSIDE = {"clock", "late", "transaction", TIME[0]}


class Role(StrEnum):
    """Role of an event for a rule that listens to it.

    ``COMPLETES``: the event triggers the rule at once. ``LATER``: after the event, time alone
    triggers the rule: a delay, a clock event, the end of a window. ``CONTRIBUTES``: the event is
    another part of the pattern. ``FORBIDS``: the event prevents the pattern.
    """

    COMPLETES = "completes"
    LATER = "later"
    CONTRIBUTES = "contributes"
    FORBIDS = "forbids"


@dataclass(frozen=True, slots=True)
class Listening:
    """A primitive event that a rule listens to.

    Attributes
    ----------
    key : tuple of (str, str)
        As in `Expression.keys`; ``("clock", text)`` for a clock event; `TIME` for the passing of
        time.
    columns : tuple of str
        Columns of an update, one of which must change. Empty: any column.
    role : Role
    """

    key: tuple[str, str]
    columns: tuple[str, ...]
    role: Role

    def hears(self, effect: Change | Outside | Signal) -> bool:
        """Return whether `effect` may raise this event."""
        return self.key == effect.key and (
            not isinstance(effect, Change)
            or not self.columns
            or effect.column is None
            or effect.column in self.columns
        )

    @property
    def is_outside(self) -> bool:
        """True if no rule can raise the event."""
        return self.key[0] in _OUTSIDE

    @property
    def event(self) -> str:
        """Display text of the event."""
        columns = f".{', '.join(self.columns)}" if self.columns else ""
        return f"{event_text(self.key)}{columns}"


def event_text(key: tuple[str, str]) -> str:
    """Return the display text of an event: ``"EXIT"``, ``"insert accounts"``, ``"time"``."""
    kind, name = key
    if key == TIME:
        return "time"
    return name if kind in ("event", "clock") else f"{kind} {name}"


def listening_of(on: Expression) -> tuple[Listening, ...]:
    """Return the events that a rule on this expression listens to, without duplicates.

    They are in the order in which they are written. Each event *may* have its role: predicates,
    windows and earlier events are not evaluated. O(parts · depth).
    """
    found = [Listening(part.key, part.columns, role) for part, role in _walk(on, Role.COMPLETES)]
    if is_timed(on):
        found.append(Listening(TIME, (), Role.COMPLETES))
    return tuple(dict.fromkeys(found))


def is_timed(expression: Expression) -> bool:
    """Return whether time alone may make the expression occur."""
    if isinstance(expression, Primitive):
        return expression.schedule is not None
    if isinstance(expression, Plus | TimedOut):
        return True
    if isinstance(expression, Periodic):
        return not expression.collected or is_timed(expression.end)
    if isinstance(expression, Sequence):
        return any(
            is_last and (is_forbidden_after or is_timed(part))
            for part, is_last, is_forbidden_after in _positives(expression)
        )
    return any(is_timed(part) for part in expression.children)


def _needs_no_event(expression: Expression) -> bool:
    """Return whether clock events and time alone make the expression occur."""
    if isinstance(expression, Primitive):
        return expression.schedule is not None
    if isinstance(expression, Conjunction):
        return sum(map(_needs_no_event, expression.parts)) >= expression.count
    if isinstance(expression, Sequence):
        return all(_needs_no_event(p) or _may_be_missing(p) for p in expression.positives)
    if isinstance(expression, TimedOut):
        return _needs_no_event(expression.sequence.positives[0])
    if isinstance(expression, Periodic):
        return _needs_no_event(expression.start) and (
            not expression.collected or _needs_no_event(expression.end)
        )
    return any(map(_needs_no_event, expression.children))


_Heard: TypeAlias = Iterator[tuple[Primitive, Role]]


def _walk(expression: Expression, role: Role) -> _Heard:
    """Yield the primitive events and their roles, for an expression that has `role`."""
    if isinstance(expression, Primitive):
        yield expression, role
    elif isinstance(expression, Sequence):
        yield from _sequence(expression, role)
    elif isinstance(expression, Conjunction):
        for number, part in enumerate(expression.parts):
            yield from _walk(part, role)
            others = expression.parts[:number] + expression.parts[number + 1 :]
            if expression.count > 1 and any(map(is_timed, others)):
                yield from _walk(part, _later(role))
    elif isinstance(expression, Plus):
        yield from _walk(expression.operand, _later(role))
    elif isinstance(expression, Periodic):
        if expression.collected:
            start = _later(role) if is_timed(expression.end) else _earlier(role)
            yield from _walk(expression.start, start)
            yield from _walk(expression.end, role)
        else:
            yield from _walk(expression.start, _later(role))
            yield from _walk(expression.end, _against(role))
    elif isinstance(expression, TimedOut):
        yield from _timed_out(expression.sequence, role)
    else:
        assert isinstance(expression, Disjunction | Query | Kleene | Negation)
        for part in expression.children:
            yield from _walk(part, role)


def _sequence(sequence: Sequence, role: Role) -> _Heard:
    roles: dict[int, list[Role]] = {}
    rest_by_time = True  # whether clock events and time suffice for all parts that follow
    some_by_time = False  # whether some part that follows needs no other event
    for part, is_last, is_forbidden_after in _positives(sequence):
        found = [role] if is_last and not is_forbidden_after else []
        if (is_last and is_forbidden_after) or (rest_by_time and some_by_time):
            found.append(_later(role))
        roles[id(part)] = found or [_earlier(role)]
        # All parts that follow come after this one, so none of them has happened before it.
        rest_by_time = rest_by_time and (_needs_no_event(part) or _may_be_missing(part))
        some_by_time = some_by_time or _needs_no_event(part)
    for part in sequence.parts:
        for each in roles.get(id(part), [_against(role)]):
            yield from _walk(part, each)


def _timed_out(sequence: Sequence, role: Role) -> _Heard:
    first, last = sequence.positives[0], sequence.positives[-1]
    last_ones = [part for part, is_last, _ in _positives(sequence) if is_last]
    begun = False
    for part in sequence.parts:
        if part is first:
            begun = True
            yield from _walk(part, _later(role))
        elif isinstance(part, Negation):
            # Once the sequence has begun, an event that breaks it lets it time out.
            yield from _walk(part, _earlier(role) if begun else _against(role))
        elif part is not last:
            yield from _walk(part, _earlier(role))
        if any(part is each for each in last_ones):
            yield from _walk(part, _against(role))


def _positives(sequence: Sequence) -> Iterator[tuple[Expression, bool, bool]]:
    """Yield the positive parts, the last one first, each with two flags.

    The flags are whether a match may end with the part, and whether a negation follows the part. If
    both hold, time completes such a match.
    """
    is_last, is_forbidden_after = True, False
    for part in reversed(sequence.parts):
        if isinstance(part, Negation):
            is_forbidden_after = True
        else:
            yield part, is_last, is_forbidden_after
            is_last = is_last and _may_be_missing(part)


def _may_be_missing(part: Expression) -> bool:
    return isinstance(part, Kleene) and part.minimum == 0


def _earlier(role: Role) -> Role:
    """Return the role of the other parts of a pattern that has `role`."""
    return role if role is Role.FORBIDS else Role.CONTRIBUTES


def _later(role: Role) -> Role:
    """Return the role of an event that precedes, by some time, a pattern that has `role`."""
    return Role.LATER if role is Role.COMPLETES else role


def _against(role: Role) -> Role:
    """Return the role of an event that prevents a pattern that has `role`."""
    return Role.CONTRIBUTES if role is Role.FORBIDS else Role.FORBIDS
