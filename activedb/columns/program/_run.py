"""Execution of a program over batches of events in columns, punctuation by punctuation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from activedb.columns.events import NO_VALUE, Column, EventColumns, Ints, column_of
from activedb.columns.program._conflicts import PrecedencePlanner
from activedb.columns.program._layout import ProgramLayout, refs_of
from activedb.columns.program._results import ColumnRefusal, ColumnResults
from activedb.columns.program._rows import Rows, is_exact, split
from activedb.columns.program._state import ColumnState
from activedb.columns.program._threads import run_plan
from activedb.columns.program._writer import PlainLoop
from activedb.compiler import has_compiler, jit
from activedb.errors import AccessError, DefinitionError
from activedb.scheduling import (
    At,
    Outcome,
    Parameter,
    Program,
    STransaction,
    Write,
    evaluate,
)

__all__ = ["DECISIONS", "Checker", "ColumnRun", "ValueSnapshot"]


class Checker:
    """Validator for the batches of one program.

    Parameters
    ----------
    layout : ProgramLayout
    """

    def __init__(self, layout: ProgramLayout):
        self._layout = layout
        self._uses = [(use, self._mask(use.codes)) for use in layout.key_uses]

    def codes(self, events: EventColumns) -> Ints:
        """Return per event the index of its type in the program; -1: unknown to the program."""
        known = tuple(self._layout.program.types)
        if events.types == known:
            return events.codes
        places = {name: place for place, name in enumerate(known)}
        return np.array([places.get(name, -1) for name in events.types], np.int64)[events.codes]

    def check(
        self, us: Ints, params: Mapping[str, Column], codes: Ints, punctuation_us: int | None
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
        if punctuation_us is not None and len(codes) and us.min() < punctuation_us:
            refuse(
                us < punctuation_us,
                lambda row: (
                    f"it came too late: its time is before the punctuation {punctuation_us}"
                ),
            )
        needed = dict.fromkeys(name for needs in self._layout.needs for name in needs)
        lacking = {name: _lacking(params.get(name)) for name in needed}
        for code, needs in enumerate(self._layout.needs):
            for name in needs:
                if lacking[name].any():
                    concerned = lacking[name] & (codes == code)
                    refuse(concerned, lambda row, name=name: f"it lacks {name!r}")
        none = np.zeros(len(codes), np.int64)
        given = {name: params.get(name, none) for name, _ in self._layout.columns}
        columns = [
            _whole(given[name]) if is_key else given[name] for name, is_key in self._layout.columns
        ]
        for use, concerned in self._uses:
            keys = columns[self._layout.columns.index((use.name, True))]
            size = use.table.size or 0
            unsigned = keys.view(np.uint64)  # negative keys become large
            if use.name in params and len(keys) and unsigned.max() >= size:
                bad = concerned[codes] & (codes >= 0) & (unsigned >= size)
                refuse(bad, lambda row: self._first_invalid(int(codes[row]), given, row))
        return columns, reasons

    def _first_invalid(self, code: int, given: Mapping[str, Column], row: int) -> str:
        """Return why a row is refused: for the first invalid key in the order of its accesses."""
        for ref in refs_of(self._layout.templates[code]):
            if isinstance(ref.key, Parameter):
                column = given[ref.key.name]
                try:
                    ref.table.check_key(column[row] if column.dtype == object else column.item(row))
                except AccessError as error:
                    return f"AccessError: {error}"
        raise AssertionError("a valid key was refused")

    def _mask(self, codes: tuple[int, ...]) -> Column:
        mask = np.zeros(max(1, len(self._layout.templates)), np.bool_)
        mask[list(codes)] = True
        return mask


def _lacking(column: Column | None) -> Column | np.bool_:
    """Return at which rows of a column, if there is one, events do not have the parameter."""
    if column is None or column.dtype != object:
        return np.bool_(column is None)
    return np.fromiter((value is NO_VALUE for value in column), np.bool_, len(column))


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


# -- snapshots of tables before rows run, restored if the rows are interrupted ---------------------


_WHOLE_BYTES: Final = 32  # copying this many bytes costs as much as gathering one key

_Array = npt.NDArray[Any]
_Chosen = tuple[Ints, Ints]  # rows, and the column with their keys


@dataclass(frozen=True, slots=True)
class _Saved:
    """Saved contents of an array at some keys; None: of the whole array."""

    array: _Array
    chosen: _Chosen | None
    old: _Array

    def put_back(self) -> None:
        if self.chosen is None:
            self.array[:] = self.old
        else:
            rows, column = self.chosen
            self.array[column.take(rows)] = self.old


class ValueSnapshot:
    """Snapshot of the values that rows may write: O(rows), or O(size) of a table if smaller.

    One instance serves a whole run and reuses its memory, as allocating for each batch would cost
    as much as filling it.

    Parameters
    ----------
    layout : ProgramLayout
    """

    def __init__(self, layout: ProgramLayout):
        self._layout = layout
        self._rooms: dict[int, _Array] = {}
        self._saved: list[_Saved] = []

    def save(self, state: ColumnState, rows: Rows) -> None:
        """Save the values that the rows about to run may write."""
        self._log = (state.log, state.log.used, state.last_arrival)
        self._saved = []
        layout = self._layout
        of_code = [np.flatnonzero(rows.codes == code) for code in range(len(layout.templates))]
        for place in range(len(layout.tables)):
            written = _written(layout, place, rows, of_code)
            for array in (state.values[place], state.written[place], state.heads[place]):
                self._save(array, written)

    def put_back(self, state: ColumnState) -> None:
        """Restore all saved values; REQUIRES: no row runs any more, no trimming since."""
        for saved in self._saved:
            saved.put_back()
        state.log, state.log.used, state.last_arrival = self._log

    def _save(self, array: _Array, written: list[_Chosen] | None) -> None:
        if written is None or sum(len(rows) for rows, _ in written) * _WHOLE_BYTES > array.nbytes:
            room = self._room(array.dtype, len(array))
            np.copyto(room, array)
            self._saved.append(_Saved(array, None, room))
            return
        for rows, column in written:
            room = self._room(array.dtype, len(rows))
            gather(array, rows, column, room)
            self._saved.append(_Saved(array, (rows, column), room))

    def _room(self, dtype: np.dtype[Any], count: int) -> _Array:
        """Return memory for the next array, reused from the previous batch if large enough."""
        number = len(self._saved)
        room = self._rooms.get(number)
        if room is None or room.dtype != dtype or len(room) < count:
            self._rooms[number] = room = np.empty(count + count // 4, dtype)
        return room[:count]


@jit
def gather(array: _Array, rows: Ints, column: Ints, into: _Array) -> None:
    """Copy the array's values at the keys of some rows."""
    for number, row in enumerate(rows):
        into[number] = array[column[row]]


