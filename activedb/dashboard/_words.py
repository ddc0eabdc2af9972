"""Human-readable numbers, durations and moments."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from activedb.spelling import clipped

__all__ = ["clock_time", "count", "duration", "moment", "rate", "short"]

NOTHING = "–"

_SHORT_MAX = 120


def count(value: float | None) -> str:
    """Return a whole number with thousands separated: 12,345."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a rate per second; small ones with one decimal."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """Return a duration in a suitable unit: 12 µs, 3.4 ms, 5.6 s, 2 min 3 s, 4 h 5 min."""
    if seconds is None:
        return NOTHING
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else "1 s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400:,} days"


def clock_time(seconds: float | None) -> str:
    """Return a moment as local clock time: 14:03:27.125."""
    return moment(seconds)[-12:]


def moment(seconds: float | None) -> str:
    """Return a moment with its date: 2026-01-31 14:03:27.125."""
    if seconds is None:
        return NOTHING
    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", "milliseconds")
    except (OverflowError, OSError, ValueError):
        return NOTHING


def short(value: Any, length_max: int = _SHORT_MAX) -> str:
    """Return a text on one line, at most `length_max` long, without unprintable characters."""
    if value is None:
        return ""
    text = clipped(" ".join(str(value).split()), length_max)
    return text if text.isprintable() else "".join(c if c.isprintable() else "·" for c in text)
