"""The events of a stream in columns that its punctuation has not passed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from activedb.engine.columns._events import ColumnEvents

__all__ = ["WaitingColumns"]


class WaitingColumns:
    """Events that wait, in some runs, each in the order of time.

    What a punctuation has passed is the beginning of each run, so that what goes on waiting is not
    touched: O(runs · log n) beside what has been passed.
    """

    def __init__(self) -> None:
        self._runs: list[ColumnEvents] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, events: ColumnEvents) -> None:
        """Add events that are in order."""
        if len(events):
            self._runs.append(events)

    def passed(self, punctuation_us: int | None) -> ColumnEvents:
        """What a punctuation has passed, in order; None: it is not known, and has passed none."""
        if punctuation_us is None:
            return ColumnEvents.none()
        parts = [run.take(slice(_passed(run, punctuation_us))) for run in self._runs]
        return ColumnEvents.joined(parts).in_order()

    def first(self, punctuation_us: int, count_max: int) -> tuple[ColumnEvents, int | None]:
        """The first events that a punctuation has passed, about `count_max` of them, in order.

        Events of one time stay together. As `EventTimeBuffer.first` it also tells a punctuation
        that has passed these and no more, None if they are all.
        """
        passed = self.passed(punctuation_us)
        if len(passed) <= count_max:
            return passed, None
        count = int(np.searchsorted(passed.us, passed.us[count_max - 1], side="right"))
        if count == len(passed):
            return passed, None
        return passed.take(slice(count)), passed.us.item(count)

    def remove_passed(self, punctuation_us: int | None) -> None:
        """Drop it: it has been processed durably."""
        if punctuation_us is not None:
            left = [run.take(slice(_passed(run, punctuation_us), None)) for run in self._runs]
            self._runs = [run for run in left if len(run)]

    def newest_us(self) -> int | None:
        """The time of the last one; None if there is none. O(runs)."""
        return max((run.us.item(-1) for run in self._runs), default=None)

    def restore(self, parts: Iterable[ColumnEvents], punctuation_us: int | None) -> None:
        """Go back to what is kept: events that waited once, of which some have been passed."""
        self._runs = [part for part in parts if len(part)]
        self.remove_passed(punctuation_us)


def _passed(run: ColumnEvents, punctuation_us: int) -> int:
    return int(np.searchsorted(run.us, punctuation_us))
