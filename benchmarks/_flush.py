"""Flush of a large write set, against hand-written SQL for the same rows.

By hand: a binary COPY into a temporary table, then INSERT … ON CONFLICT DO UPDATE, then COMMIT.
Ours is the whole end of a top-level transaction: the checks, the write set, the flush, the commit
on the server, the release of the locks on all of its rows.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

from psycopg import sql
from sqlalchemy import Column, Float, Integer, String, Table

from benchmarks._nested_parts import Figure, p50
from benchmarks._nested_rows import Server

__all__ = ["Flush"]

_PEER = "COPY by hand"
_COLUMNS = ("id", "owner", "balance", "rate")
_TYPES = ("int4", "text", "int4", "float8")

_Record = tuple[int, str, int, float]


class Flush:
    """One run writes `rows` new rows, then changes all of them, by ours and by hand in turn.

    Each side has its own table, emptied and vacuumed before. The medians of several rounds count,
    because the server's background work may disturb either side.
    """

    def __init__(self, server: Server, rows: int, rounds: int = 5):
        self._rows = rows
        self._rounds = rounds
        self._db = server.database(threads=4)
        self._connection = server.connection()
        self._ours, self._theirs = (self._table(f"flush_{who}") for who in ("ours", "theirs"))
        self._db.create_all()

    def close(self) -> None:
        """Close the database and the connection."""
        self._connection.close()
        self._db.close()

    def __call__(self) -> dict[str, Figure]:
        """Do one run; return rows per second."""
        new = [(n, f"owner {n}", 0, n / 3) for n in range(self._rows)]
        changed = [(n, owner, n + 1, rate / 2) for n, owner, _, rate in new]
        calls: tuple[Callable[[], float], ...] = (
            lambda: self._insert(new),
            lambda: self._by_hand(new),
            lambda: self._update(changed),
            lambda: self._by_hand(changed),
        )
        taken_s: list[list[float]] = [[] for _ in calls]
        for _ in range(self._rounds):
            self._empty()
            for times, call in zip(taken_s, calls, strict=True):
                times.append(call())
        inserts, inserts_by_hand, updates, updates_by_hand = (
            self._rows / p50(times) for times in taken_s
        )
        return {
            "flush_rows_per_s": Figure(inserts, "rows/s", _PEER, inserts_by_hand),
            "flush_updates_per_s": Figure(updates, "rows/s", _PEER, updates_by_hand),
        }

    def _insert(self, records: Sequence[_Record]) -> float:
        """Return the seconds that the end of a transaction with these new rows takes."""
        with self._db.transaction() as t:
            t.get_many(self._ours, range(self._rows), for_update=True)  # one round trip
            for record in records:
                t.insert(self._ours, dict(zip(_COLUMNS, record, strict=True)))
            started_s = _now_s()
        return time.perf_counter() - started_s

    def _update(self, records: Sequence[_Record]) -> float:
        """Return the seconds that the end of a transaction with these changed rows takes."""
        with self._db.transaction() as t:
            t.get_many(self._ours, range(self._rows), for_update=True)
            for number, _, balance, rate in records:
                t.update(self._ours, number, balance=balance, rate=rate)
            started_s = _now_s()
        return time.perf_counter() - started_s

    def _by_hand(self, records: Sequence[_Record]) -> float:
        connection = self._connection
        started_s = _now_s()
        connection.execute("CREATE TEMPORARY TABLE came (LIKE flush_theirs) ON COMMIT DROP")
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY came FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.set_types(_TYPES)
            for record in records:
                copy.write_row(record)
        connection.execute(
            "INSERT INTO flush_theirs SELECT * FROM came ON CONFLICT (id) DO UPDATE "
            "SET owner = excluded.owner, balance = excluded.balance, rate = excluded.rate"
        )
        connection.commit()
        return time.perf_counter() - started_s

    def _empty(self) -> None:
        self._connection.autocommit = True
        for table in ("flush_ours", "flush_theirs"):
            name = sql.Identifier(table)
            self._connection.execute(sql.SQL("TRUNCATE {}").format(name))
            self._connection.execute(sql.SQL("VACUUM ANALYZE {}").format(name))
        self._connection.autocommit = False

    def _table(self, name: str) -> Table:
        return Table(
            name,
            self._db.metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("owner", String(40), nullable=False),
            Column("balance", Integer, nullable=False),
            Column("rate", Float),
        )


def _now_s() -> float:
    """Read the clock, after a garbage collection that must not be part of the measurement."""
    gc.collect()
    return time.perf_counter()
