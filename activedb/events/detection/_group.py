"""What a combination keeps of one equivalence key, and the expiry of all its groups."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from activedb.events.detection._entry import Entry

if TYPE_CHECKING:
    from activedb.events.detection._choice import Span

__all__ = ["Group", "Groups"]


class Group:
    """The entries of one equivalence key.

    Attributes
    ----------
    key : tuple
        The values of the ``same`` attributes.
    taken : list of list of Entry
        By stage, what its positive part takes, sorted by place.
    forbidden : list of list of Entry
        By place, what the negated parts right before that stage take; the last are those at the
        end.
    all : list of Entry
        For the selection strict: every event of the expression's keys.
    used : set of int
        The arrivals of what is used up.
    spans : list of Span
        What matches skip.
    begun : set of int
        For time-outs: the arrivals of first constituents that are decided: there was a candidate,
        or they have timed out.
    decided : dict of int to int
        For negations at the end: by the beginning of a window, the first arrival that was not
        there yet when the window was last judged.
    lists : tuple of list of Entry
        All its lists.
    due_us, is_in_heap : int, bool
        Where it stands in the expiry heap, if it does.
    """

    __slots__ = (
        "all",
        "begun",
        "decided",
        "due_us",
        "forbidden",
        "is_in_heap",
        "key",
        "lists",
        "spans",
        "taken",
        "used",
    )

    def __init__(self, key: tuple[object, ...], stages: int):
        self.key = key
        self.taken: list[list[Entry]] = [[] for _ in range(stages)]
        self.forbidden: list[list[Entry]] = [[] for _ in range(stages + 1)]
        self.all: list[Entry] = []
        self.used: set[int] = set()
        self.spans: list[Span] = []
        self.begun: set[int] = set()
        self.decided: dict[int, int] = {}
        self.due_us = 0
        self.is_in_heap = False
        self.lists = (*self.taken, *self.forbidden, self.all)

    def kept(self) -> dict[int, Entry]:
        """Its entries by arrival."""
        return {entry[2]: entry for entries in self.lists for entry in entries}

    def forget(self, before_us: int) -> int:
        """Forget the entries and spans before a time; return how many entries there were."""
        forgotten: set[int] = set()
        for entries in self.lists:
            if entries and entries[0][0] < before_us:
                end = bisect_left(entries, (before_us,))
                for entry in entries[:end]:
                    forgotten.add(entry[2])
                del entries[:end]
        if self.used:
            self.used -= forgotten
        if self.begun:
            self.begun -= forgotten
        if self.decided:
            self.decided = {us: n for us, n in self.decided.items() if us >= before_us}
        if self.spans:
            self.spans = [span for span in self.spans if span[1][0] >= before_us]
        return len(forgotten)

    def oldest_us(self) -> int | None:
        """The time of the oldest entry, or of the earliest end of a span; None: it is empty."""
        oldest = None
        for entries in self.lists:
            if entries and (oldest is None or entries[0][0] < oldest):
                oldest = entries[0][0]
        if self.spans or self.decided:
            others = [*(span[1][0] for span in self.spans), *self.decided]
            return min(others) if oldest is None else min(oldest, *others)
        return oldest

    def remove(self, o: object, us: int) -> bool:
        """Forget the last feeding of `o`, found by identity; tell whether there was one.

        Complexity: O(log n) to find it among n entries, plus those that share its time.
        """
        last = -1
        for entries in self.lists:
            for entry in entries[bisect_left(entries, (us,)) : bisect_left(entries, (us + 1,))]:
                if entry[3] is o and entry[2] > last:
                    last = entry[2]
        if last < 0:
            return False
        for entries in self.lists:
            for place in range(bisect_left(entries, (us,)), len(entries)):
                if entries[place][2] == last:
                    del entries[place]
                    break
                if entries[place][0] > us:
                    break
        return True


class Groups:
    """The groups of a node by key, and which of them expires next.

    Every group with entries stands in the heap at its `due_us`, which is no later than its oldest
    entry; an element of the heap at another time, or of a group that is gone, is a leftover.
    """

    __slots__ = ("_expiry", "_serial", "by_key", "count", "is_windowed", "stages")

    def __init__(self, stages: int, *, is_windowed: bool):
        self.by_key: dict[tuple[object, ...], Group] = {}
        self.stages = stages
        self.is_windowed = is_windowed
        self.count = 0  # of entries, each once per group
        self._expiry: list[tuple[int, int, Group]] = []
        self._serial = 0

    def expire_at(self, group: Group, us: int) -> None:
        """Tell that a group has an entry of this time now."""
        if self.is_windowed and (us < group.due_us or not group.is_in_heap):
            group.due_us = us
            group.is_in_heap = True
            self._serial += 1
            heappush(self._expiry, (us, self._serial, group))

    def forget(self, before_us: int) -> None:
        """Forget all entries before a time.

        Complexity: O(log g) for each of the groups with an expired entry, among g; the others are
        not visited.
        """
        expiry, by_key = self._expiry, self.by_key
        while expiry and expiry[0][0] < before_us:
            us, _, group = heappop(expiry)
            if us != group.due_us or by_key.get(group.key) is not group:
                continue
            group.is_in_heap = False
            self.count -= group.forget(before_us)
            oldest_us = group.oldest_us()
            if oldest_us is None:
                del by_key[group.key]
            else:
                self.expire_at(group, oldest_us)
