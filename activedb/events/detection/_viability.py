"""Viable entries: entries from which a chain of neighbours leads to the last constituent.

README.md, "Search", explains floors and viability.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from activedb.events.detection._entry import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from activedb.events.detection._group import Group
    from activedb.events.detection._layout import Layout
    from activedb.events.detection._node import Moment
    from activedb.events.detection._skips import Span

__all__ = ["Viability"]

_NEVER = -(2**200)


class _End:
    """Pseudo-occurrence at the end of a window; it comes after everything at that time."""

    __slots__ = ("high_us", "low_us")

    def __init__(self, us: int):
        self.low_us = self.high_us = us + 1


class Viability:
    """Viable entries of one group, which lead to a last constituent or the end of a window.

    Parameters
    ----------
    layout : Layout
        The layout of the sequence.
    group : Group
    moment : Moment
    stage : int
        The stage of the last constituent; for the end of a window, the number of stages before it.
    last : Entry or None
        The last constituent; None for the end of a window.
    end_us : int, optional
        The end of the window. It is given together with `last` if a negation may follow; the first
        constituent must then be at the beginning of that window.
    negated_end : bool
        True if the negated parts up to the end of the window count; False for a prefix.
    without : set of int
        Arrivals of entries that must not be constituents.
    one_per_first : bool
        True if the most preferred candidate for each first constituent suffices.
    skipped : sequence of Span
        The spans in which no candidate may begin.
    """

    def __init__(
        self,
        layout: Layout,
        group: Group,
        moment: Moment,
        stage: int,
        last: Entry | None,
        end_us: int | None = None,
        *,
        negated_end: bool = True,
        without: set[int] | frozenset[int] = frozenset(),
        one_per_first: bool = False,
        skipped: Sequence[Span] = (),
    ):
        self.layout = layout
        self.group = group
        self.moment = moment
        self.stage = stage
        self.at_end = last is None
        self.negated_end = negated_end
        self.end_us = end_us
        if last is None:
            assert end_us is not None
            last = (end_us + 1, "", 0, _End(end_us), None)
        self.last: Entry = last
        self.without = without
        self.skipped = skipped
        # Under next and strict, only the most preferred candidate with the same ends counts. At the
        # end of a window the last constituents differ.
        self.one_per_ends = layout.is_picky and self.at_end
        self.one_per_first = one_per_first if self.at_end else layout.is_picky
        if self.one_per_ends:
            self.one_per_first = False
        elif one_per_first:
            self.one_per_first = True
        window_us = layout.window_us
        # Start of the window that the last constituent ends, and required time of the first one.
        self.start_us = self.begin_us = None
        if window_us is not None:
            self.start_us = last[3].high_us - window_us
            if end_us is not None:
                self.begin_us = end_us - window_us
                if self.at_end:
                    self.start_us = self.begin_us
        # Time of the earliest entry with which any candidate may begin, if known.
        self._first_us: int | None = None
        # Viable entries by stage: some chain of them leads to the last constituent.
        self.viable: list[list[Entry]] = []
        self._lows: list[list[int]] = []
        self._floors: list[list[int]] = []
        self._inner_floors: list[list[int]] = []

    @property
    def is_prefix(self) -> bool:
        return self.at_end and not self.negated_end

    def _may_close(self, number: int) -> bool:
        return self.is_prefix or self.layout.closes[number]

    # -- viability ---------------------------------------------------------------------------

    def prepare(self) -> bool:
        """Determine the viable entries; return whether there can be a candidate at all.

        Complexity: O(m log m) for m entries of the group within reach.
        """
        stages, stage, last = self.layout.stages, self.stage, self.last
        count = stage + 1
        if stage and self.layout.begins_alone:
            if not self.group.taken[0]:
                return False
            self._first_us = self.group.taken[0][0][0]
        self.viable = [[] for _ in range(count)]
        self._lows = [[] for _ in range(count)]
        self._floors = [[] for _ in range(count)]
        self._inner_floors = [[] for _ in range(count)]
        for number in range(stage, -1, -1):
            if number == stage:
                found = [last]
                if not self.at_end and stages[stage].kleene:
                    found = [*self._leading(number, found), last]
            else:
                found = self._leading(number, [])
                if not found and stages[number].minimum:
                    return False
            self.viable[number] = found
            self._lows[number] = [entry[3].low_us for entry in found]
            self._floors[number] = [self._floor(number, entry) for entry in found]
            if number < len(stages) and stages[number].kleene:
                self._inner_floors[number] = [self._inner_floor(number, e) for e in found]
        return True

    def _leading(self, number: int, found: list[Entry]) -> list[Entry]:
        """Return the entries of a stage from which a chain leads to the last constituent.

        `found` has the viable entries of the same stage that are known already.
        """
        stages = self.layout.stages
        last_low_us, start_us, without = self.last[3].low_us, self.start_us, self.without
        entries = self.group.taken[number]
        low = 0 if start_us is None else bisect_left(entries, (start_us,))
        if number and self._first_us is not None:
            low = bisect_left(entries, (self._first_us,), low)  # skip those before any first one
        high = bisect_left(entries, (last_low_us,))
        repeats = stages[number].kleene and stages[number].maximum != 1
        followers: list[int] = []
        for follower in range(number + 1, self.stage + 1):
            if self.viable[follower]:
                followers.append(follower)
            if follower == self.stage or stages[follower].minimum:
                break
        # An entry that ends before the floors of all followers is not viable, nor are older ones.
        least_us = min((us for each in followers for us in self._floors[each]), default=None)
        leading: list[Entry] = []
        # Elements of the same Kleene part: the nearest later viable element, and the viable element
        # at the time of the current entry, to which only earlier entries can lead.
        nearest: Entry | None = found[0] if found else None
        level: Entry | None = None
        for place in range(high - 1, low - 1, -1):
            entry = entries[place]
            if without and entry[2] in without:
                continue
            o = entry[3]
            if start_us is not None and o.low_us < start_us:
                continue
            if level is not None and level[0] > entry[0]:
                nearest, level = level, None
            if (least_us is None or o.high_us < least_us) and not (
                repeats
                and any(
                    later is not None and self._inner_floor(number, later) <= o.high_us
                    for later in (nearest, level)
                )
            ):
                break
            if (repeats and nearest is not None and self._repeats(number, entry, nearest)) or any(
                self._leads(number, entry, follower) for follower in followers
            ):
                leading.append(entry)
                level = entry
        leading.reverse()
        return leading

    def _repeats(self, number: int, entry: Entry, nearest: Entry) -> bool:
        high_us = entry[3].high_us
        return bool(high_us < nearest[3].low_us and self._inner_floor(number, nearest) <= high_us)

    def _leads(self, number: int, entry: Entry, follower: int) -> bool:
        """Return whether some viable entry of a later stage can be the next constituent."""
        if follower == self.stage and self.at_end and not self._may_close(number):
            return False
        high_us = entry[3].high_us
        lows, floors = self._lows[follower], self._floors[follower]
        # The open places at the end of a prefix are not evaluated.
        skips = follower > number + 1 and not (self.is_prefix and follower == self.stage)
        if self.layout.is_exact[follower]:
            places = range(bisect_right(lows, high_us), len(lows))
        else:
            places = range(len(lows))
        for place in places:
            if lows[place] <= high_us:
                continue
            if floors[place] <= high_us and not (
                skips and self._is_barred(number, follower, high_us, lows[place])
            ):
                return True
            if self.layout.is_exact[follower] and not skips:
                return False  # the floors increase
        return False

    def _floor(self, number: int, entry: Entry) -> int:
        """Return the earliest end of the constituent before the first one of a stage."""
        low_us = entry[3].low_us
        floor_us = _NEVER
        if not self.at_end or number < self.stage:
            floor_us = self._inner_floor(number, entry)
            forbidden = self.group.forbidden[number]
            if forbidden:
                place = bisect_left(forbidden, (low_us,))
                if place and forbidden[place - 1][0] > floor_us:
                    floor_us = forbidden[place - 1][0]
        elif self.negated_end:
            for number_after in range(self.stage, len(self.group.forbidden)):
                forbidden = self.group.forbidden[number_after]
                place = bisect_left(forbidden, (low_us,))
                if place and forbidden[place - 1][0] > floor_us:
                    floor_us = forbidden[place - 1][0]
        return floor_us

    def _inner_floor(self, number: int, entry: Entry) -> int:
        """Return the floor for neighbours in a Kleene part, between which nothing is negated."""
        layout = self.layout
        floor_us = _NEVER
        if layout.gap_us is not None:
            floor_us = entry[3].low_us - layout.gap_us
        if layout.is_next and layout.next_is_local[number]:
            # An earlier entry of this stage would have been the next constituent.
            entries = self.group.taken[number]
            place = bisect_left(entries, entry[:3])
            if place and entries[place - 1][0] > floor_us:
                floor_us = entries[place - 1][0]
        elif layout.is_strict and layout.is_exact[number]:
            entries = self.group.all
            place = bisect_left(entries, entry[:3])
            if place and entries[place - 1][0] > floor_us:
                floor_us = entries[place - 1][0]
        return floor_us

    def _is_barred(self, number: int, follower: int, high_us: int, low_us: int) -> bool:
        """Return whether a forbidden event lies between, at a place next to empty parts."""
        for between in range(number + 1, follower):
            forbidden = self.group.forbidden[between]
            place = bisect_left(forbidden, (low_us,))
            if place and forbidden[place - 1][0] > high_us:
                return True
        return False
