"""Accepted events in columns, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from activedb.columns.events import NO_VALUE, Column, Ints
from activedb.compiler import jit
from activedb.scheduling import At, Outcome

__all__ = ["EXACT_MAX", "RAISED", "Rows", "is_exact", "split"]


EXACT_MAX: Final = 2.0**53
"""Bound up to which every integer is exact as a float."""

RAISED: Final = 0xFFFF
"""Outcome of a row whose s-transaction aborted with an exception."""


@dataclass(eq=False, slots=True)
class Rows:
    """Events of one run, with known types and valid keys.

    Attributes
    ----------
    codes, us, arrivals : array of int64, of shape (rows,)
        Per event the index of its type in ``program.types``, its time, and its number among those
        accepted.
    ids : array of str, or None
    params : mapping of str to array
        All columns that were fed; `NO_VALUE` where an event does not have the parameter.
    columns : list of array
        Columns that the templates take, in the layout's order.
    slots : array of int64, of shape (rows,)
        Start of each row's results.
    outcomes : array of uint16, of shape (rows,)
        0: committed; n: operation n - 1 returned None; `RAISED`: see `special`.
    results : array of float64
        Results of operations, in row order; meaningless for aborted rows.
    special : dict of int to Outcome
        Complete outcomes of the rows that Python ran; errors have no traceback.
    """

    codes: Ints
    us: Ints
    arrivals: Ints
    ids: Column | None
    params: Mapping[str, Column]
    columns: list[Column]
    slots: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    outcomes: Column = field(default_factory=lambda: np.empty(0, np.uint16))
    results: Column = field(default_factory=lambda: np.empty(0, np.float64))
    special: dict[int, Outcome] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.us)

    def at(self, row: int) -> At:
        """Return the place of a row in the serial order."""
        id_ = "" if self.ids is None else str(self.ids[row])
        return At(self.us.item(row), id_, self.arrivals.item(row))

    def params_of(self, row: int) -> dict[str, Any]:
        """Return the parameters that the event of a row has, as Python objects."""
        return {
            name: value
            for name, column in self.params.items()
            if (value := column.item(row)) is not NO_VALUE
        }

    def aborted(self, row: int, outcome: Outcome) -> None:
        """Record the outcome of a row that raised; drop its traceback, which refers to all rows."""
        if outcome.error is not None:
            outcome.error.__traceback__ = None
        self.outcomes[row] = RAISED
        self.special[row] = outcome

    def take(self, chosen: Column) -> Rows:
        """Return the rows selected by index or mask; REQUIRES: not run yet."""
        params = {name: column[chosen] for name, column in self.params.items()}
        return replace(
            self,
            codes=self.codes[chosen],
            us=self.us[chosen],
            arrivals=self.arrivals[chosen],
            ids=None if self.ids is None else self.ids[chosen],
            params=params,
            columns=[column[chosen] for column in self.columns],
        )

    def order(self) -> Ints | None:
        """Return the serial order; None if already in order. O(n log n), or O(n) if in order."""
        us = self.us
        steps = us[1:] - us[:-1]
        if self.ids is None:
            return None if not len(steps) or steps.min() >= 0 else np.argsort(us, kind="stable")
        if not len(steps) or steps.min() > 0:
            return None
        return np.lexsort((self.ids, us))

    @classmethod
    def joined(cls, parts: list[Rows]) -> Rows:
        """Return the rows of several parts, concatenated."""
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for part in parts for name in part.params)
        ids = None
        if any(part.ids is not None for part in parts):
            ids = np.concatenate(
                [np.full(len(p), "", "U1") if p.ids is None else p.ids for p in parts]
            )
        return cls(
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.us for part in parts]),
            np.concatenate([part.arrivals for part in parts]),
            ids,
            {name: _joined([_of(part, name) for part in parts]) for name in names},
            [_joined(list(columns)) for columns in zip(*(p.columns for p in parts), strict=True)],
        )


def split(parts: list[Rows], punctuation_us: int) -> tuple[list[Rows], list[Rows]]:
    """Split rows into those that a punctuation has passed and those that wait."""
    passed, waiting = [], []
    for rows in parts:
        if rows.us.max() < punctuation_us:
            passed.append(rows)
            continue
        before = rows.us < punctuation_us
        if before.any():
            passed.append(rows.take(before))
            rows = rows.take(~before)
        waiting.append(rows)
    return passed, waiting


def is_exact(column: Column, whole_max: float) -> bool:
    """Return whether all numbers of a column are exact: within `EXACT_MAX`, or `whole_max`."""
    most = whole_max if column.dtype == np.int64 else EXACT_MAX
    return column.dtype == np.bool_ or within(column, most)


@jit
def within(column: Column, most: float) -> bool:
    """Return whether all numbers are within a bound; NaN is not."""
    for value in column:  # noqa: SIM110 - compiled, a loop is faster
        if not -most <= value <= most:
            return False
    return True


def _of(rows: Rows, name: str) -> Column:
    column = rows.params.get(name)
    return np.full(len(rows), NO_VALUE, object) if column is None else column


def _joined(columns: list[Column]) -> Column:
    """Concatenate columns; mixed types become objects, as NumPy would turn integers into floats."""
    if len({column.dtype for column in columns}) > 1:
        columns = [column.astype(object) for column in columns]
    return np.concatenate(columns)
