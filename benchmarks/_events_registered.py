"""Many registered patterns over one stream, found through the catalog as an open database does."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from activedb.events import Occurrence, event, seq
from activedb.rules import Catalog, RegisteredRule, Rule
from benchmarks._events_streams import WINDOW_S, Events
from benchmarks._nested_parts import Figure

__all__ = ["Registered"]

_TYPES = 50
_SEED = 7
_TRIM_EVERY = 1_000


class Registered:
    """One run: the events of one stream, with few and with many patterns registered.

    Each pattern is three steps of one worker with a negation and a window of their own, over four
    of fifty types; so each event is one that two in 25 of the patterns listen to.
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

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        return {f"patterns_{count}_per_s": self._figure(count) for count in self._counts}

    def _figure(self, count: int) -> Figure:
        catalog = self._catalog(count)
        # The more patterns, the fewer events: what is measured is a rate.
        events = self._events[: max(len(self._events) // max(1, count // 10), _TYPES)]
        started_s = time.process_time()
        for first in range(0, len(events), _TRIM_EVERY):
            for o in events[first : first + _TRIM_EVERY]:
                for subscription in catalog.listening_to(o.key):
                    subscription.feed(o)
            for entry in catalog.entries():
                entry.subscription.trim(o.us)
        return Figure(len(events) / (time.process_time() - started_s), "events/s")

    def _catalog(self, count: int) -> Catalog:
        catalog = Catalog()
        for number, (types, window_s) in enumerate(self._patterns[:count]):
            a, n, b, c = (event(f"T{type_}") for type_ in types)
            pattern = seq(a, ~n, b, c).same("worker").within(window_s)
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
    """Do nothing: that the pattern is found is what is measured."""