def _written(
    layout: ProgramLayout, place: int, rows: Rows, of_code: list[Ints]
) -> list[_Chosen] | None:
    """Return the keys of a table that rows may write; None (any key) if keys are computed."""
    found: list[_Chosen] = []
    for code, operations in enumerate(layout.templates):
        for operation in operations:
            for ref in operation.targets if isinstance(operation, Write) else ():
                if ref.table is not layout.tables[place]:
                    continue
                if isinstance(ref.key, Parameter):
                    column = rows.columns[layout.columns.index((ref.key.name, True))]
                    found.append((of_code[code], column))
                elif isinstance(ref.key, int | np.integer):
                    found.append((np.zeros(1, np.int64), np.array([ref.key], np.int64)))
                else:
                    return None
    return found


# -- execution of a program over batches of events in columns, punctuation by punctuation ----------


DECISIONS: Final = ("serial", "parallel", "python")

_SAMPLE = 32  # rows of the first measurement of the cost per row
_SAMPLE_S = 0.0005  # a measurement that takes longer counts, even if rows seem dear
_WORTH_S = 0.002  # threads pay off for batches that take longer than this,
_ROW_WORTH_S = 0.5e-6  # and for rows that take longer than planning them
_PARALLELISM_MIN = 1.2
_CHUNK_S = 0.01  # handing out a chunk takes some ten microseconds


