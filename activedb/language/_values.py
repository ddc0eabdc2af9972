"""Literals, names and durations in a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from lark import Token, Tree

from activedb.language._parser import start_of
from activedb.language._source import Source
from activedb.spelling import did_you_mean

__all__ = ["UNITS_US", "duration_us", "literal_value", "name_of", "whole_number"]

_UNITS = {
    1: "us microsecond microseconds",
    1_000: "ms millisecond milliseconds",
    1_000_000: "s sec secs second seconds",
    60_000_000: "m min mins minute minutes",
    3_600_000_000: "h hour hours",
    86_400_000_000: "d day days",
}
UNITS_US = {name: us for us, names in _UNITS.items() for name in names.split()}
"""Microseconds of each unit of time, by all its names."""
_INTERVAL = re.compile(r"\s*(-?)\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*\Z", re.IGNORECASE)
_TYPES: dict[str, Callable[[str], Any]] = {
    "DATE": date.fromisoformat,
    "TIME": time.fromisoformat,
    "TIMESTAMP": datetime.fromisoformat,
    "DECIMAL": Decimal,
    "FLOAT": float,
}


def name_of(tree: Tree[Token]) -> str:
    """Return the name in a ``name`` tree."""
    return str(tree.children[0])


def whole_number(source: Source, token: Token) -> int:
    """Return the value of a number without a fraction."""
    if not token.isdigit():
        raise source.error(start_of(token), f"expected a whole number, found {token!s}")
    return int(token)


def duration_us(source: Source, tree: Tree[Token]) -> int:
    """Return the exact microseconds of a number with a unit."""
    number, unit = tree.children
    assert isinstance(unit, Tree)
    return _us(source, start_of(unit), str(number), name_of(unit))


def literal_value(source: Source, tree: Tree[Token]) -> Any:
    """Return the value of a ``literal`` tree."""
    first = tree.children[0]
    assert isinstance(first, Token)
    text = str(first)
    if first.type == "NUMBER":
        return _converted(source, first, int if text.isdigit() else float, text, "number here")
    if first.type == "STRING":
        return text
    if first.type == "BYTES":
        return _converted(source, first, bytes.fromhex, text[2:-1], "bytes")
    if first.type != "TYPED":
        return {"TRUE": True, "FALSE": False, "NULL": None}[first.type]
    kind, written = text.upper(), str(tree.children[1])
    if kind == "INTERVAL":
        match = _INTERVAL.match(written)
        if match is None:
            raise source.error(start_of(tree.children[1]), "write INTERVAL '5 min'")
        sign, number, unit = match.groups()
        us = _us(source, start_of(tree.children[1]), number, unit)
        try:
            return timedelta(microseconds=-us if sign else us)
        except OverflowError:
            raise source.error(start_of(tree.children[1]), "that is too long a time") from None
    return _converted(source, first, _TYPES[kind], written, kind)


def _converted(
    source: Source, token: Token, convert: Callable[[str], Any], text: str, kind: str
) -> Any:
    try:
        return convert(text)
    except (ValueError, InvalidOperation):
        raise source.error(start_of(token), f"{text!r} is no {kind}") from None


def _us(source: Source, at: int, number: str, unit: str) -> int:
    scale = UNITS_US.get(unit.lower())
    if scale is None:
        raise source.error(
            at, f"{unit!r} is no unit of time; {did_you_mean(unit.lower(), UNITS_US)}"
        )
    us = Fraction(number) * scale
    if us.denominator != 1:
        raise source.error(at, f"{number} {unit} is no whole number of microseconds")
    return int(us)
