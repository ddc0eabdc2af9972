"""Formats of times in a file of events."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, tzinfo
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from activedb.clock import moment_of
from activedb.errors import ConfigurationError

__all__ = ["NUMBER", "UNITS", "WHOLE", "Clock", "clock_of", "iso_clock", "zone_of"]

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
WHOLE = re.compile(r"-?\d+")

Moment: TypeAlias = int | float | datetime
Clock: TypeAlias = Callable[[Any], Moment]
"""Converts a value of the time column to a time; raises ValueError or TypeError if it is none."""

_DATES_FROM_S = 10**8  # smaller times are counted from some other beginning, not from 1970


def zone_of(name: str) -> tzinfo:
    """Return the time zone of this name.

    Raises
    ------
    ConfigurationError
        If there is no such time zone.
    """
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"there is no time zone {name!r}; write a name such as Europe/Berlin"
        ) from error


def clock_of(
    first: Any, *, form: str | None, unit: str | None, zone: tzinfo, is_text: bool
) -> tuple[Clock, str]:
    """Return a reader of times, with the name of their format.

    Parameters
    ----------
    first : object
        The first time, from which the format is inferred if it is not given.
    form, unit : str or None
        Format for `datetime.strptime`; unit of numbers, one of `UNITS`.
    zone : tzinfo
        Time zone of times without one.
    is_text : bool
        Whether numbers come as texts.

    Raises
    ------
    ConfigurationError
        If there is no such unit, or both are given.
    """
    where = f" in {zone}" if zone is not UTC else ", UTC if they have no zone"
    if form is not None and unit is not None:
        raise ConfigurationError("--time-format is for texts and --unit for numbers: give one")
    if form is not None:
        return _formatted(form, zone), f"written {form}{where}"
    if isinstance(first, datetime | date):
        return _of_date(zone), f"dates{where}"
    is_number = isinstance(first, int | float) and not isinstance(first, bool)
    if is_text and isinstance(first, str):
        is_number = NUMBER.fullmatch(first.strip()) is not None
    if unit is not None or is_number:
        unit = unit or _unit(float(first))
        if unit not in UNITS:
            raise ConfigurationError(f"there is no unit {unit!r}: write one of {', '.join(UNITS)}")
        named = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
        return _numbered(UNITS[unit]), f"{named[unit]} since 1970"
    return iso_clock(zone), f"ISO 8601{where}"


def _unit(first: float) -> str:
    """Return the unit of a number of this size, if it is a time in this century."""
    size = abs(first)
    return "s" if size < 1e11 else "ms" if size < 1e14 else "us" if size < 1e17 else "ns"


def _formatted(form: str, zone: tzinfo) -> Clock:
    def read(value: Any) -> datetime:
        return _aware(datetime.strptime(str(value).strip(), form), zone)

    return read


def iso_clock(zone: tzinfo) -> Clock:
    """Return a reader of ISO 8601; times without a zone are in the given one."""

    def read(value: Any) -> datetime:
        if not isinstance(value, str):
            raise TypeError(value)
        return _aware(datetime.fromisoformat(value.strip()), zone)

    return read


def _of_date(zone: tzinfo) -> Clock:
    def read(value: Any) -> datetime:
        if hasattr(value, "to_pydatetime"):  # the pandas type, with nanoseconds
            value = value.to_pydatetime(warn=False)
        if isinstance(value, datetime):
            return _aware(value, zone)
        if isinstance(value, date):
            return _aware(datetime(value.year, value.month, value.day), zone)
        raise TypeError(value)

    return read


def _numbered(per_second: int) -> Clock:
    def read(value: Any) -> Moment:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError(value)
        number: int | float
        if isinstance(value, str):
            number = int(value) if WHOLE.fullmatch(value.strip()) else float(value)
        else:
            number = value
        if per_second == 1 and abs(number) < _DATES_FROM_S:
            return number
        if isinstance(number, int):
            return moment_of(number * 1_000_000 // per_second)
        return moment_of(round(number / per_second * 1_000_000))

    return read


def _aware(moment: datetime, zone: tzinfo) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
