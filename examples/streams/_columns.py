"""Events in columns, generated from a seed; shared by the programs in this folder.

A generator draws whole columns with NumPy: types, times, skewed keys (Zipf), values. The same
events are fed in columns to a run over columns (`GeneratedEvents.columns`), and one at a time to
the general schedulers (`GeneratedEvents.occurrences`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from activedb.events import Occurrence

if TYPE_CHECKING:
    from activedb.columns.events import EventColumns

__all__ = ["STEP_US", "GeneratedEvents", "Skewed", "aborting", "times"]

STEP_US = 1_000  # between two events

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True)
class GeneratedEvents:
    """Events in the order of arrival, one per row.

    Attributes
    ----------
    takes : mapping of str to tuple of str
        Event types, each with the parameters of its events.
    codes : array of int64, of shape (events,)
        Type of each event, as its position in `takes`.
    us : array of int64, of shape (events,)
        Event times in microseconds, all different.
    params : mapping of str to array of int64 or float64, of shape (events,)
        Values of each parameter; 0 for events without it.
    """

    takes: Mapping[str, tuple[str, ...]]
    codes: Ints
    us: Ints
    params: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.us)

    def part(self, rows: slice | Ints) -> GeneratedEvents:
        """Return some rows; a slice is not copied."""
        params = {name: column[rows] for name, column in self.params.items()}
        return GeneratedEvents(self.takes, self.codes[rows], self.us[rows], params)

    def in_order(self) -> GeneratedEvents:
        """Return the events in the order of their times."""
        return self.part(np.argsort(self.us, kind="stable"))

    def late(self, rng: np.random.Generator, disorder: int) -> GeneratedEvents:
        """Return the events in an order of arrival where up to `disorder` events overtake each."""
        if not disorder:
            return self
        places = np.arange(len(self)) + rng.uniform(0, disorder, len(self))
        return self.part(np.argsort(places, kind="stable"))

    def batches(self, size: int) -> Iterator[tuple[GeneratedEvents, int | None]]:
        """Yield `size` arrivals at a time, each batch with the punctuation that can follow it.

        No later event is older than the punctuation; the last batch has None.
        """
        # Minimum of the times from each row to the end.
        least = np.minimum.accumulate(self.us[::-1])[::-1]
        for start in range(0, len(self), size):
            end = start + size
            yield self.part(slice(start, end)), int(least[end]) if end < len(self) else None

    def occurrences(self) -> list[Occurrence]:
        """Return the events as occurrences, in the order of arrival; O(values)."""
        names = list(self.takes)
        found: list[Any] = [None] * len(self)
        for code, (type_, taken) in enumerate(self.takes.items()):
            rows = np.flatnonzero(self.codes == code)
            values = [self.params[name][rows].tolist() for name in taken]
            seconds = (self.us[rows] / 1_000_000).tolist()
            for row, at, *params in zip(rows.tolist(), seconds, *values, strict=True):
                found[row] = Occurrence(type_, at, dict(zip(taken, params, strict=True)))
        assert all(found), f"codes are from 0 to {len(names) - 1}"
        return found

    def columns(self) -> EventColumns:
        """Return the events in the form that a run over columns takes; nothing is copied."""
        from activedb.columns.events import EventColumns

        return EventColumns.of_arrays(tuple(self.takes), self.codes, self.us, self.params)


class Skewed:
    """Generator of Zipf-distributed keys: rank i is i ** theta times rarer than the first.

    Ranks are assigned to keys at random, so neighbouring keys have unrelated frequencies.

    Parameters
    ----------
    rng : Generator
    size : int
        Number of keys, which are 0 to ``size - 1``.
    theta : float
        Skew; at 0 all keys are equally likely.
    """

    def __init__(self, rng: np.random.Generator, size: int, theta: float):
        self.size = size
        self._rng = rng
        self._keys = rng.permutation(size).astype(np.int64)
        weights = np.arange(1, size + 1, dtype=np.float64) ** -theta
        self._shares = np.cumsum(weights) / weights.sum()

    def draw(self, events: int) -> Ints:
        """Return a key for each event; O(events x log size)."""
        # Rounding may leave the last share below 1.
        ranks = np.searchsorted(self._shares, self._rng.random(events), side="right")
        return self._keys[np.minimum(ranks, self.size - 1)]

    def distinct(self, events: int, count: int) -> list[Ints]:
        """Return `count` different keys for each event, as `count` columns.

        REQUIRES: ``count <= size``. A key drawn twice is replaced by the next number.
        """
        columns: list[Ints] = []
        for _ in range(count):
            keys = self.draw(events)
            while columns and (taken := np.logical_or.reduce([keys == c for c in columns])).any():
                keys[taken] = (keys[taken] + 1) % self.size
            columns.append(keys)
        return columns


def times(events: int) -> Ints:
    """Return the times of events in order, `STEP_US` apart."""
    return np.arange(1, events + 1, dtype=np.int64) * STEP_US


def aborting(rng: np.random.Generator, events: int, ratio: float) -> npt.NDArray[np.bool_]:
    """Return a mask of the events that get invalid parameters: a share of `ratio`."""
    return rng.random(events) < ratio
