"""Many registered patterns over one stream, found through the catalog of an open database."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence

from activedb.events import Expression, Occurrence, event, seq
from activedb.events.terms import attr, part
from activedb.rules import Catalog, RegisteredRule, Rule
from benchmarks._events_streams import WINDOW_S, Events
from benchmarks._nested_parts import Figure

__all__ = ["Registered"]

_TYPES = 50
_SEED = 7
_TRIM_EVERY = 1_000
_RISE = 0.5
"""Difference between the second price and the first, where prices lie between 0 and 1."""
_RISE_WINDOW_S = 6


class Registered:
    """One run: the events of one stream, with few and with many patterns registered.

    Each pattern has three steps of one worker with a negation and a window, over four of fifty
    types; so two in 25 of the patterns listen to each event.

    The patterns by constant are a rise on one event type, TICK, each of another symbol: two steps
    that both demand it. All patterns listen to every event, and one of them takes it.
    """

    def __init__(self, counts: Sequence[int], events: Events):
        chance = random.Random(_SEED)  # noqa: S311  # repeatable, not secret
        self._counts = tuple(counts)
        self._patterns = [
            (chance.sample(range(_TYPES), 4), chance.randint(1, WINDOW_S))
            for _ in range(max(counts))
        ]
        self._events = [
            Occurrence(f"T{chance.randrange(_TYPES)}", o.us / 1e6, o.params)
            for o in events.occurrences()
        ]
        symbols = max(counts)
        self._ticks = [
            Occurrence("TICK", o.timestamp, {"symbol": f"S{number}", "price": chance.random()})
            for o in self._events
            for number in (chance.randrange(symbols),)
        ]

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        figures = {f"patterns_{count}_per_s": self._figure(count) for count in self._counts}
        most = max(self._counts)
        figures[f"patterns_by_constant_{most}_per_s"] = self._rate(_by_constant(most), self._ticks)
        return figures

    def _figure(self, count: int) -> Figure:
        # The more patterns, the fewer events: the figure is a rate.
        events = self._events[: max(len(self._events) // max(1, count // 10), _TYPES)]
        return self._rate(_catalog(map(_pattern, self._patterns[:count])), events)

    def _rate(self, catalog: Catalog, events: Sequence[Occurrence]) -> Figure:
        started_s = time.process_time()
        for first in range(0, len(events), _TRIM_EVERY):
            for o in events[first : first + _TRIM_EVERY]:
                for subscription in catalog.concerned_by(o):
                    subscription.feed(o)
            for entry in catalog.entries():
                entry.subscription.trim(o.us)
        return Figure(len(events) / (time.process_time() - started_s), "events/s")


def _pattern(drawn: tuple[list[int], int]) -> Expression:
    types, window_s = drawn
    a, n, b, c = (event(f"T{type_}") for type_ in types)
    return seq(a, ~n, b, c).same("worker").within(window_s)


def _by_constant(count: int) -> Catalog:
    low, high = part("low").price, part("high").price
    return _catalog(
        seq(
            event("TICK", where=attr("symbol") == f"S{number}", alias="low"),
            event("TICK", where=attr("symbol") == f"S{number}", alias="high"),
        )
        .where(high > low + _RISE)
        .within(_RISE_WINDOW_S)
        for number in range(count)
    )


def _catalog(patterns: Iterable[Expression]) -> Catalog:
    catalog = Catalog()
    for number, pattern in enumerate(patterns):
        rule = Rule.define(
            _do_nothing,
            on=pattern,
            when=None,
            coupling="immediate",
            priority=None,
            on_abort="rule",
            name=f"rule {number}",
        )
        added = catalog.add_committed(
            RegisteredRule.of(rule, version=1, enabled=True, fingerprint="")
        )
        assert added, "two rules of one name"
    return catalog


def _do_nothing(t: object, o: Occurrence) -> None:
    """Do nothing: only the lookup of the pattern is measured."""
