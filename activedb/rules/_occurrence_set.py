"""Set of occurrences that trigger a set-oriented rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from activedb.events import Occurrence

__all__ = ["OccurrenceSet"]


class OccurrenceSet(Occurrence):
    """Several occurrences that fire a rule once: a composite with one part for each.

    Parameters
    ----------
    occurrences : sequence of Occurrence
        At least one, in the order in which they were raised. The set has the name and the time of
        the last one.
    """

    __slots__ = ()

    def __init__(self, occurrences: Sequence[Occurrence]):
        last = occurrences[-1]
        parts = {str(number): o for number, o in enumerate(occurrences)}
        super().__init__(last.name, last.timestamp, parts=parts)

    @property
    def occurrences(self) -> tuple[Occurrence, ...]:
        """Occurrences, in the order in which they were raised; O(n)."""
        return tuple(self.parts.values())

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """Attribute `params` of each occurrence: new or deleted rows, for data changes; O(n)."""
        return [o.params for o in self.parts.values()]
