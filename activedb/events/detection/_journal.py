"""How a feed is undone: every change of a node's state leaves its opposite in a journal.

The same journal serves three ends: a feed that raises has changed nothing; `withdraw` undoes the
feeds back to the one in question; and a policy may refuse what a feed has done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from typing import Any

from activedb.events.detection._entry import Entry

__all__ = ["Journal", "add", "assign", "delete", "put", "roll_back", "take"]

Journal = list[tuple[Callable[..., Any], tuple[Any, ...]]]


def roll_back(journal: Journal) -> None:
    """Undo what is in the journal, the last change first; it is empty then."""
    while journal:
        undo, arguments = journal.pop()
        undo(*arguments)


def put(entries: list[Entry], entry: Entry, journal: Journal) -> None:
    """Put an entry at its place in a sorted list, unless its event is there."""
    place = bisect_left(entries, entry[:3])
    if place == len(entries) or entries[place][2] != entry[2]:
        entries.insert(place, entry)
        journal.append((_take_out, (entries, entry)))


def take(entries: list[Entry], entry: Entry, journal: Journal) -> None:
    """Take an entry out of a sorted list."""
    place = bisect_left(entries, entry[:3])
    if place < len(entries) and entries[place][2] == entry[2]:
        # Of an event that several stages take, each may call it by another name.
        journal.append((_put_back, (entries, entries.pop(place))))


def add(members: set[Any], member: Hashable, journal: Journal) -> None:
    """Put a member into a set."""
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
    """Delete a key of a dict, if it is there."""
    if key in mapping:
        journal.append((mapping.__setitem__, (key, mapping.pop(key))))


def _take_out(entries: list[Entry], entry: Entry) -> None:
    # It may be gone: trimmed since.
    place = bisect_left(entries, entry[:3])
    if place < len(entries) and entries[place][2] == entry[2]:
        del entries[place]


def _put_back(entries: list[Entry], entry: Entry) -> None:
    entries.insert(bisect_left(entries, entry[:3]), entry)
