"""Loop of a program over rows and a state: a compiled kernel, or Python from the same templates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from activedb.columns.program._batch import EXACT_MAX, Ints, Rows
from activedb.columns.program._conflicts import COUNT, SHIFT, Plan
from activedb.columns.program._functions import BACK, Compiled, NotCompilable, key_of, number_of
from activedb.columns.program._layout import Layout, Template
from activedb.columns.program._state import CHANGED, NONE, WRITTEN, ColumnState, window
from activedb.scheduling import REMOVED, Computed, Parameter, Program, Ref, Write

__all__ = ["Kernel", "PlainLoop", "Writer", "kernel_of", "table_names"]


class TableWrite(NamedTuple):
    """Write of an s-transaction: index of the table, names of key and value.

    `result` is the index of the value among the s-transaction's results.
    """

    table: int
    key: str
    value: str
    result: int


class Writer(ABC):
    """Generator of one branch per event type: the operations in order, then their writes.

    In the text, columns, tables, flags and heads are named ``c0``, ``t0``, ``w0``, ``h0`` and so
    on, in the layout's order; ``i`` is the row.

    Attributes
    ----------
    functions, constants : dict
        Users' functions and constant arguments, by their names in the text.
    """

    slot: str
    us: str
    arrival: str

    def __init__(self, layout: Layout):
        self.layout = layout
        self.functions: dict[str, Callable[..., Any]] = {}
        self.constants: dict[str, Any] = {}
        self.lines: list[str] = []
        self._code = 0
        self._read: dict[str, str] = {}  # names of values already read, by expression

    def branches(self, indent: str) -> str:
        """Return the branches of all event types."""
        text = []
        for code, templates in enumerate(self.layout.templates):
            self.lines, self._read, self._code = [], {}, code
            self._type(templates)
            text.append(f"{indent}{'elif' if code else 'if'} code == {code}:")
            text += [f"{indent}    {line}" for line in self.lines or ["pass"]]
        return "\n".join(text)

    def _type(self, templates: tuple[Template, ...]) -> None:
        written: list[TableWrite] = []
        results: list[str] = []
        for template in templates:  # issue all loads first, so that cache misses overlap
            for source in template.direct:
                if not isinstance(source.key, Computed) and source.window_us is None:
                    self._value(source)
        for number, template in enumerate(templates):
            key = self._key(template.targets[0]) if isinstance(template, Write) else ""
            values = [self._value(source) for source in template.direct]
            if template.function is None:
                results += values
                continue
            taken = [*values, *map(self._argument, template.args)]
            name = f"r{self._code}_{number}"
            self.operation(name, number, template, taken)
            if isinstance(template, Write):
                table = self.layout.number(template.targets[0].table)
                written.append(TableWrite(table, key, name, len(results)))
            results.append(name)
        for place, write in enumerate(written):
            for other in written[:place]:
                if other.table == write.table:
                    self.twice(other.key, write.key)
        self.effects([line for write in written for line in self._write(write)], results)

    @abstractmethod
    def column(self, place: int) -> str:
        """Return the expression for a row's value in a column."""

    @abstractmethod
    def computed(self, name: str, ref: Ref, function: str, taken: list[str]) -> None:
        """Emit the computation of a key."""

    @abstractmethod
    def operation(self, name: str, number: int, template: Template, taken: list[str]) -> None:
        """Emit the call of an operation's function."""

    @abstractmethod
    def twice(self, key: str, other: str) -> None:
        """Emit the check whether a key is written twice."""

    @abstractmethod
    def effects(self, writes: list[str], results: list[str]) -> None:
        """Emit all writes and store the results."""

    def named(self, value: Callable[..., Any]) -> str:
        """Return the name of a function in the text."""
        for name, other in self.functions.items():
            if other is value:
                return name
        name = f"f{len(self.functions)}"
        self.functions[name] = value
        return name

    def _key(self, ref: Ref) -> str:
        if isinstance(ref.key, Parameter):
            return self._once(self.column(self.layout.columns.index((ref.key.name, True))), "k")
        if not isinstance(ref.key, Computed):
            return str(int(ref.key))
        values = [self._value(read) for read in ref.key.reads]
        taken = [*values, *map(self._argument, ref.key.args)]
        name = f"q{self._code}_{len(self.lines)}"
        self.computed(name, ref, self.named(ref.key.function), taken)
        return name

    def _value(self, ref: Ref) -> str:
        key = self._key(ref)
        table = self.layout.number(ref.table)
        if ref.window_us is None:
            return self._once(f"t{table}[{key}]", "v")
        since = f"{self.us} - {ref.window_us}"  # not cached: each function gets its own array
        return f"window(log_values, log_us, log_before, h{table}[{key}], {since})"

    def _once(self, expression: str, letter: str) -> str:
        """Return the name of an expression's value, which is evaluated once per row."""
        if expression not in self._read:
            name = f"{letter}{self._code}_{len(self._read)}"
            self._read[expression] = name
            self.lines.append(f"{name} = {expression}")
        return self._read[expression]

    def _argument(self, arg: Any) -> str:
        if isinstance(arg, Parameter):
            return self.column(self.layout.columns.index((arg.name, False)))
        name = f"constant{len(self.constants)}"
        self.constants[name] = arg
        return name

    def _write(self, write: TableWrite) -> list[str]:
        table, key, value, result = write
        lines = [f"t{table}[{key}] = {value}", f"w{table}[{key}] = {CHANGED | WRITTEN}"]
        if self.layout.tables[table].history_us:
            lines += [
                f"place = base + {self.slot} + {result}",
                f"log_values[place] = {value}",
                f"log_us[place] = {self.us}",
                f"log_arrivals[place] = {self.arrival}",
                f"log_before[place] = h{table}[{key}]",
                f"h{table}[{key}] = place",
            ]
        return lines


