"""State of a combination for one equivalence key, and the expiry of all its groups."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from activedb.events.detection._entry import Entry, Possible

if TYPE_CHECKING:
    from activedb.events._occurrence import Occurrence
    from activedb.events.detection._choice import Span

__all__ = ["EntryGroup", "Groups"]

_NONE: Final[list[Entry]] = cast("list[Entry]", ())
"""Placeholder for a list that has never had entries; inserting into it fails."""
_NO_ARRIVALS: Final[frozenset[int]] = frozenset()
_NO_TIMES: Final[dict[int, int]] = cast("dict[int, int]", MappingProxyType({}))
_NO_SPANS: Final[list[Any]] = cast("list[Any]", ())
_NO_MATCHES: Final[tuple[Possible, ...]] = ()


@cache
def _no_lists(count: int) -> tuple[list[Entry], ...]:
    return (_NONE,) * count


class EntryGroup:
    """Entries of one equivalence key.

    There is a group per key, so groups must be small: all groups share one placeholder for each
    empty container. Read the attributes, but modify the containers that `stage`, `place`,
    `between`, `own_used`, `own_begun` and `own_decided` return.

    Attributes
    ----------
    key : tuple
        The values of the ``same`` attributes.
    taken : sequence of list of Entry
        By stage, the entries that its positive part takes, sorted by place.
    forbidden : sequence of list of Entry
        By place, the entries that the negated parts right before that stage take; the last place is
        the end.
    all : list of Entry
        For the selection strict: every event of the expression's keys.
    used : set of int
        The arrivals of used-up entries.
    doubted : set of int
        For time-outs: the arrivals of first constituents that may have had a candidate.
    possible : tuple of Possible
        If the order of events is uncertain: the open matches, and made matches for as long as they
        may exclude open ones.
    spans : list of Span
        The spans that matches skip, disjoint and sorted.
    begun : set of int
        For time-outs: the arrivals of first constituents that are decided: they had a candidate or
        have timed out.
    decided : dict of int to int
        For negations at the end: by the beginning of a window, the first arrival after the last
        evaluation of the window.
    due_us, is_in_heap : int, bool
        The group's time in the expiry heap, and whether it is in the heap.
    """

    __slots__ = (
        "all",
        "begun",
        "decided",
        "doubted",
        "due_us",
        "forbidden",
        "is_in_heap",
        "key",
        "possible",
        "spans",
        "taken",
        "used",
    )

    def __init__(self, key: tuple[object, ...], stages: int):
        self.key = key
        self.taken: Sequence[list[Entry]] = _no_lists(stages)
        self.forbidden: Sequence[list[Entry]] = _no_lists(stages + 1)
        self.all: list[Entry] = _NONE
        self.used: set[int] | frozenset[int] = _NO_ARRIVALS
        self.doubted: set[int] | frozenset[int] = _NO_ARRIVALS
        self.possible: tuple[Possible, ...] = _NO_MATCHES
        self.spans: list[Span] = _NO_SPANS
        self.begun: set[int] | frozenset[int] = _NO_ARRIVALS
        self.decided: dict[int, int] = _NO_TIMES
        self.due_us = 0
        self.is_in_heap = False

    def has_key(self, o: Occurrence, attributes: Sequence[str]) -> bool:
        """Return whether an event not in the group belongs to it, by its ``same`` attributes."""
        return all(name in o.params for name in attributes) and self.key == tuple(
            [o.params[name] for name in attributes]
        )

    @property
    def lists(self) -> tuple[list[Entry], ...]:
        """All lists, for reading and removal."""
        return (*self.taken, *self.forbidden, self.all)

    def stage(self, number: int) -> list[Entry]:
        """Return the list of entries that a positive part takes, for insertion."""
        taken = self.taken
        if type(taken) is tuple:
            taken = self.taken = list(taken)
        entries = taken[number]
        if entries is _NONE:
            entries = cast("list[list[Entry]]", taken)[number] = []
        return entries

    def place(self, number: int) -> list[Entry]:
        """Return the list of forbidden entries at a place, for insertion."""
        forbidden = self.forbidden
        if type(forbidden) is tuple:
            forbidden = self.forbidden = list(forbidden)
        entries = forbidden[number]
        if entries is _NONE:
            entries = cast("list[list[Entry]]", forbidden)[number] = []
        return entries

    def between(self) -> list[Entry]:
        """Return the list of all events, for insertion."""
        if self.all is _NONE:
            self.all = []
        return self.all

    def put_all(self, lists: Sequence[list[Entry]]) -> None:
        """Insert sorted entries into the lists, which must be empty; one list for each."""
        for number, entries in enumerate(lists):
            if entries:
                self.list_at(number).extend(entries)

    def list_at(self, number: int) -> list[Entry]:
        """Return the list with this number in `lists`, for insertion."""
        stages = len(self.taken)
        if number < stages:
            return self.stage(number)
        return self.between() if number > 2 * stages else self.place(number - stages)

    def own_used(self) -> set[int]:
        """Return the set of the arrivals of used-up entries, for insertion."""
        if type(self.used) is not set:
            self.used = set()
        return self.used

    def own_doubted(self) -> set[int]:
        """Return the set of `doubted` arrivals, for insertion."""
        if type(self.doubted) is not set:
            self.doubted = set()
        return self.doubted

    def own_begun(self) -> set[int]:
        """Return the set of the arrivals of decided first constituents, for insertion."""
        if type(self.begun) is not set:
            self.begun = set()
        return self.begun

    def own_decided(self) -> dict[int, int]:
        """Return the dict of evaluated windows, for insertion."""
        if type(self.decided) is not dict:
            self.decided = {}
        return self.decided

    def own_spans(self) -> list[Span]:
        """Return the list of skipped spans, for insertion."""
        if self.spans is _NO_SPANS:
            self.spans = []
        return self.spans

    def kept(self) -> dict[int, Entry]:
        """Return the entries by arrival."""
        return {entry[2]: entry for entries in self.lists for entry in entries}

    def before(self, before_us: int) -> list[Entry]:
        """Return the entries before a time, each once."""
        found: dict[int, Entry] = {}
        for entries in self.lists:
            found.update((e[2], e) for e in entries[: bisect_left(entries, (before_us,))])
        return list(found.values())

    def forget(self, before_us: int) -> int:
        """Remove the entries and spans before a time; return the number of entries removed."""
        expired: list[list[Entry]] = []
        for entries in self.lists:
            if entries and entries[0][0] < before_us:
                end = bisect_left(entries, (before_us,))
                expired.append(entries[:end])
                del entries[:end]
        if self.decided:
            for us in [us for us in self.decided if us < before_us]:
                del self.decided[us]
        lost = [each for each in self.possible if each.last_us < before_us]
        if lost:
            self.possible = tuple([each for each in self.possible if each not in lost])
            for each in self.possible:
                each.lost_rival |= any(each.may_overlap(other) for other in lost)
        if expired:
            for each in self.possible:
                each.is_early = False  # what it would be judged by may be missing
        self.forget_spans(before_us)
        if len(expired) == 1 and not self.used and not self.begun and not self.doubted:
            return len(expired[0])
        forgotten = {entry[2] for entries in expired for entry in entries}
        if self.used:
            self.own_used().difference_update(forgotten)
        if self.doubted:
            self.own_doubted().difference_update(forgotten)
        if self.begun:
            self.own_begun().difference_update(forgotten)
        return len(forgotten)

    def oldest_us(self) -> int | None:
        """Return the time of the oldest entry or the earliest end of a span; None if empty."""
        oldest = None
        for each in self.possible:
            if oldest is None or each.last_us < oldest:
                oldest = each.last_us
        for entries in self.lists:
            if entries and (oldest is None or entries[0][0] < oldest):
                oldest = entries[0][0]
        if self.spans or self.decided:
            others = [*(span[1][0] for span in self.spans[:1]), *self.decided]
            return min(others) if oldest is None else min(oldest, *others)
        return oldest

    def forget_spans(self, before_us: int) -> None:
        """Remove the spans that end before a time."""
        spans = self.spans
        if spans and spans[0][1][0] < before_us:
            del spans[: bisect_left(spans, before_us, key=_end_us)]

    def remove(self, o: object, us: int) -> bool:
        """Remove the last feed of `o`, found by identity; return whether there was one.

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


