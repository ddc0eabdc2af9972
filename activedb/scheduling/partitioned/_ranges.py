"""Keys in their order, where they have one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from typing import Any

from activedb.scheduling._tables import Range, SharedTable

__all__ = ["SortedKeys"]

_ORDERED = (int, str, bytes)


class SortedKeys:
    """Some keys of a table, to be asked which of them are in a range.

    Parameters
    ----------
    table : SharedTable
    keys : iterable of hashable
    """

    def __init__(self, table: SharedTable, keys: Iterable[Hashable]):
        self._kind = table.key
        self._keys: list[Any] = list(keys)
        # Keys of other types may have no order, or raise where they are compared.
        self._has_order = self._kind in _ORDERED and all(
            type(key) is self._kind for key in self._keys
        )
        if self._has_order:
            self._keys.sort()

    def within(self, bounds: Range) -> list[Any]:
        """Those that a read of the range may look at; all, where they have no order. O(log n)."""
        low, high = bounds.low, bounds.high
        if not self._has_order or any(
            bound is not None and type(bound) is not self._kind for bound in (low, high)
        ):
            return self._keys
        first = 0 if low is None else bisect_left(self._keys, low)
        last = len(self._keys) if high is None else bisect_left(self._keys, high)
        return self._keys[first:last]
