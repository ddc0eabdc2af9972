"""History of events, as the nodes know it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from activedb.events import Occurrence, precedes

Place = tuple[int, str, int]


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(eq=False)
class Made:
    """An occurrence as the nodes pass it on."""

    parts: dict[str, Any]
    us: int
    low_us: int
    high_us: int
    params: Mapping[str, Any]
    leaves: tuple[Made, ...]
    """The primitive events in it."""
    number: int
    """Place in the order in which occurrences arrive or are made."""
    id: str = ""
    event: Occurrence | None = None
    """Occurrence that was fed, of a primitive event."""
    output: Occurrence | None = None
    """Occurrence under the query's name, of a query."""

    @property
    def place(self) -> Place:
        return self.us, self.id, self.number

    @property
    def events(self) -> frozenset[int]:
        return frozenset(id(leaf) for leaf in self.leaves)


@dataclass
class History:
    """Knowledge that all nodes share."""

    numbers: Iterator[int] = field(default_factory=count)
    fed: list[Made] = field(default_factory=list)
    begun_us: int | None = None
    """First time to which time was advanced or at which an event was fed."""
    reader: Any = None
    step: int = 0
    answers: dict[tuple[object, ...], bool] = field(default_factory=dict)
    """Answers of predicates that read, by step: they are not asked again."""
    ranks: dict[int, int] | None = None
    """Rank of each primitive event, if one of all possible orders is tried."""
    takes_any_order: bool = False
    """Mode in which any two different occurrences precede each other, within any window."""

    def before(self, x: Made, y: Made) -> bool:
        if self.takes_any_order:
            return x.events.isdisjoint(y.events)
        if self.ranks is None:
            return x.high_us < y.low_us or (x.high_us == y.low_us and _is_ordered_locally(x, y))
        return max(self.ranks[id(a)] for a in x.leaves) < min(self.ranks[id(b)] for b in y.leaves)

    def says(self, reading: Any, bound: Any) -> bool:
        """Return the answer of a predicate that reads, in this step."""
        seen = self._seen(bound if isinstance(bound, Mapping) else {"": bound})
        key = (self.step, id(reading), seen)
        if key not in self.answers:
            self.answers[key] = bool(reading(self.reader, bound))
        return self.answers[key]

    def _seen(self, parts: Mapping[str, Any]) -> tuple[object, ...]:
        """Describe parts, alike for composites and moments of clocks that are made anew."""
        found: list[object] = []
        for name, bound in parts.items():
            for o in bound if isinstance(bound, tuple) else (bound,):
                is_fed = any(made.event is o for made in self.fed)
                found.append((name, id(o) if is_fed else (o.name, o.us, self._seen(o.parts))))
        return tuple(found)


def _is_ordered_locally(x: Made, y: Made) -> bool:
    """Return whether the local clock orders all events at the moment where one ends and one begins.

    No clock has stamped what time alone has completed at that moment.
    """
    last = [a for a in x.leaves if a.us == x.high_us]
    first = [b for b in y.leaves if b.us == y.low_us]
    return bool(last and first) and all(
        a.event is not None and b.event is not None and precedes(a.event, b.event)
        for a in last
        for b in first
    )


def primitive(o: Occurrence, number: int, name: str | None = None) -> Made:
    """An event that is fed, or that a clock makes."""
    parts = {o.name if name is None else name: o}
    made = Made(parts, o.us, o.low_us, o.high_us, o.params, (), number, o.id or "", o)
    made.leaves = (made,)
    return made


def cumulated(together: Iterable[Made]) -> dict[str, Any]:
    """The parts of several occurrences, each name with the tuple of all that it has there."""
    found: dict[str, tuple[Occurrence, ...]] = {}
    for made in together:
        for name, bound in made.parts.items():
            elements = bound if isinstance(bound, tuple) else (bound,)
            known = found.get(name, ())
            # Reading: an event that came with several composite constituents is there once.
            new = (o for o in elements if not any(o is other for other in known))
            found[name] = (*known, *new)
    return found


def event_of(made: Made) -> int:
    """Return the identity of an occurrence: a primitive event has the same one in all parts."""
    return id(made.leaves[0]) if made.event is not None else id(made)


def exactly(us: int) -> datetime:
    """A timestamp."""
    return EPOCH + timedelta(microseconds=us)


def moment(name: str, us: int) -> Occurrence:
    """The occurrence of a clock event or tick."""
    return Occurrence(name, exactly(us))
