"""Versions in columns, chained per key, as windows read them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from activedb.columns.program._batch import Column, Ints
from activedb.compiler import jit
from activedb.scheduling import REMOVED, At

__all__ = ["NONE", "VersionLog", "window"]

NONE: Final = -1
_SPARE = 65_536


class VersionLog:
    """Versions of all keys of all tables with history, each linked to its predecessor.

    Attributes
    ----------
    values : array of float64
    us, arrivals : array of int64
        Time and arrival number of the writing s-transactions.
    before : array of int64
        Place of the key's previous version, `NONE` for the oldest. For a version that removed the
        value: ``-3`` minus that place.
    used : int
        Places below it are taken. Some of them are empty; no version points to these.
    """

    def __init__(self) -> None:
        self.values: Column = np.empty(0, np.float64)
        self.us: Ints = np.empty(0, np.int64)
        self.arrivals: Ints = np.empty(0, np.int64)
        self.before: Ints = np.empty(0, np.int64)
        self.used = 0
        self._kept = 0  # versions left after the last trimming

    def reserve(self, count: int) -> int:
        """Make room for a number of further versions; return the place of the first."""
        needed = self.used + count
        if needed > len(self.values):
            size = max(needed, 2 * len(self.values), 1024)
            columns = (self.values, self.us, self.arrivals, self.before)
            longer = [np.empty(size, column.dtype) for column in columns]
            for old, new in zip(columns, longer, strict=True):
                new[: self.used] = old[: self.used]
            self.values, self.us, self.arrivals, self.before = longer  # all or none
        return self.used

    def copy(self) -> VersionLog:
        """Return an independent copy; O(versions)."""
        made = VersionLog()
        for name in ("values", "us", "arrivals", "before"):
            setattr(made, name, getattr(self, name)[: self.used].copy())
        made.used, made._kept = self.used, self._kept
        return made

    def put(self, place: int, at: At, value: Any, before: int) -> None:
        """Write a version."""
        gone = value is REMOVED
        self.values[place] = 0.0 if gone else value
        self.us[place] = at.us
        self.arrivals[place] = at.arrival
        self.before[place] = -3 - before if gone else before

    def chain(self, head: int) -> list[tuple[At, Any]]:
        """Return the versions of a key, newest first."""
        found: list[tuple[At, Any]] = []
        place = head
        while place != NONE:
            before = self.before.item(place)
            gone = before < NONE
            at = At(self.us.item(place), "", self.arrivals.item(place))
            found.append((at, REMOVED if gone else self.values.item(place)))
            place = -3 - before if gone else before
        return found

    def window(self, head: int, since_us: int) -> list[float]:
        """Return the values of a key's versions at or after a time, oldest first."""
        found = []
        place = head
        while place != NONE and self.us.item(place) >= since_us:
            before = self.before.item(place)
            if before < NONE:
                place = -3 - before
            else:
                found.append(self.values.item(place))
                place = before
        found.reverse()
        return found

    def needed(self, head: int, mark: At | None, history_us: int) -> tuple[tuple[At, Any], ...]:
        """Return a key's versions, oldest first, that s-transactions from `mark` on may need."""
        found = self.chain(head)
        if mark is None:
            return tuple(reversed(found))
        kept = []
        for number, (at, value) in enumerate(found):
            seen = number == 0 or found[number - 1][0] >= mark  # by a plain read
            if not seen and at.us < mark.us - history_us:
                break
            kept.append((at, value))
        if len(kept) == 1 and kept[0][1] is REMOVED and kept[0][0] < mark:
            return ()
        return tuple(reversed(kept))

    def add(
        self, keys: Ints, us: Ints, arrivals: Ints, values: Column, gone: Column, heads: Ints
    ) -> None:
        """Write the versions of keys that have none, grouped by key, oldest first.

        Parameters
        ----------
        gone : array of bool
            True where the version removed the key's value.
        heads : array of int64
            Newest version per key of the table.
        """
        count = len(keys)
        start = self.reserve(count)
        places = np.arange(start, start + count)
        before = places - 1
        starts = np.ones(count + 1, np.bool_)
        starts[1:-1] = keys[1:] != keys[:-1]
        before[starts[:-1]] = NONE
        self.values[start : start + count] = values
        self.us[start : start + count] = us
        self.arrivals[start : start + count] = arrivals
        self.before[start : start + count] = np.where(gone, -3 - before, before)
        newest = starts[1:]
        heads[keys[newest]] = places[newest]
        self.used = start + count

    def since(self, keys: Ints, heads: Ints, since_us: int) -> tuple[Ints, Ints]:
        """Return keys and places of the versions at or after a time; O(versions found + keys)."""
        found = np.empty((count_since(keys, heads, self.us, self.before, since_us), 2), np.int64)
        places_since(keys, heads, self.us, self.before, since_us, found)
        return found[:, 0], found[:, 1]

    def trimmed(
        self, heads: list[Ints], histories: list[int], mark: At
    ) -> tuple[VersionLog, list[Ints]] | None:
        """Return a trimmed copy of the log with its heads, or None if trimming is not worthwhile.

        Complexity: amortised O(1) per version.
        """
        if self.used <= 2 * self._kept + _SPARE:
            return None
        moved: Ints = np.empty(self.used, np.int64)
        kept = 0
        for of_table, history_us in zip(heads, histories, strict=True):
            if history_us:
                kept = choose(
                    of_table, self.us, self.before, mark.us, mark.us - history_us, moved, kept
                )
        chosen = moved[:kept]
        places = np.full(self.used + 1, NONE, np.int64)  # index -1, for `NONE`, is the last entry
        places[chosen] = np.arange(kept)
        made = VersionLog()
        for name in ("values", "us", "arrivals"):
            setattr(made, name, getattr(self, name)[chosen])
        made.before = relinked(self.before, chosen, places)
        made.used = made._kept = kept
        return made, [places[of_table] for of_table in heads]


