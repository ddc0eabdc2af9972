"""One-row transaction with one child on Postgres, against the same statements in plain psycopg."""

from __future__ import annotations

import time

import psycopg

import activedb
from benchmarks._nested_parts import Figure, p50, p95, times_in_turn
from benchmarks._nested_rows import Server, rows_of

__all__ = ["OneRow"]

_ROWS = 100


class OneRow:
    """One run updates rows in three ways, in turn: ours, and two on connections kept open.

    - ours: ``db.run``, in it a subtransaction, in it the update of a row by key;
    - psycopg: BEGIN, UPDATE … WHERE id, COMMIT;
    - psycopg that locks first: BEGIN, SELECT … FOR UPDATE, UPDATE … WHERE id, COMMIT, which are the
      statements that ours sends.

    ``pg_plain_commit_p50_us`` is psycopg's COMMIT alone, nearly all of it disk time: the faster the
    disk, the larger the program's share of each transaction's time.
    """

    def __init__(self, server: Server, transactions: int):
        self._transactions = transactions
        self._db = server.database(threads=4)
        self._rows = rows_of(self._db, "one_row", _ROWS)
        # One connection each, so that every way wakes a server process that was idle.
        self._plain_connection = server.connection()
        self._locking_connection = server.connection()
        self._commits_s: list[float] = []
        self._done = 0

    def close(self) -> None:
        """Close the database and the connection."""
        self._plain_connection.close()
        self._locking_connection.close()
        self._db.close()

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        self._commits_s.clear()
        calls = (self.nested, self._plain, self._locking)
        ours, plain, locking = times_in_turn(calls, self._transactions)

        def beside(value_s: float, peer: str, peer_s: float) -> Figure:
            return Figure(1e6 * value_s, "us", peer, 1e6 * peer_s, smaller_is_better=True)

        def ratio(peer_s: float) -> Figure:
            return Figure(p50(ours) / peer_s, "times", smaller_is_better=True)

        return {
            "pg_one_row_p50_us": beside(p50(ours), "psycopg", p50(plain)),
            "pg_one_row_p95_us": beside(p95(ours), "psycopg", p95(plain)),
            "pg_one_row_ratio_to_psycopg": ratio(p50(plain)),
            "pg_one_row_ratio_to_locking": ratio(p50(locking)),
            "pg_plain_commit_p50_us": Figure(
                1e6 * p50(self._commits_s), "us", smaller_is_better=True
            ),
        }

    def nested(self, number: int) -> None:
        """Run one of our transactions."""

        def in_child(t: activedb.Transaction) -> None:
            with t.subtransaction() as s:
                s.update(self._rows, number % _ROWS, balance=self._next())

        self._db.run(in_child)

    def _plain(self, number: int) -> None:
        self._update(self._plain_connection, number)
        started_s = time.perf_counter()
        self._plain_connection.commit()
        self._commits_s.append(time.perf_counter() - started_s)

    def _locking(self, number: int) -> None:
        connection = self._locking_connection
        connection.execute(
            "SELECT id, balance FROM one_row WHERE id = %s FOR UPDATE", (number % _ROWS,)
        ).fetchone()
        self._update(connection, number)
        connection.commit()

    def _update(self, connection: psycopg.Connection, number: int) -> None:
        connection.execute(
            "UPDATE one_row SET balance = %s WHERE id = %s", (self._next(), number % _ROWS)
        )

    def _next(self) -> int:
        """Return a balance that no row has: an update to the same value would write nothing."""
        self._done += 1
        return self._done
