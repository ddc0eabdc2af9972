"""Wording of messages: unknown names, lists of names, counts with their nouns, long texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from activedb.errors import DefinitionError

__all__ = [
    "check_options",
    "clipped",
    "counted",
    "did_you_mean",
    "listed",
    "nearest",
    "printable",
]

_NEAR_MAX, _SHOWN_MAX = 3, 10


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the known names nearest to a wrong one, or the first known names if none is near.

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
    """Return a suffix with the nearest names, for a message that already lists all names."""
    near = difflib.get_close_matches(str(name), sorted(known), _NEAR_MAX)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Return names as a list for a message: the first ones, and the number of further ones."""
    found = list(names)
    more = len(found) - _SHOWN_MAX
    return (", ".join(found[:_SHOWN_MAX]) or "none") + (f" and {more} more" if more > 0 else "")


def counted(number: int, what: str) -> str:
    """Return a count with its noun: 1 dead letter, 2 dead letters."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def clipped(text: str, length_max: int) -> str:
    """Return `text`; if it is longer than `length_max`, its beginning and an ellipsis."""
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def check_options(given: Iterable[str], options: type, what: str) -> None:
    """Raise unless all `given` names are options, which are the keys of a TypedDict.

    Raises
    ------
    DefinitionError
        If one is not; the message suggests similar options.
    """
    known = options.__annotations__
    for name in given:
        if name not in known:
            raise DefinitionError(
                f"{what}: there is no option {name!r}; {did_you_mean(name, known)}"
            )


def printable(text: str) -> str:
    """Return `text` with unprintable characters escaped, so that no name can control a terminal."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
