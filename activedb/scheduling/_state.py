"""Versions of shared tables, by timestamp."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

from activedb.errors import DefinitionError
from activedb.scheduling._operations import At, Writes
from activedb.scheduling._tables import REMOVED, Range, Ref, SharedTable, at_key
from activedb.values import IMMUTABLE, copied

__all__ = ["SharedState", "Versions"]

_Version = tuple[At, Any]
_at: Callable[[_Version], At] = itemgetter(0)


class Versions:
    """Versions of one shared table.

    A stored value never changes: `write` gets a value returned by `SharedTable.check_value`, and a
    reader gets a copy of a mutable value.

    Attributes
    ----------
    table : SharedTable

    Latch: ``_latch``, held for one lookup or change; no other latch is taken under it.
    """

    def __init__(self, table: SharedTable):
        self.table = table
        self._latch = threading.Lock()
        self._of: dict[Hashable, list[_Version]] = {}  # per key, sorted by `at`; never empty
        self._to_trim: set[Hashable] = set()  # the other keys have nothing to discard

    def read(self, key: Hashable, before: At) -> Any:
        """Return the value of a key just before a place; O(log versions)."""
        with self._latch:
            found = self._of.get(key)
            if found is None:
                value = REMOVED
            elif found[-1][0] < before:  # the common case
                value = found[-1][1]
            else:
                number = bisect_left(found, before, key=_at)
                value = found[number - 1][1] if number else REMOVED
        if value is REMOVED:
            value = self.table.initial
        return value if type(value) in IMMUTABLE else copied(value)

    def window(self, key: Hashable, since_us: int, before: At) -> list[Any]:
        """Return the values written at or after `since_us` and before a place, oldest first."""
        with self._latch:
            found = self._of.get(key, ())
            first = bisect_left(found, since_us, key=_us)
            last = bisect_left(found, before, key=_at)
            values = [value for _, value in found[first:last] if value is not REMOVED]
        return copied(values)  # type: ignore[no-any-return]  # copied() preserves the list

    def between(self, low: Any, high: Any, before: At) -> dict[Hashable, Any]:
        """Return the keys from `low` on and before `high` that have a value, with it; O(keys)."""
        with self._latch:
            keys = list(self._of)
        found = {}
        for key in keys:
            value = self._at(key, before)
            # Keys without a value yet are not compared: that could fail.
            if (
                value is not REMOVED
                and (low is None or key >= low)
                and (high is None or key < high)
            ):
                found[key] = copied(value)
        return dict(sorted(found.items())) if found else found

    def _at(self, key: Hashable, before: At) -> Any:
        with self._latch:
            found = self._of.get(key, ())
            number = bisect_left(found, before, key=_at)
            return found[number - 1][1] if number else REMOVED

    def needed(self, key: Hashable, first: At, since_us: int) -> tuple[_Version, ...]:
        """Return the versions of a key that may be read at or after a place.

        The reads may be plain, or through windows that begin at `since_us` or later. O(length of
        the result).
        """
        with self._latch:
            found = self._of.get(key, ())
            plain = bisect_left(found, first, key=_at) - 1
            return tuple(found[max(0, min(plain, bisect_left(found, since_us, key=_us))) :])

    def keys(self) -> list[Hashable]:
        """Return the keys that have versions; O(keys)."""
        with self._latch:
            return list(self._of)

    def write(self, key: Hashable, at: At, value: Any) -> None:
        """Add a version, or replace the value of the version at this place."""
        with self._latch:
            self._to_trim.add(key)
            found = self._of.get(key)
            if found is None:  # one assignment: an interrupt must not leave a key without versions
                self._of[key] = [(at, value)]
                return
            if found[-1][0] < at:  # the common case
                found.append((at, value))
                return
            number = bisect_left(found, at, key=_at)
            if number < len(found) and found[number][0] == at:
                found[number] = (at, value)
            else:
                found.insert(number, (at, value))

    def take_back(self, key: Hashable, at: At) -> None:
        """Remove the version at this place, if there is one."""
        with self._latch:
            found = self._of.get(key, [])
            number = bisect_left(found, at, key=_at)
            if number < len(found) and found[number][0] == at:
                if len(found) == 1:
                    del self._of[key]
                else:
                    del found[number]

    def trim(self, mark: At) -> None:
        """Discard versions that no access at or after `mark`, the low-water mark, can need.

        O(keys written since they were last trimmed to one version, and their versions).
        """
        since_us = mark.us - self.table.history_us
        with self._latch:
            self._to_trim = {key for key in self._to_trim if self._trim(key, mark, since_us)}

    def _trim(self, key: Hashable, mark: At, since_us: int) -> bool:
        """Trim a key; return whether more may become discardable later. REQUIRES: the latch."""
        found = self._of.get(key)
        if found is None:
            return False
        needed = bisect_left(found, mark, key=_at) - 1  # the version that a plain read sees
        if self.table.history_us:
            needed = min(needed, bisect_left(found, since_us, key=_us))
        if needed > 0:
            del found[:needed]
        if len(found) > 1:
            return True
        at, value = found[0]
        if value is not REMOVED:
            return False
        if at < mark:
            del self._of[key]
        return at >= mark

    def since(self, at: At) -> dict[Hashable, tuple[_Version, ...]]:
        """Return the versions at or after a place, by key, oldest first.

        REQUIRES: no `trim` since they were written. O(keys written since then).
        """
        with self._latch:
            found = {key: self._of.get(key, ()) for key in self._to_trim}
            return {
                key: tuple(versions[bisect_left(versions, at, key=_at) :])
                for key, versions in found.items()
                if versions and versions[-1][0] >= at
            }

    def take_back_all(self, places: Collection[At]) -> None:
        """Remove the versions at some places; REQUIRES and costs as `since` the first of them."""
        for key, versions in self.since(min(places)).items():
            for place, _ in versions:
                if place in places:
                    self.take_back(key, place)

    def take_back_since(self, at: At) -> None:
        """Remove all versions at or after a place; REQUIRES and costs as `since`."""
        for key, versions in self.since(at).items():
            for place, _ in versions:
                self.take_back(key, place)

    def newest(self) -> dict[Hashable, Any]:
        """Return the newest value of every key that has one."""
        with self._latch:
            pairs = [(key, found[-1][1]) for key, found in self._of.items()]
        return {key: copied(value) for key, value in pairs if value is not REMOVED}

    def all(self) -> dict[Hashable, tuple[tuple[At, Any], ...]]:
        """Return all stored versions, by key."""
        with self._latch:
            kept = {key: tuple(found) for key, found in self._of.items()}
        return {
            key: tuple([(at, copied(value)) for at, value in found]) for key, found in kept.items()
        }

    def last_us(self) -> int | None:
        """Return the time of the latest stored version; None if there is none."""
        with self._latch:
            return max((found[-1][0].us for found in self._of.values()), default=None)

    def last_arrival(self) -> int:
        """Return the greatest arrival number of a stored version; 0 if there is none."""
        with self._latch:
            return max((at.arrival for found in self._of.values() for at, _ in found), default=0)

    def __len__(self) -> int:
        with self._latch:
            return sum(map(len, self._of.values()))


class _OfTables(dict[SharedTable, Versions]):
    """Versions by table; a table of another state is refused."""

    def __missing__(self, table: SharedTable) -> Versions:
        raise DefinitionError(f"shared table {table.name} is not in this state")


class SharedState:
    """Shared tables by name, with their versions, which s-transactions read and write.

    Parameters
    ----------
    tables : iterable of SharedTable

    Raises
    ------
    DefinitionError
        If two tables have the same name.
    """

    def __init__(self, tables: Iterable[SharedTable]):
        self._versions = _OfTables()
        names: set[str] = set()
        for table in tables:
            if table.name in names:
                raise DefinitionError(f"two shared tables are called {table.name}")
            names.add(table.name)
            self._versions[table] = Versions(table)

    def of(self, table: SharedTable) -> Versions:
        """Return the versions of a table.

        Raises
        ------
        DefinitionError
            If the table is not part of the state.
        """
        return self._versions[table]

    def __iter__(self) -> Iterator[Versions]:
        return iter(self._versions.values())

    def value(self, ref: Ref, before: At) -> Any:
        """Return the value of a reference at a place: a list for a window, a dict for a range."""
        table, key = ref.table, ref.key
        versions = self._versions[table]
        if type(key) not in table.plain_keys:
            if type(key) is Range:
                return versions.between(key.low, key.high, before)
            key = at_key(ref, self.reader(before))
        if ref.window_us is not None:
            return versions.window(key, before.us - ref.window_us, before)
        return versions.read(key, before)

    def reader(self, before: At) -> Callable[[Ref], Any]:
        """Return `value` as a function of the reference, as of one place."""
        return partial(self.value, before=before)

    def write(self, writes: Writes, at: At) -> None:
        """Add versions at a place."""
        for table, key, value in writes:
            self._versions[table].write(key, at, value)

    def take_back(self, writes: Writes, at: At) -> None:
        """Remove the versions that `write` has added."""
        for table, key, _ in writes:
            self.of(table).take_back(key, at)

    def take_back_all(self, places: Collection[At]) -> None:
        """Remove the versions at some places; REQUIRES: no `trim` since they were written."""
        for versions in self:
            versions.take_back_all(places)

    def last_arrival(self) -> int:
        """Return the greatest arrival number of a stored version; 0 if there is none."""
        return max((versions.last_arrival() for versions in self), default=0)

    def trim(self, mark: At) -> None:
        """Discard versions that no s-transaction at or after `mark` can need."""
        for versions in self:
            versions.trim(mark)


def _us(version: _Version) -> int:
    return version[0].us
