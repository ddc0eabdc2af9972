"""Children that wait for queries of 20 ms, in parallel and one after another."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import func, select

import activedb
from benchmarks._nested_parts import Figure, p50, times_in_turn
from benchmarks._nested_rows import Server, rows_of

__all__ = ["CHILDREN", "ParallelChildren"]

CHILDREN = (2, 4, 8)
_THREADS = 8
_QUERY_S = 0.02
_ROWS = 100


class ParallelChildren:
    """One run: `rounds` transactions of each kind, in turn, from begin to commit.

    ``parallel_children_speedup_k``: k children whose queries only sleep, in parallel, against the
    same children one after another. ``parallel_readers_speedup_k``: the queries sleep as they read
    a table in which the parent has changed a row that they have to see.
    """

    def __init__(self, server: Server, rounds: int):
        self._rounds = rounds
        self._db = server.database(threads=_THREADS)
        self._rows = rows_of(self._db, "parallel", _ROWS)
        self._sleeping: Any = select(func.pg_sleep(_QUERY_S))
        # The sleep is a column, so it takes place once, for the one row that is found.
        columns = self._rows.c
        chosen = select(columns.balance, func.pg_sleep(_QUERY_S)).where(columns.id == 1)
        self._reading: Any = chosen
        self._balance = 0

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        return {
            f"parallel_{name}_speedup_{children}": self._speedup(children, reading=reading)
            for name, reading in (("children", False), ("readers", True))
            for children in CHILDREN
        }

    def _speedup(self, children: int, *, reading: bool) -> Figure:
        parallel, sequence = times_in_turn(
            [
                partial(self._run, children, reading=reading, parallel=True),
                partial(self._run, children, reading=reading, parallel=False),
            ],
            self._rounds,
        )
        return Figure(p50(sequence) / p50(parallel), "times")

    def _run(self, children: int, number: int, *, reading: bool, parallel: bool) -> None:
        """Run the transaction of this number, which `times_in_turn` passes."""
        query = self._read if reading else self._sleep
        with self._db.transaction() as t:
            if reading:
                self._balance += 1
                t.update(self._rows, 1, balance=self._balance)
            if parallel:
                for child in [t.spawn(query) for _ in range(children)]:
                    child.result()
            else:
                for _ in range(children):
                    with t.subtransaction() as s:
                        query(s)

    def _sleep(self, s: activedb.Transaction) -> None:
        s.query(self._sleeping)

    def _read(self, s: activedb.Transaction) -> None:
        found = [row.balance for row in s.query(self._reading)]
        assert found == [self._balance], (found, self._balance)
