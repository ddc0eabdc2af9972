"""Names and texts inside statements that take no parameters for them."""

from __future__ import annotations

__all__ = ["literal", "quoted"]


def quoted(name: str) -> str:
    """A name as PostgreSQL reads it, whatever is in it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def literal(text: str) -> str:
    """A text as a constant, whatever is in it (``standard_conforming_strings`` is on)."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'"
