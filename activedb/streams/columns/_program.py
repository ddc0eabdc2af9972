"""Program of a stream in columns: its state, its stored table, and the parts of its events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from activedb.columns import Arrival
from activedb.columns.events import (
    Column,
    ColumnEvents,
    EventColumns,
    Ints,
    Mask,
    Values,
    objects,
    pieces_of,
)
from activedb.columns.program import (
    ColumnResults,
    ColumnRun,
    ColumnState,
    ColumnVersions,
)
from activedb.errors import BatchFailed
from activedb.events import decode_params
from activedb.firing import Letter, storable
from activedb.metrics import NamedCounters
from activedb.scheduling import At, Program, Refusal, SharedTable, STransaction, build_s_transaction
from activedb.store import Connection
from activedb.store.flush import ColumnRows
from activedb.store.journals import ColumnNote, ProgramJournal
from activedb.store.sql import KeyedValues
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._programs import PROGRAMS_MAX, ProgramsOfStream, check_row, take_tables
from activedb.streams._stream_programs import (
    ProgramTransaction,
    StreamPrograms,
    letter_of,
    post_process,
)
from activedb.transactions import Forest, TransactionNode, lock_table
from lockmgr import Mode

__all__ = ["ChangedRows", "ColumnProgram", "ColumnTable"]


_BEFORE_ALL_US = -(2**62)
"""Place of versions from before the first s-transaction."""


@dataclass(frozen=True, eq=False, slots=True)
class ChangedRows:
    """Changes of a table's rows.

    Attributes
    ----------
    added, changed : tuple of (array of int64, array of float64)
        Keys and values of new rows, and of rows with new values.
    gone : array of int64
        Keys of deleted rows.
    """

    added: tuple[Ints, Column]
    changed: tuple[Ints, Column]
    gone: Ints


class ColumnTable:
    """Shared table of a program in columns; the counterpart of `ProgramTable`.

    Versions are stored as bytes, one value or a few per part.

    Parameters
    ----------
    shared : SharedTable
        With a size.
    kept : KeyedValues
        With one key column and float values.
    """

    def __init__(self, shared: SharedTable, kept: KeyedValues):
        self.shared = shared
        self.kept = kept
        self.rows = ColumnRows(kept.spec, kept.columns[0])

    def load(self, state: ColumnState, journal: ProgramJournal) -> None:
        """Load the committed rows and versions into a new state; O(rows + versions).

        Raises
        ------
        DefinitionError
            If a row is not a valid key and value of the shared table.
        """
        keys, values = self._checked(*journal.read_columns(self.rows))
        state.put(self.shared, keys, values)
        if self.shared.history_us:
            kept = self._kept_versions(journal)
            state.put_versions(self.shared, self._mended(kept, keys, values))

    def changes(self, state: ColumnState, before: ColumnState) -> ChangedRows | None:
        """Return the changes since the last `settle`; None if there are none.

        Parameters
        ----------
        before : ColumnState
            Copy of the state at that time.
        """
        keys, values, there = state.changes(self.shared)
        place = before.number(self.shared)
        was = before.is_written(self.shared, keys)
        old = before.values[place][keys]
        differ = was & there & ((values != old) | (np.signbit(values) != np.signbit(old)))  # -0.0
        added, gone = there & ~was, was & ~there
        if not (differ.any() or added.any() or gone.any()):
            return None
        return ChangedRows((keys[added], values[added]), (keys[differ], values[differ]), keys[gone])

    def write(self, connection: Connection, changes: ChangedRows) -> None:
        """Write the rows, in a constant number of round trips."""
        self.rows.write(connection, added=changes.added, changed=changes.changed, gone=changes.gone)

    # -- versions --------------------------------------------------------------------------

    def versions(self, state: ColumnState, first_us: int) -> ColumnVersions | None:
        """Return the versions at or after a time that must be stored; None if there are none."""
        if not self.shared.history_us:
            return None
        found = state.versions_since(self.shared, first_us)
        return found if len(found) else None

    # -- internals -------------------------------------------------------------------------

    def _checked(self, keys: Any, values: Any) -> tuple[Ints, Column]:
        """Return keys and values of rows as arrays, after checking that the table allows them."""
        size = self.shared.size or 0
        if isinstance(keys, np.ndarray) and isinstance(values, np.ndarray):
            bad = np.flatnonzero((keys < 0) | (keys >= size))
            doubtful = [(keys.item(row), values.item(row)) for row in bad[:1].tolist()]
        else:
            doubtful = list(zip(keys, values, strict=True))
        for key, value in doubtful:
            check_row(self.shared, self.kept, key, value)
        return np.asarray(keys, np.int64), np.asarray(values, np.float64)

    def _kept_versions(self, journal: ProgramJournal) -> ColumnVersions:
        """Return the versions stored in columns and those stored one by one by other schedulers."""
        name = self.kept.spec.name
        found = [ColumnVersions.of_bytes(data) for data in journal.columns.versions(name)]
        records = journal.versions(name)
        gone = np.array([record["removed"] for record in records], np.bool_)
        found.append(
            ColumnVersions(
                np.array([decode_params(json.loads(r["key"]))["key"] for r in records], np.int64),
                np.array([record["us"] for record in records], np.int64),
                np.array([record["arrival"] for record in records], np.int64),
                np.array(
                    [0.0 if r["removed"] else decode_params(r["value"])["value"] for r in records],
                    np.float64,
                ),
                gone,
            )
        )
        all_ = _joined(found)
        fit = (all_.keys >= 0) & (all_.keys < (self.shared.size or 0))  # the size may have shrunk
        return all_ if fit.all() else all_.take(fit)

    def _mended(self, kept: ColumnVersions, keys: Ints, values: Column) -> ColumnVersions:
        """Return the versions, with the newest of each key corrected from the rows.

        The rows are authoritative: they may have been repaired while no process owned the table.
        """
        size = self.shared.size or 0
        of_row = np.full(size, np.nan)
        of_row[keys] = values
        has_row = np.zeros(size, np.bool_)
        has_row[keys] = True
        order = np.lexsort((kept.arrivals, kept.us, kept.keys))
        last = np.ones(len(order), np.bool_)
        last[:-1] = kept.keys[order][1:] != kept.keys[order][:-1]
        newest = order[last]
        known = kept.keys[newest]
        written, gone = kept.values.copy(), kept.gone.copy()
        written[newest] = np.where(has_row[known], of_row[known], 0.0)
        gone[newest] = ~has_row[known]
        has_row[known] = False  # the remaining keys have rows but no stored versions
        others = np.flatnonzero(has_row)
        return _joined(
            [
                ColumnVersions(kept.keys, kept.us, kept.arrivals, written, gone),
                ColumnVersions(
                    others,
                    np.full(len(others), _BEFORE_ALL_US),
                    np.zeros(len(others), np.int64),
                    of_row[others],
                    np.zeros(len(others), np.bool_),
                ),
            ]
        )


def _joined(parts: Sequence[ColumnVersions]) -> ColumnVersions:
    return ColumnVersions(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("keys", "us", "arrivals", "values", "gone")
        )
    )


_BEFORE_ALL = At(-(2**62), "", 0)


@dataclass(slots=True)
class _ColumnEffects:
    """Effects of a part, to be written with it."""

    rows: list[tuple[ColumnTable, ChangedRows]] = field(default_factory=list)
    versions: list[tuple[ColumnTable, ColumnVersions]] = field(default_factory=list)
    outputs: list[Mapping[str, Any]] = field(default_factory=list)
    committed: int = 0
    aborted: int = 0


class ColumnProgram:
    """Single program of a stream in columns; the counterpart of `StreamPrograms`.

    A part that cannot run in columns is run by `rows`, which holds the state meanwhile.

    Not thread-safe: used only by the thread that feeds the stream.

    Parameters
    ----------
    threads : int
        Maximum number of threads that run s-transactions at once.

    Attributes
    ----------
    rows : StreamPrograms
        The same program, event by event.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        of: ProgramsOfStream,
        *,
        rows: StreamPrograms,
        forest: Forest,
        journal: ProgramJournal,
        counters: NamedCounters,
        threads: int,
    ):
        (self._defined,) = of.programs
        self.rows = rows
        self._name = f"the programs of stream {stream.name}"
        self._stream = stream
        self._forest = forest
        self._journal = journal
        self._counters = counters
        self._threads = threads
        self._tables = [ColumnTable(shared, kept) for shared, kept in of.tables.items()]
        self._processed = 0  # events of all committed parts
        self._run = self._going_on(ColumnState(of.tables))
        self._is_by_rows = False  # True while `rows` holds the state
        # Of the current part: the state before it, and the data it writes.
        self._before: ColumnState | None = None
        self._left = _ColumnEffects()

    @property
    def state(self) -> ColumnState:
        """Committed state, plus the changes of the current part."""
        return self._run.state

    # -- loading and recovery --------------------------------------------------------------

    def begin(self, processed: int) -> None:
        """Take ownership of the tables for this process and this stream, and load them.

        Raises
        ------
        TableOwned
            If another process uses one of them.
        DefinitionError
            If the server itself changes rows of one of them, or one has a row that no s-transaction
            can have written.
        """
        specs = [table.kept.spec for table in self._tables]
        take_tables(self._forest, specs, self._name, lambda: self.load(processed))

    def absorb(self, events: ColumnEvents, notes: Mapping[ColumnNote, Sequence[bytes]]) -> None:
        """Need no replayed events: windows are served by stored versions."""

    def load(self, processed: int) -> None:
        """Load the committed state, after a number of processed events of the stream."""
        state = ColumnState(table.shared for table in self._tables)
        for table in self._tables:
            table.load(state, self._journal)
        self._run = self._going_on(state)
        self._processed, self._before, self._is_by_rows = processed, None, False
        self._left = _ColumnEffects()

    def take_back(self) -> None:
        """Return to the committed state; discard the changes of an earlier attempt at a part."""
        if self._is_by_rows:
            self.rows.take_back()
            self.of_rows()
        if self._before is not None:
            self._run = self._going_on(self._before)
            self._before = None
        self._left = _ColumnEffects()

    def committed(self, events: int) -> None:
        """Record that a part with a number of events has committed."""
        left, self._left, self._before = self._left, _ColumnEffects(), None
        self._processed += events
        self.state.settle()
        for name, count in (("committed", left.committed), ("aborted", left.aborted)):
            if count:
                self._counters.add(f"s_transactions_{name}", count)

    def to_rows(self) -> StreamPrograms:
        """Hand the committed state to `rows`; O(keys + versions)."""
        state = self.state.to_state()
        state.trim(self.state.mark or _BEFORE_ALL)  # so that only later writes count as changes
        self.rows.go_on(state, self._processed)
        self._is_by_rows = True
        return self.rows

    def of_rows(self) -> None:
        """Take the committed state back from `rows`, if that holds it."""
        if self._is_by_rows:
            state = ColumnState.of_state(self.rows.state)
            state.settle()
            self._run, self._processed = self._going_on(state), self.rows.processed
            self._is_by_rows = False

    # -- a part ----------------------------------------------------------------------------

    def process(
        self, t: TransactionNode, events: ColumnEvents, reached_us: int, *, fail_fast: bool
    ) -> list[Letter]:
        """Run the s-transactions of a part's events; return letters of refused events.

        Parameters
        ----------
        t : TransactionNode
            Transaction of the part.
        events : ColumnEvents
            In event-time order.
        reached_us : int
            Time reached: all of these events are before it, and no later event is.
        fail_fast : bool
            Raise `BatchFailed` instead of making a letter.
        """
        self.take_back()
        for table in self._tables:
            lock_table(t, table.kept.spec, Mode.X)
        self._before = self.state.copy()
        batch = ProgramBatch(self._run, events)
        results = self._run.feed(batch.columns, reached_us)
        refused = [*batch.refused, *(batch.rows.item(r.row) for r in results.refused)]
        letters = [self._letter(events, row) for row in sorted(refused)]
        ran = batch.rows
        if results.refused:
            ran = np.delete(ran, [refusal.row for refusal in results.refused])
        assert len(results) == len(ran), "what is before the punctuation has run"
        if len(events):
            self._note_changes(t, events.us.item(0))
        numbers = (self._processed + 1 + ran) * PROGRAMS_MAX
        if self._defined.program.post_processes:
            works = self._works(events.arrivals(ran), numbers, results)
            self._left.outputs, more = post_process(t, self._stream.name, works)
        else:
            self._left.outputs, more = self._aborts(events, ran, numbers, results), []
        self._left.committed = int(np.count_nonzero(results.committed))
        self._left.aborted = len(results) - self._left.committed
        letters += more
        if letters and fail_fast:
            raise BatchFailed(
                f"stream {self._stream.name}: event {letters[0].identity}: {letters[0].reason}"
            )
        return letters

    def write(self, connection: Connection, sequence: int, reached_us: int) -> None:
        """Write the effects of the part, within its commit.

        Parameters
        ----------
        sequence : int
            Sequence number of the part.
        reached_us : int
            Time that no later event precedes.
        """
        for number, (table, changes) in enumerate(self._left.rows):
            table.write(connection, changes)
            if not number:
                self._forest.store.trigger("inside flush")
        self._journal.write_outputs(connection, self._left.outputs)
        for table, versions in self._left.versions:
            name = table.kept.spec.name
            pieces = [
                (piece.to_bytes(), int(piece.us.max()))
                for piece in map(versions.take, pieces_of(len(versions)))
            ]
            self._journal.columns.write(connection, sequence, pieces, name)
        for table in self._tables:
            if table.shared.history_us:
                before_us = reached_us - table.shared.history_us
                self._journal.forget_versions(connection, table.kept.spec.name, before_us)

    # -- internals -------------------------------------------------------------------------

    def _going_on(self, state: ColumnState) -> ColumnRun:
        return ColumnRun(self._defined.program, self._threads, state=state)

    def _note_changes(self, t: TransactionNode, first_us: int) -> None:
        """Collect the table changes of a part whose first event is at `first_us`."""
        assert self._before is not None
        for table in self._tables:
            changes = table.changes(self.state, self._before)
            if changes is not None:
                self._left.rows.append((table, changes))
                t.hierarchy.session.rewrites(table.kept.spec)
            # No earlier part has had an event of this time or a later one.
            versions = table.versions(self.state, first_us)
            if versions is not None:
                self._left.versions.append((table, versions))

    def _works(
        self, arrivals: Iterable[Arrival], numbers: Ints, results: ColumnResults
    ) -> Iterator[ProgramTransaction]:
        """Yield the completed s-transactions one by one, for post-processing."""
        ended = zip(arrivals, numbers.tolist(), results.outcomes(), strict=True)
        for arrival, number, outcome in ended:
            o = arrival.occurrence
            s = STransaction(At(o.us, "", number), o.name, o.params, ())
            s.outcome = outcome
            yield ProgramTransaction(self._defined, s, arrival)

    def _aborts(
        self, events: ColumnEvents, ran: Ints, numbers: Ints, results: ColumnResults
    ) -> list[Mapping[str, Any]]:
        """Return the records of aborted s-transactions, in the form of `post_process`."""
        program = self._defined.program
        aborted, reasons = results.aborts()
        ids = None if events.ids is None else events.ids[ran[aborted]].tolist()
        found = zip(
            results.us[aborted].tolist(),
            numbers[aborted].tolist(),
            [None] * len(aborted) if ids is None else ids,
            [program.types[code] for code in results.codes[aborted].tolist()],
            reasons,
            strict=True,
        )
        return [
            {
                "program": program.name,
                "us": us,
                "arrival": number,
                "event_id": id_,
                "type": type_,
                "output": None,
                "reason": storable(reason),
            }
            for us, number, id_, type_, reason in found
        ]

    def _letter(self, events: ColumnEvents, row: int) -> Letter:
        """Return the letter of an event that could not become an s-transaction."""
        (arrival,) = events.arrivals(np.array([row]))
        o = arrival.occurrence
        refused = build_s_transaction(self._defined.program, o, At(o.us, "", 0))
        assert isinstance(refused, Refusal), "columns refuse what is always refused"
        error, reason = refused.error, refused.reason
        return letter_of(self._stream.name, self._defined, arrival, error, reason=reason)


# -- conversion of events to the numeric columns that a program takes ------------------------------


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
    columns : EventColumns
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
        keys = tuple([("event", name) for name in program.types])
        self.columns = EventColumns(keys, codes, events.us, params=params)

    @staticmethod
    def _lacking(run: ColumnRun, events: ColumnEvents, codes: Ints) -> Mask:
        """Return which events lack a value of a parameter that their type uses, but others have."""
        found = np.zeros(len(events), np.bool_)
        for name in dict.fromkeys(name for needs in run.layout.needs for name in needs):
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
