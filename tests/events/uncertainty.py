"""What is certain and what is possible of uncertain orders, by trying every order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from activedb.events import Expression, Occurrence, precedes

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
        found: dict[Any, Candidate] = {}
        certain: set[Any] | None = None
        for ranks in orders(self.history.fed):
            self.history.ranks = ranks
            completed = {c.identity: c for c in self._completed(step, fresh)}
            found |= completed
            certain = set(completed) if certain is None else certain & set(completed)
        self.history.ranks = None
        assert certain is not None
        return (
            self.root.choose(found.values()),
            self.root.choose(found[identity] for identity in certain),
        )

    def _completed(self, step: Step, fresh: set[int]) -> Iterator[Candidate]:
        root = self.root
        if not isinstance(root, SequenceNode):
            yield from root.completes(step, fresh)
            return
        for c in root.choices():
            new = [made for made in c.constituents if id(made) in fresh]
            # An event that may be the last one is not late, though another was fed before it.
            if new and not _precedes(new[0], c.constituents[-1]) and root.fulfils(c):
                yield c

    def forget(self, o: Occurrence) -> None:
        """Undo the last feed, of this event."""
        assert self.history.fed.pop().event is o
        for node in self.root.walk():
            node.made = [
                made for made in node.made if all(leaf.event is not o for leaf in made.leaves)
            ]
