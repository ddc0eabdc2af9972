"""Columnar rows of the parts of a stream: events, notes on them, versions for windows."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, delete, insert, select

from activedb.store.server import translate_errors
from activedb.store.session import Store
from activedb.store.system import kept_columns

__all__ = ["ColumnJournal", "ColumnNote"]

_WAITING = ""  # takes the place of a table's name


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
        with translate_errors("read what is noted in columns"), self._store.short() as connection:
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
        """Delete the given kinds of notes, or all, up to a time if one is given; one statement."""
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
        with translate_errors("read what is kept in columns"), self._store.short() as connection:
            return [bytes(row.data) for row in connection.execute(statement)]
