"""What errors say about names: one that nobody knows, and some in a row."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "listed", "nearest"]

_NEAR_MAX, _SHOWN_MAX = 3, 10


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The known names nearest to a wrong one; where none is near, the first of all that there are.

    O(n) comparisons for n known names.
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, _NEAR_MAX)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    if not names:
        return "there are none"
    more = ", …" if len(names) > _SHOWN_MAX else ""
    return f"there are {', '.join(map(repr, names[:_SHOWN_MAX]))}{more}"


def nearest(name: object, known: Iterable[str]) -> str:
    """As `did_you_mean`, for the end of a message that tells all that there are already."""
    near = difflib.get_close_matches(str(name), sorted(known), _NEAR_MAX)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Names in a row for a message: the first of them, and how many more there are."""
    found = list(names)
    more = len(found) - _SHOWN_MAX
    return (", ".join(found[:_SHOWN_MAX]) or "none") + (f" and {more} more" if more > 0 else "")
