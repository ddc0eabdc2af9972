"""Events that were accepted, in columns, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from activedb.columns.program._batch import Column, Ints
from activedb.compiler import jit
from activedb.scheduling import At, Outcome

__all__ = ["EXACT_MAX", "RAISED", "Rows", "is_exact", "split"]

EXACT_MAX: Final = 2.0**53
"""Up to there all whole numbers are floats."""

RAISED: Final = 0xFFFF
"""The outcome of a row whose s-transaction aborted because something raised."""


@dataclass(eq=False, slots=True)
class Rows:
    """Events of one run, of types that the program knows, with keys that can be keys.

    Attributes
    ----------
    codes, us, arrivals : array of int64, of shape (rows,)
        Per event the place of its type in ``program.types``, its time, its number among those
        accepted.
    ids : array of str, or None
    params : mapping of str to array
        All columns that were fed.
    columns : list of array
        Those that the templates take, in the layout's order.
    slots : array of int64, of shape (rows,)
        Where each one's results begin.
    outcomes : array of uint16, of shape (rows,)
        0: committed; n: the operation n - 1 gave None; `RAISED`: see `special`.
    results : array of float64
        Results of operations, in the order of rows; those of aborted ones mean nothing.
    special : dict of int to Outcome
        Of rows that Python ran: their whole outcome; errors have no traceback.
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
        """The place of a row in the serial order."""
        id_ = "" if self.ids is None else str(self.ids[row])
        return At(self.us.item(row), id_, self.arrivals.item(row))

    def params_of(self, row: int) -> dict[str, Any]:
        """The parameters of a row, as Python's objects."""
        return {
            name: column[row] if column.dtype == object else column.item(row)
            for name, column in self.params.items()
        }

    def aborted(self, row: int, outcome: Outcome) -> None:
        """Keep the outcome of a row where something raised; without its frames, which have all."""
        if outcome.error is not None:
            outcome.error.__traceback__ = None
        self.outcomes[row] = RAISED
        self.special[row] = outcome

    def take(self, chosen: Column) -> Rows:
        """Some of them, by number or mask, before they run."""
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
        """Their serial order; None: they are in it. O(n log n), O(n) then."""
        us = self.us
        steps = us[1:] - us[:-1]
        if self.ids is None:
            return None if not len(steps) or steps.min() >= 0 else np.argsort(us, kind="stable")
        if not len(steps) or steps.min() > 0:
            return None
        return np.lexsort((self.ids, us))

    @classmethod
    def joined(cls, parts: list[Rows]) -> Rows:
        """All of several."""
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
    """Those that a punctuation has passed, and those that wait."""
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
    """Whether compiled code and Python agree on all its numbers: up to `EXACT_MAX`, or less."""
    most = whole_max if column.dtype == np.int64 else EXACT_MAX
    return column.dtype == np.bool_ or within(column, most)


@jit
def within(column: Column, most: float) -> bool:
    """Whether no number is larger, nor NaN."""
    for value in column:  # noqa: SIM110 - compiled, a loop is faster
        if not -most <= value <= most:
            return False
    return True


def _of(rows: Rows, name: str) -> Column:
    column = rows.params.get(name)
    return np.full(len(rows), None, object) if column is None else column


def _joined(columns: list[Column]) -> Column:
    """One column; of objects, where numpy would make floats of integers."""
    if len({column.dtype for column in columns}) > 1:
        columns = [column.astype(object) for column in columns]
    return np.concatenate(columns)
