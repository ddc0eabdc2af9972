"""Forgetting the entries of a sequence that no match can need (README, "Forgetting")."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from activedb.events.detection._combination import holds
from activedb.events.detection._need import Need

if TYPE_CHECKING:
    from activedb.events.detection._choice import Place, Span
    from activedb.events.detection._combination import CombinationNode
    from activedb.events.detection._entry import Entry
    from activedb.events.detection._group import EntryGroup
    from activedb.events.detection._journal import Journal
    from activedb.events.detection._traits import SequenceLayout

__all__ = ["Forgetting"]


_FEW = 1_000
"""Number of entries of a node up to which it isn't worth while to forget."""
_GROWTH = 8
"""Multiple of the entries that were needed, from which on it is: most expire before that."""

Change = tuple[int, int, tuple[object, ...], "Place"]
"""(due time, serial number, key of the group, place)."""


class Forgetting:
    """Places of a node's groups where something has changed, and what they let it forget.

    Only the neighbours of an entry that was kept or removed may be needed less than before. They
    are judged once no event before that entry is fed any more, as it is known then what precedes
    them.

    Until the detector has reached its bound, changes are not noted one by one: all entries are
    judged when there are many times more than were needed the last time.

    Parameters
    ----------
    node : CombinationNode
        The node of a sequence.
    layout : SequenceLayout
        Its layout.
    """

    def __init__(self, node: CombinationNode, layout: SequenceLayout):
        self.node = node
        self.layout = layout
        self.need = Need(layout)
        self._is_noting = False
        self._changed: list[Change] = []  # a heap
        self._serials = count()
        self._most = _FEW  # entries, and spans since the last time
        self._spans = 0

    # -- changes -----------------------------------------------------------------------------

    def note(self, group: EntryGroup, place: Place) -> None:
        """Note that the entries of a group have changed at a place."""
        if self._is_noting:
            self._push(place[0], group, place)

    def note_kept(self, group: EntryGroup, entry: Entry) -> None:
        """Note that an entry is kept, and when no later event is near enough to follow it."""
        if self._is_noting:
            self._push_kept(group, entry)

    def note_span(self, group: EntryGroup, place: Place) -> None:
        """Note that a span is skipped which ends at a place."""
        self._spans += 1
        self.note(group, place)

    def note_all(self) -> None:
        """Note that any entry and span of the node may have changed."""
        if self._is_noting:
            self._push_all()
        self._most = _FEW

    def _push(self, due_us: int, group: EntryGroup, place: Place) -> None:
        heappush(self._changed, (due_us, next(self._serials), group.key, place))

    def _push_kept(self, group: EntryGroup, entry: Entry) -> None:
        place, gap_us = entry[:3], self.layout.gap_us
        self._push(place[0], group, place)
        if gap_us is not None:
            self._push(place[0] + gap_us + 1, group, place)

    def _push_all(self) -> None:
        for group in self.node.groups.by_key.values():
            for entry in group.kept().values():
                self._push_kept(group, entry)
            for span in group.spans:
                self._push(span[1][0], group, span[1])

    # -- forgetting --------------------------------------------------------------------------

    def forget(self, before_us: int, journal: Journal) -> None:
        """Forget the entries that no match can need, so that this can be undone.

        REQUIRES: no event before `before_us` is fed any more.

        Complexity: O(log n) for each change and each entry forgotten, for n entries. Without a
        bound, the changes are the n entries and spans, once for so many that were added.
        """
        changed, node = self._changed, self.node
        if node.shared.keeps_ends or not node.groups.by_key:
            changed.clear()  # nothing is kept, or its order may turn out differently
            return
        if not self._is_noting:
            self._is_noting = node.shared.fresh is not None
            if not (self._is_noting or self._is_due()):
                return
            self._push_all()
        self._judge(before_us, journal)
        if not self._is_noting:
            changed.clear()
            journal.append((setattr, (self, "_most", self._most)))
            self._most, self._spans = max(_FEW, _GROWTH * node.groups.count), 0

    def _is_due(self) -> bool:
        return self.node.groups.count > self._most or self._spans > self._most

    def _judge(self, before_us: int, journal: Journal) -> None:
        """Forget what is not needed where something has changed before a time."""
        changed, node = self._changed, self.node
        if not changed or changed[0][0] >= before_us:
            return
        seen: list[Change] = []
        journal.append((self._note_again, (seen,)))
        while changed and changed[0][0] < before_us:
            seen.append(heappop(changed))
            due_us, _, key, place = seen[-1]
            if changed and changed[0][0] == due_us and changed[0][2:] == (key, place):
                continue  # once is enough
            group = node.groups.by_key.get(key)
            if group is not None:
                self._forget_beside(group, place, before_us, journal)
                self._forget_spans(group, before_us, journal)
                node.settle(group, journal)

    def _note_again(self, seen: list[Change]) -> None:
        for change in seen if self._is_noting else ():
            heappush(self._changed, change)

    def _forget_beside(
        self, group: EntryGroup, place: Place, before_us: int, journal: Journal
    ) -> None:
        """Forget what is not needed next to a place, then next to what was forgotten."""
        is_needed = self.need.is_needed
        places = [place]
        while places:
            place = places.pop()
            us = place[0]
            for number, entries in enumerate(group.lists):
                if not entries:
                    continue
                # What is next in time may come after others of the same time.
                for begin in ((us + 1,), place):
                    at = bisect_left(entries, begin)
                    if at < len(entries) and entries[at][:3] == place:
                        at += is_needed(group, number, entries[at], before_us)
                    while (
                        at < len(entries)
                        and entries[at][0] < before_us
                        and not is_needed(group, number, entries[at], before_us)
                    ):
                        places.append(self._take(group, number, entries.pop(at), journal))
                for end in (place, (us,)):
                    at = bisect_left(entries, end)
                    while at and not is_needed(group, number, entries[at - 1], before_us):
                        at -= 1
                        places.append(self._take(group, number, entries.pop(at), journal))

    def _take(self, group: EntryGroup, number: int, entry: Entry, journal: Journal) -> Place:
        """Record that an entry was removed from a list; return its place."""
        self.node.let_go(group, [(number, entry)], journal)
        if entry[2] in group.used and not any(holds(entries, entry) for entries in group.lists):
            used = group.own_used()
            used.discard(entry[2])
            journal.append((used.add, (entry[2],)))
        return entry[:3]

    def _forget_spans(self, group: EntryGroup, before_us: int, journal: Journal) -> None:
        """Forget the skipped spans in which no event can begin a match anyway."""
        spans = group.spans
        if not spans or spans[0][1][0] >= before_us:
            return
        least_us = before_us
        if not self.layout.begins_alone:  # then skipped entries are kept, too
            for number, begins in enumerate(self.layout.may_begin):
                if begins and group.taken[number]:
                    least_us = min(least_us, group.taken[number][0][0])
        forgotten = spans[: bisect_left(spans, least_us, key=_end_us)]
        if forgotten:
            del spans[: len(forgotten)]
            journal.append((_put_first, (spans, forgotten)))


def _end_us(span: Span) -> int:
    return span[1][0]


def _put_first(spans: list[Span], forgotten: list[Span]) -> None:
    spans[:0] = forgotten
