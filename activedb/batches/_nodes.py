"""Acyclic graph of ids underlying a lineage."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from activedb.errors import LineageError, NotRecorded, RecordedTwice

__all__ = ["Nodes", "Numbers"]


class Nodes:
    """Ids in the order of recording, with edges in both directions. Acyclic by construction."""

    def __init__(self) -> None:
        self.place: dict[str, int] = {}
        self.next: dict[str, list[str]] = {}
        self.previous: dict[str, list[str]] = {}

    def add(self, id: str, previous: Iterable[str]) -> None:
        """Add a new node behind others, all of which exist."""
        self.place[id] = len(self.place)
        self.next[id] = []
        self.previous[id] = list(dict.fromkeys(previous))
        for other in self.previous[id]:
            self.next[other].append(id)

    def free(self, id: str) -> str:
        """Return the id after checking that it is a non-empty string and not taken."""
        if not isinstance(id, str) or not id:
            raise LineageError(f"an id is a text that is not empty, not {id!r}")
        if id in self.place:
            raise RecordedTwice(f"{id!r} is recorded already")
        return id

    def place_of(self, id: str) -> int:
        """Return the place of an id in the order of recording."""
        return self.place[self.known(id)]

    def known(self, id: str) -> str:
        """Return the id after checking that it is recorded."""
        if id not in self.place:
            raise NotRecorded(f"no batch or transaction {id!r} is recorded")
        return id

    def reach(
        self, ids: str | Iterable[str], *, forward: bool, without: Collection[str] = ()
    ) -> set[str]:
        """Return the nodes reachable forward or backward from some nodes, including these.

        O(edges found). Nodes in `without` are neither returned nor searched.
        """
        edges = self.next if forward else self.previous
        waiting = [self.known(id) for id in ([ids] if isinstance(ids, str) else ids)]
        found: set[str] = set()
        while waiting:
            id = waiting.pop()
            if id not in found and id not in without:
                found.add(id)
                waiting += edges[id]
        return found


class Numbers:
    """Numbers from 1, each taken once within its sequence."""

    def __init__(self) -> None:
        self._taken: dict[object, set[int]] = {}
        self._highest: dict[object, int] = {}

    def free(self, sequence: object, number: int | None, what: str) -> int:
        """Return the number after checking that it is free; for None, one above the highest."""
        if number is None:
            return self._highest.get(sequence, 0) + 1
        if type(number) is not int or number < 1:
            raise LineageError(f"numbers of {what} are whole and from 1 on, not {number!r}")
        if number in self._taken.get(sequence, ()):
            raise RecordedTwice(f"number {number} of {what} is recorded already")
        return number

    def take(self, sequence: object, number: int) -> None:
        """Take a number that was free."""
        self._taken.setdefault(sequence, set()).add(number)
        self._highest[sequence] = max(number, self._highest.get(sequence, 0))
