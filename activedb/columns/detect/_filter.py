"""Which of many events in columns a primitive event takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from activedb.columns.detect._columns import EventColumns, Ints
from activedb.columns.detect._programs import Program, Programs, why_no_program
from activedb.errors import BadEvent
from activedb.events import Primitive
from activedb.events.terms import Term

__all__ = ["EventFilter"]


class EventFilter:
    """The condition of one primitive event of a stream, for a whole column at once.

    A term is compiled; what cannot be, and values that compiled code does not take, are judged one
    by one, as a `Detector` judges them.

    Parameters
    ----------
    primitive : Primitive
        That neither reads the store nor occurs by itself.
    """

    def __init__(self, primitive: Primitive):
        self.primitive = primitive
        self._compiled: Programs | None = None
        predicate = primitive.predicate
        if (
            isinstance(predicate, Term)
            and not predicate.part_names
            and why_no_program(predicate) is None
        ):
            self._compiled = Programs((Program(predicate, 0),), ())

    def rows(self, columns: EventColumns) -> Ints:
        """The rows it takes, rising; what its predicate raises passes through.

        Complexity: O(events) if it has no predicate or a compiled one; else an object for each
        event of its type.
        """
        if self.primitive.key not in columns.keys:
            return np.empty(0, np.int64)
        rows = np.flatnonzero(columns.codes == columns.keys.index(self.primitive.key))
        return rows if self.primitive.predicate is None else rows[self._judged(columns, rows)]

    def _judged(self, columns: EventColumns, rows: Ints) -> npt.NDArray[np.bool_]:
        if self._compiled is not None:
            try:
                return self._compiled.hold(columns, rows)
            except BadEvent:
                pass
        taken: list[Any] = columns.take(rows).to_occurrences()
        return np.fromiter((self.primitive.takes(o) for o in taken), np.bool_, len(rows))
