"""Quoting of names and texts in statements that take no parameters for them."""

from __future__ import annotations

__all__ = ["literal", "quoted"]


def quoted(name: str) -> str:
    """Return a name as a quoted PostgreSQL identifier; any character is allowed."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def literal(text: str) -> str:
    """Return a text as an SQL constant; any character is allowed."""
    escaped = text.replace("'", "''")
    if "\\" not in text:
        return f"'{escaped}'"
    # A constant of this kind does not depend on standard_conforming_strings.
    escaped = escaped.replace("\\", "\\\\")
    return f"E'{escaped}'"
