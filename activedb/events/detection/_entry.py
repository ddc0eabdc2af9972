"""Entries, which nodes keep and exchange: occurrences with their places; candidates of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from activedb.clock import moment_of
from activedb.events._accuracy import AccuracyInterval, Timestamp, seconds_us
from activedb.events._occurrence import Occurrence

__all__ = [
    "YET_TO_BE_FED",
    "Bound",
    "Candidate",
    "Doubt",
    "Entry",
    "Possible",
    "Stage",
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


def leaves(o: Occurrence, but: Container[str] = ()) -> Iterator[int]:
    """Yield the object ids of the primitive events of which `o` is composed.

    Parameters
    ----------
    but : container of str
        Names of parts, at any level, to leave out.
    """
    if not o.parts:
        yield id(o)
    for name, part in o.parts.items():
        if name not in but:
            for inner in part if type(part) is tuple else (part,):
                yield from leaves(inner, but)


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


# -- candidates: the stages to which entries are bound, and matches that are only possible ---------


class Stage:
    """Positive part of a combination.

    Attributes
    ----------
    name : str
        The name of a primitive event or Kleene part; otherwise unused, as constituents have names.
    kleene : bool
        True if it is bound to a tuple of `minimum` to `maximum` entries (None: unbounded).
    greedy : bool
        True if a longer binding is preferred.
    is_primitive : bool
        True if its entries are primitive events.
    names : tuple of str
        All part names that it can contribute.
    merged_keys : frozenset of (str, str)
        The keys of the part's events, if several open occurrences of it may turn out to be one
        (the context cumulative); otherwise empty.
    """

    __slots__ = (
        "greedy",
        "is_primitive",
        "kleene",
        "maximum",
        "merged_keys",
        "minimum",
        "name",
        "names",
    )

    def __init__(
        self,
        name: str,
        names: tuple[str, ...],
        *,
        kleene: bool = False,
        minimum: int = 1,
        maximum: int | None = 1,
        greedy: bool = True,
        is_primitive: bool = True,
        merged_keys: frozenset[tuple[str, str]] = frozenset(),
    ):
        self.name = name
        self.names = names
        self.kleene = kleene
        self.minimum = minimum
        self.maximum = maximum
        self.greedy = greedy
        self.is_primitive = is_primitive
        self.merged_keys = merged_keys


Doubt = tuple[Occurrence, Occurrence]
"""Two events whose order or distance is uncertain."""


class Possible:
    """Possible match: a candidate in at least one order of events.

    Attributes
    ----------
    candidate : Candidate
    entries : list of Entry
        The constituents.
    is_certain : bool
        True if it is a candidate in every order, provided that its constituents occur.
    is_early : bool
        True if it was judged, and is not certain, while parts of the expression might still make
        occurrences that matter, or merge some; it is judged again.
    doubts : tuple of (Occurrence, Occurrence)
        The pairs of events on which `is_certain` depends.
    is_closed : bool
        True if time completes it, not its last constituent.
    entry : Entry or None
        The occurrence that the node has passed on; None: none yet, or one of its constituents is
        yet to be fed.
    is_made : bool
        True if it was made and is only kept because it may exclude others.
    lost_rival : bool
        True if a match was forgotten that may exclude it, or may have been made with it.
    ends : list of Entry
        The constituents that may be the last, or, if time completes it, that start its window.
    arrival : int or None
        The arrival number reserved for `entry`, so that it has its place in the order of preference
        whenever it is made; None: the next number.
    """

    __slots__ = (
        "arrival",
        "arrivals",
        "candidate",
        "doubts",
        "ends",
        "entries",
        "entry",
        "is_certain",
        "is_closed",
        "is_early",
        "is_made",
        "lost_rival",
    )

    def __init__(
        self,
        candidate: Candidate,
        *,
        is_certain: bool,
        doubts: Iterable[Doubt] = (),
        is_closed: bool = False,
        entry: Entry | None = None,
        is_made: bool = False,
        is_early: bool = False,
        lost_rival: bool = False,
    ):
        self.candidate = candidate
        self.entries = constituents(candidate)
        self.arrivals = frozenset([entry[2] for entry in self.entries])
        self.is_certain = is_certain
        self.doubts = tuple(doubts)
        self.is_closed = is_closed
        self.entry = entry
        self.is_made = is_made
        self.is_early = is_early
        self.lost_rival = lost_rival
        self.ends: list[Entry] = []
        self.arrival: int | None = None

    def at(self, entry: Entry) -> Possible:
        """Return a copy with `entry` as the occurrence passed on."""
        found = Possible(
            self.candidate,
            is_certain=self.is_certain,
            doubts=self.doubts,
            is_closed=self.is_closed,
            entry=entry,
            is_early=self.is_early,
            lost_rival=self.lost_rival,
        )
        found.ends = self.ends
        return found

    @property
    def last_us(self) -> int:
        """The reading of its latest constituent; the match is kept until that expires."""
        return max([entry[0] for entry in self.entries])

    def may_overlap(self, other: Possible) -> bool:
        """Return whether the time spans of the two may overlap."""
        low_us, high_us = self._span_us()
        other_low_us, other_high_us = other._span_us()
        return low_us <= other_high_us and other_low_us <= high_us

    def _span_us(self) -> tuple[int, int]:
        lows, highs = zip(*[(e[3].low_us, e[3].high_us) for e in self.entries], strict=True)
        return min(lows), max(highs)

    def made(self) -> Possible:
        """Return the match marked as made."""
        found = self.at(self.entry) if self.entry is not None else self
        found.is_made = True
        return found