def _end_us(span: Span) -> int:
    return span[1][0]


class Groups:
    """Groups of a node by key, with a heap for their expiry.

    Every group with entries is in the heap at its `due_us`, which is no later than its oldest
    entry. Elements of the heap with another time, or of a removed group, are stale.
    """

    __slots__ = ("_expiry", "_serial", "by_key", "count", "is_windowed", "stages")

    def __init__(self, stages: int, *, is_windowed: bool):
        self.by_key: dict[tuple[object, ...], EntryGroup] = {}
        self.stages = stages
        self.is_windowed = is_windowed
        self.count = 0  # the number of entries, each counted once per group
        self._expiry: list[tuple[int, int, EntryGroup]] = []
        self._serial = 0

    def expire_at(self, group: EntryGroup, us: int) -> None:
        """Record that a group has an entry at time `us`."""
        if self.is_windowed and (us < group.due_us or not group.is_in_heap):
            group.due_us = us
            group.is_in_heap = True
            self._serial += 1
            heappush(self._expiry, (us, self._serial, group))

    def is_due(self, before_us: int) -> bool:
        """Return whether a group may have entries before a time."""
        return bool(self._expiry) and self._expiry[0][0] < before_us

    def forget(self, before_us: int) -> list[EntryGroup]:
        """Remove all entries before a time; return the groups that keep others.

        Complexity: O(log g) for each of the groups with an expired entry, among g; the others are
        not visited.
        """
        left: list[EntryGroup] = []
        for group in self._take_expiring(before_us):
            self.count -= group.forget(before_us)
            oldest_us = group.oldest_us()
            if oldest_us is None:
                del self.by_key[group.key]
            else:
                self.expire_at(group, oldest_us)
                left.append(group)
        return left

    def expiring(self, before_us: int) -> Iterator[EntryGroup]:
        """Yield the groups with entries before a time; the caller removes these entries.

        Complexity: as `forget`.
        """
        for group in self._take_expiring(before_us):
            yield group
            # `forget` will remove the spans, and the group if it is empty.
            self.expire_at(group, max(before_us, group.oldest_us() or before_us))

    def _take_expiring(self, before_us: int) -> Iterator[EntryGroup]:
        """Take the groups that are due before a time off the heap."""
        expiry, by_key = self._expiry, self.by_key
        while expiry and expiry[0][0] < before_us:
            us, _, group = heappop(expiry)
            if us == group.due_us and by_key.get(group.key) is group:
                group.is_in_heap = False
                yield group
