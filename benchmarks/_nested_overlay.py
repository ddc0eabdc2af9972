"""Cost of seeing uncommitted rows in a query: `Transaction.query` against the plain statement."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import create_engine, func, select

from benchmarks._nested_parts import Figure, p50, times_in_turn
from benchmarks._nested_rows import Server, rows_of

__all__ = ["DIRTY", "QueryOverhead"]

DIRTY = (0, 10, 1_000)


class QueryOverhead:
    """One run: a transaction per number of dirty rows, in it `rounds` queries of each kind.

    Each query alternates with the plain statement on a SQLAlchemy connection that is kept open.
    ``query_overhead_N_dirty`` is the ratio of the times of an aggregate over all of the `rows`
    rows, ``query_point_overhead_N_dirty`` that of a statement that finds one row by its key. The
    first query of a transaction, which locks the table, is not counted.
    """

    def __init__(self, server: Server, rows: int, rounds: int):
        self._rounds = rounds
        self._count = rows
        self._db = server.database(threads=4)
        self._rows = rows_of(self._db, "queried", rows)
        engine = create_engine("postgresql+psycopg://", creator=server.connection)
        self._plain = engine.connect()
        self._plain.exec_driver_sql("ANALYZE queried")
        self._plain.commit()
        columns = self._rows.c
        self._statements: dict[str, Any] = {
            "query": select(func.count(), func.sum(columns.balance)),
            "query_point": select(self._rows).where(columns.id == rows // 2),
        }

    def close(self) -> None:
        """Close the connection and the database."""
        self._plain.close()
        self._plain.engine.dispose()
        self._db.close()

    def __call__(self) -> dict[str, Figure]:
        """Do one run, without a commit."""
        figures = {}
        for dirty in DIRTY:
            t = self._db.transaction()
            with t:
                keys = range(min(dirty, self._count))
                t.get_many(self._rows, keys, for_update=True)
                for key in keys:
                    t.update(self._rows, key, balance=1)
                for name, statement in self._statements.items():
                    found = t.query(statement)
                    if name == "query":
                        assert [tuple(row) for row in found] == [(self._count, len(keys))]
                    ours, plain = times_in_turn(
                        [partial(self._query, t, statement), partial(self._execute, statement)],
                        self._rounds,
                    )
                    figures[f"{name}_overhead_{dirty}_dirty"] = Figure(
                        p50(ours) / p50(plain), "times", smaller_is_better=True
                    )
                t.abort()
        return figures

    def _query(self, t: Any, statement: Any, number: int) -> None:
        t.query(statement)

    def _execute(self, statement: Any, number: int) -> None:
        self._plain.execute(statement).all()
