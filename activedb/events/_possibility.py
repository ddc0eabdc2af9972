"""Decision whether open matches can be made: one of them at all, or several, and no others.

An open match that no world makes is not a candidate, and candidates can only be chosen if some
world makes all of them and none of the others. Worlds are asked twice (`_witnesses`):

- about the whole expression, with all events that decide it. For an expression whose earlier
  matches influence later ones these are all events fed since a pause longer than its horizon;
- about the events of the matches alone, and a looser expression that makes whatever the expression
  makes of some more events. This is a condition that any number of other events leaves necessary.

Predicates that are functions are given the events as they are stamped, as in a detector: what they
make of the time of an event is the same in every world.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from activedb.events._choices import NO_SKIP, Context, Selection
from activedb.events._expressions import (
    Combination,
    Conjunction,
    Disjunction,
    Expression,
    Negation,
    Periodic,
    Primitive,
    Query,
    TimedOut,
    walk,
)
from activedb.events._expressions import Sequence as Sequence_
from activedb.events._occurrence import Occurrence, leaves, precedes
from activedb.events._schedules import Schedule
from activedb.events._witnesses import Decision, ExactDetector, WorldChecker
from activedb.events.detection._journal import Journal
from activedb.events.detection._traits import (
    durations_of,
    is_merging,
    merges,
    reads,
    remembers,
)
from activedb.events.terms import Term

__all__ = ["Possibility", "Span"]


_EVENTS_MAX = 8
"""Upper bound on the events remembered: with more, not all worlds are tried."""
_MOMENTS_MAX = 128
"""Upper bound on the moments of a clock in a world."""

Span = tuple[int | None, int]
"""The first time that a detector is told, and the time to which it is advanced."""


class Possibility:
    """Possibility of the matches of one expression, by worlds.

    Parameters
    ----------
    expression : Expression
    alone : callable
        ``alone(expression)`` returns a new detector that does not try worlds.

    Attributes
    ----------
    past : list of Occurrence or None
        If earlier matches influence later ones: the events that do, in the order of arrival. None:
        they are not known, or too many.
    """

    def __init__(self, expression: Expression, alone: Callable[[Expression], ExactDetector]):
        self._expression = expression
        self._alone = alone
        self._is_merging = is_merging(expression)
        # True if a match depends on more than the events near it.
        self._depends = any(remembers(e) or isinstance(e, Periodic) for e in walk(expression))
        self.past: list[Occurrence] | None = [] if self._depends else None
        # Events of the world that is being tried, by identity, as they are stamped.
        self._stamped: dict[int, Occurrence] = {}

    @cached_property
    def _whole(self) -> Expression | None:
        """The expression for worlds; None: its predicates read the store, which is not in them."""
        if any(map(reads, walk(self._expression))):
            return None
        shown: Expression = _shown(self._expression, self._stamped)
        return shown

    @cached_property
    def _loose(self) -> Expression | None:
        """The expression for the events of matches alone; None: there is none."""
        loose: Expression | None = _loosened(_shown(self._expression, self._stamped))
        return loose

    @cached_property
    def _merged_names(self) -> frozenset[str]:
        """Names of the parts of which a match may have more elements than a candidate."""
        return frozenset(name for e in walk(self._expression) if merges(e) for name in e.names)

    @cached_property
    def _schedules(self) -> list[Schedule]:
        every = [e.schedule for e in walk(self._expression) if isinstance(e, Primitive)]
        return [schedule for schedule in every if schedule is not None]

    @cached_property
    def _durations_us(self) -> int:
        return durations_of(self._expression)

    @cached_property
    def _is_sure_of_pairs(self) -> bool:
        """True if nothing but the order and distance of two events decides about their match."""
        whole, *parts = walk(self._expression)
        return (
            isinstance(whole, Sequence_ | Conjunction)
            and not self._depends
            and not self._schedules
            and all(isinstance(e, Primitive | Disjunction) for e in parts)
            and not (isinstance(whole, Sequence_) and whole.selection is not Selection.ANY)
        )

    # -- memory ------------------------------------------------------------------------------

    def note(self, o: Occurrence, journal: Journal) -> None:
        """Remember an event that is fed."""
        past = self.past
        if past is None:
            return
        if len(past) < _EVENTS_MAX:
            past.append(o)
            journal.append((past.pop, ()))
        else:
            self.past = None
            journal.append((setattr, (self, "past", past)))

    def forget_all(self) -> None:
        """Forget the past: nothing fed so far influences what is fed from now on."""
        if self._depends:
            self.past = []

    # -- decision ----------------------------------------------------------------------------

    def allow(
        self,
        matches: Sequence[Occurrence],
        known: Callable[[], tuple[Sequence[Occurrence], Sequence[Occurrence]]],
        awaited: Sequence[Occurrence],
        decisions: Iterable[Decision],
        span: Span,
        *,
        merged: Sequence[Occurrence] | None = None,
        without: Sequence[Occurrence] = (),
    ) -> bool:
        """Return False if no world makes all of these matches; True if some does, or may.

        Parameters
        ----------
        matches : sequence of Occurrence
            As candidates, not merged.
        known : callable
            ``known()`` returns the events that are kept, in the order of arrival, and those yet to
            be fed, as far as they may decide. It is called if no match influences another.
        awaited : sequence of Occurrence
            All events yet to be fed.
        decisions : iterable of Decision
            Matches chosen before must be made in the same world.
        span : Span
        merged : sequence of Occurrence, optional
            The same matches, those merged that are made as one. None: it suffices that they are in
            such matches.
        without : sequence of Occurrence
            Candidates that the same world must not make.
        """
        is_pair = len(matches) == 1 and not without and _is_plain_pair(matches[0])
        if is_pair and self._is_sure_of_pairs:
            return True
        chosen = [o for o, is_made in decisions if is_made]
        events = self._deciding([*matches, *without], known, awaited)
        if self._whole is not None and events is not None and self._has_few_moments(span):
            among = {id(o) for o in events}
            before = [o for o in chosen if self._is_of(o, among)]
            wanted = matches if merged is None else merged
            names, are_whole = self._merged_names, merged is not None
            for decided in [before, ()] if before else [()]:  # choices may contradict each other
                worlds = self._worlds(self._whole, events, decided, span)
                verdict = worlds.allow(wanted, without, merged=names, are_whole=are_whole)
                if verdict is not None:
                    break
            if verdict is not None and (not verdict or len(before) == len(chosen)):
                return verdict
        return self.may_hold(matches, chosen)

    def may_hold(self, matches: Sequence[Occurrence], chosen: Sequence[Occurrence] = ()) -> bool:
        """Return False if the events of the matches alone exclude that all are candidates.

        With them, those that were chosen and share an event with them are.
        """
        if self._loose is None:
            return True
        if not self._is_merging:
            own = {id(o) for match in matches for o in leaves(match)}
            related = [o for o in chosen if not own.isdisjoint(map(id, leaves(o)))]
            if related and self.may_hold(related):
                return self.may_hold([*matches, *related])
        events = {id(o): o for match in matches for o in leaves(match)}
        until_us = max((o.high_us for o in events.values()), default=0) + self._durations_us + 1
        checker = self._worlds(
            self._loose, _in_order(sorted(events.values(), key=_low_us)), (), (None, until_us)
        )
        return checker.allow(matches) is not False

    def _is_of(self, match: Occurrence, events: Collection[int]) -> bool:
        """Return whether a match is of these events, by their identities."""
        keys = self._expression.keys
        return all(id(o) in events for o in leaves(match) if o.key in keys)

    def _worlds(
        self,
        expression: Expression,
        events: Sequence[Occurrence],
        chosen: Sequence[Occurrence],
        span: Span,
    ) -> WorldChecker:
        return WorldChecker(
            expression,
            events,
            *span,
            [(o, True) for o in chosen],
            lambda: self._alone(expression),
            is_sound=False,
            is_cumulative=self._is_merging,
            stamped=self._stamped,
        )

    def _deciding(
        self,
        matches: Sequence[Occurrence],
        known: Callable[[], tuple[Sequence[Occurrence], Sequence[Occurrence]]],
        awaited: Sequence[Occurrence],
    ) -> list[Occurrence] | None:
        """Return all events that decide about the matches; None if not known, or too many."""
        fed: Sequence[Occurrence] | None = self.past
        low_us, high_us = -(2**63), 2**63
        if not self._depends:
            fed, awaited = known()
            low_us = min(match.low_us for match in matches) - self._durations_us
            high_us = max(match.high_us for match in matches) + self._durations_us
        if fed is None:
            return None
        before, later = (
            [o for o in each if o.high_us >= low_us and o.low_us <= high_us]
            for each in (fed, awaited)
        )
        if len(before) + len(later) > _EVENTS_MAX:
            return None
        # An event that only a composite has kept comes at the place of that.
        return [*_in_order(before), *_in_order(sorted(later, key=_low_us))]

    def _has_few_moments(self, span: Span) -> bool:
        """Return whether the clocks in the expression have few moments in a world."""
        begun_us, until_us = span
        if begun_us is None:
            return not self._schedules
        count = 0
        for schedule in self._schedules:
            us = schedule.next_us(begun_us)
            while us is not None and us <= until_us:
                count += 1
                if count > _MOMENTS_MAX:
                    return False
                us = schedule.next_us(us)
        return True


def _low_us(o: Occurrence) -> tuple[int, int]:
    return o.low_us, o.high_us


def _in_order(events: Iterable[Occurrence]) -> list[Occurrence]:
    """Return events as given, but each after those that are certainly before it."""
    left = list(events)
    found: list[Occurrence] = []
    while left:
        first = next((o for o in left if not any(precedes(x, o) for x in left)), left[0])
        left.remove(first)
        found.append(first)
    return found


def _is_plain_pair(match: Occurrence) -> bool:
    """Return whether a match has two events, and only their intervals tell when they were."""
    events = list(leaves(match))
    return len(events) == 2 and all(o.stamp is None or o.stamp.local_clock is None for o in events)


# -- predicates in worlds --------------------------------------------------------------------------


class _AsStamped:
    """Predicate that is given the events as they are stamped, not as they happen in a world."""

    def __init__(self, function: Callable[[Any], object], stamped: Mapping[int, Occurrence]):
        self._function = function
        self._stamped = stamped

    def __call__(self, given: Any) -> object:
        if isinstance(given, Mapping):
            return self._function({name: self._of(part) for name, part in given.items()})
        return self._function(self._of(given))

    def _of(self, part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple([self._stamped.get(id(o), o) for o in part])
        return self._stamped.get(id(part), part)


def _shown(expression: Any, stamped: Mapping[int, Occurrence]) -> Any:
    """Return the expression with functions that are given the events as they are `stamped`."""

    def shown(predicate: Any) -> Any:
        is_term = predicate is None or isinstance(predicate, Term)
        return predicate if is_term else _AsStamped(predicate, stamped)

    changed: dict[str, Any] = {}
    for field in fields(expression):
        value = getattr(expression, field.name)
        if isinstance(value, Expression):
            changed[field.name] = _shown(value, stamped)
        elif field.name == "parts":
            changed["parts"] = tuple([_shown(part, stamped) for part in value])
        elif field.name == "predicate":
            changed["predicate"] = shown(value)
        elif field.name == "predicates":
            changed["predicates"] = tuple(map(shown, value))
    return replace(expression, **changed)


# -- looser expressions ----------------------------------------------------------------------------


def _loosened(expression: Any, *, is_part: bool = False) -> Any:
    """Return an expression that makes all that this one makes, also if there are fewer events.

    It has no context, selection or skip, and no readings. None: there is none, as the absence of
    events may make a match, or parts are merged of several events.
    """
    if isinstance(expression, Periodic | TimedOut):
        return None
    if isinstance(expression, Primitive):
        return None if expression.schedule is not None else replace(expression, reading=None)
    changed: dict[str, Any] = {}
    is_combination = isinstance(expression, Combination)
    if is_combination:
        if is_part and expression.consumption is Context.CUMULATIVE:
            return None
        changed |= {"readings": (), "consumption": Context.UNRESTRICTED}
    if isinstance(expression, Sequence_):
        changed |= {"selection": Selection.ANY, "skip": NO_SKIP}
    is_part |= not isinstance(expression, Disjunction | Query)
    for field in fields(expression):
        value = getattr(expression, field.name)
        if isinstance(value, Expression):
            changed[field.name] = _loosened(value, is_part=is_part)
        elif field.name == "parts":
            # A negation of events that a reading decides would forbid more without it.
            changed["parts"] = tuple(
                [
                    _loosened(part, is_part=is_part)
                    for part in value
                    if not (isinstance(part, Negation) and any(map(reads, part.alternatives)))
                ]
            )
    if None in changed.values() or None in changed.get("parts", ()):
        return None
    return replace(expression, **changed)
