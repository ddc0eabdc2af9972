"""Selection of the events in columns that a primitive event takes."""

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
    """Condition of one primitive event of a stream, evaluated on a whole column at once.

    A term is compiled. Functions, terms that cannot be compiled, and values that compiled code does
    not take are evaluated one by one, as in a `Detector`.

    Parameters
    ----------
    primitive : Primitive
        A primitive event that neither reads the store nor occurs by itself.
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
        """Return the rows it takes, in ascending order; exceptions of its predicate propagate.

        Complexity: O(events) without a predicate or with a compiled one; otherwise one object per
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
