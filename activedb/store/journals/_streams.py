"""Rows of a stream and of its programs: ledger, waiting and late events, versions, outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, tuple_

from activedb.store.flush import ColumnRows, insert_rows
from activedb.store.server import translate_errors
from activedb.store.session import Store
from activedb.store.sql import Row, TableSpec
from activedb.store.system import (
    decisions,
    kept_columns,
    late_events,
    ledger,
    outputs,
    producers,
    program_states,
    stream_events,
    versions,
)

__all__ = ["ColumnJournal", "ColumnNote", "LedgerEntry", "ProgramJournal", "StreamJournal"]


_WAITING = ""  # takes the place of a table's name

_DROPPED_AT_ONCE = 500  # of thousands, a server's parser runs out of its stack


class ColumnNote(StrEnum):
    """Kind of note about the events that the rules of a stream may still need.

    Stored in the column that otherwise has a table's name: no table's name begins with a space.
    """

    USED = " used"
    """Events that matches have consumed."""
    DEAD = " dead"
    """Events that failed and take part in no further match."""
    RULES = " rules"
    """Rules that consume events, and the time since which they have existed."""
    REFUSED = " refused"
    """Events that rules have refused; written also where events are kept one by one."""


class ColumnJournal:
    """Columnar rows of one stream, as bytes; writes use the connection that the caller passes.

    Parameters
    ----------
    store : Store
    stream : str
        Name of the stream.
    """

    def __init__(self, store: Store, stream: str):
        self._store = store
        self._stream = stream

    def waiting(self) -> list[bytes]:
        """Return the events that may wait or that rules may need, part by part."""
        c = kept_columns.c
        return self._data(c.stream == self._stream, c.name == _WAITING)

    def notes(self) -> dict[ColumnNote, list[bytes]]:
        """Return the data of all notes by kind, part by part; kinds without notes are left out."""
        c = kept_columns.c
        statement = (
            select(c.name, c.data)
            .where(c.stream == self._stream, c.name.in_(list(ColumnNote)))
            .order_by(c.sequence, c.piece)
        )
        found: dict[ColumnNote, list[bytes]] = {}
        with translate_errors("read notes in columns"), self._store.short() as connection:
            for row in connection.execute(statement):
                found.setdefault(ColumnNote(row.name), []).append(bytes(row.data))
        return found

    def versions(self, table: str) -> list[bytes]:
        """Return the kept versions of a table's rows, part by part."""
        return self._data(kept_columns.c.name == table)

    def write(
        self,
        connection: Connection,
        sequence: int,
        pieces: Sequence[tuple[bytes, int]],
        table: str = _WAITING,
    ) -> None:
        """Write the data that a part leaves behind: versions of a table's rows, events, or a note.

        Parameters
        ----------
        sequence : int
            Number of the part.
        pieces : sequence of (bytes, int)
            Data of each piece, and the time of the latest item in it.
        """
        rows = [
            {
                "stream": self._stream,
                "name": table,
                "sequence": sequence,
                "piece": number,
                "last_us": last_us,
                "data": data,
            }
            for number, (data, last_us) in enumerate(pieces)
        ]
        if rows:
            connection.execute(insert(kept_columns), rows)

    def forget(self, connection: Connection, before_us: int, table: str) -> None:
        """Delete versions that no window reaches any more; one statement."""
        c = kept_columns.c
        connection.execute(delete(kept_columns).where(c.name == table, c.last_us < before_us))

    def forget_waiting(self, connection: Connection, before_us: int | None = None) -> None:
        """Delete all events, or the events before a time; one statement."""
        c = kept_columns.c
        statement = delete(kept_columns).where(c.stream == self._stream, c.name == _WAITING)
        if before_us is not None:
            statement = statement.where(c.last_us < before_us)
        connection.execute(statement)

    def forget_notes(
        self, connection: Connection, *notes: ColumnNote, before_us: int | None = None
    ) -> None:
        """Delete notes of the given kinds, or of all kinds, by one statement.

        With `before_us`, only those whose latest item is earlier are deleted.
        """
        c = kept_columns.c
        names = notes or tuple(ColumnNote)
        statement = delete(kept_columns).where(c.stream == self._stream, c.name.in_(names))
        if before_us is not None:
            statement = statement.where(c.last_us < before_us)
        connection.execute(statement)

    def _data(self, *conditions: ColumnElement[bool]) -> list[bytes]:
        statement = select(kept_columns.c.data).order_by(
            kept_columns.c.sequence, kept_columns.c.piece
        )
        statement = statement.where(*conditions)
        with translate_errors("read kept columns"), self._store.short() as connection:
            return [bytes(row.data) for row in connection.execute(statement)]


# -- rows of programs: versions that windows still need, outputs, and states of rules' detectors ---


