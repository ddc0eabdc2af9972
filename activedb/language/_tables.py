"""Lookup of tables and columns by the names used in a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["columns_of", "named"]


def named(name: str, known: Iterable[str], *, is_quoted: bool) -> str | None:
    """Return the entry of `known` that a name in SQL denotes, or None.

    An exact match wins. An unquoted name also matches the only entry that differs in case alone, as
    SQL folds case.
    """
    names = tuple(known)
    if name in names:
        return name
    if is_quoted:
        return None
    folded = [other for other in names if other.casefold() == name.casefold()]
    return folded[0] if len(folded) == 1 else None


def columns_of(table: Any) -> Mapping[str, Any]:
    """Return the columns of a declared table by name, in order."""
    return {column.name: column for column in table.columns}
