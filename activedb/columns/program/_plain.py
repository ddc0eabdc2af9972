"""Python loop over the same templates and columns, for functions that are not compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from activedb.columns.program._layout import ProgramLayout, Template
from activedb.columns.program._rows import Rows
from activedb.columns.program._state import NONE, ColumnState
from activedb.columns.program._writer import Writer, table_names
from activedb.scheduling import REMOVED, Ref, Write

__all__ = ["PlainLoop"]

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
