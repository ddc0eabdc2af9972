"""Which entries a search has to look at: those that lead on to the last constituent.

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
    """What stands at the end of a window: it comes after all that is at this time."""

    __slots__ = ("high_us", "low_us")

    def __init__(self, us: int):
        self.low_us = self.high_us = us + 1


class Viability:
    """The entries of one group that lead on to a last constituent, or to the end of a window.

    Parameters
    ----------
    layout : Layout
        The sequence.
    group : Group
    moment : Moment
    stage : int
        Where the last constituent stands; for the end of a window, after how many stages it is.
    last : Entry or None
        The last constituent; None for the end of a window.
    end_us : int, optional
        That end; with `last`, too, if something negated may follow it: the first constituent then
        has to be at the beginning of that window.
    negated_end : bool
        Whether the negated parts up to the end of the window count: not for a prefix.
    without : set of int
        Arrivals of what is no constituent.
    one_per_first : bool
        Whether the most preferred candidate for each first constituent suffices.
    skipped : sequence of Span
        Where no candidate begins.
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
        # With next and strict the most preferred one for the same ends; at the end of a window
        # the last constituents differ.
        self.one_per_ends = layout.is_picky and self.at_end
        self.one_per_first = one_per_first if self.at_end else layout.is_picky
        if self.one_per_ends:
            self.one_per_first = False
        elif one_per_first:
            self.one_per_first = True
        window_us = layout.window_us
        # Of the window that the last constituent ends; and where the first one has to be.
        self.start_us = self.begin_us = None
        if window_us is not None:
            self.start_us = last[3].high_us - window_us
            if end_us is not None:
                self.begin_us = end_us - window_us
                if self.at_end:
                    self.start_us = self.begin_us
        # When the earliest entry happened that every candidate may begin with, if that is known.
        self._first_us: int | None = None
        # Viable entries by stage: some sequence of them leads on to the last one.
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
        """Find the viable entries; tell whether there can be a candidate at all.

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
        """The entries of a stage from which there is a way to the last constituent.

        `found` has those of the same stage that are known already.
        """
        stages = self.layout.stages
        last_low_us, start_us, without = self.last[3].low_us, self.start_us, self.without
        entries = self.group.taken[number]
        low = 0 if start_us is None else bisect_left(entries, (start_us,))
        if number and self._first_us is not None:
            low = bisect_left(entries, (self._first_us,), low)  # before all that can be the first
        high = bisect_left(entries, (last_low_us,))
        repeats = stages[number].kleene and stages[number].maximum != 1
        followers: list[int] = []
        for follower in range(number + 1, self.stage + 1):
            if self.viable[follower]:
                followers.append(follower)
            if follower == self.stage or stages[follower].minimum:
                break
        # What ends before all that a follower allows leads nowhere, nor does what is older still.
        least_us = min((us for each in followers for us in self._floors[each]), default=None)
        leading: list[Entry] = []
        # Elements of the same Kleene part: the nearest viable one that is later, and the one at
        # the time of the entry in hand, which only earlier ones can lead to.
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
        """Whether some viable entry of a later stage can be the next constituent."""
        if follower == self.stage and self.at_end and not self._may_close(number):
            return False
        high_us = entry[3].high_us
        lows, floors = self._lows[follower], self._floors[follower]
        # What a prefix leaves open at its end is not judged.
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
                return False  # the floors rise
        return False

    def _floor(self, number: int, entry: Entry) -> int:
        """The least time at which the constituent before the first one of a stage may end."""
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
        """The same for neighbours in a Kleene part, between which nothing is negated."""
        layout = self.layout
        floor_us = _NEVER
        if layout.gap_us is not None:
            floor_us = entry[3].low_us - layout.gap_us
        if layout.is_next and layout.next_is_local[number]:
            # What was there to be taken before it would have been the next one.
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
        """Whether something forbidden lies between, at a place that empty parts leave open."""
        for between in range(number + 1, follower):
            forbidden = self.group.forbidden[between]
            place = bisect_left(forbidden, (low_us,))
            if place and forbidden[place - 1][0] > high_us:
                return True
        return False
