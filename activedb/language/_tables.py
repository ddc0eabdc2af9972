"""Tables and columns by the names that a text gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["columns_of", "named"]


def named(name: str, known: Iterable[str], *, is_quoted: bool) -> str | None:
    """The one of `known` that a name in SQL means.

    The exact one; without quotes, as SQL folds its case, the only one that differs in that alone.
    """
    names = tuple(known)
    if name in names:
        return name
    if is_quoted:
        return None
    folded = [other for other in names if other.casefold() == name.casefold()]
    return folded[0] if len(folded) == 1 else None


def columns_of(table: Any) -> Mapping[str, Any]:
    """The columns of a declared table by name, in their order."""
    return {column.name: column for column in table.columns}
