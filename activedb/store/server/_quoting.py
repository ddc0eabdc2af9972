"""Quoting of names and texts in statements that take no parameters for them."""

from __future__ import annotations

__all__ = ["literal", "quoted"]


def quoted(name: str) -> str:
    """Return a name as a quoted PostgreSQL identifier; any character is allowed."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def literal(text: str) -> str:
    """Return a text as an SQL constant; any character is allowed.

    REQUIRES: ``standard_conforming_strings`` is on.
    """
    escaped = text.replace("'", "''")
    return f"'{escaped}'"
