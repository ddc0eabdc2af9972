"""Text of a program's operations, common to the kernel and the Python loop; and that loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from activedb.columns.program._layout import ProgramLayout, Template
from activedb.columns.program._rows import Rows
from activedb.columns.program._state import CHANGED, NONE, WRITTEN, ColumnState
from activedb.scheduling import REMOVED, Computed, Parameter, Ref, Write

__all__ = [
    "PlainLoop",
    "Writer",
    "table_names",
]


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

    def __init__(self, layout: ProgramLayout):
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
            arguments = [*values, *map(self._argument, template.args)]
            name = f"r{self._code}_{number}"
            self.operation(name, number, template, arguments)
            if isinstance(template, Write):
                table = self.layout.number(template.targets[0].table)
                written.append(TableWrite(table, key, name, len(results)))
            results.append(name)
        for place, write in enumerate(written):
            for other in written[:place]:
                if other.table == write.table:
                    self.check_written_twice(other.key, write.key)
        self.effects([line for write in written for line in self._write(write)], results)

    @abstractmethod
    def column(self, place: int) -> str:
        """Return the expression for a row's value in a column."""

    @abstractmethod
    def computed(self, name: str, ref: Ref, function: str, arguments: list[str]) -> None:
        """Emit the computation of a key."""

    @abstractmethod
    def operation(self, name: str, number: int, template: Template, arguments: list[str]) -> None:
        """Emit the call of an operation's function."""

    @abstractmethod
    def check_written_twice(self, key: str, other: str) -> None:
        """Emit the check whether a key is written twice."""

    @abstractmethod
    def effects(self, writes: list[str], results: list[str]) -> None:
        """Emit all writes and store the results."""

    def name_of_function(self, value: Callable[..., Any]) -> str:
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
        arguments = [*values, *map(self._argument, ref.key.args)]
        name = f"q{self._code}_{len(self.lines)}"
        self.computed(name, ref, self.name_of_function(ref.key.function), arguments)
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


def table_names(layout: ProgramLayout) -> list[str]:
    """Return the names of the tables in the text."""
    names = []
    for place, table in enumerate(layout.tables):
        names += [f"t{place}", f"w{place}"] + ([f"h{place}"] if table.history_us else [])
    return names


# -- Python loop over columns, for functions that are not compiled ---------------------------------

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
    layout : ProgramLayout
    """

    def __init__(self, layout: ProgramLayout):
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

    def computed(self, name: str, ref: Ref, function: str, arguments: list[str]) -> None:
        self.lines += [
            f"{name} = {function}({', '.join(arguments)})",
            f"{self.name_of_function(ref.table.check_key)}({name})",
        ]

    def operation(self, name: str, number: int, template: Template, arguments: list[str]) -> None:
        assert template.function is not None
        self.lines.append(
            f"{name} = {self.name_of_function(template.function)}({', '.join(arguments)})"
        )
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
            f"    {name} = {self.name_of_function(template.targets[0].table.check_value)}({name})",
        ]

    def check_written_twice(self, key: str, other: str) -> None:
        self.lines += [f"if {key} == {other}:", "    keep(alone(i))", "    continue"]

    def effects(self, writes: list[str], results: list[str]) -> None:
        self.lines += [*writes, f"keep(({''.join(f'{value}, ' for value in results)}))"]
