"""Detection one event at a time: `Detector`, against a hand-written loop for the same pattern.

The loop supports only this pattern: no other windows, no equal times, no late events. It returns
tuples of events where a detector returns composite occurrences.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from activedb.events import Detector, Occurrence, Sequence
from benchmarks._events_streams import CONTEXTS, WINDOW_S, Events, kleene, seq3
from benchmarks._nested_parts import Figure

__all__ = ["BY_HAND", "Contexts", "Single", "kleene_by_hand", "seq3_by_hand", "single_s"]

BY_HAND = "by hand"
_TRIM_EVERY = 1_000
_WINDOW_US = 1_000_000 * WINDOW_S

Match = tuple[Any, ...]
_NONE: deque[Any] = deque()


class Single:
    """One run: the three steps and the pattern with a Kleene step, ours and by hand."""

    def __init__(self, events: Events):
        self._events = events.occurrences()

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        return {
            "seq3_single_per_s": self._beside(seq3(), seq3_by_hand),
            "kleene_per_s": self._beside(kleene(), kleene_by_hand),
        }

    def _beside(
        self, pattern: Sequence, by_hand: Callable[[Iterable[Occurrence]], list[Match]]
    ) -> Figure:
        count = len(self._events)
        taken_s, matches = single_s(pattern, self._events)
        started_s = time.process_time()
        their_matches = len(by_hand(self._events))
        their_rate = count / (time.process_time() - started_s)
        assert their_matches == matches, f"by hand there are {their_matches}, we find {matches}"
        return Figure(count / taken_s, "events/s", BY_HAND, their_rate)


class Contexts:
    """One run: the three steps in each context."""

    def __init__(self, events: Events):
        self._events = events.occurrences()

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        return {
            f"context_{context}_per_s": Figure(
                len(self._events) / single_s(seq3().context(context), self._events)[0], "events/s"
            )
            for context in CONTEXTS
        }


def single_s(pattern: Sequence, events: list[Occurrence]) -> tuple[float, int]:
    """Return the processor time of a new detector for some events, and its number of matches."""
    detector = Detector(pattern)
    matches = 0
    started_s = time.process_time()
    for first in range(0, len(events), _TRIM_EVERY):
        for o in events[first : first + _TRIM_EVERY]:
            matches += len(detector.feed(o))
        detector.trim(o.us)
    return time.process_time() - started_s, matches


def seq3_by_hand(events: Iterable[Occurrence]) -> list[Match]:
    """Return the matches of `seq3`, for events in strict order of time."""
    exits: dict[int, deque[Occurrence]] = {}
    entered: dict[int, deque[tuple[Occurrence, int]]] = {}
    sanitized: dict[int, int] = {}
    found: list[Match] = []
    for o in events:
        worker, us = o.params["worker"], o.us
        if o.name == "EXIT":
            exits.setdefault(worker, deque()).append(o)
        elif o.name == "ENTER":
            entered.setdefault(worker, deque()).append((o, sanitized.get(worker, -1)))
        elif o.name == "SANITIZE":
            sanitized[worker] = us
        else:
            start = us - _WINDOW_US
            first = exits.get(worker, _NONE)
            while first and first[0].us < start:
                first.popleft()
            second = entered.get(worker, _NONE)
            while second and second[0][0].us < start:
                second.popleft()
            for b, floor in second:
                for a in first:
                    if a.us >= b.us:
                        break
                    if a.us >= floor:
                        found.append((a, b, o))
    return found


def kleene_by_hand(events: Iterable[Occurrence]) -> list[Match]:
    """Return the matches of `kleene`, for events in strict order of time."""
    # Open matches per worker: the EXIT, its ENTERs, and whether one came since the last TOUCH.
    runs: dict[int, list[tuple[Occurrence, list[Occurrence]]]] = {}
    entered: set[int] = set()
    found: list[Match] = []
    for o in events:
        worker = o.params["worker"]
        if o.name == "EXIT":
            runs.setdefault(worker, []).append((o, []))
        elif o.name == "ENTER":
            entered.add(worker)
            for _, many in runs.get(worker, ()):
                many.append(o)
        elif o.name == "TOUCH" and worker in entered:
            entered.discard(worker)
            start = o.us - _WINDOW_US
            kept = [run for run in runs.get(worker, ()) if run[0].us >= start]
            runs[worker] = kept
            found += [(a, tuple(many), o) for a, many in kept if many]
    return found
