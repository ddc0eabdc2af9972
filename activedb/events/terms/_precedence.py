"""Binding strength of the operators of terms, and bracketing of written terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from activedb.events.terms._term import Term

__all__ = ["AND", "ATOM", "COMPARISON", "NOT", "OR", "PRODUCT", "SUM", "written"]

OR, AND, NOT, COMPARISON, SUM, PRODUCT, ATOM = range(7)
"""Operators from the loosest to the tightest, as in SQL."""


def written(term: Term, binds: int) -> str:
    """Return the text of a term, bracketed if it binds more loosely than `binds`."""
    text, strength = term._text()
    return text if strength >= binds else f"({text})"
