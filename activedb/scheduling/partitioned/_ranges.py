"""Sorted keys, where keys have an order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from typing import Any

from activedb.scheduling._tables import Range, SharedTable

__all__ = ["SortedKeys"]

_ORDERED = (int, str, bytes)


class SortedKeys:
    """Keys of a table, with lookup by range.

    Parameters
    ----------
    table : SharedTable
    keys : iterable of hashable
    """

    def __init__(self, table: SharedTable, keys: Iterable[Hashable]):
        self._kind = table.key
        self._keys: list[Any] = list(keys)
        # Keys of other types may have no order, or raise when compared.
        self._has_order = self._kind in _ORDERED and all(
            type(key) is self._kind for key in self._keys
        )
        if self._has_order:
            self._keys.sort()

    def within(self, bounds: Range) -> list[Any]:
        """Return the keys that a read of the range may access; all if unordered. O(log n)."""
        low, high = bounds.low, bounds.high
        if not self._has_order or any(
            bound is not None and type(bound) is not self._kind for bound in (low, high)
        ):
            return self._keys
        first = 0 if low is None else bisect_left(self._keys, low)
        last = len(self._keys) if high is None else bisect_left(self._keys, high)
        return self._keys[first:last]
