"""Values of PostgreSQL's own types, taken apart for records of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql.ranges import MultiRange, Range

__all__ = ["SERVER_TYPES"]


def _range(parts: Any) -> Range[Any]:
    lower, upper, bounds, is_empty = parts
    return Range(lower, upper, bounds=bounds, empty=is_empty)


SERVER_TYPES: list[tuple[type, str, Callable[[Any], Any], Callable[[Any], Any]]] = [
    (
        Range,
        "Range",
        lambda value: [value.lower, value.upper, value.bounds, value.empty],
        _range,
    ),
    (MultiRange, "MultiRange", list[Any], MultiRange),
]
"""Class, name, function that takes a value apart, and its inverse."""

_bits: Sequence[type] = [postgresql.BitString] if hasattr(postgresql, "BitString") else []
SERVER_TYPES += [(kind, "BitString", str.__str__, kind) for kind in _bits]  # SQLAlchemy 2.1
