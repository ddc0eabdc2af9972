"""Conjunctions; and what they have in common with sequences: preference, contexts and skips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from activedb.errors import BadEvent
from activedb.events import (
    Conjunction,
    Context,
    Expression,
    Kleene,
    Negation,
    Skip,
    SkipTo,
)

from .history import History, Made, cumulated, event_of
from .nodes import Node, Step, node_for


@dataclass(eq=False)
class Candidate:
    """A choice of constituents for the parts of a sequence or conjunction.

    Attributes
    ----------
    parts : list
        Per part what stands for it: an occurrence, of a Kleene part a tuple, of a part that was not
        chosen None.
    """

    parts: list[Made | tuple[Made, ...] | None]

    @property
    def constituents(self) -> list[Made]:
        found: list[Made] = []
        for part in self.parts:
            found += part if isinstance(part, tuple) else [] if part is None else [part]
        return found

    @property
    def by_place(self) -> list[Made]:
        return sorted(self.constituents, key=lambda made: made.place)

    @property
    def first(self) -> Made:
        return self.by_place[0]

    @property
    def last(self) -> Made:
        return self.by_place[-1]

    @property
    def identity(self) -> tuple[int | tuple[int, ...] | None, ...]:
        return tuple(
            tuple(map(event_of, part))
            if isinstance(part, tuple)
            else None
            if part is None
            else event_of(part)
            for part in self.parts
        )

    def preference(self, expressions: Sequence[Expression]) -> list[Any]:
        """Less is preferred."""
        found: list[Any] = []
        for part, expression in zip(self.parts, expressions, strict=True):
            # Where one binding begins with another, what comes after its elements decides.
            greedy = not isinstance(expression, Kleene) or expression.greedy
            # Reading: a part of some_of() that was chosen is preferred to one that was not.
            elements = part if isinstance(part, tuple) else () if part is None else (part,)
            found.append([*((1, made.place) for made in elements), (2 if greedy else 0,)])
        return found


class CombinationNode(Node):
    """Common part of sequences and conjunctions: contexts and skips."""

    expression: Any

    def __init__(self, expression: Any, history: History):
        super().__init__(expression, history)
        self.used: set[int] = set()
        self.skips: dict[tuple[Any, ...], list[Candidate]] = {}
        self.completed: list[Candidate] = []
        """All candidates, made or not."""

    def make(self, step: Step, fresh: list[list[Made]]) -> list[Made]:
        for made in (made for part in fresh for made in part):
            self.key(made)  # raises if it lacks an attribute, in a negated part too
        return self.choose(self.completes(step, {id(made) for part in fresh for made in part}))

    def completes(self, step: Step, new: set[int]) -> Iterable[Candidate]:
        """The candidates that are completed by what is new."""
        raise NotImplementedError

    @property
    def positives(self) -> list[int]:
        """The places of the parts that are not negated."""
        return [n for n, p in enumerate(self.expression.parts) if not isinstance(p, Negation)]

    def key(self, made: Made) -> tuple[Any, ...]:
        try:
            return tuple(made.params[name] for name in self.expression.attributes)
        except KeyError as error:
            raise BadEvent(f"no parameter {error}") from None

    def mapping(self, candidate: Candidate) -> dict[str, Any]:
        """The parts by name."""
        found: dict[str, Any] = {}
        for number, part in zip(self.positives, candidate.parts, strict=True):
            expression = self.expression.parts[number]
            if isinstance(part, tuple):
                found[expression.name] = tuple(made.event for made in part)
            elif part is not None:
                found |= part.parts
        return found

    def choose(self, candidates: Iterable[Candidate], us: int | None = None) -> list[Made]:
        """Return what is made of the candidates that one step completes."""
        candidates = list(candidates)
        self.completed += candidates
        expressions = [self.expression.parts[number] for number in self.positives]
        ordered = sorted(candidates, key=lambda c: c.preference(expressions))
        groups: dict[tuple[Any, ...], list[Candidate]] = {}
        for candidate in ordered:
            if not any(event_of(made) in self.used for made in candidate.constituents):
                groups.setdefault(self.key(candidate.constituents[0]), []).append(candidate)
        chosen: list[list[Candidate]] = []
        for key, group in groups.items():
            chosen += self._chosen(self._left_by_skips(key, group))
        # Reading: what one step makes for several equivalence keys is in the order of preference.
        chosen.sort(key=lambda merged: merged[0].preference(expressions))
        found = []
        for merged in chosen:
            self.skips.setdefault(self.key(merged[0].constituents[0]), []).append(
                merged[0] if len(merged) == 1 else self._merged(merged)
            )
            found.append(self._occurrence(merged, us))
        return found

    def _left_by_skips(self, key: tuple[Any, ...], group: list[Candidate]) -> list[Candidate]:
        skip = getattr(self.expression, "skip", Skip())
        kept: list[Candidate] = []
        for candidate in group:
            earlier = [*self.skips.get(key, ()), *kept]
            if not any(self._skips(skip, made, candidate.first) for made in earlier):
                kept.append(candidate)
        return kept

    def _skips(self, skip: Skip, made: Candidate, first: Made) -> bool:
        is_first = event_of(first) == event_of(made.first)
        match skip.to:
            case SkipTo.NONE:
                return False
            case SkipTo.NEXT:
                return is_first
            case SkipTo.PAST_LAST:
                return made.first.place <= first.place <= made.last.place
        bound = self._constituents_of(made, skip.part)
        if not bound:
            return is_first
        until = bound[0 if skip.to is SkipTo.FIRST else -1]
        return is_first or made.first.place <= first.place < until.place

    def _constituents_of(self, candidate: Candidate, name: str | None) -> list[Made]:
        for number, part in zip(self.positives, candidate.parts, strict=True):
            if name in self.expression.parts[number].names and part is not None:
                # Reading: a name of a composite part stands for all of that part.
                return list(part) if isinstance(part, tuple) else [part]
        return []

    def _chosen(self, group: list[Candidate]) -> list[list[Candidate]]:
        """Return what is made of one key's candidates, by preference: groups that are merged."""
        if not group:
            return []
        context, consumed = self.expression.consumption, group
        match context:
            case Context.UNRESTRICTED:
                return [[candidate] for candidate in group]
            case Context.RECENT:
                # Reading: if one's constituents are the other's last ones, preference decides.
                latest = group[0]
                for candidate in group[1:]:
                    for a, b in zip(
                        reversed(candidate.by_place), reversed(latest.by_place), strict=False
                    ):
                        if a.place != b.place:
                            latest = candidate if a.place > b.place else latest
                            break
                return [[latest]]
            case Context.CHRONICLE:
                chosen = [[group[0]]]
                consumed = group[:1]
            case Context.CONTINUOUS:
                firsts: dict[int, list[Candidate]] = {}
                for candidate in group:
                    firsts.setdefault(event_of(candidate.first), [candidate])
                chosen = list(firsts.values())
                consumed = [candidate for [candidate] in chosen]
            case _:
                chosen = [group]
        for candidate in consumed:
            self.used |= {event_of(made) for made in candidate.constituents}
        return chosen

    def _merged(self, candidates: list[Candidate]) -> Candidate:
        parts: list[Made | tuple[Made, ...] | None] = []
        for position in range(len(self.positives)):
            found: dict[int, Made] = {}
            for candidate in candidates:
                part = candidate.parts[position]
                elements = part if isinstance(part, tuple) else () if part is None else (part,)
                found |= {event_of(made): made for made in elements}
            parts.append(tuple(sorted(found.values(), key=lambda made: made.place)))
        return Candidate(parts)

    def _occurrence(self, merged: list[Candidate], us: int | None) -> Made:
        candidate = merged[0]
        parts = self.mapping(candidate)
        if self.expression.consumption is Context.CUMULATIVE:
            candidate = self._merged(merged)
            parts = self._cumulated(candidate)
        at_us = candidate.last.us if us is None else us
        return self.composite(parts, candidate.constituents, at_us)

    def _cumulated(self, candidate: Candidate) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, part in zip(self.positives, candidate.parts, strict=True):
            assert isinstance(part, tuple)
            expression = self.expression.parts[number]
            if isinstance(expression, Kleene):
                found[expression.name] = tuple(made.event for made in part)
            else:
                found |= cumulated(part)
        return found


