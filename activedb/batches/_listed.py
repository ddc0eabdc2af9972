"""Names in a sentence."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["listed"]

_SHOWN_MAX = 10


def listed(names: Iterable[str]) -> str:
    """Names for a message: the first of them, and whether there are more."""
    found = list(names)
    if not found:
        return "none"
    return ", ".join(found[:_SHOWN_MAX]) + (
        f" and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
    )
