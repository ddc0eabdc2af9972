"""Sequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from activedb.events import Kleene, Negation, Selection
from activedb.events import Sequence as Seq

from .combinations import Candidate, CombinationNode
from .history import History, Made, event_of
from .nodes import Step, node_for


@node_for(Seq)
class SequenceNode(CombinationNode):
    expression: Seq

    def __init__(self, expression: Seq, history: History):
        super().__init__(expression, history)
        self.judged: set[tuple[Any, ...]] = set()
        """The candidates ending with a negation that time has completed, or not."""

    def make(self, step: Step, fresh: list[list[Made]]) -> list[Made]:
        if step.node is not self:
            return super().make(step, fresh)
        due = [c for c in self._undecided() if self._end_us(c) == step.us]
        self.judged |= {c.identity for c in due}
        return self.choose(self._preferred(filter(self.fulfils, due)), step.us)

    def completes(self, step: Step, new: set[int]) -> Iterable[Candidate]:
        return self._preferred(
            c
            for c in (self.choices() if new else ())
            if id(c.constituents[-1]) in new and not self.is_open(c) and self.fulfils(c)
        )

    def due_us(self) -> int | None:
        return min((self._end_us(c) for c in self._undecided()), default=None)

    def _undecided(self) -> list[Candidate]:
        if not isinstance(self.expression.parts[-1], Negation | Kleene):
            return []
        # Reading: without a window, what ends with a negation is never decided.
        return [
            c
            for c in self.choices()
            if self.is_open(c)
            and self.expression.window_us is not None
            and c.identity not in self.judged
        ]

    def _end_us(self, candidate: Candidate) -> int:
        assert self.expression.window_us is not None
        return candidate.constituents[0].low_us + self.expression.window_us

    def is_open(self, candidate: Candidate) -> bool:
        """Return whether a negated part comes after its last constituent."""
        last = self.chain(candidate.parts)[-1][0]
        return any(isinstance(part, Negation) for part in self.expression.parts[last + 1 :])

    def _preferred(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return for each pair of ends the most preferred, if the selection is next or strict."""
        if self.expression.selection is Selection.ANY:
            return list(candidates)
        expressions = self.expression.positives
        preferred: dict[tuple[int, int], Candidate] = {}
        for c in sorted(candidates, key=lambda c: c.preference(expressions)):
            first, *_, last = (event_of(made) for made in [*c.constituents, c.constituents[-1]])
            preferred.setdefault((first, last), c)
        return list(preferred.values())

    def may_begin(self, made: Made) -> bool:
        """Return whether a candidate may begin with an occurrence of the first part."""
        chain = [(self.positives[0], made)]
        return (
            self._may_follow([], made)
            and self._nothing_forbidden(chain, start=True, end=False)
            and self._judged_at(chain, is_last=False)
        )

    # Which choices there are: conditions 1, 3, 4 and 5.

    def choices(self, positions: int | None = None) -> Iterator[Candidate]:
        """All choices of constituents for the first positive parts, by default for all."""
        upto = len(self.positives) if positions is None else positions
        yield from (Candidate(parts) for parts in self._extended([], upto) if self.chain(parts))

    def _extended(self, parts: list[Any], upto: int) -> Iterator[list[Any]]:
        if len(parts) == upto:
            yield parts
            return
        number = self.positives[len(parts)]
        expression, pool = self.expression.parts[number], self.children[number].made
        if not isinstance(expression, Kleene):
            for made in pool:
                if self._may_follow(parts, made):
                    yield from self._extended([*parts, made], upto)
            return
        tuples: list[tuple[Made, ...]] = [()]
        while tuples:
            elements = tuples.pop()
            if len(elements) >= expression.minimum:
                yield from self._extended([*parts, elements], upto)
            if expression.maximum is None or len(elements) < expression.maximum:
                tuples += [
                    (*elements, made) for made in pool if self._may_follow([*parts, elements], made)
                ]

    def _may_follow(self, parts: list[Any], made: Made) -> bool:
        chain = self.chain(parts)
        window_us, gap_us = self.expression.window_us, self.expression.gap_us
        if self.history.takes_any_order:
            window_us = None  # the last one need not have the latest end
        if not chain:
            return window_us is None or made.high_us - made.low_us <= window_us
        first, last = chain[0][1], chain[-1][1]
        return (
            all(self.history.before(other, made) for _, other in chain)
            and self.key(first) == self.key(made)
            and (window_us is None or made.high_us - first.low_us <= window_us)
            and (gap_us is None or made.low_us - last.high_us <= gap_us)
        )

    def chain(self, parts: list[Any]) -> list[tuple[int, Made]]:
        """The constituents, each with the number of its part in the expression."""
        found: list[tuple[int, Made]] = []
        for number, part in zip(self.positives, parts, strict=False):
            elements = part if isinstance(part, tuple) else (part,)
            found += [(number, made) for made in elements]
        return found

    # Which of them are candidates: conditions 2 and 6, and the selection.

    def fulfils(self, candidate: Candidate) -> bool:
        parts = candidate.parts
        if not self.prefix_holds(parts, whole=True):
            return False
        mapping = self.mapping(candidate)
        return all(self.history.says(reading, mapping) for reading in self.expression.readings)

    def prefix_holds(self, parts: list[Any], *, whole: bool) -> bool:
        """Return whether conditions 2 and 6 and the selection hold for the first or all parts."""
        chain = self.chain(parts)
        if not self._nothing_forbidden(chain, start=True, end=whole):
            return False
        for step in range(len(chain)):
            if not self._judged_at(chain[: step + 1], whole and step == len(chain) - 1):
                return False
        # An aggregate over a part of a prefix: that part is complete.
        for predicate in () if whole else self.expression.predicates:
            last = self._last_named(predicate)
            if last is None or last not in self.positives[: len(parts)]:
                continue
            if self._aggregates_last(predicate, last) and not predicate(self._mapping_of(chain)):
                return False
        match self.expression.selection:
            case Selection.NEXT:
                return not any(self._skipped(chain, step, whole) for step in range(1, len(chain)))
            case Selection.STRICT:
                return not any(
                    self._intrudes(chain, fed, a, b)
                    for (_, a), (_, b) in pairwise(chain)
                    for fed in self.history.fed
                )
        return True

    def _nothing_forbidden(self, chain: list[tuple[int, Made]], *, start: bool, end: bool) -> bool:
        first, last = chain[0][1], chain[-1][1]
        window_us = self.expression.window_us
        for number, part in enumerate(self.expression.parts):
            if not isinstance(part, Negation):
                continue
            f = [made for n, made in chain if n < number][-1:]
            g = [made for n, made in chain if n > number][:1]
            for x in self.children[number].made:
                if self.key(x) != self.key(first):
                    continue
                if f and g:
                    forbids = self.history.before(f[0], x) and self.history.before(x, g[0])
                elif g:
                    # Reading: without a window it looks back without end. (Only parts that may be
                    # empty can stand before such a negation.)
                    reaches = window_us is None or last.high_us - window_us <= x.high_us
                    forbids = start and reaches and self.history.before(x, first)
                else:
                    assert f
                    reaches = window_us is not None and x.low_us <= first.low_us + window_us
                    forbids = end and reaches and self.history.before(last, x)
                if forbids:
                    return False
        return True

    def _judged_at(self, chain: list[tuple[int, Made]], is_last: bool) -> bool:
        """Return whether the predicates judged at the chain's last place hold."""
        number = chain[-1][0]
        return all(
            predicate(self._mapping_of(chain))
            for predicate in self.expression.predicates
            if self._is_judged(predicate, chain, number, is_last)
        )

    def _is_judged(
        self, predicate: Any, chain: list[tuple[int, Made]], number: int, is_last: bool
    ) -> bool:
        last = self._last_named(predicate)
        if last is None:  # a function, or a term without parts
            return is_last
        if not isinstance(self.expression.parts[last], Kleene):
            return number == last
        if self._aggregates_last(predicate, last):
            return is_last
        elements = sum(n == number for n, _ in chain)
        return number == last and (elements > 1 or not predicate.uses_prev)

    def _last_named(self, predicate: Any) -> int | None:
        names: frozenset[str] = getattr(predicate, "part_names", frozenset())
        return max(
            (n for n in self.positives if names & set(self.expression.parts[n].names)), default=None
        )

    def _aggregates_last(self, predicate: Any, number: int) -> bool:
        part = self.expression.parts[number]
        return (
            isinstance(part, Kleene)
            and self._last_named(predicate) == number
            and part.name in predicate.aggregated
        )

    def _mapping_of(self, chain: list[tuple[int, Made]]) -> dict[str, Any]:
        parts: list[Any] = []
        for number in self.positives:
            elements = [made for n, made in chain if n == number]
            if isinstance(self.expression.parts[number], Kleene):
                parts.append(tuple(elements))
            else:
                parts.append(elements[0] if elements else None)
        return self.mapping(Candidate(parts))

    def _skipped(self, chain: list[tuple[int, Made]], step: int, whole: bool) -> bool:
        """Return whether an event before the constituent `step` is eligible for its place."""
        number, chosen = chain[step]
        parts = self._parts_of(chain[:step], number)
        for x in self.children[number].made:
            if not x.place < chosen.place or not self._may_follow(parts, x):
                continue
            other = [*chain[:step], (number, x)]
            is_last = whole and step == len(chain) - 1
            allowed = self._nothing_forbidden(other, start=is_last, end=False)
            if allowed and self._judged_at(other, is_last):
                return True
        return False

    def _parts_of(self, chain: list[tuple[int, Made]], upto: int) -> list[Any]:
        return [
            tuple(made for n, made in chain if n == number)
            for number in self.positives
            if number <= upto
        ]

    def _intrudes(self, chain: list[tuple[int, Made]], fed: Made, a: Made, b: Made) -> bool:
        assert fed.event is not None
        if fed.event.key not in self.expression.keys or not a.place < fed.place < b.place:
            return False
        if any(id(fed) in made.events for _, made in chain):
            return False
        params, first = fed.params, chain[0][1]
        return all(
            name in params and params[name] == first.params[name]
            for name in self.expression.attributes
        )
