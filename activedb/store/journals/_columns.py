"""What parts of a stream leave behind in columns: events, notes on them, versions for windows."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, delete, insert, select

from activedb.store.server import translated
from activedb.store.session import Store
from activedb.store.system import kept_columns

__all__ = ["ColumnJournal", "ColumnNote"]

_WAITING = ""  # instead of a table's name


class ColumnNote(StrEnum):
    """What is noted of the events that the rules of a stream may still need.

    Where else a table's name is: none begins with a space.
    """

    USED = " used"
    """Which of them matches have used up."""
    DEAD = " dead"
    """Which of them failed, and take part in nothing any more."""
    RULES = " rules"
    """Which rules use up events, and since when they have been there."""
    REFUSED = " refused"
    """Which of them rules have refused; also where they are kept one by one."""


class ColumnJournal:
    """Reads and writes such columns, as bytes; writes go on a connection that is handed in.

    Parameters
    ----------
    store : Store
    stream : str
        Its name.
    """

    def __init__(self, store: Store, stream: str):
        self._store = store
        self._stream = stream

    def waiting(self) -> list[bytes]:
        """Events that may wait, or that rules may need, part by part."""
        c = kept_columns.c
        return self._data(c.stream == self._stream, c.name == _WAITING)

    def notes(self) -> dict[ColumnNote, list[bytes]]:
        """All notes, part by part; those there are."""
        c = kept_columns.c
        statement = (
            select(c.name, c.data)
            .where(c.stream == self._stream, c.name.in_(list(ColumnNote)))
            .order_by(c.sequence, c.piece)
        )
        found: dict[ColumnNote, list[bytes]] = {}
        with translated("read what is noted in columns"), self._store.short() as connection:
            for row in connection.execute(statement):
                found.setdefault(ColumnNote(row.name), []).append(bytes(row.data))
        return found

    def versions(self, table: str) -> list[bytes]:
        """Versions that are kept of a table's rows, part by part."""
        return self._data(kept_columns.c.name == table)

    def write(
        self,
        connection: Connection,
        sequence: int,
        pieces: Sequence[tuple[bytes, int]],
        table: str = _WAITING,
    ) -> None:
        """Write what a part leaves behind: versions of a table's rows, events, or a note.

        Parameters
        ----------
        sequence : int
            The number of the part.
        pieces : sequence of (bytes, int)
            Each with the time of the last that is in it.
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
        """Delete events before a time, or all; one statement."""
        c = kept_columns.c
        statement = delete(kept_columns).where(c.stream == self._stream, c.name == _WAITING)
        if before_us is not None:
            statement = statement.where(c.last_us < before_us)
        connection.execute(statement)

    def forget_notes(
        self, connection: Connection, *notes: ColumnNote, before_us: int | None = None
    ) -> None:
        """Delete some notes, or all; about events before a time, or whatever. One statement."""
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
        with translated("read what is kept in columns"), self._store.short() as connection:
            return [bytes(row.data) for row in connection.execute(statement)]