@jit
def count_since(keys: Ints, heads: Ints, us: Ints, before: Ints, since_us: int) -> int:
    """Return the number of versions of keys at or after a time."""
    count = 0
    for key in keys:
        place = heads[key]
        while place != -1 and us[place] >= since_us:
            count += 1
            earlier = before[place]
            place = -3 - earlier if earlier < -1 else earlier
    return count


@jit
def places_since(
    keys: Ints, heads: Ints, us: Ints, before: Ints, since_us: int, found: Ints
) -> None:
    """Write the keys and places of those versions, one per row."""
    count = 0
    for key in keys:
        place = heads[key]
        while place != -1 and us[place] >= since_us:
            found[count, 0] = key
            found[count, 1] = place
            count += 1
            earlier = before[place]
            place = -3 - earlier if earlier < -1 else earlier


@jit
def choose(
    heads: Ints, us: Ints, before: Ints, mark_us: int, since_us: int, chosen: Ints, count: int
) -> int:
    """Write the places of the versions needed; return their new total."""
    for key in range(len(heads)):
        place = heads[key]
        seen = False  # True once a newer version is the one that a plain read at the mark sees
        while place != -1:
            if seen and us[place] < since_us:
                break
            chosen[count] = place
            count += 1
            seen = seen or us[place] < mark_us
            earlier = before[place]
            place = -3 - earlier if earlier < -1 else earlier
    return count


@jit
def relinked(before: Ints, chosen: Ints, places: Ints) -> Ints:
    """Return the links of the chosen versions after they have moved."""
    made = np.empty(len(chosen), np.int64)
    for number in range(len(chosen)):
        earlier = before[chosen[number]]
        gone = earlier < -1
        place = -3 - earlier if gone else earlier
        place = places[place] if place != -1 else place
        made[number] = -3 - place if gone else place
    return made


@jit
def window(values: Column, us: Ints, before: Ints, head: int, since_us: int) -> Column:
    """Return the values of a window as an array, oldest first; `VersionLog.window`, compiled."""
    count = 0
    place = head
    while place != -1 and us[place] >= since_us:
        earlier = before[place]
        if earlier < -1:
            place = -3 - earlier
        else:
            count += 1
            place = earlier
    made = np.empty(count, np.float64)
    place = head
    while count:
        earlier = before[place]
        if earlier < -1:
            place = -3 - earlier
        else:
            count -= 1
            made[count] = values[place]
            place = earlier
    return made
