"""Exact conversion between times of day and microseconds since 1970-01-01 UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["in_microseconds", "moment_of", "timedelta_us"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US


def timedelta_us(delta: timedelta) -> int:
    """Return `delta` in microseconds."""
    return delta.days * _DAY_US + delta.seconds * _SECOND_US + delta.microseconds


def in_microseconds(moment: datetime) -> int:
    """Return `moment`, which is aware, in microseconds since the epoch."""
    return timedelta_us(moment - _EPOCH)


def moment_of(us: int) -> datetime:
    """Return the time of day, in UTC, that is `us` microseconds after the epoch.

    Raises
    ------
    OverflowError
        If it is not within the years 1 to 9999.
    """
    return _EPOCH + timedelta(microseconds=us)