def table_names(layout: Layout) -> list[str]:
    """Return the names of the tables in the text."""
    names = []
    for place, table in enumerate(layout.tables):
        names += [f"t{place}", f"w{place}"] + ([f"h{place}"] if table.history_us else [])
    return names


_LOOP = """\
def loop({names}):
    for i, ({row},) in enumerate(zip({columns})):
        try:
{branches}
        except Exception as error:
            failed(i, error)
            keep(None)
"""


class PlainLoop:
    """Serial execution of a program over columns, in Python.

    Parameters
    ----------
    layout : Layout
    """

    def __init__(self, layout: Layout):
        writer = _LoopWriter(layout)
        branches = writer.branches(" " * 12)
        places = range(len(layout.columns))
        columns = ["codes", *(f"c{place}" for place in places)]
        self._names = [*columns, *table_names(layout)]
        self._names += ["us", "arrivals", "slots", "base", "outcomes", "keep", "failed", "alone"]
        self._names += ["log_values", "log_us", "log_arrivals", "log_before"]
        names = {
            **writer.functions,
            **writer.constants,
            "REMOVED": REMOVED,
            "real": float,
            "window": _window,
        }
        text = _LOOP.format(
            names=", ".join([*self._names, *(f"{name}={name}" for name in names)]),
            row=", ".join(["code", *(f"p{place}" for place in places)]),
            columns=", ".join(columns),
            branches=branches,
        )
        # The names are generated here; from the user come only integers (keys, windows).
        exec(compile(text, f"<loop of {layout.program.name}>", "exec"), names)  # noqa: S102
        self._loop: Callable[..., None] = names["loop"]

    def run(
        self,
        rows: Rows,
        state: ColumnState,
        failed: Callable[[int, Exception], None],
        alone: Callable[[int], None],
    ) -> list[tuple[Any, ...] | None]:
        """Run all rows; O(rows).

        Parameters
        ----------
        rows : Rows
        state : ColumnState
            REQUIRES: room in its log for all versions the rows may write.
        failed : callable
            Called with the row and the exception.
        alone : callable
            Runs a row as one s-transaction, where this loop cannot.

        Returns
        -------
        list of (tuple or None)
            Results of each row; None: see its outcome.
        """
        kept: list[tuple[Any, ...] | None] = []
        view: Any = memoryview
        log = state.log
        values: list[Any] = [rows.codes.tolist()]
        values += [column.tolist() for column in rows.columns]
        for table, of_table, written, heads in zip(
            state.tables, state.values, state.written, state.heads, strict=True
        ):
            values += [view(of_table), view(written)]
            values += [view(heads)] if table.history_us else []
        values += [rows.us, rows.arrivals, rows.slots, log.used, view(rows.outcomes)]
        values += [kept.append, failed, alone]
        values += map(view, (log.values, log.us, log.arrivals, log.before))
        self._loop(**dict(zip(self._names, values, strict=True)))
        return kept


