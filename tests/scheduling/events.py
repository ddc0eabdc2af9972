"""Events for the tests of stream transactions."""

from __future__ import annotations

from typing import Any

from activedb.clock import moment_of
from activedb.events import Occurrence

__all__ = ["event"]


def event(name: str, us: int, /, *, id: str | None = None, **params: Any) -> Occurrence:
    """An event so many microseconds after the epoch."""
    return Occurrence(name, moment_of(us), params, id=id)
