"""The resources that anybody waits for, in order of the first to do so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockmgr._structures import Entry, Lock, Request

__all__ = ["Contest"]


class Contest:
    """Which entries have a queue; in their order they are swept when several locks go at once."""

    __slots__ = ("_begun", "_places")

    def __init__(self) -> None:
        self._places: dict[Entry, int] = {}
        self._begun = 0

    def entries(self) -> set[Entry]:
        """Return the entries that somebody waits for."""
        return set(self._places)

    def enter(self, entry: Entry) -> None:
        """Note that somebody waits for `entry`."""
        if entry not in self._places:
            self._begun += 1
            self._places[entry] = self._begun

    def touches(self, *owned: dict[Entry, Lock]) -> bool:
        """Tell whether somebody waits for one of the locks `owned`. O as `among`."""
        places = self._places
        for locks in owned:
            if len(locks) < len(places):
                if any(entry in places for entry in locks):
                    return True
            elif any(entry in locks for entry in places):
                return True
        return False

    def among(self, *owned: dict[Entry, Lock]) -> list[Entry]:
        """Return for which of the locks `owned` somebody waits.

        O(the fewer of the locks and of the resources that anybody waits for).
        """
        places = self._places
        if not places:
            return []
        found: list[Entry] = []
        for locks in owned:
            if len(locks) < len(places):
                found.extend(entry for entry in locks if entry in places)
            else:
                found.extend(entry for entry in places if entry in locks)
        found.sort(key=places.__getitem__)
        return found

    def sweep(self, entries: Iterable[Entry]) -> list[Request]:
        """Grant what rule 1 and the queues of `entries` allow; return the requests granted.

        No search is needed: README, "Deadlock".
        """
        granted: list[Request] = []
        for entry in entries:
            granted.extend(entry.sweep())
            if not entry.queue:
                self._places.pop(entry, None)
        return granted