def _window(values: Any, us: Any, before: Any, head: int, since_us: int) -> list[float]:
    """Return the values of a window; `VersionLog.window` over memory views."""
    found = []
    place = head
    while place != NONE and us[place] >= since_us:
        earlier = before[place]
        if earlier < NONE:
            place = -3 - earlier
        else:
            found.append(values[place])
            place = earlier
    found.reverse()
    return found


class _LoopWriter(Writer):
    slot = "slots.item(i)"
    us = "us.item(i)"
    arrival = "arrivals.item(i)"

    def column(self, place: int) -> str:
        return f"p{place}"

    def computed(self, name: str, ref: Ref, function: str, taken: list[str]) -> None:
        self.lines += [
            f"{name} = {function}({', '.join(taken)})",
            f"{self.named(ref.table.check_key)}({name})",
        ]

    def operation(self, name: str, number: int, template: Template, taken: list[str]) -> None:
        assert template.function is not None
        self.lines.append(f"{name} = {self.named(template.function)}({', '.join(taken)})")
        if not isinstance(template, Write):
            return
        self.lines += [
            f"if {name}.__class__ is not real:",
            f"    if {name} is None:",
            f"        outcomes[i] = {number + 1}",
            "        keep(None)",
            "        continue",
            f"    if {name} is REMOVED:",
            "        keep(alone(i))",
            "        continue",
            f"    {name} = {self.named(template.targets[0].table.check_value)}({name})",
        ]

    def twice(self, key: str, other: str) -> None:
        self.lines += [f"if {key} == {other}:", "    keep(alone(i))", "    continue"]

    def effects(self, writes: list[str], results: list[str]) -> None:
        self.lines += [*writes, f"keep(({''.join(f'{value}, ' for value in results)}))"]


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
def {name}({taken}):
    try:
        value = {function}({taken})
    except Exception:
        return BACK, 0.0
    s, number = number_of(value)
    return {given_none} if s == 1 else s, number
"""

_COMPUTED = """\
@njit
def {name}({taken}):
    try:
        key = {function}({taken})
    except Exception:
        return BACK, 0
    return key_of(key, {size})
"""


@dataclass(frozen=True, slots=True)
class Source:
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


def source_of(layout: Layout) -> Source:
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
    return Source(
        "\n".join(writer.wrappers),
        _KERNEL.format(arguments=", ".join(arguments), branches=branches),
        writer.functions,
        writer.constants,
    )


class _KernelWriter(Writer):
    slot = "slot"
    us = "us[i]"
    arrival = "arrivals[i]"

    def __init__(self, layout: Layout):
        super().__init__(layout)
        self.wrappers: list[str] = []
        self._wrappers: dict[str, str] = {}  # wrapper names by body; calls that are alike share one

    def column(self, place: int) -> str:
        return f"c{place}[i]"

    def computed(self, name: str, ref: Ref, function: str, taken: list[str]) -> None:
        wrapper = self._wrapper(_COMPUTED, function, taken, size=ref.table.size)
        self.lines += [
            f"{name} = 0",
            "if s == 0:",
            f"    s, {name} = {wrapper}({', '.join(taken)})",
        ]

    def operation(self, name: str, number: int, template: Template, taken: list[str]) -> None:
        assert template.function is not None
        wrapper = self._wrapper(
            _OPERATION,
            self.named(template.function),
            taken,
            given_none=1 if isinstance(template, Write) else "BACK",
        )
        self.lines += ["if s == 0:", f"    s, {name} = {wrapper}({', '.join(taken)})"]
        if number:
            self.lines += ["    if s == 1:", f"        s = {number + 1}"]

    def twice(self, key: str, other: str) -> None:
        self.lines += [f"if s == 0 and {key} == {other}:", "    s = BACK"]

    def effects(self, writes: list[str], results: list[str]) -> None:
        kept = [f"results[slot + {place}] = {value}" for place, value in enumerate(results)]
        if kept:
            self.lines += ["if s == 0:", *(f"    {line}" for line in (*writes, *kept))]

    def _wrapper(self, text: str, function: str, taken: list[str], **rest: object) -> str:
        names = ", ".join(f"a{place}" for place in range(len(taken)))
        body = text.format(name="{name}", taken=names, function=function, **rest)
        if body not in self._wrappers:
            name = f"call{len(self._wrappers)}"
            self._wrappers[body] = name
            self.wrappers.append(body.replace("{name}", name))
        return self._wrappers[body]
