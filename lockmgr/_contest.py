"""Resources with waiting requests, in the order in which they first had one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockmgr._structures import Entry, Lock, Request

__all__ = ["ContendedEntries"]


class ContendedEntries:
    """Entries with a non-empty queue, in the order in which they are swept.

    The order matters when several locks are released at once.
    """

    __slots__ = ("_begun", "_places")

    def __init__(self) -> None:
        self._places: dict[Entry, int] = {}
        self._begun = 0

    def entries(self) -> set[Entry]:
        """Return the entries with waiting requests."""
        return set(self._places)

    def enter(self, entry: Entry) -> None:
        """Record that a request waits for `entry`."""
        if entry not in self._places:
            self._begun += 1
            self._places[entry] = self._begun

    def touches(self, *owned: dict[Entry, Lock]) -> bool:
        """Return whether a request waits for one of the locks `owned`. Complexity as in `among`."""
        places = self._places
        for locks in owned:
            if len(locks) < len(places):
                if any(entry in places for entry in locks):
                    return True
            elif any(entry in locks for entry in places):
                return True
        return False

    def among(self, *owned: dict[Entry, Lock]) -> list[Entry]:
        """Return the entries of the locks `owned` that have waiting requests.

        O(the smaller of the number of locks and the number of entries with a queue).
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
        """Grant the requests that rule 1 and the queues of `entries` allow, and return them.

        No search is needed: README, "Deadlock".
        """
        granted: list[Request] = []
        for entry in entries:
            granted.extend(entry.sweep())
            if not entry.queue:
                self._places.pop(entry, None)
        return granted
