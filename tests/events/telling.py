"""Detectors fed with events of uncertain times in every allowed way, and their results.

A result has what the detector has made, and what it has left open.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from activedb.errors import UncertainOrder
from activedb.events import Detector, Expression, Network, Occurrence, precedes

from .worlds import SECOND_US, Identity, identity_of

__all__ = ["ARRIVALS", "Outcome", "Telling", "Told", "arrived", "numbered", "tell"]

ARRIVALS = ("lower ends", "upper ends", "any")


def arrived(events: Sequence[Occurrence], arrival: str, random: Random) -> list[Occurrence]:
    """Return the events in an order in which they may arrive, numbered in that order.

    Whatever is certainly before another arrives before it.
    """
    keys = {
        "lower ends": lambda o: (o.low_us, o.high_us),
        "upper ends": lambda o: (o.high_us, o.low_us),
        "any": lambda o: (random.random(),),
    }
    waiting = sorted(events, key=keys[arrival])
    found: list[Occurrence] = []
    while waiting:
        first = next(
            (o for o in waiting if not any(precedes(x, o) for x in waiting if x is not o)), None
        )
        if first is None:
            break  # contradictory clocks
        waiting.remove(first)
        found.append(first)
    return [numbered(o, n) for n, o in enumerate([*found, *waiting])]


def numbered(o: Occurrence, n: int) -> Occurrence:
    """The event with that number."""
    return Occurrence(o.name, o.timestamp, {**o.params, "n": n}, id=o.id)


@dataclass
class Outcome:
    """Results of a detector for some events.

    Attributes
    ----------
    made : Counter of Identity
    undecided : list
        All that it left open, at whatever step.
    left : sequence
        What is open in the end.
    """

    made: Counter[Identity] = field(default_factory=Counter)
    undecided: list[Any] = field(default_factory=list)
    left: Sequence[Any] = ()

    @property
    def candidates(self) -> set[Identity]:
        """All matches that were left open."""
        return {identity_of(parts) for each in self.undecided for parts in each.candidates}


@dataclass(frozen=True)
class Telling:
    """Other steps while events are fed; each a probability per event.

    Attributes
    ----------
    withdrawn : float
        It is fed, withdrawn, and fed again.
    cut : float
        Another detector takes up the state.
    trimmed : float
        The detector forgets what it can.
    is_sharing : bool
        A second detector of an equal expression is fed the same, and shares.
    """

    withdrawn: float = 0.0
    cut: float = 0.0
    trimmed: float = 0.0
    is_sharing: bool = False


class Told:
    """Detector that is fed with events."""

    def __init__(self, expression: Expression, policy: Any, *, is_sharing: bool = False):
        self.expression = expression
        self.policy = policy
        self.outcome = Outcome()
        self.detectors = self._new(2 if is_sharing else 1)

    def _new(self, count: int) -> list[Detector]:
        network = Network() if count > 1 else None
        return [
            Detector(self.expression, on_uncertain=self.policy, network=network)
            for _ in range(count)
        ]

    def feed(self, o: Occurrence, contemporaries: Sequence[Occurrence]) -> None:
        self._step(lambda detector: detector.feed(o, None, contemporaries))

    def advance(self, us: int) -> None:
        self._step(lambda detector: detector.advance(us))

    def _step(self, step: Any) -> None:
        found: list[Any] = []
        for detector in self.detectors:
            # The last one's is judged: what the first one does must not take it from that.
            found = self.caught(detector, step)
        self.outcome.made.update(found)
        self._take(self.detectors[-1])

    def caught(self, detector: Detector, step: Any) -> list[Identity]:
        """The matches of a step, also if it raises."""
        try:
            return [_identity_of_match(match) for match in step(detector)]
        except UncertainOrder as error:
            assert self.policy == "raise"
            return [identity_of(parts) for parts in error.certain]

    def _take(self, detector: Detector) -> None:
        take = getattr(detector, "take_undecided", None)
        if take is not None:
            self.outcome.undecided += take()

    def withdraw(self, o: Occurrence, contemporaries: Sequence[Occurrence]) -> None:
        """Feed it and take it back."""
        for detector in self.detectors:
            self.caught(detector, lambda each: each.feed(o, None, contemporaries))
            detector.withdraw(o)

    def resolve(self, choose: Callable[[Any], list[Any]]) -> None:
        """Decide all that is open."""
        for detector in self.detectors:
            known: set[str] = set()
            # What is decided may decide others, and may bring up new ones.
            while new := [each for each in detector.undecided if each.identity not in known]:
                known.add(new[0].identity)
                found = detector.resolve(new[0].identity, choose(new[0]))
                if detector is self.detectors[-1]:
                    self.outcome.made.update(map(_identity_of_match, found))
            assert not detector.undecided, f"resolved, but still open: {detector.undecided}"

    def cut(self) -> None:
        """Go on with detectors that take up the state."""
        states = [json.loads(json.dumps(detector.state())) for detector in self.detectors]
        self.detectors = self._new(len(states))
        for detector, state in zip(self.detectors, states, strict=True):
            detector.restore(state)

    def trim(self, us: int) -> None:
        for detector in self.detectors:
            detector.trim(us)


def _identity_of_match(match: Occurrence) -> Identity:
    return identity_of(match.parts or {match.name: match})


def tell(
    expression: Expression,
    events: Sequence[Occurrence],
    policy: Any,
    end_us: int,
    way: Telling = Telling(),
    random: Random | None = None,
    resolve: Callable[[Any], list[Any]] | None = None,
) -> Outcome:
    """Return what a detector makes of the events, fed in this order.

    With each, it is told which of those yet to be fed may be before it, as streams with producers
    tell, and before each the time that none of them is before. With `resolve`, what is open is
    decided now and then, and in the end: it returns those of the candidates that are made.
    """
    told = Told(expression, policy, is_sharing=way.is_sharing)
    random = Random(0) if random is None else random
    least_us = 0
    told.advance(least_us)
    for number, o in enumerate(events):
        least_us = min(other.low_us for other in events[number:])
        told.advance(least_us)
        waiting = [other for other in events[number + 1 :] if not precedes(o, other)]
        if random.random() < way.withdrawn:
            told.withdraw(o, waiting)
        if random.random() < way.trimmed:
            told.trim(least_us)
        if random.random() < way.cut:
            told.cut()
        told.feed(o, waiting)
        if resolve is not None and random.random() < 0.5:
            told.resolve(resolve)
    while random.random() < way.trimmed:  # of other events it hears the time alone
        least_us = min(end_us, least_us + random.choice([0, 1, 1, 2, 3, 5]) * SECOND_US)
        told.advance(least_us)
        told.trim(least_us)
    told.advance(end_us)
    if resolve is not None:
        told.resolve(resolve)
    told.outcome.left = told.detectors[-1].undecided
    return told.outcome
