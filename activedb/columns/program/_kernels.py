"""Kernel of a program: compiled on first use, called over rows and a state."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit

from activedb.columns.program._batch import Ints
from activedb.columns.program._conflicts import COUNT, SHIFT, Plan
from activedb.columns.program._functions import BACK, Compiled, NotCompilable, key_of, number_of
from activedb.columns.program._layout import Layout
from activedb.columns.program._log import window
from activedb.columns.program._rows import EXACT_MAX, Rows
from activedb.columns.program._source import source_of
from activedb.columns.program._state import ColumnState
from activedb.scheduling import Program

__all__ = ["Kernel", "kernel_of"]

_NO_ROWS = np.empty(0, np.int64)
_NO_EDGES = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32), _NO_ROWS)


@lru_cache(maxsize=32)
def kernel_of(program: Program, types: tuple[str, ...]) -> Kernel:
    """Return the kernel of a program that takes these types, shared by all its runs."""
    assert types == program.types
    return Kernel(Layout(program))


class Kernel:
    """Compiled kernel of a program.

    Parameters
    ----------
    layout : Layout

    Raises
    ------
    NotCompilable
        If one of its functions must not be compiled.
    """

    def __init__(self, layout: Layout):
        source = source_of(layout)
        jitted = njit(nogil=True, error_model="python")
        names: dict[str, Any] = {
            "njit": jitted,
            "BACK": BACK,
            "COUNT": COUNT,
            "SHIFT": SHIFT,
            "key_of": key_of,
            "number_of": number_of,
            "window": window,
            **source.constants,
        }
        self._functions = {name: Compiled(given) for name, given in source.functions.items()}
        names |= {name: compiled.dispatcher for name, compiled in self._functions.items()}
        for text in (source.wrappers, source.kernel):
            # The names are generated here; from the user come only integers (keys, windows).
            exec(compile(text, f"<kernel of {layout.program.name}>", "exec"), names)  # noqa: S102
        self._compiled = 0  # number of column signatures compiled
        self._kernel: Any = jitted(names["kernel"])

    @property
    def whole_max(self) -> float:
        """Bound on integer arguments; batches that exceed it must run in Python."""
        return min((given.whole_max for given in self._functions.values()), default=EXACT_MAX)

    def arguments(self, rows: Rows, state: ColumnState) -> tuple[Any, ...]:
        """Return the kernel's arguments for rows and tables.

        REQUIRES: room in the log for all versions the rows may write.
        """
        log = state.log
        made: list[Any] = [rows.codes, rows.us, rows.arrivals, rows.slots, rows.outcomes]
        made += [rows.results, log.used, log.values, log.us, log.arrivals, log.before]
        made += rows.columns
        for table, values, written, heads in zip(
            state.tables, state.values, state.written, state.heads, strict=True
        ):
            made += [values, written]
            if table.history_us:
                made.append(heads)
        return tuple(made)

    def compile(self, arguments: tuple[Any, ...]) -> None:
        """Compile the kernel for columns of these types, unless already done.

        Raises
        ------
        NotCompilable
            If numba cannot compile it.
        """
        try:
            self.in_turn(0, 0, arguments)
        except Exception as error:  # no row ran, so the error is numba's own
            first = str(error).strip().splitlines()
            raise NotCompilable(" ".join(first[:3])) from error
        if len(self._kernel.overloads) > self._compiled:
            for function in self._functions.values():
                function.check_types()
            self._compiled = len(self._kernel.overloads)

    def in_turn(self, first: int, last: int, arguments: tuple[Any, ...]) -> int:
        """Run rows in turn; return the row left to Python, or -1 if all rows were run."""
        row, _, _ = self._kernel(first, last, _NO_ROWS, _NO_ROWS, 0, *_NO_EDGES, *arguments)
        found: int = row
        return found

    def chunk(
        self,
        todo: Ints,
        count: int,
        done: Ints,
        made: int,
        now: int,
        plan: Plan,
        arguments: tuple[Any, ...],
    ) -> tuple[int, int, int]:
        """Run rows that wait for none, and some of the rows that waited only for those.

        Parameters
        ----------
        todo : array of int64
            Stack of rows to run; its length bounds how many are run.
        count : int
            Height of the stack.
        done : array of int64, at least as long as `todo`
            Receives the rows that were run.
        made : int
            Number of rows in `done` already.
        now : int
            Words of `Plan.waits` that were changed later are not trusted.
        plan : Plan
        arguments : tuple

        Returns
        -------
        int
            The row left to Python; -1: none.
        int
            Remaining height of the stack.
        int
            Number of rows in `done`, including the row left to Python.
        """
        edges = (plan.first_edge, plan.edge_to, plan.edge_next, plan.waits)
        found: tuple[int, int, int] = self._kernel(made, count, todo, done, now, *edges, *arguments)
        return found
