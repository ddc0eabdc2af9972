"""Entries: occurrences with their places, as nodes keep and exchange them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from activedb.clock import moment_of
from activedb.events._accuracy import AccuracyInterval, Timestamp, seconds_us
from activedb.events._occurrence import Occurrence

__all__ = [
    "YET_TO_BE_FED",
    "Bound",
    "Candidate",
    "Entry",
    "constituents",
    "entry_parts",
    "leaves",
    "place_of",
    "timestamp_at",
]

Entry = tuple[int, str, int, Any, Mapping[str, Any] | None]
"""(us, id or "", arrival, occurrence, parts): the first three are its place.

Arrivals differ, so a comparison never reaches the occurrence, and ``(us,)`` sorts before every
entry of that time. `parts` is the contribution to the parts of a match; None: the occurrence
itself, under the name of the stage that takes it.
"""
YET_TO_BE_FED = 2**62
"""Arrivals from this number on belong to events that are not fed yet."""
Bound = Entry | tuple[Entry, ...] | None
"""The binding of a part in a candidate: a tuple for a Kleene part; None for an omitted part."""
Candidate = tuple[Any, ...]
"""One `Bound` for each positive part, in the order in which they are written."""


def constituents(candidate: Candidate) -> list[Entry]:
    """Return the constituents, tuples flattened, in the order in which the parts are written."""
    found: list[Entry] = []
    for bound in candidate:
        if bound is None:
            continue
        # An entry begins with its time; a Kleene binding is empty or begins with an entry.
        if bound and type(bound[0]) is int:
            found.append(bound)
        else:
            found.extend(bound)
    return found


def place_of(entry: Entry) -> tuple[int, str, int]:
    """Return the place of an entry, as a sort key: entries of one event may differ otherwise."""
    return entry[:3]


def entry_parts(entry: Entry, name: str) -> Mapping[str, Any]:
    """Return the contribution of an entry to the parts of a match; `name` is used for an event."""
    return {name: entry[3]} if entry[4] is None else entry[4]


def leaves(o: Occurrence) -> Iterator[int]:
    """Yield the object ids of the primitive events of which `o` is composed."""
    if not o.parts:
        yield id(o)
    for part in o.parts.values():
        for inner in part if type(part) is tuple else (part,):
            yield from leaves(inner)


def timestamp_at(us: int, like: Timestamp | None) -> Timestamp:
    """Return a timestamp of exactly `us` microseconds, in seconds if `like` is, else in UTC."""
    if type(like) is int and us % 1_000_000 == 0:
        return us // 1_000_000
    if type(like) in (int, float):
        seconds = us / 1e6
        if seconds_us(seconds) == us:  # otherwise a float cannot represent it
            return seconds
    try:
        return moment_of(us)
    except OverflowError:
        return AccuracyInterval(us, us, us)
