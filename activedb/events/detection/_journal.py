"""Undo journal: for every change of a node's state, the operation that reverses it; its steps.

The journal has three uses: a feed that raises leaves the state unchanged; `withdraw` undoes the
feeds back to the one in question; and a policy may refuse the effects of a feed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from typing import Any

from activedb.events._occurrence import Occurrence
from activedb.events.detection._entry import Entry

__all__ = ["Journal", "Record", "add", "assign", "delete", "put", "roll_back", "take"]

Journal = list[tuple[Callable[..., Any], tuple[Any, ...]]]


class Record:
    """Undoable step: a feed, an advance of time, or a decision."""

    __slots__ = (
        "chosen",
        "contemporaries",
        "is_accepted",
        "is_idle",
        "journal",
        "o",
        "opened",
        "said",
        "us",
    )

    def __init__(
        self,
        o: Occurrence | None,
        us: int,
        journal: Journal,
        said: dict[Hashable, bool],
        contemporaries: tuple[Occurrence, ...],
    ):
        self.o = o
        self.us = us
        self.journal = journal
        self.said = said
        self.contemporaries = contemporaries
        self.chosen: tuple[str, tuple[int, ...]] | None = None
        self.opened: list[str] = []
        self.is_accepted = False  # True once some world was found to make all that is chosen
        self.is_idle = False  # True for an advance at which nothing was due


def roll_back(journal: Journal) -> None:
    """Undo the changes in the journal, last first, and empty it."""
    while journal:
        undo, arguments = journal.pop()
        undo(*arguments)


def put(entries: list[Entry], entry: Entry, journal: Journal) -> None:
    """Insert an entry into a list sorted by place, unless its event is in the list."""
    place = bisect_left(entries, entry[:3])
    if place == len(entries) or entries[place][2] != entry[2]:
        entries.insert(place, entry)
        journal.append((_take_out, (entries, entry)))


def take(entries: list[Entry], entry: Entry, journal: Journal) -> None:
    """Remove an entry from a list sorted by place, if it is in the list."""
    place = bisect_left(entries, entry[:3])
    if place < len(entries) and entries[place][2] == entry[2]:
        # If several stages take an event, their entries may have different part names.
        journal.append((_put_back, (entries, entries.pop(place))))


def add(members: set[Any], member: Hashable, journal: Journal) -> None:
    """Add a member to a set."""
    if member not in members:
        members.add(member)
        journal.append((members.discard, (member,)))


def assign(mapping: dict[Any, Any], key: Hashable, value: Any, journal: Journal) -> None:
    """Set a key of a dict."""
    if key in mapping:
        journal.append((mapping.__setitem__, (key, mapping[key])))
    else:
        journal.append((mapping.pop, (key, None)))
    mapping[key] = value


def delete(mapping: dict[Any, Any], key: Hashable, journal: Journal) -> None:
    """Delete a key of a dict, if it exists."""
    if key in mapping:
        journal.append((mapping.__setitem__, (key, mapping.pop(key))))


def _take_out(entries: list[Entry], entry: Entry) -> None:
    # The entry may have been trimmed in the meantime.
    place = bisect_left(entries, entry[:3])
    if place < len(entries) and entries[place][2] == entry[2]:
        del entries[place]


def _put_back(entries: list[Entry], entry: Entry) -> None:
    entries.insert(bisect_left(entries, entry[:3]), entry)
