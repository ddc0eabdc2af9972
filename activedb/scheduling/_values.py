"""Copies of values, so that a change in place does not reach other readers."""

from __future__ import annotations

from copy import deepcopy
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import NoneType
from typing import Any, Final
from uuid import UUID

__all__ = ["IMMUTABLE", "copied"]

IMMUTABLE: Final = frozenset(
    {
        NoneType,
        bool,
        bytes,
        complex,
        date,
        datetime,
        Decimal,
        float,
        Fraction,
        int,
        range,
        str,
        time,
        timedelta,
        timezone,
        UUID,
    }
)
"""Classes whose instances cannot be changed: exactly these, as a subclass may have attributes."""


def copied(value: Any) -> Any:
    """A value that shares nothing that can be changed with the one given.

    One that cannot be changed is itself. Others are copied as `copy.deepcopy` does, plain lists and
    dicts some ten times faster.

    Raises
    ------
    Exception
        What the class of a value raises that cannot be copied.
    """
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is list:
        return [item if type(item) in IMMUTABLE else copied(item) for item in value]
    if kind is dict:
        return {
            key: item if type(item) in IMMUTABLE else copied(item) for key, item in value.items()
        }
    if kind is tuple or kind is frozenset:
        if all(type(item) in IMMUTABLE for item in value):
            return value
        return deepcopy(value)
    if kind is set and all(type(item) in IMMUTABLE for item in value):
        return set(value)
    return deepcopy(value)
