"""Sequences by definition: every combination of events is tried. Slow and plain on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING

from activedb.events import Expression, Occurrence, event, seq

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Part:
    name: str
    alias: str
    negated: bool
    x_min: int | None  # a predicate on the parameter x, if any

    def takes(self, o: Occurrence) -> bool:
        return o.name == self.name and (self.x_min is None or o.params["x"] >= self.x_min)


@dataclass(frozen=True)
class Pattern:
    parts: tuple[Part, ...]
    same: tuple[str, ...]
    window_us: int | None
    rising: bool  # a predicate over the parts: x of the first is at most x of the last

    @property
    def positives(self) -> list[int]:
        return [place for place, part in enumerate(self.parts) if not part.negated]

    def expression(self) -> Expression:
        expression: Expression = seq(*[_expression(part) for part in self.parts])
        if self.same:
            expression = expression.same(*self.same)
        if self.rising:
            first, last = (self.parts[self.positives[end]].alias for end in (0, -1))
            expression = expression.where(
                lambda parts: parts[first].params["x"] <= parts[last].params["x"]
            )
        return expression if self.window_us is None else expression.within(self.window_us / 1e6)


def _expression(part: Part) -> Expression:
    x_min = part.x_min
    where = None if x_min is None else lambda o: o.params["x"] >= x_min
    primitive = event(part.name, where=where, alias=part.alias)
    return ~primitive if part.negated else primitive


class NaiveDetector:
    """Keeps everything ever fed, in the order of feeding."""

    def __init__(self, pattern: Pattern):
        self.pattern = pattern
        self.fed: list[Occurrence] = []

    def feed(self, o: Occurrence) -> list[dict[str, Occurrence]]:
        self.fed.append(o)
        parts, places = self.pattern.parts, self.pattern.positives
        found = []
        candidates = [
            [fed for fed in (self.fed if place != places[-1] else [o]) if parts[place].takes(fed)]
            for place in places
        ]
        for combination in product(*candidates):
            if self._matches(dict(zip(places, combination, strict=True))):
                found.append(combination)
        arrival = {id(fed): number for number, fed in enumerate(self.fed)}
        found.sort(key=lambda c: [(part.us, part.id or "", arrival[id(part)]) for part in c])
        aliases = [self.pattern.parts[place].alias for place in places]
        return [dict(zip(aliases, combination, strict=True)) for combination in found]

    def withdraw(self, o: Occurrence) -> None:
        self.fed = [fed for fed in self.fed if fed is not o]

    def retained(self, from_us: float) -> int:
        """How many events since `from_us` some part other than the last one takes."""
        parts = self.pattern.parts[:-1]
        return sum(o.us >= from_us and any(part.takes(o) for part in parts) for o in self.fed)

    def _matches(self, chosen: Mapping[int, Occurrence]) -> bool:
        pattern = self.pattern
        positives = list(chosen.values())
        first, last = positives[0], positives[-1]
        return (
            all(a.us < b.us for a, b in pairwise(positives))
            and all(self._same(first, o) for o in positives)
            and (pattern.window_us is None or last.us - first.us <= pattern.window_us)
            and (not pattern.rising or first.params["x"] <= last.params["x"])
            and not any(
                part.negated and self._stands_in_the_way(place, chosen, o)
                for place, part in enumerate(pattern.parts)
                for o in self.fed
            )
        )

    def _stands_in_the_way(
        self, place: int, chosen: Mapping[int, Occurrence], o: Occurrence
    ) -> bool:
        before = [chosen[p] for p in chosen if p < place]
        after = [chosen[p] for p in chosen if p > place]
        if before:
            begun = before[-1].us < o.us
        else:
            assert self.pattern.window_us is not None
            begun = after[-1].us - self.pattern.window_us <= o.us
        return (
            self.pattern.parts[place].takes(o)
            and self._same(o, after[-1])
            and begun
            and o.us < after[0].us
        )

    def _same(self, a: Occurrence, b: Occurrence) -> bool:
        return all(a.params[name] == b.params[name] for name in self.pattern.same)
