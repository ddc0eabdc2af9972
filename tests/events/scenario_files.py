"""Scenario files: see scenarios/README.md."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from activedb import events
from activedb.events import Expression, Occurrence
from activedb.events.terms import attr, part

from .definition import Made

__all__ = ["FOLDER", "Scenario", "Shown", "Step", "expression_of", "scenarios"]

FOLDER = Path(__file__).parent / "scenarios"
_WRITERS = (
    "aperiodic",
    "all_of",
    "any_of",
    "at",
    "cron",
    "event",
    "every",
    "many",
    "optional",
    "periodic",
    "query",
    "seq",
    "some_of",
)
_NAMES: dict[str, Any] = {
    "__builtins__": {},
    **{letter: events.event(letter) for letter in string.ascii_uppercase},
    **{name: getattr(events, name) for name in _WRITERS},
    "attr": attr,
    "part": part,
}


@dataclass
class Step:
    """A line of a scenario, and the matches that it brings."""

    text: str
    matches: list[str] = field(default_factory=list)


@dataclass
class Scenario:
    """A case of a file."""

    path: str
    number: int
    pattern: str
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


def expression_of(text: str) -> Expression:
    """The expression that is written."""
    made = eval(text, dict(_NAMES))
    assert isinstance(made, Expression), text
    return made


def scenarios() -> Iterator[Scenario]:
    """All cases of all files."""
    for path in sorted(FOLDER.glob("*/*.txt")):
        current: Scenario | None = None
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            word, _, rest = line.strip().partition(" ")
            if word == "pattern":
                if current is not None:
                    yield current
                current = Scenario(path.relative_to(FOLDER).as_posix(), number, rest.strip())
            elif word == "=>":
                assert current is not None
                current.steps[-1].matches.append(rest.strip())
            elif word and word != "|":
                assert current is not None, f"{path}:{number}: what comes before the pattern?"
                current.steps.append(Step(line.strip()))
        assert current is not None, f"{path} has no pattern"
        yield current


class Shown:
    """Drives a `Detector` or a `Reference`, and shows its matches as the files write them."""

    def __init__(self, subject: Any):
        self.subject = subject
        self.labels: dict[int, str] = {}
        self.fed: dict[str, Occurrence] = {}

    def perform(self, text: str) -> list[str]:
        """Do what a line says."""
        word, *rest = text.split()
        if word == "advance":
            found = self.subject.advance(_us(rest[0]))
        elif word == "withdraw":
            self.subject.withdraw(self.fed.pop(rest[0]))
            found = []
        else:
            found = self.subject.feed(self._occurrence(word, rest))
        return [self._match(made) for made in found]

    def _occurrence(self, word: str, rest: list[str]) -> Occurrence:
        name, _, at = word.partition("@")
        params = dict(pair.split("=") for pair in rest)
        id_ = params.pop("id", None)
        o = Occurrence(name, float(at), {key: _value(v) for key, v in params.items()}, id=id_)
        label, number = word, 1
        while label in self.fed:
            number += 1
            label = f"{word}#{number}"
        self.labels[id(o)] = label
        self.fed[label] = o
        return o

    def _match(self, made: Occurrence | Made) -> str:
        if isinstance(made, Made) and (made.event or made.output):
            made = made.event or made.output  # type: ignore[assignment]
        if isinstance(made, Occurrence) and not made.parts:
            return self._bound(made)
        params = made.params if _is_query(made) else {}
        shown = [self._parts(made.parts), f"at {made.us / 1e6:g}"]
        return " ".join([*shown, *(f"{name}={value}" for name, value in params.items())])

    def _parts(self, parts: Mapping[str, Any]) -> str:
        return " ".join(map(self._bound, parts.values()))

    def _bound(self, bound: Any) -> str:
        if isinstance(bound, tuple):
            return f"({' '.join(map(self._bound, bound))})"
        if bound.parts:
            return f"{bound.name}[{self._parts(bound.parts)}]"
        return self.labels.get(id(bound), f"@{bound.us / 1e6:g}")


def _is_query(made: Any) -> bool:
    return re.fullmatch("Q[0-9]*", getattr(made, "name", "")) is not None


def _us(text: str) -> int:
    return round(float(text) * 1e6)


def _value(text: str) -> Any:
    return int(text) if text.lstrip("-").isdigit() else text
