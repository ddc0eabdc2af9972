"""Need of a sequence for the entries that it keeps (README, "Forgetting")."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING

from activedb.events._expressions import Primitive, walk
from activedb.events.detection._choice import covers
from activedb.events.detection._entry import Entry

if TYPE_CHECKING:
    from activedb.events.detection._entry import Stage
    from activedb.events.detection._group import EntryGroup
    from activedb.events.detection._traits import SequenceLayout

__all__ = ["Need"]


_NEVER = -(2**200)


class Need:
    """Decision whether a match completed from now on may need an entry of a group.

    All questions are about one entry and its neighbours in the other lists, where neighbours that
    are not needed have been forgotten before. REQUIRES, for all questions: the order of all kept
    events is certain, and no event before `before_us` is fed any more; the entry is before that.

    Complexity: O(log n) for n entries of the group, unless the selection next or strict keeps
    entries that are used up.

    Parameters
    ----------
    layout : SequenceLayout
        The layout of the sequence.
    """

    __slots__ = ("_after", "_before", "_count", "_is_ordered", "_repeats", "layout")

    def __init__(self, layout: SequenceLayout):
        self.layout = layout
        stages = layout.stages
        self._count = len(stages)
        # By place: the stages of the possible previous constituents; and of the next ones.
        places = range(len(stages) + 1)
        self._before = [_reached(stages, range(place - 1, -1, -1)) for place in places]
        self._after = [_reached(stages, range(place, len(stages))) for place in places]
        self._repeats = [stage.kleene and stage.maximum != 1 for stage in stages]
        # Ticks of a clock are not among all events.
        self._is_ordered = all(layout.is_exact) and not any(
            isinstance(e, Primitive) and e.schedule is not None
            for part in layout.parts
            for e in walk(part)
        )

    def is_needed(self, group: EntryGroup, number: int, entry: Entry, before_us: int) -> bool:
        """Return whether the list with this number in `group.lists` must keep an entry."""
        layout = self.layout
        if number > 2 * self._count:
            return self._separates(group, entry)
        if number >= self._count:
            return self._forbids(group, number - self._count, entry, before_us)
        if not self._is_reached(group, number, entry):
            return False
        if layout.is_strict:
            if not self._is_ordered:
                return True
            return entry[2] not in group.used and self._has_next(group, number, entry, before_us)
        if layout.is_next and (number or not layout.begins_alone):
            return True  # another event of this stage may not be the next one because of it
        return self._leads_on(group, number, entry, before_us)

    # -- constituents before -----------------------------------------------------------------

    def _is_reached(self, group: EntryGroup, number: int, entry: Entry) -> bool:
        """Return whether an entry may begin a match, or follow a kept entry in one."""
        layout, used = self.layout, group.used
        if layout.may_begin[number] and not (
            entry[2] in used or (group.spans and covers(group.spans, entry[:3]))
        ):
            return True
        low_us = entry[3].low_us
        if layout.is_strict and self._is_ordered:
            at = bisect_left(group.all, entry[:3])
            before = group.all[at - 1] if at else None
            return (
                before is not None
                and before[0] < low_us
                and before[2] not in used
                and self._is_taken(group, before, self._neighbours(number, self._before[number]))
            )
        own = group.taken[number]
        least_us = _NEVER if layout.gap_us is None else low_us - layout.gap_us
        if self._repeats[number]:
            at = bisect_left(own, (low_us,))
            if at and own[at - 1][0] >= least_us:
                return True
        if layout.is_next and layout.next_is_local[number]:
            at = bisect_left(own, entry[:3])
            if at:
                least_us = max(least_us, own[at - 1][0])
        return any(
            self._is_led_to(group, earlier, number, low_us, least_us)
            for earlier in self._before[number]
        )

    def _is_led_to(
        self, group: EntryGroup, earlier: int, number: int, low_us: int, least_us: int
    ) -> bool:
        """Return whether an entry of an earlier stage may precede a constituent at `low_us`."""
        us = self._latest_us(group, earlier, low_us)
        if us is None or us < least_us:
            return False
        for place in range(earlier + 1, number + 1):
            forbidden = group.forbidden[place]
            at = bisect_left(forbidden, (low_us,))
            if at and forbidden[at - 1][0] > us:
                return False
        return True

    def _latest_us(self, group: EntryGroup, stage: int, before_us: int) -> int | None:
        """Return the time of the latest entry of a stage before a time that is not used up.

        There is none if a Kleene part has too few.
        """
        entries, used = group.taken[stage], group.used
        at = bisect_left(entries, (before_us,))
        if at < self.layout.stages[stage].minimum:
            return None  # too few for a Kleene part
        while at and entries[at - 1][2] in used:
            at -= 1
        return entries[at - 1][0] if at else None

    # -- constituents after ------------------------------------------------------------------

    def _leads_on(self, group: EntryGroup, number: int, entry: Entry, before_us: int) -> bool:
        """Return whether a kept entry or a later event may follow, or time completes a match."""
        layout, gap_us = self.layout, self.layout.gap_us
        high_us = entry[3].high_us
        # A later event follows within the gap, or only a kept one can.
        is_open = gap_us is None or before_us - high_us <= gap_us
        if self._repeats[number] and (is_open or self._is_near(group, number, high_us)):
            return True
        if layout.closes[number] and not self._is_closed(group, number, entry, before_us):
            return True
        for later in self._after[number + 1]:
            if not layout.is_exact[later]:
                return True  # a composite yet to be made may have begun before a forbidden event
            entries = group.taken[later]
            at = bisect_left(entries, (high_us + 1,))
            follower = entries[at] if at < len(entries) and entries[at][0] < before_us else None
            if self._is_barred(
                group, number, later, high_us, before_us if follower is None else follower[0]
            ):
                continue
            if follower is None or not (layout.is_next and layout.next_is_local[later]):
                if is_open or self._is_near(group, later, high_us):
                    return True
                continue
            # It is the next one, and no later event can be.
            if follower[2] not in group.used and self._leads_on(group, later, follower, before_us):
                return True
        return False

    def _is_near(self, group: EntryGroup, number: int, high_us: int) -> bool:
        """Return whether an entry of a stage follows within the gap."""
        entries = group.taken[number]
        at = bisect_left(entries, (high_us + 1,))
        return at < len(entries) and entries[at][0] - high_us <= (self.layout.gap_us or 0)

    def _is_barred(self, group: EntryGroup, number: int, later: int, high_us: int, us: int) -> bool:
        """Return whether a forbidden event lies between constituents of two stages."""
        for place in range(number + 1, later + 1):
            forbidden = group.forbidden[place]
            at = bisect_left(forbidden, (high_us + 1,))
            if at < len(forbidden) and forbidden[at][0] < us:
                return True
        return False

    def _is_closed(self, group: EntryGroup, number: int, entry: Entry, before_us: int) -> bool:
        """Return whether a forbidden event follows in every window that may have the entry."""
        layout = self.layout
        assert layout.window_us is not None
        if number == 0 and layout.begins_alone:
            first_us = entry[3].low_us
        else:
            firsts = self._firsts(group)
            if firsts is None or not firsts:
                return False
            first_us = min(entries[0][0] for entries in firsts)
        until_us = min(first_us + layout.window_us + 1, before_us)
        return self._is_barred(group, number, self._count, entry[3].high_us, until_us)

    def _firsts(self, group: EntryGroup, least: int = 0) -> list[list[Entry]] | None:
        """Return the entries with which a match may begin, by stage; None if composites may.

        The stages from `least` on are considered.
        """
        found: list[list[Entry]] = []
        for number, entries in enumerate(group.taken):
            if number >= least and self.layout.may_begin[number]:
                if not self.layout.is_exact[number]:
                    return None
                if entries:
                    found.append(entries)
        return found

    # -- forbidden events --------------------------------------------------------------------

    def _forbids(self, group: EntryGroup, place: int, entry: Entry, before_us: int) -> bool:
        """Return whether a forbidden event prevents a match that no other one prevents."""
        layout, forbidden = self.layout, group.forbidden[place]
        at = bisect_left(forbidden, entry[:3])
        if layout.begins_negated and place < self._count and layout.may_begin[place]:
            # If no match begins before the next forbidden event, that one prevents as much.
            next_us = forbidden[at + 1][0] if at + 1 < len(forbidden) else before_us
            firsts = self._firsts(group, place)
            if next_us >= before_us or firsts is None or _has_any(firsts, entry[0], next_us):
                return True
        # What is before the previous forbidden event is separated by that one already.
        least_us = forbidden[at - 1][0] if at else _NEVER
        return any(
            (us := self._latest_us(group, earlier, entry[0])) is not None and us >= least_us
            for earlier in self._before[place]
        )

    # -- strict ------------------------------------------------------------------------------

    def _has_next(self, group: EntryGroup, number: int, entry: Entry, before_us: int) -> bool:
        """Return whether the next event of all follows in a match, or is not known yet."""
        if self.layout.closes[number]:
            return True
        entries = group.all
        at = bisect_left(entries, entry[:3])
        if at < len(entries) and entries[at][2] == entry[2]:
            at += 1
        if at == len(entries) or entries[at][0] >= before_us:
            return bool(self._after[number + 1]) or self._repeats[number]
        following = entries[at]
        return (
            following[0] > entry[0]
            and following[2] not in group.used
            and self._is_taken(group, following, self._neighbours(number, self._after[number + 1]))
        )

    def _separates(self, group: EntryGroup, entry: Entry) -> bool:
        """Return whether an event of any kind may lie between two neighbours of a match."""
        if not self._is_ordered:
            return any(entries and entries[0][:3] <= entry[:3] for entries in group.taken)
        at = bisect_left(group.all, entry[:3])
        everywhere = range(self._count)
        return self._is_taken(group, entry, everywhere) or bool(
            at and self._is_taken(group, group.all[at - 1], everywhere)
        )

    def _neighbours(self, number: int, others: list[int]) -> list[int]:
        """Return the stages of the constituents next to one of this stage, which may repeat."""
        return [number, *others] if self._repeats[number] else others

    def _is_taken(self, group: EntryGroup, entry: Entry, stages: Iterable[int]) -> bool:
        for number in stages:
            entries = group.taken[number]
            at = bisect_left(entries, entry[:3])
            if at < len(entries) and entries[at][2] == entry[2]:
                return True
        return False


def _has_any(lists: list[list[Entry]], after_us: int, until_us: int) -> bool:
    """Return whether a list has an entry after a time and until another one."""
    return any(
        bisect_left(entries, (after_us + 1,)) < bisect_left(entries, (until_us + 1,))
        for entries in lists
    )


def _reached(stages: list[Stage], numbers: range) -> list[int]:
    """Return the stages up to the first one that no match leaves empty."""
    found: list[int] = []
    for number in numbers:
        found.append(number)
        if stages[number].minimum:
            break
    return found
