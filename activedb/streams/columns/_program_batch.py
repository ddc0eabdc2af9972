"""Conversion of events to the numeric columns that a program takes."""

from __future__ import annotations

import numpy as np

from activedb.columns.events import Column, ColumnEvents, Ints, Mask, Values, objects
from activedb.columns.program import ColumnRun, EventBatch
from activedb.scheduling import At, Program, Refusal, build_s_transaction

__all__ = ["ProgramBatch"]


class ProgramBatch:
    """Events of the types that a program takes.

    If an event lacks a parameter that its type does not use, the column has an arbitrary number
    there. Events that lack a used parameter are rare. Those that cannot become s-transactions are
    found with `build_s_transaction`; for the others the columns hold objects.

    Parameters
    ----------
    run : ColumnRun
        Run of the program.
    events : ColumnEvents
        In order.

    Attributes
    ----------
    batch : EventBatch
    rows : array of int64
        Indices of the events in the batch.
    refused : list of int
        Indices of the refused events.
    """

    def __init__(self, run: ColumnRun, events: ColumnEvents):
        program = run.program
        places = {name: place for place, name in enumerate(program.types)}
        numbers = np.array([places.get(name, -1) for name in events.types], np.int64)
        codes = numbers[events.codes] if len(events) else np.empty(0, np.int64)
        rows = np.flatnonzero(codes >= 0)
        if len(rows) < len(events):
            events, codes = events.take(rows), codes[rows]
        lacking = self._lacking(run, events, codes)
        if lacking.any():
            found = np.flatnonzero(lacking)
            bad = found[_unusable(program, events, found)]
            self.refused: list[int] = rows[bad].tolist()
            good = np.ones(len(events), np.bool_)
            good[bad] = False
            lacking[bad] = False
            events, codes, rows, lacking = events.take(good), codes[good], rows[good], lacking[good]
        else:
            self.refused = []
        self.rows: Ints = rows
        params = {
            name: _column(values, has_nulls=bool(lacking.any()))
            for name, values in events.params.items()
        }
        self.batch = EventBatch(program.types, codes, events.us, params)

    @staticmethod
    def _lacking(run: ColumnRun, events: ColumnEvents, codes: Ints) -> Mask:
        """Return which events lack a value of a parameter that their type uses, but others have."""
        found = np.zeros(len(events), np.bool_)
        for name in dict.fromkeys(name for name, _ in run.layout.columns):
            values = events.params.get(name)
            if values is not None and values.missing is not None:
                takes = np.array([name in needs for needs in run.layout.needs], np.bool_)
                found |= takes[codes] & (values.missing != 0)
        return found


def _unusable(program: Program, events: ColumnEvents, rows: Ints) -> list[bool]:
    """Return for which events no s-transaction can be made."""
    occurrences = [arrival.occurrence for arrival in events.arrivals(rows)]
    return [
        isinstance(build_s_transaction(program, o, At(o.us, "", 0)), Refusal) for o in occurrences
    ]


def _column(values: Values, *, has_nulls: bool) -> Column:
    if has_nulls and values.missing is not None and values.missing.any():
        return objects(values.objects())
    return values.array
