"""Detectors of a stream's rules, fed with events in columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from activedb.columns.detect import ABSENT as NONE_AT_ALL
from activedb.columns.detect import ColumnarDetector, EventColumns, EventFilter
from activedb.columns.events import ABSENT, THERE, ColumnEvents, Ints, Values, arrow, objects
from activedb.events import Expression, Occurrence, Primitive, Query
from activedb.rules import Rule, Subscription

__all__ = ["Detections", "RuleMatches", "event_columns"]


@dataclass(frozen=True, eq=False, slots=True)
class RuleMatches:
    """Matches of one rule that a batch of events has completed.

    Attributes
    ----------
    subscription : Subscription
    at : array of int64
        Index of the completing event of each match, in ascending order.
    occurrences : list of Occurrence
        The matches.
    """

    subscription: Subscription
    at: Ints
    occurrences: list[Occurrence]


@dataclass(eq=False, slots=True)
class Detections:
    """State of the detectors of a stream's rules; immutable, except for `feed` and `trim`.

    Attributes
    ----------
    subscriptions : tuple of Subscription
        Rules, in the order of definition.
    detectors : mapping of object to ColumnarDetector
        Stateful detectors, by the key that versions of a rule share (`Subscription.detection`).
    filters : mapping of object to tuple of EventFilter
        Filters of the stateless rules, by the same key.
    since_us : mapping of str to int
        Per consuming rule, by name: the time of the first event that its detector was fed.
    used : list of (str, array of int64)
        Rule, and places (batch and position) of the events its matches have consumed, in feeds
        since `settled`.
    failing : Subscription or None
        Rule whose detector has raised.
    """

    subscriptions: tuple[Subscription, ...] = ()
    detectors: Mapping[object, ColumnarDetector] = field(default_factory=dict)
    filters: Mapping[object, tuple[EventFilter, ...]] = field(default_factory=dict)
    since_us: Mapping[str, int] = field(default_factory=dict)
    used: list[tuple[str, Ints]] = field(default_factory=list)
    failing: Subscription | None = None

    def going_on(self, subscriptions: Sequence[Subscription]) -> Detections:
        """Return a copy for these rules, with empty state for new rules.

        Complexity: O(size of the state).
        """
        detectors, filters = {}, {}
        since_us = {}
        for subscription in subscriptions:
            key, rule = subscription.detection, subscription.rule
            if not subscription.is_stateful:
                taking = self.filters.get(key)
                if taking is None:
                    taking = tuple(map(EventFilter, _primitives(rule.on)))
                filters[key] = taking
                continue
            known = self.detectors.get(key)
            detectors[key] = new_detector(rule) if known is None else known.copy()
            if known is not None and rule.name in self.since_us:
                since_us[rule.name] = self.since_us[rule.name]
        return Detections(tuple(subscriptions), detectors, filters, since_us, list(self.used))

    def settled(self) -> Detections:
        """Return the same state with the list of consumed events cleared, once it is stored."""
        return replace(self, used=[])

    @property
    def horizon_us(self) -> int:
        """Distance back to the earliest event that later matches may need."""
        return max((d.horizon_us or 0 for d in self.detectors.values()), default=0)

    def feed(
        self, events: ColumnEvents, without: Collection[Subscription] = ()
    ) -> list[RuleMatches]:
        """Feed events, in time order, to all detectors; return the matches they complete.

        If it raises, some detectors have been fed and others have not.

        Parameters
        ----------
        events : ColumnEvents
        without : collection of Subscription
            Rules whose detectors are not fed.

        Raises
        ------
        BadEvent
            If an event cannot be evaluated; an exception of a predicate propagates.
        """
        columns = event_columns(events)
        found = []
        since_us = {**self.since_us}
        for subscription in self.subscriptions:
            if subscription in without:
                continue
            self.failing = subscription
            key, name = subscription.detection, subscription.rule.name
            if key in self.filters:
                found.append(_single(subscription, self.filters[key], events, columns))
                continue
            detector = self.detectors[key]
            before = detector.rows
            matches = detector.feed(columns)
            if detector.uses_up:
                since_us.setdefault(name, events.us.item(0))
                if len(matches):
                    self.used.append((name, matches.places()))
            found.append(RuleMatches(subscription, matches.at - before, matches.occurrences()))
        self.since_us, self.failing = since_us, None
        return [one for one in found if len(one.at)]

    def tell(self) -> None:
        """Report to the rules the number of events retained for them."""
        for subscription in self.subscriptions:
            detector = self.detectors.get(subscription.detection)
            if detector is not None:
                subscription.keeps_in_columns(detector.partials)

    def trim(self, before_us: int) -> None:
        """Forget state that no match at or after a time can need."""
        for detector in self.detectors.values():
            detector.trim(before_us)


def new_detector(rule: Rule) -> ColumnarDetector:
    """Return a new detector for a rule's event, without state."""
    name = None if isinstance(rule.on, Query) else rule.name
    return ColumnarDetector(rule.on, name=name, matches_max=rule.matches_max)


def event_columns(events: ColumnEvents) -> EventColumns:
    """Convert events to the form that detectors take."""
    pa = arrow()
    ids = None if events.ids is None else pa.array(events.ids.tolist(), pa.string())
    return EventColumns(
        tuple(("event", name) for name in events.types),
        events.codes,
        events.us,
        ids,
        {name: _column(values) for name, values in events.params.items()},
        # Timestamps that were not given as datetimes in UTC are only available one by one.
        None if events.stamps is None else [a.occurrence for a in events.arrivals()],
        np.column_stack((events.batch_ids, events.positions)),
    )


def _single(
    subscription: Subscription,
    filters: Sequence[EventFilter],
    events: ColumnEvents,
    columns: EventColumns,
) -> RuleMatches:
    """Return the matches of a single-event rule."""
    taken = np.zeros(len(events), np.bool_)
    for each in filters:
        taken[each.rows(columns)] = True
    rows = np.flatnonzero(taken)
    made = [subscription.feed(arrival.occurrence) for arrival in events.arrivals(rows)]
    at = np.repeat(rows, [len(matches) for matches in made])
    return RuleMatches(subscription, at, [o for matches in made for o in matches])


def _primitives(expression: Expression) -> Iterator[Primitive]:
    if isinstance(expression, Primitive):
        yield expression
    for child in expression.children:
        yield from _primitives(child)


def _column(values: Values) -> Any:
    """Return a NumPy array if that suffices, an Arrow array if there are NULLs."""
    if values.missing is None:
        return values.array
    if values.array.dtype != object and not (values.missing == ABSENT).any():
        return arrow().array(values.array, mask=values.missing != THERE)
    found = values.objects()
    for row in np.flatnonzero(values.missing == ABSENT).tolist():
        found[row] = NONE_AT_ALL
    return objects(found)
