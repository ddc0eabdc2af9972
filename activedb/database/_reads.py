"""What the condition of a rule without event reads, told by its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from activedb.rules import Part

__all__ = ["find_reads"]


def find_reads(when: Any, params: Mapping[str, Any]) -> Iterable[Part] | str:
    """Tables and columns that a condition reads, or why its source does not tell."""
    from activedb.analysis import reads_of  # networkx takes a tenth of a second to import

    return reads_of(when, params)
