"""Nested transactions in memory, ours and Berkeley DB's: begin, child, a row, commit, commit."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import activedb
from benchmarks._berkeley import Berkeley
from benchmarks._nested_parts import Figure
from benchmarks._nested_rows import rows_of

__all__ = ["BerkeleyRows", "NestedInMemory"]

_ROWS = 1_000
_ROW = struct.Struct("<qq")
_KEY = struct.Struct(">q")
_TURNS = 10


class BerkeleyRows(Berkeley):
    """Berkeley DB with a B-tree of rows in memory: writes are logged, in memory as well.

    Each row is put as 16 bytes under 8 bytes of key; unlike ours it isn't read first.
    """

    def __init__(self, db: Any):
        super().__init__(db)
        self._rows = db.DB(self._env)
        create = db.DB_CREATE | db.DB_THREAD | db.DB_AUTO_COMMIT
        self._rows.open(None, "rows", dbtype=db.DB_BTREE, flags=create)
        for number in range(_ROWS):
            self._rows.put(_KEY.pack(number), _ROW.pack(number, 0))
        self._done = _ROWS  # grows on, since a row is not written if its value is unchanged

    def close(self) -> None:
        """Close the rows, then the environment."""
        self._rows.close()
        super().close()

    def write_nested(self, transactions: int) -> None:
        """Run top-level transactions with one child each, which writes one row."""
        env, rows = self._env, self._rows
        for number in range(self._done, self._done + transactions):
            parent = env.txn_begin()
            child = env.txn_begin(parent)
            key = number % _ROWS
            rows.put(_KEY.pack(key), _ROW.pack(key, number), txn=child)
            child.commit()
            parent.commit()
        self._done += transactions

    def balance(self, key: int) -> int:
        """Return the balance of a row."""
        found: tuple[int, int] = _ROW.unpack(self._rows.get(_KEY.pack(key)))
        return found[1]


class NestedInMemory:
    """An open ``memory://`` database, with the peer's rows if there is a peer.

    Parameters
    ----------
    transactions : int
        Number of our top-level transactions in one run; Berkeley DB does ten times as many.
    """

    def __init__(self, transactions: int, peer: BerkeleyRows | None):
        self._transactions = transactions
        self._peer = peer
        self._db = activedb.connect("memory://")
        self._rows = rows_of(self._db, "nested", _ROWS)
        self._done = _ROWS

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def __call__(self) -> dict[str, Figure]:
        """Do one run, a tenth of ours and a tenth of the peer's in turn."""
        ours = max(1, self._transactions // _TURNS)
        ours_s = theirs_s = 0.0
        for _ in range(_TURNS):
            ours_s += _timed(self.write_nested, ours)
            if self._peer is not None:
                theirs_s += _timed(self._peer.write_nested, 10 * ours)
        rate = _TURNS * ours / ours_s
        if self._peer is None:
            figure = Figure(rate, "transactions/s")
        else:
            their_rate = 10 * _TURNS * ours / theirs_s
            figure = Figure(rate, "transactions/s", BerkeleyRows.name, their_rate)
        return {"memory_nested_per_s": figure}

    def write_nested(self, transactions: int) -> None:
        """Run top-level transactions with one child each, which writes one row."""
        db, rows = self._db, self._rows
        for number in range(self._done, self._done + transactions):
            with db.transaction() as t, t.subtransaction() as s:
                s.update(rows, number % _ROWS, balance=number)
        self._done += transactions

    def balance(self, key: int) -> int:
        """Return the balance of a row."""
        with self._db.transaction() as t:
            row = t.get(self._rows, key)
        assert row is not None
        return int(row["balance"])


def _timed(call: Callable[[int], None], transactions: int) -> float:
    started_s = time.perf_counter()
    call(transactions)
    return time.perf_counter() - started_s
