"""The versions of shared tables, by timestamp."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from activedb.errors import DefinitionError
from activedb.scheduling._operations import Writes
from activedb.scheduling._s_transactions import At
from activedb.scheduling._tables import REMOVED, Range, Ref, SharedTable, at_key

__all__ = ["State", "Versions"]

_Version = tuple[At, Any]


class Versions:
    """The versions of one shared table.

    Attributes
    ----------
    table : SharedTable

    Latch: ``_latch``, held for one look or change, with nothing else taken under it.
    """

    def __init__(self, table: SharedTable):
        self.table = table
        self._latch = threading.Lock()
        self._of: dict[Hashable, list[_Version]] = {}  # per key in order of `at`, never empty

    def read(self, key: Hashable, before: At) -> Any:
        """The value of a key just before a place; O(log versions)."""
        with self._latch:
            found = self._of.get(key)
            if found is None:
                return self.table.initial
            number = bisect_left(found, before, key=_at)
            value = found[number - 1][1] if number else REMOVED
        return self.table.initial if value is REMOVED else value

    def window(self, key: Hashable, since_us: int, before: At) -> list[Any]:
        """The values written at or after `since_us` and before a place, oldest first."""
        with self._latch:
            found = self._of.get(key, ())
            first = bisect_left(found, since_us, key=_us)
            last = bisect_left(found, before, key=_at)
            return [value for _, value in found[first:last] if value is not REMOVED]

    def between(self, low: Any, high: Any, before: At) -> dict[Hashable, Any]:
        """Keys from `low` on and before `high` that have a value, with it; O(keys)."""
        with self._latch:
            keys = list(self._of)
        found = {}
        for key in keys:
            if (low is None or key >= low) and (high is None or key < high):
                value = self._at(key, before)
                if value is not REMOVED:
                    found[key] = value
        return dict(sorted(found.items())) if found else found

    def _at(self, key: Hashable, before: At) -> Any:
        with self._latch:
            found = self._of[key]
            number = bisect_left(found, before, key=_at)
            return found[number - 1][1] if number else REMOVED

    def write(self, key: Hashable, at: At, value: Any) -> None:
        """Add a version, or put another value into the one at this place."""
        with self._latch:
            found = self._of.setdefault(key, [])
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
                del found[number]
                if not found:
                    del self._of[key]

    def trim(self, mark: At) -> None:
        """Forget versions that nothing at or after `mark`, the low-water-mark, can need."""
        since_us = mark.us - self.table.history_us
        with self._latch:
            for key in [key for key, found in self._of.items() if len(found) > 1]:
                found = self._of[key]
                needed = bisect_left(found, mark, key=_at) - 1  # what a plain read sees
                if self.table.history_us:
                    needed = min(needed, bisect_left(found, since_us, key=_us))
                if needed > 0:
                    del found[:needed]
            for key in [k for k, found in self._of.items() if len(found) == 1]:
                at, value = self._of[key][0]
                if value is REMOVED and at < mark:
                    del self._of[key]

    def changed_since(self, at: At) -> dict[Hashable, Any]:
        """The newest value of each key that was written at or after a place; `REMOVED` too."""
        with self._latch:
            return {key: found[-1][1] for key, found in self._of.items() if found[-1][0] >= at}

    def newest(self) -> dict[Hashable, Any]:
        """The newest value of every key that has one."""
        with self._latch:
            pairs = [(key, found[-1][1]) for key, found in self._of.items()]
        return {key: value for key, value in pairs if value is not REMOVED}

    def all(self) -> dict[Hashable, tuple[tuple[At, Any], ...]]:
        """Every version that is kept."""
        with self._latch:
            return {key: tuple(found) for key, found in self._of.items()}

    def __len__(self) -> int:
        with self._latch:
            return sum(map(len, self._of.values()))


class State:
    """Shared tables by name, with their versions: what s-transactions read and write.

    Parameters
    ----------
    tables : iterable of SharedTable

    Raises
    ------
    DefinitionError
        If two tables have one name.
    """

    def __init__(self, tables: Iterable[SharedTable]):
        self._versions: dict[str, Versions] = {}
        for table in tables:
            if table.name in self._versions:
                raise DefinitionError(f"two shared tables are called {table.name}")
            self._versions[table.name] = Versions(table)

    def of(self, table: SharedTable) -> Versions:
        """The versions of a table.

        Raises
        ------
        DefinitionError
            If the table is not part of it.
        """
        found = self._versions.get(table.name)
        if found is None or found.table is not table:
            raise DefinitionError(f"shared table {table.name} is no part of this state")
        return found

    def __iter__(self) -> Iterator[Versions]:
        return iter(self._versions.values())

    def value(self, ref: Ref, before: At) -> Any:
        """The value of a reference as of a place: of a window a list, of a range a dict."""
        versions = self.of(ref.table)
        if type(ref.key) is Range:
            return versions.between(ref.key.low, ref.key.high, before)
        key = at_key(ref, lambda source: self.value(source, before))
        if ref.window_us is not None:
            return versions.window(key, before.us - ref.window_us, before)
        return versions.read(key, before)

    def reader(self, before: At) -> Callable[[Ref], Any]:
        """`value` as of one place."""
        return lambda ref: self.value(ref, before)

    def write(self, writes: Writes, at: At) -> None:
        """Add versions at a place."""
        for table, key, value in writes:
            self.of(table).write(key, at, value)

    def take_back(self, writes: Writes, at: At) -> None:
        """Remove the versions that `write` has added."""
        for table, key, _ in writes:
            self.of(table).take_back(key, at)

    def trim(self, mark: At) -> None:
        """Forget versions that no s-transaction at or after `mark` can need."""
        for versions in self:
            versions.trim(mark)


def _at(version: _Version) -> At:
    return version[0]


def _us(version: _Version) -> int:
    return version[0].us
