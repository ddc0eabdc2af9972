"""Batch interface over a row-wise `Detector`, for patterns that cannot be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from activedb.columns._arrival import EventTable
from activedb.columns.detect._detector import ColumnarDetector, checked_place
from activedb.columns.detect._plan import supports
from activedb.columns.events import EventColumns, Ints
from activedb.compiler import has_compiler
from activedb.events import MATCHES_MAX, Detector, Occurrence

if TYPE_CHECKING:
    from activedb.events import Expression

__all__ = ["BatchDetector", "BatchMatches", "RowDetector", "detector_for"]


class BatchMatches(Protocol):
    """Matches of a batch in the order in which they are completed."""

    @property
    def us(self) -> Ints:
        """Time of each match in microseconds."""

    def __len__(self) -> int: ...

    def occurrences(self) -> list[Occurrence]:
        """Return the composite occurrences."""


class BatchDetector(Protocol):
    """Detector that finds the matches of an expression in batches of events in columns."""

    @property
    def partials(self) -> int:
        """Number of events retained because a later match may need them."""

    def feed(self, events: EventColumns | EventTable) -> BatchMatches:
        """Take a batch; none of its events is before an event of an earlier batch."""

    def advance(self, us: int) -> BatchMatches:
        """Declare that no event before `us` will be fed; return the matches that time completes."""

    def trim(self, before_us: int) -> None:
        """Forget the state that no match ending at or after `before_us` can need."""


class ListedMatches:
    """Matches made by a `Detector`.

    Attributes
    ----------
    us : array of int64, of shape (matches,)
    """

    def __init__(self, found: Sequence[Occurrence]):
        self.us: Ints = np.array([o.us for o in found], np.int64)
        self._found = found

    def __len__(self) -> int:
        return len(self._found)

    def occurrences(self) -> list[Occurrence]:
        """Return the matches."""
        return list(self._found)


class RowDetector:
    """Adapter that feeds a `Detector` batches of columns, row by row in the order of their places.

    The detector is advanced to the time of each event before that event is fed. If a feed raises,
    the events before the offending one have been taken.
    """

    def __init__(
        self,
        expression: Expression,
        *,
        name: str | None = None,
        matches_max: int | None = MATCHES_MAX,
    ):
        self._detector = Detector(expression, name=name, matches_max=matches_max)
        self._last: tuple[int, str] | None = None

    @property
    def partials(self) -> int:
        """Number of events retained because a later match may need them."""
        return self._detector.partials

    def feed(self, events: EventColumns | EventTable) -> ListedMatches:
        """Take a batch; O(rows · parameters) in Python, plus the cost of the detector."""
        columns = events if isinstance(events, EventColumns) else EventColumns.of_table(events)
        order = columns.order()
        last = checked_place(columns, order, self._last)
        found: list[Occurrence] = []
        for o in (columns if order is None else columns.take(order)).to_occurrences():
            if self._detector.accepts(o):
                found += self._detector.advance(o.us)
                found += self._detector.feed(o)
        self._last = last
        if last is not None:
            self._detector.trim(last[0])
        return ListedMatches(found)

    def advance(self, us: int) -> ListedMatches:
        """Declare that no event before `us` will be fed; return the matches that time completes."""
        return ListedMatches(self._detector.advance(us))

    def trim(self, before_us: int) -> None:
        """Forget the state that no match ending at or after `before_us` can need."""
        self._detector.trim(before_us)


def detector_for(
    expression: Expression, *, name: str | None = None, matches_max: int | None = MATCHES_MAX
) -> BatchDetector:
    """Return a compiled detector if expression and installation allow it, else a Python one.

    Parameters
    ----------
    name : str, optional
        Name of the composite occurrences; by default the expression's repr.
    matches_max : int, optional
        Maximum number of matches one event may complete; None: unbounded.

    Raises
    ------
    PatternError
        If `expression` cannot be detected on its own.
    """
    if supports(expression) is None and has_compiler():
        return ColumnarDetector(expression, name=name, matches_max=matches_max)
    return RowDetector(expression, name=name, matches_max=matches_max)
