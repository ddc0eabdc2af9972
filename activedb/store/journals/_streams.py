"""Rows of a stream: ledger, waiting events, late events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from activedb.store.flush import insert_rows
from activedb.store.journals._columns import ColumnJournal
from activedb.store.server import translate_errors
from activedb.store.session import Store
from activedb.store.sql import TableSpec
from activedb.store.system import decisions, late_events, ledger, producers, stream_events

__all__ = ["LedgerEntry", "StreamJournal"]

_STREAM_EVENTS, _LATE_EVENTS = TableSpec(stream_events), TableSpec(late_events)


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
        keep: Iterable[Mapping[str, Any]],
        late: Iterable[Mapping[str, Any]],
        drop: Iterable[tuple[int, int, int]],
        forget_before_us: int | None,
    ) -> None:
        """Write the rows that one atomic batch leaves behind.

        Parameters
        ----------
        keep, late : iterables of event records
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
        _insert_all(connection, _STREAM_EVENTS, keep, {"stream": self._stream})
        for us, batch_id, position in drop:
            connection.execute(
                delete(stream_events).where(
                    c.stream == self._stream,
                    c.us == us,
                    c.batch_id == batch_id,
                    c.position == position,
                )
            )
        head = {
            "stream": self._stream,
            "query_id": entry.query_id,
            "reason": "its time is before the punctuation that was reached when it arrived",
        }
        _insert_all(connection, _LATE_EVENTS, late, head)
        values = {name: getattr(entry, name) for name in LedgerEntry.__slots__}
        connection.execute(insert(ledger).values(stream=self._stream, **values))


def _insert_all(
    connection: Connection,
    spec: TableSpec,
    records: Iterable[Mapping[str, Any]],
    head: dict[str, Any],
) -> None:
    insert_rows(connection, spec, [{"stamp": None, **record, **head} for record in records])
