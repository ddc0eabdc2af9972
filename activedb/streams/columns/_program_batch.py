"""Events as a program takes them in columns: what it needs of them, as arrays of numbers."""

from __future__ import annotations

import numpy as np

from activedb.columns.events import Column, ColumnEvents, Ints, Mask, Values, objects
from activedb.columns.program import ColumnRun, EventBatch
from activedb.scheduling import At, Program, Refusal, s_transaction_of

__all__ = ["ProgramBatch"]


class ProgramBatch:
    """The events of types that a program takes.

    Where an event has no value of a parameter that its type does not take either, the column has
    some number. Of events that lack one which they need, the few, those that can be no
    s-transactions are found as `s_transaction_of` says; the columns of the others hold objects.

    Parameters
    ----------
    run : ColumnRun
        That of the program.
    events : ColumnEvents
        In order.

    Attributes
    ----------
    batch : EventBatch
    rows : array of int64
        Which of the events are in it.
    refused : list of int
        Which are refused.
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
        """Which events have no value of a parameter that their type takes, but others have."""
        found = np.zeros(len(events), np.bool_)
        for name in dict.fromkeys(name for name, _ in run.layout.columns):
            values = events.params.get(name)
            if values is not None and values.missing is not None:
                takes = np.array([name in needs for needs in run.layout.needs], np.bool_)
                found |= takes[codes] & (values.missing != 0)
        return found


def _unusable(program: Program, events: ColumnEvents, rows: Ints) -> list[bool]:
    """Of which events no s-transaction can be made."""
    occurrences = [arrival.occurrence for arrival in events.arrivals(rows)]
    return [isinstance(s_transaction_of(program, o, At(o.us, "", 0)), Refusal) for o in occurrences]


def _column(values: Values, *, has_nulls: bool) -> Column:
    if has_nulls and values.missing is not None and values.missing.any():
        return objects(values.objects())
    return values.array
