"""Timestamps as integer microseconds since the epoch: the sort key of every event."""

from __future__ import annotations

from datetime import datetime

from activedb.clock import in_microseconds
from activedb.errors import BadEvent
from activedb.events._accuracy import FIRST_US, LAST_US, AccuracyInterval

__all__ = ["Timestamp", "microseconds", "seconds_us"]

Timestamp = int | float | datetime | AccuracyInterval

_SECOND_US = 1_000_000
# A duration that does not fit a bigint column is certainly a mistake.
_LIMIT_US = 2**63


def seconds_us(seconds: int | float) -> int | None:
    """Return `seconds` in microseconds (nearest), or None unless finite and within 64 bits."""
    scaled = seconds * _SECOND_US
    # The range is compared first: math.isfinite would overflow on a huge int, and NaN fails here.
    if not -_LIMIT_US <= scaled < _LIMIT_US:
        return None
    return round(scaled)


def microseconds(timestamp: Timestamp) -> int:
    """Return the microseconds from the epoch to `timestamp`.

    Parameters
    ----------
    timestamp : int, float, datetime or AccuracyInterval
        Seconds since the epoch, an aware datetime, or an interval.

    Returns
    -------
    int
        Exact for an int or a datetime; the nearest microsecond for a float; the reading of an
        interval.

    Raises
    ------
    BadEvent
        If `timestamp` is of another type (bool and subclasses included), naive, NaN, infinite,
        or not within the years 1 to 9999.
    """
    # Exact types: a timestamp is kept as given and must survive `encode` unchanged. A subclass with
    # additional fields, such as nanoseconds, would not.
    if type(timestamp) is AccuracyInterval:
        return timestamp.reading_us
    if type(timestamp) not in (int, float, datetime):
        raise BadEvent(
            f"the timestamp {timestamp!r} is of type {type(timestamp).__qualname__}: convert it "
            "to int or float seconds since the epoch, to an aware datetime or an AccuracyInterval"
        )
    if isinstance(timestamp, datetime):
        if timestamp.utcoffset() is None:
            raise BadEvent(
                f"the timestamp {timestamp!r} is naive: say which time zone it is in, for example "
                "with .replace(tzinfo=datetime.UTC)"
            )
        return in_microseconds(timestamp)
    us = seconds_us(timestamp)
    if us is None or not FIRST_US <= us <= LAST_US:
        raise BadEvent(
            f"the timestamp {_shown(timestamp)} is not within the years 1 to 9999: give seconds "
            "since the epoch, not milliseconds or less"
        )
    return us


def _shown(number: int | float) -> str:
    # repr of an int beyond sys.get_int_max_str_digits() raises.
    return hex(number)[:20] + "…" if isinstance(number, int) else repr(number)