_VERSIONS, _OUTPUTS = TableSpec(versions), TableSpec(outputs)


class ProgramJournal:
    """Rows of one stream's programs; writes use the connection that the caller passes.

    Attributes
    ----------
    columns : ColumnJournal
        Rows that are kept column by column.
    """

    def __init__(self, store: Store, stream: str):
        self.columns = ColumnJournal(store, stream)
        self._store = store
        self._stream = stream

    def rows(self, spec: TableSpec) -> list[Row]:
        """Return every committed row of a table; O(rows)."""
        with translate_errors(f"load table {spec.name}"), self._store.short() as connection:
            return [spec.row(row) for row in connection.execute(select(spec.table))]

    def read_columns(self, rows: ColumnRows) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the key and value columns of a table's committed rows; see `ColumnRows.read`."""
        with translate_errors(f"load table {rows.spec.name}"), self._store.short() as connection:
            return rows.read(connection)

    def versions(self, table: str) -> list[Mapping[str, Any]]:
        """Return the kept versions of a table's rows, in the serial order."""
        c = versions.c
        statement = (
            select(c.key, c.us, c.arrival, c.value, c.removed)
            .where(c.name == table)
            .order_by(c.us, c.arrival)
        )
        with translate_errors("read the versions"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def outputs(self, program: str) -> list[Mapping[str, Any]]:
        """Return the outputs of a program, in the serial order."""
        c = outputs.c
        statement = (
            select(outputs)
            .where(c.stream == self._stream, c.program == program)
            .order_by(c.us, c.arrival)
        )
        with translate_errors("read the outputs"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def states(self) -> dict[str, Mapping[str, Any]]:
        """Return the states of the detectors of programs' rules, by program."""
        c = program_states.c
        statement = select(c.program, c.state).where(c.stream == self._stream)
        with translate_errors("read the states of programs"), self._store.short() as connection:
            return {row.program: row.state for row in connection.execute(statement)}

    def write_states(self, connection: Connection, states: Mapping[str, Any]) -> None:
        """Write detector states with a part, by program; two statements."""
        if not states:
            return
        c = program_states.c
        connection.execute(
            delete(program_states).where(c.stream == self._stream, c.program.in_(list(states)))
        )
        rows = [
            {"stream": self._stream, "program": name, "state": state}
            for name, state in states.items()
        ]
        connection.execute(insert(program_states), rows)

    def write_versions(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write versions with a part; two round trips."""
        insert_rows(connection, _VERSIONS, list(rows))

    def forget_versions(self, connection: Connection, table: str, before_us: int) -> None:
        """Delete versions that no window reaches any more; two statements."""
        c = versions.c
        connection.execute(delete(versions).where(c.name == table, c.us < before_us))
        self.columns.forget(connection, before_us, table)

    def write_outputs(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write outputs with a part; two round trips."""
        insert_rows(connection, _OUTPUTS, [{"stream": self._stream, **row} for row in rows])


# -- rows of a stream: ledger, waiting events, late events -----------------------------------------


_STREAM_EVENTS, _LATE_EVENTS = TableSpec(stream_events), TableSpec(late_events)
_LEDGER = TableSpec(ledger)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One atomic batch that took effect.

    Attributes
    ----------
    query_id, batch_id, part : str, int, int
        The micro-batch, and the number of its part.
    sequence : int
        Number of the part within the stream, from 1.
    punctuation_us : int or None
        All events of the stream before this time have been processed.
    complete : bool
        True if this is the micro-batch's last part.
    events, late, dead : int
        Events processed in this part, and late and dead events that arrived with it.
    position : mapping or None
        The source's position after the micro-batch; see `AtomicBatch.position`.
    """

    query_id: str
    batch_id: int
    part: int
    sequence: int
    punctuation_us: int | None
    complete: bool
    events: int
    late: int
    dead: int
    position: Mapping[str, Any] | None = None


class StreamJournal:
    """Rows of one stream; writes use the connection that the caller passes.

    Attributes
    ----------
    columns : ColumnJournal
        Rows that are kept column by column.
    """

    def __init__(self, store: Store, stream: str):
        self.columns = ColumnJournal(store, stream)
        self._store = store
        self._stream = stream

    def last(self) -> LedgerEntry | None:
        """Return the newest ledger entry of the stream, or None."""
        statement = (
            select(ledger)
            .where(ledger.c.stream == self._stream)
            .order_by(ledger.c.sequence.desc())
            .limit(1)
        )
        with translate_errors("read the ledger"), self._store.short() as connection:
            row = connection.execute(statement).mappings().first()
        if row is None:
            return None
        return LedgerEntry(**{name: row[name] for name in LedgerEntry.__slots__})

    def positions(self) -> list[Mapping[str, Any] | None]:
        """Return the source's position after each micro-batch, oldest first. O(batches)."""
        c = ledger.c
        statement = (
            select(c.position).where(c.stream == self._stream, c.part == 0).order_by(c.sequence)
        )
        with translate_errors("read the ledger"), self._store.short() as connection:
            return list(connection.execute(statement).scalars())

    def position(self, query_id: str, batch_id: int) -> tuple[bool, Mapping[str, Any] | None]:
        """Return whether a micro-batch has taken effect, and its source's position, if known."""
        c = ledger.c
        statement = select(c.position).where(
            c.query_id == query_id, c.batch_id == batch_id, c.part == 0
        )
        with translate_errors("read the ledger"), self._store.short() as connection:
            row = connection.execute(statement).first()
        return row is not None, None if row is None else row.position

    def kept_events(self) -> list[Mapping[str, Any]]:
        """Return waiting events, and processed ones that patterns may still need, in time order."""
        statement = (
            select(stream_events)
            .where(stream_events.c.stream == self._stream)
            .order_by(stream_events.c.us, stream_events.c.batch_id, stream_events.c.position)
        )
        with translate_errors("read the waiting events"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def late(self) -> list[Mapping[str, Any]]:
        """Return the records of late events, in order of arrival."""
        c = late_events.c
        statement = (
            select(late_events)
            .where(c.stream == self._stream)
            .order_by(c.query_id, c.batch_id, c.position)
        )
        with translate_errors("read the late events"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def producers(self) -> dict[str, Mapping[str, Any]]:
        """Return the last recorded state of each producer, in the order of joining."""
        c = producers.c
        statement = select(c.name, c.known).where(c.stream == self._stream).order_by(c.place)
        with translate_errors("read the producers"), self._store.short() as connection:
            return {row.name: row.known for row in connection.execute(statement)}

    def write_producers(
        self, connection: Connection, known: Mapping[str, tuple[int, Mapping[str, Any] | None]]
    ) -> None:
        """Write (place, record) of producers by name; without a record, the producer is deleted."""
        if not known:
            return
        connection.execute(
            delete(producers).where(
                producers.c.stream == self._stream, producers.c.name.in_(list(known))
            )
        )
        rows = [
            {"stream": self._stream, "name": name, "place": place, "known": record}
            for name, (place, record) in known.items()
            if record is not None
        ]
        if rows:
            connection.execute(insert(producers), rows)

    def totals(self) -> dict[str, int]:
        """Return the events processed, late and dead, summed over all batches of the stream."""
        c = ledger.c
        statement = select(func.sum(c.events), func.sum(c.late), func.sum(c.dead)).where(
            c.stream == self._stream
        )
        with translate_errors("read the ledger"), self._store.short() as connection:
            events, late, dead = connection.execute(statement).one()
        return {"events": int(events or 0), "late": int(late or 0), "dead": int(dead or 0)}

    def undecided(self) -> int:
        """Return the number of open decisions of the stream."""
        c = decisions.c
        statement = select(func.count()).where(c.stream == self._stream, c.status == "open")
        with translate_errors("count the decisions"), self._store.short() as connection:
            return int(connection.scalar(statement) or 0)

    def write(
        self,
        connection: Connection,
        entry: LedgerEntry,
        *,
        keep: Sequence[Mapping[str, Any]],
        late: Sequence[Mapping[str, Any]],
        drop: Iterable[tuple[int, int, int]],
        forget_before_us: int | None,
    ) -> None:
        """Write the rows that one atomic batch leaves behind.

        Parameters
        ----------
        keep, late : sequences of event records
        drop : iterable of (us, batch_id, position)
            Events that failed and must not take part in later matches.
        forget_before_us : int or None
            Time before which kept events are no longer needed.
        """
        c = stream_events.c
        if forget_before_us is not None:
            connection.execute(
                delete(stream_events).where(c.stream == self._stream, c.us < forget_before_us)
            )
        if keep:
            rows = [{"stamp": None, **record, "stream": self._stream} for record in keep]
            insert_rows(connection, _STREAM_EVENTS, rows)
        gone = list(drop)
        for start in range(0, len(gone), _DROPPED_AT_ONCE):
            part = gone[start : start + _DROPPED_AT_ONCE]
            dropped = tuple_(c.us, c.batch_id, c.position).in_(part)
            connection.execute(delete(stream_events).where(c.stream == self._stream, dropped))
        if late:
            head = {
                "stream": self._stream,
                "query_id": entry.query_id,
                "reason": "its time is before the punctuation that was reached when it arrived",
            }
            rows = [{"stamp": None, **record, **head} for record in late]
            insert_rows(connection, _LATE_EVENTS, rows)
        row = {name: getattr(entry, name) for name in LedgerEntry.__slots__}
        insert_rows(connection, _LEDGER, [{"stream": self._stream, **row}])
