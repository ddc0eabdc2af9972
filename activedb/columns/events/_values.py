"""Values of one event parameter as an array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ABSENT", "NULL", "THERE", "Column", "Ints", "Mask", "Values"]

Column: TypeAlias = npt.NDArray[Any]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

THERE: Final = 0
NULL: Final = 1
ABSENT: Final = 2
"""State of a parameter in an event: it has a value, is NULL, or is absent."""

_KINDS = {int: np.int64, float: np.float64, bool: np.bool_}


@dataclass(frozen=True, eq=False, slots=True)
class Values:
    """Values of one parameter over many events.

    Attributes
    ----------
    array : array of int64, float64, bool or objects, of shape (events,)
        Arbitrary at rows without a value.
    missing : array of uint8 of shape (events,), or None
        `THERE`, `NULL` or `ABSENT` per event; None: every event has a value.
    """

    array: Column
    missing: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.array)

    @classmethod
    def of(cls, values: Sequence[Any], missing: npt.NDArray[np.uint8] | None = None) -> Values:
        """Build from Python objects; None becomes NULL unless `missing` says `ABSENT`."""
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        if nulls.any():
            missing = np.zeros(len(values), np.uint8) if missing is None else missing
            missing = np.where(missing == THERE, np.where(nulls, NULL, THERE), missing)
            missing = missing.astype(np.uint8)
        kinds = set(map(type, values)) - {type(None)}
        if len(kinds) == 1 and (kind := _KINDS.get(next(iter(kinds)))) is not None:
            filled = [0 if value is None else value for value in values] if nulls.any() else values
            try:
                return cls(np.array(filled, kind), missing)
            except OverflowError:  # an integer beyond 64 bits
                pass
        return cls(objects(values), missing)

    @classmethod
    def absent(cls, count: int) -> Values:
        """Build for events that lack the parameter."""
        return cls(np.zeros(count, np.int64), np.full(count, ABSENT, np.uint8))

    def take(self, chosen: Column | slice) -> Values:
        """Return the values of the events selected by index or mask."""
        missing = None if self.missing is None else self.missing[chosen]
        return Values(self.array[chosen], missing)

    def objects(self) -> list[Any]:
        """Return the values as Python objects, None where there is no value."""
        values: list[Any] = self.array.tolist()
        if self.missing is not None:
            for row in np.flatnonzero(self.missing).tolist():
                values[row] = None
        return values

    @classmethod
    def joined(cls, parts: Sequence[Values]) -> Values:
        """Return the values of several parts, concatenated."""
        if len(parts) == 1:
            return parts[0]
        there = [part for part in parts if part.missing is None or not part.missing.all()]
        kinds = {part.array.dtype for part in there}
        if len(kinds) > 1:
            arrays = [objects(part.objects()) for part in parts]
        else:
            kind = kinds.pop() if kinds else np.dtype(np.int64)
            arrays = [
                part.array if part.array.dtype == kind else np.zeros(len(part), kind)
                for part in parts
            ]
        missing = None
        if any(part.missing is not None for part in parts):
            missing = np.concatenate(
                [
                    np.zeros(len(part), np.uint8) if part.missing is None else part.missing
                    for part in parts
                ]
            )
        return cls(np.concatenate(arrays), missing)


def objects(values: Iterable[Any]) -> Column:
    """Return an array of objects, without inspecting them."""
    listed = list(values)
    made = np.empty(len(listed), object)
    made[:] = listed
    return made
