"""Spelling of names and durations in the rule language."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["RESERVED", "dotted_text", "name_text", "repeated", "seconds_text"]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_AFTER_A_DOT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(-[A-Za-z_][A-Za-z0-9_]*)*\Z")

RESERVED = frozenset(
    """
    AFTER ALL ALTER AND ANY APERIODIC AS AT BEGIN BETWEEN CALL CASE CONTEXT CREATE CRON DELETE
    DROP END EVERY EXISTS FALSE FOR GAP IF IN INSERT IS LATE LIKE NEW NOT NULL OLD ON OR OUTPUT
    PATTERN PERIODIC REFERENCING RETURN SAME SELECT SEQ SIGNAL SKIP SOME TIMEOUT TRANSACTION
    TRUE UPDATE WHEN WHERE WITHIN
    """.split()  # noqa: SIM905
)
"""Words, in upper case, that are names only if quoted; not reserved after a dot or in [ ]."""


def name_text(name: str, *, after_dot: bool = False) -> str:
    """Return `name` as the rule language writes it, quoted if necessary.

    Parameters
    ----------
    after_dot : bool
        True if the name follows a dot or stands in [ ], where names may have hyphens and no word
        is reserved.
    """
    if after_dot:
        plain = _AFTER_A_DOT.match(name) is not None
    else:
        plain = _PLAIN.match(name) is not None and name.upper() not in RESERVED
    return name if plain else '"' + name.replace('"', '""') + '"'


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs a second time; None if all differ. O(n)."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def dotted_text(name: str) -> str:
    """Return a name with dots, such as that of a table in a schema, as the language writes it."""
    words = name.split(".")
    if not all(words):
        return name_text(name)
    return ".".join(name_text(word, after_dot=number > 0) for number, word in enumerate(words))


def seconds_text(us: int) -> str:
    """Return microseconds as seconds, exactly: ``"45"``, ``"0.5"``."""
    whole, rest = divmod(us, 1_000_000)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".") if rest else str(whole)
