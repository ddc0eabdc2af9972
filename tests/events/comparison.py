"""A detector and the reference, told the same, and compared at every step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from activedb.events import Detector, Expression, Occurrence

from .descriptions import Labels, described_made, described_match
from .histories import Advance, Cut, Feed, Trim, Withdraw
from .reference import Reference

__all__ = ["Pair", "compare"]


def compare(expression: Expression, steps: Sequence[Any]) -> int:
    """Tell both, and return how many matches there were."""
    pair = Pair(expression)
    for number, step in enumerate(steps):
        match step:
            case Feed():
                pair.feed(step.occurrence(number), number)
            case Advance():
                pair.advance(step.at * 1_000_000, number)
            case Withdraw():
                pair.withdraw(step.back, number)
            case Trim():
                pair.trim(
                    min(later.at for later in steps[number:] if isinstance(later, Feed | Advance))
                )
            case Cut():
                pair.cut()
    return pair.matches


class Pair:
    """A detector and the reference of one expression.

    Attributes
    ----------
    matches : int
        How many both have found.
    """

    def __init__(self, expression: Expression, **options: Any):
        self.expression = expression
        self.options = options
        self.detector = Detector(expression, **options)
        self.reference = Reference(expression)
        self.labels = Labels()
        self.matches = 0
        self._fed: list[Occurrence] = []
        self._now_us: int | None = None

    def feed(self, o: Occurrence, reader: Any = None) -> None:
        """Feed both."""
        self.labels.add(o)
        self._fed.append(o)
        self._told(o.us)
        expected = [described_made(made, self.labels) for made in self.reference.feed(o, reader)]
        matches = self.detector.feed(o, reader)
        found = [described_match(match, self.labels) for match in matches]
        self._agree(f"feed {self.labels.of(o)}", expected, found)

    def advance(self, us: int, reader: Any = None) -> None:
        """Advance both."""
        self._told(us)
        due_us = self.detector.due_us
        made = self.reference.advance(us, reader)
        expected = [described_made(one, self.labels) for one in made]
        if expected:
            assert due_us is not None, f"due_us is None before {expected}"
            assert due_us < us, f"due_us is {due_us} before {expected}"
        matches = self.detector.advance(us, reader)
        found = [described_match(match, self.labels) for match in matches]
        self._agree(f"advance {us / 1e6:g}", expected, found)
        due_us = self.detector.due_us
        assert due_us is None or due_us >= us, f"due_us is {due_us} after advance to {us}"

    def withdraw(self, back: int, reader: Any = None) -> None:
        """Withdraw one of the last feeds; nothing if there are not so many since a cut."""
        if back < len(self._fed):
            o = self._fed.pop(-1 - back)
            self.detector.withdraw(o, reader)
            self.reference.withdraw(o, reader)

    def trim(self, at: int) -> None:
        """Trim the detector to a time, or to what is due before it."""
        due_us = self.detector.due_us
        self.detector.trim(at * 1_000_000 if due_us is None else min(at * 1_000_000, due_us))

    def cut(self) -> None:
        """Go on with a fresh detector that has the state of this one, by way of JSON."""
        state = json.loads(json.dumps(self.detector.state()))
        partials = self.detector.partials
        self.detector = Detector(self.expression, **self.options)
        self.detector.restore(state)
        assert self.detector.partials == partials
        self._fed.clear()  # what was fed before is known to the restored one as other objects

    def _told(self, us: int) -> None:
        self._now_us = us if self._now_us is None else max(us, self._now_us)

    def _agree(self, step: str, expected: list[Any], found: list[Any]) -> None:
        self.matches += len(expected)
        if expected != found:
            lines = [f"{self.expression!r}: after {step}", "expected:"]
            lines += [f"  {match}" for match in expected] or ["  nothing"]
            lines += ["found:", *([f"  {match}" for match in found] or ["  nothing"])]
            pytest.fail("\n".join(lines), pytrace=False)
