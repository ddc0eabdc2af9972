"""Events of a stream in columns that wait for the punctuation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from activedb.columns.events import ColumnEvents

__all__ = ["WaitingColumns"]


@dataclass(slots=True)
class _Run:
    """Sorted run of events; the first `gone` of them no longer wait."""

    events: ColumnEvents
    gone: int = 0

    def __len__(self) -> int:
        return len(self.events) - self.gone

    def passed(self, punctuation_us: int) -> int:
        """Return the number of leading events that a punctuation has passed, including `gone`."""
        return max(self.gone, int(np.searchsorted(self.events.us, punctuation_us)))

    def left(self) -> ColumnEvents:
        """Return the waiting events, copied so that the rest of the run can be freed."""
        return self.events.take(np.arange(self.gone, len(self.events)))


class WaitingColumns:
    """Buffer of waiting events in O(log n) runs, each sorted by time.

    The events a punctuation has passed are a prefix of each run. The remaining events are not
    touched until half of their run is gone: O(log² n) besides the events passed. Each run is more
    than twice as long as the next, so an event is merged O(log n) times.
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
        """Return the events that a punctuation has passed, in order; none for None (unknown)."""
        if punctuation_us is None:
            return ColumnEvents.none()
        parts = [run.events.take(slice(run.gone, run.passed(punctuation_us))) for run in self._runs]
        return ColumnEvents.joined(parts).in_order()

    def first(self, punctuation_us: int, count_max: int) -> tuple[ColumnEvents, int | None]:
        """Return the first events that a punctuation has passed, about `count_max`, in order.

        Events of equal time stay together. As in `EventTimeBuffer.first`, also return a punctuation
        that has passed exactly these events, None if they are all.
        """
        passed = self.passed(punctuation_us)
        if len(passed) <= count_max:
            return passed, None
        count = int(np.searchsorted(passed.us, passed.us[count_max - 1], side="right"))
        if count == len(passed):
            return passed, None
        return passed.take(slice(count)), passed.us.item(count)

    def remove_passed(self, punctuation_us: int | None) -> None:
        """Drop the events that a punctuation has passed, after they have been processed durably."""
        if punctuation_us is None:
            return
        for run in self._runs:
            run.gone = run.passed(punctuation_us)
            if len(run) <= run.gone:
                run.events, run.gone = run.left(), 0
        self._runs = [run for run in self._runs if len(run)]

    def newest_us(self) -> int | None:
        """Return the time of the latest event; None if there is none. O(runs)."""
        return max((run.events.us.item(-1) for run in self._runs), default=None)

    def restore(self, parts: Iterable[ColumnEvents], punctuation_us: int | None) -> None:
        """Restore from stored events, of which the punctuation has passed some."""
        self._runs = []
        for part in parts:
            passed = 0 if punctuation_us is None else _Run(part).passed(punctuation_us)
            self.add(part.take(slice(passed, None)))
