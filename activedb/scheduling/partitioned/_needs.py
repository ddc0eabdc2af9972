"""Part of a state that some s-transactions may read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from activedb.scheduling._s_transactions import At, STransaction
from activedb.scheduling._state import State, Versions
from activedb.scheduling._tables import Range, Ref, SharedTable
from activedb.scheduling.partitioned._ranges import SortedKeys

__all__ = ["StatePart", "load", "part_of"]

StatePart = list[tuple[SharedTable, list[tuple[Hashable, tuple[tuple[At, Any], ...]]]]]
"""Per table, its keys with their versions, oldest first."""


class _Needed:
    """Versions needed of a table: keys, each with a place and time to start from, and ranges."""

    __slots__ = ("everything", "keys", "ranges", "whole")

    def __init__(self) -> None:
        self.keys: dict[Hashable, tuple[At, int]] = {}
        self.ranges: list[Range] = []
        self.everything = False
        self.whole: tuple[At, int] | None = None  # start of the versions needed for ranges and all

    def add(self, ref: Ref, at: At) -> None:
        """Add a reference of an s-transaction; REQUIRES: they come in the serial order."""
        if not ref.is_whole:
            since_us = at.us if ref.window_us is None else at.us - ref.window_us
            try:
                before = self.keys.get(ref.key)
            except Exception:
                return  # an invalid key, which is never read
            if before is None or since_us < before[1]:
                self.keys[ref.key] = (at if before is None else before[0], since_us)
            return
        # A read of an unknown key may also read any window over it.
        window_us = ref.table.history_us if ref.window_us is None else ref.window_us
        first, since_us = (at, at.us) if self.whole is None else self.whole
        self.whole = first, min(since_us, at.us - window_us)
        if isinstance(ref.key, Range):
            self.ranges.append(ref.key)
        else:
            self.everything = True

    def of(self, versions: Versions) -> list[tuple[Hashable, tuple[tuple[At, Any], ...]]]:
        """Return the versions that are needed."""
        keys = dict(self.keys)
        if self.whole is not None:
            first, since_us = self.whole
            for key in self._of_whole(versions):
                known = keys.get(key)
                keys[key] = (
                    self.whole if known is None else (min(known[0], first), min(known[1], since_us))
                )
        found = [(key, versions.needed(key, *since)) for key, since in keys.items()]
        return [(key, those) for key, those in found if those]

    def _of_whole(self, versions: Versions) -> list[Hashable]:
        there = versions.keys()
        if self.everything:
            return there
        in_order = SortedKeys(versions.table, there)
        return list(dict.fromkeys(key for each in self.ranges for key in in_order.within(each)))


def part_of(state: State, transactions: Sequence[STransaction]) -> StatePart:
    """Return the versions that s-transactions may read, for all tables; some may have none.

    O(references + length of the result); if a range or a computed key is read, also O(keys) of its
    table.

    Parameters
    ----------
    state : State
    transactions : sequence of STransaction
        In the serial order.
    """
    needed: dict[SharedTable, _Needed] = {}
    for transaction in transactions:
        for ref in transaction.reads():
            of_table = needed.get(ref.table)
            if of_table is None:
                of_table = needed[ref.table] = _Needed()
            of_table.add(ref, transaction.at)
    return [
        (versions.table, needed[versions.table].of(versions) if versions.table in needed else [])
        for versions in state
    ]


def load(part: StatePart) -> State:
    """Build a state from a part."""
    state = State(table for table, _ in part)
    for table, keys in part:
        versions = state.of(table)
        for key, those in keys:
            for at, value in those:
                versions.write(key, at, value)
    return state
