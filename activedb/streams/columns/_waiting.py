"""The events of a stream in columns that its punctuation has not passed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from activedb.columns.events import ColumnEvents

__all__ = ["WaitingColumns"]


@dataclass(slots=True)
class _Run:
    """Events in the order of time, of which the first `gone` wait no more."""

    events: ColumnEvents
    gone: int = 0

    def __len__(self) -> int:
        return len(self.events) - self.gone

    def passed(self, punctuation_us: int) -> int:
        """How many of all a punctuation has passed, with those that wait no more."""
        return max(self.gone, int(np.searchsorted(self.events.us, punctuation_us)))

    def left(self) -> ColumnEvents:
        """Those that wait, alone: no part of what is larger."""
        return self.events.take(np.arange(self.gone, len(self.events)))


class WaitingColumns:
    """Events that wait, in O(log n) runs, each in the order of time.

    What a punctuation has passed is the beginning of each run, so that what goes on waiting is not
    touched, until half of its run is gone: O(log² n) beside what has been passed. A run is more
    than twice as long as the next one, so each event is merged O(log n) times.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, events: ColumnEvents) -> None:
        """Add events that are in order."""
        if not len(events):
            return
        new = _Run(events).left()
        while self._runs and len(self._runs[-1]) <= 2 * len(new):
            new = ColumnEvents.joined([self._runs.pop().left(), new]).in_order()
        self._runs.append(_Run(new))

    def passed(self, punctuation_us: int | None) -> ColumnEvents:
        """What a punctuation has passed, in order; None: it is not known, and has passed none."""
        if punctuation_us is None:
            return ColumnEvents.none()
        parts = [run.events.take(slice(run.gone, run.passed(punctuation_us))) for run in self._runs]
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
        if punctuation_us is None:
            return
        for run in self._runs:
            run.gone = run.passed(punctuation_us)
            if len(run) <= run.gone:
                run.events, run.gone = run.left(), 0
        self._runs = [run for run in self._runs if len(run)]

    def newest_us(self) -> int | None:
        """The time of the last one; None if there is none. O(runs)."""
        return max((run.events.us.item(-1) for run in self._runs), default=None)

    def restore(self, parts: Iterable[ColumnEvents], punctuation_us: int | None) -> None:
        """Go back to what is kept: events that waited once, of which some have been passed."""
        self._runs = []
        for part in parts:
            passed = 0 if punctuation_us is None else _Run(part).passed(punctuation_us)
            self.add(part.take(slice(passed, None)))
