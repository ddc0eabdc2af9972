"""Profile of a rule: the events it listens to, its role in each, and the effects it may have."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import FunctionType
from typing import Any, TypeAlias

from activedb.analysis._effects import (
    ChangeEffect,
    Effects,
    LockEffect,
    Outside,
    ReadEffect,
    SignalEffect,
    Unresolved,
)
from activedb.analysis._interpreter import FunctionInterpreter
from activedb.analysis._objects import emitted, known
from activedb.analysis._recorder import Recorder
from activedb.analysis._values import DATA, TRANSACTION, BoundFunction, CallSite, Known, only
from activedb.events import (
    MATCHES_MAX,
    Conjunction,
    Context,
    Disjunction,
    Expression,
    Kleene,
    Negation,
    Periodic,
    Plus,
    Primitive,
    Query,
    Selection,
    Sequence,
    SkipTo,
    TimedOut,
)
from activedb.events.terms import Subquery, Term
from activedb.function_sources import file_of
from activedb.rules import OnMany, Part, Rule
from coupling import ConditionAction, Coupling

__all__ = [
    "TIME",
    "EventRole",
    "Listening",
    "Profile",
    "event_text",
    "is_timed",
    "listening_of",
    "reads_of",
]


TIME = ("time", "")
"""Key of the passing of time, for rules that time triggers."""
_OUTSIDE = {"clock", "late", "transaction", TIME[0]}


class EventRole(StrEnum):
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
    role : EventRole
    """

    key: tuple[str, str]
    columns: tuple[str, ...]
    role: EventRole

    def hears(self, effect: ChangeEffect | Outside | SignalEffect) -> bool:
        """Return whether `effect` may raise this event."""
        return self.key == effect.key and (
            not isinstance(effect, ChangeEffect)
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
    found = [
        Listening(part.key, part.columns, role) for part, role in _walk(on, EventRole.COMPLETES)
    ]
    if is_timed(on):
        found.append(Listening(TIME, (), EventRole.COMPLETES))
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


_Heard: TypeAlias = Iterator[tuple[Primitive, EventRole]]


def _walk(expression: Expression, role: EventRole) -> _Heard:
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


def _sequence(sequence: Sequence, role: EventRole) -> _Heard:
    roles: dict[int, list[EventRole]] = {}
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


def _timed_out(sequence: Sequence, role: EventRole) -> _Heard:
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


def _earlier(role: EventRole) -> EventRole:
    """Return the role of the other parts of a pattern that has `role`."""
    return role if role is EventRole.FORBIDS else EventRole.CONTRIBUTES


def _later(role: EventRole) -> EventRole:
    """Return the role of an event that precedes, by some time, a pattern that has `role`."""
    return EventRole.LATER if role is EventRole.COMPLETES else role


def _against(role: EventRole) -> EventRole:
    """Return the role of an event that prevents a pattern that has `role`."""
    return EventRole.CONTRIBUTES if role is EventRole.FORBIDS else EventRole.FORBIDS


@dataclass(frozen=True, slots=True)
class Profile:
    """Profile of a rule, the input of the analysis.

    Attributes
    ----------
    name : str
    event : str
        Text of the expression.
    coupling : Coupling
    priority : int or None
    listens : tuple of Listening
    effects : Effects
        Effects of condition and action together.
    condition_action : ConditionAction
    after : tuple of str
        Rules that end before this one starts, if they are triggered together.
    watches : tuple of ReadEffect
        Tables and columns of the shared store that predicates in its event read when an event it
        listens to is raised.
    many_matches : str or None
        Reason why one event may complete very many matches, and the remedy; None if it does not,
        or if the rule has an explicit bound.
    """

    name: str
    event: str
    coupling: Coupling
    priority: int | None
    listens: tuple[Listening, ...]
    effects: Effects
    condition_action: ConditionAction = ConditionAction.IMMEDIATE
    after: tuple[str, ...] = ()
    watches: tuple[ReadEffect, ...] = ()
    many_matches: str | None = None

    @classmethod
    def of(cls, rule: Rule) -> Profile:
        """Build from a rule: effects as declared, else as inferred from its source.

        O(source, with the functions of the same module that it calls). No code of the rule is run.
        """
        effects, watched = _effects(rule), _watched(rule)
        return cls(
            rule.name,
            repr(rule.on),
            rule.coupling,
            rule.priority,
            listening_of(rule.on),
            replace(effects, unresolved=effects.unresolved + watched.unresolved),
            rule.condition_action,
            rule.after,
            watched.reads,
            why_many(rule),
        )

    @property
    def acts_in(self) -> Coupling:
        """Coupling of the action's transaction to the triggering one.

        A child's deferred action waits like a deferred rule, and its detached action runs like a
        detached rule. All other actions are coupled as the rule.
        """
        if not self.coupling.is_child:
            return self.coupling
        if self.condition_action is ConditionAction.DEFERRED:
            return Coupling.DEFERRED
        if self.condition_action is ConditionAction.DETACHED:
            return Coupling.DETACHED
        return self.coupling

    @property
    def completing(self) -> frozenset[tuple[str, str]]:
        """Keys of the events that trigger the rule, including `TIME` if time does."""
        return frozenset(part.key for part in self.listens if part.role is EventRole.COMPLETES)

    @property
    def is_timed(self) -> bool:
        """True if time alone may trigger the rule: a clock event, a delay, the end of a window."""
        return TIME in self.completing


def reads_of(function: Any, params: Mapping[str, Any]) -> list[Part] | str:
    """Return the tables and columns that ``function(t, o)`` reads, or why they are unknown."""
    effects = _of_function(function, params)
    for each in effects.unresolved:
        if "reads" in each.kinds:
            return str(each)
    return [("read", read.table, read.column) for read in effects.reads]


def _effects(rule: Rule) -> Effects:
    declared = rule.declared
    said = {name for name in ("reads", "writes", "raises") if getattr(declared, name) is not None}
    found = Effects()
    if len(said) < 3:
        found = _inferred(rule)
    reads = found.reads
    if declared.reads is not None:
        reads = tuple(ReadEffect(table, column) for _, table, column in declared.reads)
    changes = found.changes
    if declared.writes is not None:
        changes = tuple(
            ChangeEffect(kind, table, column) for kind, table, column in declared.writes
        )
    signals = found.signals
    if declared.raises is not None:
        signals = tuple(SignalEffect(name) for name in declared.raises)
    unresolved = [
        Unresolved(each.place, each.why, each.kinds - said)
        for each in found.unresolved
        if each.kinds - said
    ]
    locks = [lock for lock in found.locks if ("writes" if lock.is_write else "reads") not in said]
    if declared.reads is not None:
        locks += [LockEffect(table, "unknown", False) for table in {r.table for r in reads}]
    if declared.writes is not None:
        locks += [LockEffect(table, "unknown", True) for table in {c.table for c in changes}]
    return Effects.of(reads, changes, signals, unresolved, locks)


def _inferred(rule: Rule) -> Effects:
    parts = [_of_function(rule.action, rule.params)]
    if rule.when is not None:
        parts.insert(0, _of_function(rule.when, rule.params))
    return Effects.of(
        [each for part in parts for each in part.reads],
        [each for part in parts for each in part.changes],
        [each for part in parts for each in part.signals],
        [each for part in parts for each in part.unresolved],
        [each for part in parts for each in part.locks],
    )


def _watched(rule: Rule) -> Effects:
    """Return the reads of the predicates in the rule's event."""
    where = f"in the event of {rule.name}"
    reads: list[ReadEffect] = []
    unresolved: list[Unresolved] = []
    waiting: list[Expression] = [rule.on]
    while waiting:
        expression = waiting.pop()
        waiting += expression.children
        # Sequences and conjunctions collect their predicates with `reading`, so they have
        # `readings`.
        if isinstance(expression, Primitive):
            readings = () if expression.reading is None else (expression.reading,)
        else:
            readings = getattr(expression, "readings", ())
        for reading in readings:
            if isinstance(reading, Term):
                for each in reading.walk():
                    if isinstance(each, Subquery):
                        reads += [ReadEffect(table, column, where) for table, column in each.reads]
                continue
            found = _of_function(reading, {})
            reads += [ReadEffect(read.table, read.column, where) for read in found.reads]
            unresolved += [
                Unresolved(each.place, each.why, frozenset(("reads",)))
                for each in found.unresolved
                if "reads" in each.kinds
            ]
    return Effects.of(reads, unresolved=unresolved)


def _of_function(function: Any, params: Mapping[str, Any]) -> Effects:
    named = {name: only(known(value)) for name, value in params.items()}
    call = CallSite(ast.Pass(), (only(TRANSACTION), only(DATA)), named)
    atom = known(function)
    if isinstance(atom, BoundFunction):
        call, atom = call.binding(atom), atom.function
    thing = atom.thing if isinstance(atom, Known) else function
    if not isinstance(thing, FunctionType):
        method = inspect.getattr_static(type(thing), "__call__", None)
        if not isinstance(method, FunctionType):
            shown = getattr(type(thing), "__qualname__", "a callable")
            why = f"{shown} has no source in Python"
            return Effects(unresolved=(Unresolved(shown, why),))
        call, thing = replace(call, args=(only(Known(thing)), *call.args)), method
    below = emitted(thing)
    thing = below or thing
    found = Recorder(file_of(thing))
    call = replace(call, node=ast.Pass(lineno=thing.__code__.co_firstlineno))
    if below is not None:
        found.raises_calls(call.node, below.__qualname__)
    FunctionInterpreter(found, file=thing.__code__.co_filename).follow(Known(thing), call)
    return found.effects()


# -- detection of patterns in which one event may complete so many matches that it is refused ------

_MANY = "or set the rule's matches_max= or on_many="
_BOUND = f"bound it with .within(seconds), {_MANY}"


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
                f"{endless!r} in {pattern!r} takes any number of events: n events form 2ⁿ − 1 "
                f"matches; {choose}, give it a maximum, {_MANY}"
            )
        free = sum(map(_most, pattern.positives)) - 1
    if free > math.log2(MATCHES_MAX):
        return (
            f"{pattern!r} takes up to {free:.0f} events before the last one: with two for each of "
            f"them there are 2 to the power of {free:.0f} matches; {choose}, shorten it, {_MANY}"
        )
    if pattern.window_us is None and free > 1:
        return (
            f"{pattern!r} has no window and takes {free:.0f} events before the last one, so every "
            f"past event is combined with all the others; {choose}, or {_BOUND}"
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
