"""Skips: the time per event after few and after many matches were made.

All matches lie within one window and belong to one key, so everything that they skip has to be
remembered. A gap bounds the matches that an event completes, so that the unrestricted pattern is
comparable. The hand-written loop supports only this pattern and its skip.
"""

from __future__ import annotations

import time
from collections import deque

from activedb.events import Detector, Occurrence, Sequence, event, seq
from benchmarks._events_single import BY_HAND
from benchmarks._events_streams import Events
from benchmarks._nested_parts import Figure

__all__ = ["SKIPS", "PairsByHand", "Skips", "pairs"]

SKIPS = ("none", "to_next", "past_last")
_GAP_S = 60
_GAP_US = 1_000_000 * _GAP_S


def pairs(skip: str, events: list[Occurrence]) -> Sequence:
    """Return an EXIT and a soon ENTER, in one window for all the events, with a skip."""
    window_s = 1 + (events[-1].us - events[0].us) / 1e6
    return seq(event("EXIT"), event("ENTER")).gap(_GAP_S).within(window_s).skipping(skip)


class PairsByHand:
    """Hand-written detector of `pairs`, for events in strict order of time."""

    def __init__(self, skip: str):
        self._skip = skip
        self._exits: deque[Occurrence] = deque()

    def feed(self, o: Occurrence) -> list[tuple[Occurrence, Occurrence]]:
        """Feed the next event; return the matches that it completes."""
        if o.name == "EXIT":
            self._exits.append(o)
        if o.name != "ENTER":
            return []
        exits = self._exits
        while exits and exits[0].us < o.us - _GAP_US:
            exits.popleft()
        found = [(a, o) for a in exits]
        if self._skip != "none":
            exits.clear()
        return found[:1] if self._skip == "past_last" else found


class Skips:
    """One run: each skip, after a tenth of the events and after nine tenths of them."""

    def __init__(self, events: Events):
        self._events = events.occurrences()

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        figures: dict[str, Figure] = {}
        tenth = len(self._events) // 10
        for skip in SKIPS:
            detector, by_hand = Detector(pairs(skip, self._events)), PairsByHand(skip)
            for after in range(0, 10 * tenth, tenth):
                some = self._events[after : after + tenth]
                ours_us, matches = _us_per_event(detector, some)
                theirs_us, their_matches = _us_per_event(by_hand, some)
                assert their_matches == matches, f"by hand {their_matches}, we find {matches}"
                if after in (tenth, 9 * tenth):
                    figures[f"skip_{skip}_us_after_{after}"] = Figure(
                        ours_us, "µs", BY_HAND, theirs_us, smaller_is_better=True
                    )
        return figures


def _us_per_event(detector: Detector | PairsByHand, events: list[Occurrence]) -> tuple[float, int]:
    """Return the processor time per event, and the number of matches."""
    matches = 0
    started_s = time.process_time()
    for o in events:
        matches += len(detector.feed(o))
    return 1e6 * (time.process_time() - started_s) / len(events), matches
