"""Kernel of a program: compiled on first use, called over rows and a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit

from activedb.columns.events import Ints
from activedb.columns.program._conflicts import COUNT, SHIFT, PrecedenceGraph
from activedb.columns.program._functions import BACK, Compiled, NotCompilable, key_of, number_of
from activedb.columns.program._layout import ProgramLayout, Template
from activedb.columns.program._rows import EXACT_MAX, Rows
from activedb.columns.program._state import ColumnState, window
from activedb.columns.program._writer import Writer, table_names
from activedb.scheduling import Program, Ref, Write

__all__ = ["Kernel", "kernel_of"]


_NO_ROWS = np.empty(0, np.int64)
_NO_EDGES = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32), _NO_ROWS)


@lru_cache(maxsize=32)
def kernel_of(program: Program, types: tuple[str, ...]) -> Kernel:
    """Return the kernel of a program that takes these types, shared by all its runs."""
    assert types == program.types
    return Kernel(ProgramLayout(program))


class Kernel:
    """Compiled kernel of a program.

    Parameters
    ----------
    layout : ProgramLayout

    Raises
    ------
    NotCompilable
        If one of its functions must not be compiled.
    """

    def __init__(self, layout: ProgramLayout):
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
        plan: PrecedenceGraph,
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
            Words of `PrecedenceGraph.waits` that were changed later are not trusted.
        plan : PrecedenceGraph
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


# -- source text of a program's kernel, which numba compiles -----------------------------------


_KERNEL = """\
def kernel(first, last, todo, done, now, first_edge, edge_to, edge_next, waits, {arguments}):
    in_turn = len(todo) == 0
    made = 0 if in_turn else first
    i = first
    while True:
        if in_turn:
            if i >= last:
                break
        elif last == 0:
            break
        else:
            last -= 1
            i = todo[last]
        slot = slots[i]
        code = codes[i]
        s = 0
{branches}
        if not in_turn:
            done[made] = i
            made += 1
        if s == BACK:
            return i, last, made
        outcomes[i] = s
        if in_turn:
            i += 1
            continue
        edge = first_edge[i]
        while edge >= 0:
            follower = edge_to[edge]
            word = waits[follower]
            if (word & COUNT) == 1 and (word >> SHIFT) <= now and made + last < len(todo):
                waits[follower] = word & ~COUNT
                todo[last] = follower
                last += 1
            edge = edge_next[edge]
    return -1, last, made
"""

_OPERATION = """\
@njit
def {name}({arguments}):
    try:
        value = {function}({arguments})
    except Exception:
        return BACK, 0.0
    s, number = number_of(value)
    return {given_none} if s == 1 else s, number
"""

_COMPUTED = """\
@njit
def {name}({arguments}):
    try:
        key = {function}({arguments})
    except Exception:
        return BACK, 0
    return key_of(key, {size})
"""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Source text of a program's kernel, and the objects it refers to by name.

    Attributes
    ----------
    wrappers, kernel : str
        Definitions: one wrapper function per distinct call of a user's function; the kernel.
    functions, constants : dict
        Users' functions and constant arguments, by their names in the text.
    """

    wrappers: str
    kernel: str
    functions: dict[str, Callable[..., Any]]
    constants: dict[str, Any]


def source_of(layout: ProgramLayout) -> KernelSource:
    """Generate the source text of a program's kernel.

    With `todo` empty, the kernel runs the rows from `first` to `last` in turn. Otherwise `todo` is
    a stack of `last` rows that wait for none. A row that waited only for one of these is pushed on
    the stack, as long as all have room in `done`, which already holds `first` rows. `s` is 0 while
    no operation has failed, then an outcome as in `Rows.outcomes`, or ``BACK``.
    """
    writer = _KernelWriter(layout)
    branches = writer.branches(" " * 8)
    arguments = ["codes, us, arrivals, slots, outcomes, results, base"]
    arguments.append("log_values, log_us, log_arrivals, log_before")
    arguments += [f"c{place}" for place in range(len(layout.columns))]
    arguments += table_names(layout)
    return KernelSource(
        "\n".join(writer.wrappers),
        _KERNEL.format(arguments=", ".join(arguments), branches=branches),
        writer.functions,
        writer.constants,
    )


class _KernelWriter(Writer):
    slot = "slot"
    us = "us[i]"
    arrival = "arrivals[i]"

    def __init__(self, layout: ProgramLayout):
        super().__init__(layout)
        self.wrappers: list[str] = []
        self._wrappers: dict[str, str] = {}  # wrapper names by body; calls that are alike share one

    def column(self, place: int) -> str:
        return f"c{place}[i]"

    def computed(self, name: str, ref: Ref, function: str, arguments: list[str]) -> None:
        wrapper = self._wrapper(_COMPUTED, function, arguments, size=ref.table.size)
        self.lines += [
            f"{name} = 0",
            "if s == 0:",
            f"    s, {name} = {wrapper}({', '.join(arguments)})",
        ]

    def operation(self, name: str, number: int, template: Template, arguments: list[str]) -> None:
        assert template.function is not None
        wrapper = self._wrapper(
            _OPERATION,
            self.name_of_function(template.function),
            arguments,
            given_none=1 if isinstance(template, Write) else "BACK",
        )
        self.lines += ["if s == 0:", f"    s, {name} = {wrapper}({', '.join(arguments)})"]
        if number:
            self.lines += ["    if s == 1:", f"        s = {number + 1}"]

    def check_written_twice(self, key: str, other: str) -> None:
        self.lines += [f"if s == 0 and {key} == {other}:", "    s = BACK"]

    def effects(self, writes: list[str], results: list[str]) -> None:
        kept = [f"results[slot + {place}] = {value}" for place, value in enumerate(results)]
        if kept:
            self.lines += ["if s == 0:", *(f"    {line}" for line in (*writes, *kept))]

    def _wrapper(self, text: str, function: str, arguments: list[str], **rest: object) -> str:
        names = ", ".join(f"a{place}" for place in range(len(arguments)))
        body = text.format(name="{name}", arguments=names, function=function, **rest)
        if body not in self._wrappers:
            name = f"call{len(self._wrappers)}"
            self._wrappers[body] = name
            self.wrappers.append(body.replace("{name}", name))
        return self._wrappers[body]