@node_for(Conjunction)
class ConjunctionNode(CombinationNode):
    expression: Conjunction

    def completes(self, step: Step, new: set[int]) -> Iterable[Candidate]:
        return (
            candidate
            for candidate in (self._choices() if new else ())
            if any(id(made) in new for made in candidate.constituents) and self._fulfils(candidate)
        )

    def _choices(self) -> Iterator[Candidate]:
        places = range(len(self.children))
        for chosen in combinations(places, self.expression.count):
            for choice in product(*(self.children[place].made for place in chosen)):
                parts: list[Any] = [None] * len(places)
                for place, made in zip(chosen, choice, strict=True):
                    parts[place] = made
                yield Candidate(parts)

    def _fulfils(self, candidate: Candidate) -> bool:
        constituents = candidate.constituents
        if any(a.events & b.events for a, b in combinations(constituents, 2)):
            return False
        window_us = self.expression.window_us
        if window_us is not None:
            begun_us = min(made.low_us for made in constituents)
            if max(made.high_us for made in constituents) - begun_us > window_us:
                return False
        if len({self.key(made) for made in constituents}) > 1:
            return False
        parts = self.mapping(candidate)
        return all(p(parts) for p in self.expression.predicates) and all(
            self.history.says(reading, parts) for reading in self.expression.readings
        )
