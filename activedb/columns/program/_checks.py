"""Detection of events that cannot become s-transactions, with the reasons."""

from __future__ import annotations

from typing import Any

import numpy as np

from activedb.columns.program._batch import Column, EventBatch, Ints
from activedb.columns.program._layout import KeyUse, Layout
from activedb.errors import AccessError
from activedb.scheduling import SharedTable

__all__ = ["Checker"]


class Checker:
    """Validator for the batches of one program.

    Parameters
    ----------
    layout : Layout
    """

    def __init__(self, layout: Layout):
        self._layout = layout
        self._uses = [(use, self._mask(use.codes)) for use in layout.key_uses]
        self._needs = {
            name: self._mask(
                tuple(code for code, needs in enumerate(layout.needs) if name in needs)
            )
            for name, _ in layout.columns
        }

    def codes(self, batch: EventBatch) -> Ints:
        """Return per event the index of its type in the program; -1: unknown to the program."""
        known = tuple(self._layout.program.types)
        if batch.types == known:
            return batch.codes
        places = {name: place for place, name in enumerate(known)}
        return np.array([places.get(name, -1) for name in batch.types], np.int64)[batch.codes]

    def check(
        self, batch: EventBatch, codes: Ints, punctuation_us: int | None
    ) -> tuple[list[Column], dict[int, str]]:
        """Return the columns that templates take, and the reason per refused row; O(rows · keys).

        The reasons are those of a `ProgramRun`.
        """
        reasons: dict[int, str] = {}

        def refuse(bad: Column, why: Any) -> None:
            for row in np.flatnonzero(bad).tolist():
                reasons.setdefault(row, why(row))

        program = self._layout.program
        if len(codes) and codes.min() < 0:
            known = ", ".join(program.types)
            refuse(
                codes < 0,
                lambda row: f"program {program.name} has no state access for it, only for {known}",
            )
        if punctuation_us is not None and len(codes) and batch.us.min() < punctuation_us:
            refuse(
                batch.us < punctuation_us,
                lambda row: (
                    f"it came too late: its time is before the punctuation {punctuation_us}"
                ),
            )
        given = {}
        for name, needs in self._needs.items():
            column = batch.params.get(name)
            if column is None:
                concerned = needs[codes] & (codes >= 0)
                refuse(concerned, lambda row, name=name: f"it lacks {name!r}")
                column = np.zeros(len(codes), np.int64)
            given[name] = column
        columns = [
            _whole(given[name]) if is_key else given[name] for name, is_key in self._layout.columns
        ]
        for use, concerned in self._uses:
            keys = columns[self._layout.columns.index((use.name, True))]
            size = use.table.size or 0
            unsigned = keys.view(np.uint64)  # negative keys become large
            if use.name in batch.params and len(keys) and unsigned.max() >= size:
                bad = concerned[codes] & (codes >= 0) & (unsigned >= size)
                refuse(bad, lambda row, use=use: _reason(use, given[use.name], row))
        return columns, reasons

    def _mask(self, codes: tuple[int, ...]) -> Column:
        mask = np.zeros(max(1, len(self._layout.templates)), np.bool_)
        mask[list(codes)] = True
        return mask


def _whole(column: Column) -> Ints:
    """Return a column as integer keys; -1 where the value is not a key."""
    if column.dtype == np.int64:
        return column
    if column.dtype != object:
        return np.full(len(column), -1, np.int64)  # floats and booleans are not keys
    return np.array(
        [
            value
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
            else -1
            for value in column
        ],
        np.int64,
    )


def _reason(use: KeyUse, column: Column, row: int) -> str:
    table: SharedTable = use.table
    try:
        table.check_key(column[row] if column.dtype == object else column.item(row))
    except AccessError as error:
        return f"AccessError: {error}"
    raise AssertionError("a key was refused that is one")
