"""Inferred reads of the condition of a rule without an event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from activedb.rules import Part

__all__ = ["find_reads"]


def find_reads(when: Any, params: Mapping[str, Any]) -> Iterable[Part] | str:
    """Return the tables and columns that a condition reads, or why they cannot be inferred."""
    from activedb.analysis import reads_of  # imports networkx, which takes 0.1 s

    return reads_of(when, params)
