"""The graph under a lineage: ids, and which follows directly from which."""

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
        """Add a new node behind others, all of which are there."""
        self.place[id] = len(self.place)
        self.next[id] = []
        self.previous[id] = list(dict.fromkeys(previous))
        for other in self.previous[id]:
            self.next[other].append(id)

    def free(self, id: str) -> str:
        """The id, if it is one, and not taken."""
        if not isinstance(id, str) or not id:
            raise LineageError(f"an id is a text that is not empty, not {id!r}")
        if id in self.place:
            raise RecordedTwice(f"{id!r} is recorded already")
        return id

    def place_of(self, id: str) -> int:
        """The place of an id in the order of recording."""
        return self.place[self.known(id)]

    def known(self, id: str) -> str:
        """The id, if it is taken."""
        if id not in self.place:
            raise NotRecorded(f"no batch or transaction {id!r} is recorded")
        return id

    def reach(
        self, ids: str | Iterable[str], *, forward: bool, without: Collection[str] = ()
    ) -> set[str]:
        """The nodes to which there is a way, or from which, those given with them.

        O(edges of what is found). What is in `without` is not found, and not gone through.
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
        """The number, if it is one and not taken; None is the next one after the highest."""
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
