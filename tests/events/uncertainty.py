"""Certain and possible matches of uncertain orders, found by trying every order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from activedb.events import Expression, Negation, Occurrence, precedes

from .definition import (
    Candidate,
    CombinationNode,
    History,
    Made,
    SequenceNode,
    Step,
    node_of,
    primitive,
)

__all__ = ["UncertainReference", "orders"]


def orders(events: Sequence[Made]) -> Iterator[dict[int, int]]:
    """Every order in which the events may have happened, equal times included.

    Each event has a true time within its interval; a weak order of the events is possible if there
    are such times. Of one node's local clock, the order that it tells holds.
    """
    for blocks in _partitions(list(events)):
        ranks = {id(made): rank for rank, block in enumerate(blocks) for made in block}
        told = ((a, b) for a in events for b in events if _precedes(a, b))
        if _has_times(blocks) and all(ranks[id(a)] < ranks[id(b)] for a, b in told):
            yield ranks


def _precedes(a: Made, b: Made) -> bool:
    assert a.event is not None
    assert b.event is not None
    return precedes(a.event, b.event)


def _partitions(events: list[Made]) -> Iterator[list[list[Made]]]:
    """All sequences of sets that have each event once."""
    if not events:
        yield []
        return
    first, *others = events
    for blocks in _partitions(others):
        for place in range(len(blocks) + 1):
            yield [*blocks[:place], [first], *blocks[place:]]
        for place, block in enumerate(blocks):
            yield [*blocks[:place], [first, *block], *blocks[place + 1 :]]


def _has_times(blocks: list[list[Made]]) -> bool:
    # As early as can be: (microseconds, how many infinitesimal steps later).
    now = (-1, 0)
    for block in blocks:
        now = max((max(made.low_us for made in block), 0), (now[0], now[1] + 1))
        if now > (min(made.high_us for made in block), 0):
            return False
    return True


class UncertainReference:
    """A sequence or conjunction of primitive events without context, selection and skip.

    `feed` returns the candidates that an event completes, those that are possible and those that
    are certain, each in the order of preference.
    """

    def __init__(self, expression: Expression):
        self.history = History()
        root = node_of(expression, self.history)
        assert isinstance(root, CombinationNode)
        self.root = root

    def feed(self, o: Occurrence) -> tuple[list[Made], list[Made]]:
        fed = primitive(o, next(self.history.numbers))
        self.history.fed.append(fed)
        step = Step(fed=fed)
        fresh = {id(made) for child in self.root.children for made in child.see(step)}
        completed = self._of_sequence if isinstance(self.root, SequenceNode) else self._of_all
        judged = list(completed(step, fresh))
        self.history.ranks = None
        return (
            self.root.choose(c for c, _ in judged),
            self.root.choose(c for c, is_certain in judged if is_certain),
        )

    def _of_all(self, step: Step, fresh: set[int]) -> Iterator[tuple[Candidate, bool]]:
        """The candidates of a conjunction that are possible, and whether they are certain."""
        found: dict[Any, Candidate] = {}
        certain: set[Any] | None = None
        for ranks in orders(self.history.fed):
            self.history.ranks = ranks
            completed = {c.identity: c for c in self.root.completes(step, fresh)}
            found |= completed
            certain = set(completed) if certain is None else certain & set(completed)
        assert certain is not None
        yield from ((c, identity in certain) for identity, c in found.items())

    def _of_sequence(self, step: Step, fresh: set[int]) -> Iterator[tuple[Candidate, bool]]:
        """The candidates of a sequence that are possible, and whether they are certain.

        In the orders of their constituents and of one negated event at a time.
        """
        root = self.root
        assert isinstance(root, SequenceNode)
        self.history.takes_any_order = True
        choices = list(root.choices())
        self.history.takes_any_order = False
        for c in choices:
            first, last = c.constituents[0], c.constituents[-1]
            new = [made for made in c.constituents if id(made) in fresh]
            # An event that may be the last one is not late, though another was fed before it.
            if not new or _precedes(new[0], last) or root.is_open(c):
                continue
            window_us = root.expression.window_us
            if window_us is not None and last.high_us - first.low_us > window_us:
                continue
            judged = [list(self._judged(c, negated)) for negated in (None, *self._negated())]
            if all(map(any, judged)):
                yield c, all(map(all, judged))

    def _negated(self) -> list[Made]:
        negated = {
            id(leaf): leaf
            for part, child in zip(self.root.expression.parts, self.root.children, strict=True)
            if isinstance(part, Negation)
            for made in child.made
            for leaf in made.leaves
        }
        return list(negated.values())

    def _judged(self, c: Candidate, negated: Made | None) -> Iterator[bool]:
        """Yield for each possible order whether a candidate fulfils the definition.

        `negated` counts as the only event that may be negated.
        """
        root = self.root
        assert isinstance(root, SequenceNode)
        leaves = [leaf for made in c.constituents for leaf in made.leaves]
        more = [] if negated is None or any(leaf is negated for leaf in leaves) else [negated]
        parts = list(zip(root.expression.parts, root.children, strict=True))
        forbidding = [child for part, child in parts if isinstance(part, Negation)]
        kept = [child.made for child in forbidding]
        for child, made in zip(forbidding, kept, strict=True):
            child.made = [each for each in made if negated in each.leaves]
        for ranks in orders([*leaves, *more]):
            self.history.ranks = ranks
            in_order = all(self.history.before(a, b) for a, b in pairwise(c.constituents))
            yield in_order and root.fulfils(c)
        for child, made in zip(forbidding, kept, strict=True):
            child.made = made

    def forget(self, o: Occurrence) -> None:
        """Undo the last feed, of this event."""
        assert self.history.fed.pop().event is o
        for node in self.root.walk():
            node.made = [
                made for made in node.made if all(leaf.event is not o for leaf in made.leaves)
            ]