class ColumnRun:
    """Execution of a program over columns: batches in any order of time, and punctuations.

    State, the versions that windows need, and outcomes equal those of the serial order, i.e. of
    `ProgramRun` with `SerialOrder`. Functions that numba can compile run compiled, the others in a
    Python loop; see README.md, "Which functions are compiled".

    Parameters
    ----------
    program : Program
    threads : int
        Maximum number of threads that run at once; the calling thread waits for them.
    decision : str, optional
        ``"serial"``: the compiled serial order; ``"parallel"``: s-transactions that do not conflict
        run on all threads; ``"python"``. By default the cost and conflicts of each batch decide.
    state : ColumnState, optional
        State to continue from; by default all tables have their initial values.
    punctuation_us : int, optional
        Punctuation reached by an earlier run: events before it are refused.

    Attributes
    ----------
    state : ColumnState
    not_compiled : str or None
        Reason why the program's functions run in Python; None if compiled, or if no row has run
        yet.

    Raises
    ------
    DefinitionError
        If the program cannot run in columns (see `supports`), or the decision does not exist.

    Not thread-safe: a single thread feeds.
    """

    def __init__(
        self,
        program: Program,
        threads: int = 2,
        decision: str | None = None,
        state: ColumnState | None = None,
        punctuation_us: int | None = None,
    ):
        if decision is not None and decision not in DECISIONS:
            raise DefinitionError(f"a decision is one of {', '.join(DECISIONS)}, not {decision!r}")
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise DefinitionError(f"threads is a whole number from 1, not {threads!r}")
        self.program = program
        self.threads = threads
        self.decision = decision
        self.layout = ProgramLayout(program)
        self.state = ColumnState(program.tables) if state is None else state
        self.punctuation_us = punctuation_us
        self.not_compiled: str | None = None
        self._checker = Checker(self.layout)
        self._widths = np.array(self.layout.widths or (0,), np.int64)
        self._waiting: list[Rows] = []
        self._arrivals = self.state.last_arrival
        self._kernel: Any = None
        self._planner: PrecedencePlanner | None = None
        self._cost_s: float | None = None  # per row, on one thread, in the last batch
        self._plain = PlainLoop(self.layout)
        self._undo = ValueSnapshot(self.layout)
        if decision == "python":
            self.not_compiled = "the decision was python"
        elif not has_compiler():
            self.not_compiled = "numba is not installed"
        else:
            self._load()

    @property
    def waiting(self) -> int:
        """Number of events that wait for a punctuation."""
        return sum(map(len, self._waiting))

    def feed(self, events: EventColumns, punctuation_us: int | None = None) -> ColumnResults:
        """Take events; run those that a punctuation has passed.

        A feed takes effect completely or not at all. If it raises (Ctrl-C, or a `BaseException`
        that is not an `Exception` in a function), no change remains, and the feed may be repeated.
        The one exception: if `punctuation_us` has moved, all changes are in effect, and only the
        results are lost.

        Parameters
        ----------
        events : EventColumns
            In any order of time.
        punctuation_us : int, optional
            No event before it will follow.

        Returns
        -------
        ColumnResults
        """
        known_us = self.punctuation_us
        if punctuation_us is not None and known_us is not None and punctuation_us <= known_us:
            punctuation_us = None
        return self._step(events, punctuation_us, is_last=False)

    def finish(self) -> ColumnResults:
        """Run all waiting events at the end of the stream; all or nothing, like `feed`."""
        return self._step(None, None, is_last=True)

    def _step(
        self, events: EventColumns | None, until_us: int | None, *, is_last: bool
    ) -> ColumnResults:
        known = (self.punctuation_us, self._waiting, self._arrivals)
        saved = False
        try:
            reached_us, waiting, arrivals = known
            passed: list[Rows] = []
            refused: list[ColumnRefusal] = []
            if events is not None:
                rows, refused = self._taken(events)
                arrivals += len(rows)
                waiting = [*waiting, rows] if len(rows) else waiting
            if is_last:
                passed, waiting = waiting, []
            elif until_us is not None:
                passed, waiting = split(waiting, until_us)
                reached_us = until_us
            ran = Rows.joined(passed) if passed else self._nothing()
            order = ran.order()
            if order is not None:
                ran = ran.take(order)
            if len(ran):
                self._undo.save(self.state, ran)
                saved = True
            results = self._run(ran)
            results.refused = refused
            if is_last and len(results):  # events that are not later would now be too late
                reached_us = max(int(results.us[-1]) + 1, known[0] or int(results.us[-1]) + 1)
            self.punctuation_us, self._waiting, self._arrivals = reached_us, waiting, arrivals
            if until_us is None:
                return results
        except BaseException:
            self._planner = None  # it may know rows that have not run
            if saved:
                self._undo.put_back(self.state)
            self.punctuation_us, self._waiting, self._arrivals = known
            raise
        self.state.trim(At(until_us, "", 0))
        return results

    # -- taking ----------------------------------------------------------------------------------

    def _taken(self, events: EventColumns) -> tuple[Rows, list[ColumnRefusal]]:
        """Return the accepted rows, which have to wait, and the refused events."""
        codes = self._checker.codes(events)
        params = {name: column_of(column) for name, column in events.params.items()}
        columns, reasons = self._checker.check(events.us, params, codes, self.punctuation_us)
        arrivals = np.arange(self._arrivals + 1, self._arrivals + 1 + len(events))
        ids = (
            None if events.ids is None else np.array([i or "" for i in events.ids.to_pylist()], str)
        )
        rows = Rows(codes, events.us, arrivals, ids, params, columns)
        if not reasons:
            return rows, []
        kept = np.ones(len(events), np.bool_)
        kept[list(reasons)] = False
        rows = rows.take(kept)
        rows.arrivals = arrivals[: len(rows)]
        return rows, [ColumnRefusal(row, reasons[row]) for row in sorted(reasons)]

    def _nothing(self) -> Rows:
        none = np.empty(0, np.int64)
        return Rows(none, none, none, None, {}, [none for _ in self.layout.columns])

    # -- running ---------------------------------------------------------------------------------

    def _run(self, rows: Rows) -> ColumnResults:
        """Run rows that are in the serial order."""
        count = len(rows)
        widths = self._widths[rows.codes]
        rows.slots = np.cumsum(widths) - widths
        total = int(rows.slots[-1] + widths[-1]) if count else 0
        rows.outcomes = np.zeros(count, np.uint16)
        rows.special = {}
        results = ColumnResults(self.layout, rows)
        if not count:
            return results
        log = self.state.log
        if self.layout.has_history:
            log.reserve(total)
        results.not_compiled = self._why_python(rows)
        if results.not_compiled is None:
            rows.results = np.empty(total, np.float64)
            self._run_compiled(rows, results)
        else:
            self._run_plain(rows, results)
        if self.layout.has_history:
            log.used += total
        self.state.last_arrival = max(self.state.last_arrival, int(rows.arrivals.max()))
        return results

    def _run_plain(self, rows: Rows, results: ColumnResults) -> None:
        def failed(row: int, error: Exception) -> None:
            rows.aborted(row, Outcome.of_error(error))

        results.decision = "python"
        results.kept = self._plain.run(rows, self.state, failed, lambda row: self._alone(rows, row))

    def _alone(self, rows: Rows, row: int) -> None:
        """Run one s-transaction uncompiled, with the general evaluator over the columns.

        REQUIRES: all earlier conflicting rows have ended; no later conflicting row is running.
        """
        at = rows.at(row)
        type_ = self.program.types[rows.codes.item(row)]
        params = rows.params_of(row)
        transaction = STransaction(at, type_, params, self.program.operations(type_, params))
        writes, outcome = evaluate(transaction, self.state.reader(at))
        self.state.write_at(writes, at, self.state.log.used + rows.slots.item(row))
        if outcome.committed:
            rows.special[row] = outcome
        else:
            rows.aborted(row, outcome)

    def _load(self) -> None:
        from activedb.columns.program._functions import NotCompilable
        from activedb.columns.program._kernels import kernel_of

        try:
            self._kernel = kernel_of(self.program, self.program.types)
        except NotCompilable as error:
            self.not_compiled = str(error)

    def _why_python(self, rows: Rows) -> str | None:
        """Return why columns like these cannot run compiled; compile the kernel on first use."""
        if self.not_compiled is not None:
            return self.not_compiled
        given = [
            (name, column)
            for column, (name, is_key) in zip(rows.columns, self.layout.columns, strict=True)
            if not is_key
        ]
        for name, column in given:
            if column.dtype == object:
                return f"{name} has values that are not numbers, or of several kinds"
        from activedb.columns.program._functions import NotCompilable

        try:
            self._kernel.compile(self._kernel.arguments(rows, self.state))
        except NotCompilable as error:
            self.not_compiled = str(error)
            return self.not_compiled
        for name, column in given:
            if not is_exact(column, self._kernel.whole_max):
                return f"{name} has numbers that compiled code might not compute exactly"
        return None

    def _run_compiled(self, rows: Rows, results: ColumnResults) -> None:
        """Run rows serially or on threads, as decided."""
        arguments = self._kernel.arguments(rows, self.state)
        count = len(rows)
        results.decision = "serial"
        first = 0
        start = time.thread_time()
        if self.decision is None and self.threads > 1:
            if self._cost_s is None:
                first, self._cost_s = self._sampled(rows, arguments)
            if self._cost_s > _ROW_WORTH_S and self._cost_s * (count - first) > _WORTH_S:
                self._in_parallel(rows, results, first, arguments)
        elif self.decision == "parallel":
            self._in_parallel(rows, results, first, arguments)
        if results.decision == "serial":
            self._serially(rows, first, count, arguments)
            self._cost_s = (time.thread_time() - start) / count

    def _sampled(self, rows: Rows, arguments: tuple[Any, ...]) -> tuple[int, float]:
        """Run some rows serially; return their number and the cost per row.

        A call of the compiled function and rows that are not in the cache yet cost more than a
        cheap row. So rows that seem dear are measured again, four times as many each time, until
        the measurement takes long.
        """
        first, size, cost_s = 0, _SAMPLE, 0.0
        while first < len(rows):
            begin, start_s = first, time.thread_time()
            first = self._serially(rows, first, min(first + size, len(rows)), arguments)
            taken_s = time.thread_time() - start_s
            cost_s = taken_s / (first - begin)
            if cost_s <= _ROW_WORTH_S or taken_s > _SAMPLE_S:
                break
            size *= 4
        return first, cost_s

    def _in_parallel(
        self, rows: Rows, results: ColumnResults, first: int, arguments: tuple[Any, ...]
    ) -> None:
        """Run the rows from `first` on threads if their conflicts leave enough parallelism."""
        if self._planner is None:
            self._planner = PrecedencePlanner(self.layout)
        plan = self._planner.plan(rows, first)
        if self.decision is None and plan.parallelism < _PARALLELISM_MIN:
            return
        results.decision = "parallel"
        busy_s = run_plan(
            plan,
            lambda *parts: self._kernel.chunk(*parts, plan, arguments),
            lambda row: self._alone(rows, row),
            threads=self.threads,
            chunk_rows=64 if not self._cost_s else int(_CHUNK_S / self._cost_s),
        )
        self._cost_s = busy_s / (len(rows) - first)

    def _serially(self, rows: Rows, first: int, last: int, arguments: tuple[Any, ...]) -> int:
        """Run rows one after the other; return `last`."""
        while first < last:
            row = self._kernel.in_turn(first, last, arguments)
            if row < 0:
                break
            self._alone(rows, row)
            first = row + 1
        return last
