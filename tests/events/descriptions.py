"""Matches in words that can be compared: those of a `Detector` with those of the `Reference`."""

from __future__ import annotations

from typing import Any

from activedb.events import Occurrence

from .definition import Made

__all__ = ["Labels", "described_made", "described_match"]


class Labels:
    """Names of the events that were fed.

    A primitive event is known by its identity, or by its parameter ``n``: what a restored detector
    gives is equal to what was fed, not the same.
    """

    def __init__(self) -> None:
        self._fed: list[Occurrence] = []
        self._labels: dict[int, str] = {}

    def add(self, o: Occurrence, label: str | None = None) -> str:
        """Name an event."""
        self._fed.append(o)  # so that its identity stays its own
        made = label or o.params.get("n")
        if made is None:
            number = sum(other.us == o.us and other.name == o.name for other in self._fed)
            made = f"{o.name}@{seconds(o.us)}" + ("" if number == 1 else f"#{number}")
        return self._labels.setdefault(id(o), made)

    def of(self, bound: Any) -> Any:
        """Return a description of what is bound to a part."""
        if isinstance(bound, tuple):
            return tuple(map(self.of, bound))
        assert isinstance(bound, Occurrence)
        known = self._labels.get(id(bound), bound.params.get("n"))
        if known is not None and not bound.parts:
            return known
        if bound.parts:  # of a query
            return bound.name, bound.us, dict(bound.params), self.of_parts(bound.parts)
        return f"at {seconds(bound.us)}"  # a clock event or tick

    def of_parts(self, parts: Any) -> list[tuple[str, Any]]:
        return [(name, self.of(bound)) for name, bound in parts.items()]


def seconds(us: int) -> str:
    """Microseconds as seconds, short."""
    return f"{us / 1e6:g}"


def described_made(made: Made, labels: Labels) -> Any:
    """A match of the reference."""
    if made.event is not None:
        return labels.of(made.event)
    return _described(made if made.output is None else made.output, labels)


def described_match(match: Occurrence, labels: Labels) -> Any:
    """A match of the detector."""
    if not match.parts:
        return labels.of(match)
    return _described(match, labels)


def _described(match: Made | Occurrence, labels: Labels) -> Any:
    return {
        "us": match.us,
        "interval": (match.low_us, match.high_us),
        "params": dict(match.params),
        "parts": labels.of_parts(match.parts),
    }
