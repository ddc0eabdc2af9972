"""Immediate rules whose conditions are slow queries, against triggers one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg import sql
from sqlalchemy import func, select

import activedb
from benchmarks._nested_parts import Figure, p50, times_in_turn
from benchmarks._nested_rows import Server, rows_of

__all__ = ["RULES", "ParallelRules"]

RULES = (1, 2, 4, 8)
_THREADS = 8
_QUERY_S = 0.005
_ROWS = 100
_PEER = "trigger"


class ParallelRules:
    """One run: `rounds` transactions with each number of rules, ours and psycopg's in turn.

    Each updates a row. Our rules have equal priorities, so they run in parallel, each condition a
    query of 5 ms. The server runs its triggers in sequence; each evaluates the same query.
    ``parallel_rules_speedup_k`` is the ratio of the median times, begin to commit.
    """

    def __init__(self, server: Server, rounds: int):
        self._rounds = rounds
        self._db = server.database(threads=_THREADS)
        self._connection = server.connection()
        self._sleeping: Any = select(func.pg_sleep(_QUERY_S))
        self._balance = 0
        self._connection.execute(
            sql.SQL("CREATE FUNCTION sleeps() RETURNS trigger LANGUAGE plpgsql AS {}").format(
                sql.Literal(f"BEGIN PERFORM pg_sleep({_QUERY_S}); RETURN NULL; END")
            )
        )
        self._connection.commit()
        self._calls = {count: self._define(count) for count in RULES}

    def close(self) -> None:
        """Close the database and the connection."""
        self._connection.close()
        self._db.close()

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        figures = {}
        for count, calls in self._calls.items():
            ours, triggers = times_in_turn(calls, self._rounds)
            figures[f"parallel_rules_{count}_ms"] = Figure(
                1e3 * p50(ours), "ms", _PEER, 1e3 * p50(triggers), smaller_is_better=True
            )
            figures[f"parallel_rules_speedup_{count}"] = Figure(p50(triggers) / p50(ours), "times")
        return figures

    def _define(self, count: int) -> tuple[Callable[[int], None], Callable[[int], None]]:
        """Define `count` rules on one table and triggers on another; return a call for each."""
        rows = rows_of(self._db, f"parallel_{count}", _ROWS)
        rows_of(self._db, f"triggers_{count}", _ROWS)
        fired: list[int] = []

        def has_slept(t: activedb.Transaction, o: activedb.Occurrence) -> bool:
            return bool(t.query(self._sleeping))

        def note(t: activedb.Transaction, o: activedb.Occurrence) -> None:
            fired.append(o.params["balance"])

        with self._db.transaction():
            for number in range(count):
                name = f"parallel {count}.{number}"
                self._db.rule(on=activedb.updated(rows), when=has_slept, name=name)(note)
        table = sql.Identifier(f"triggers_{count}")
        for number in range(count):
            self._connection.execute(
                sql.SQL(
                    "CREATE TRIGGER {} AFTER UPDATE ON {} FOR EACH ROW EXECUTE FUNCTION sleeps()"
                ).format(sql.Identifier(f"sleeps_{number}"), table)
            )
        self._connection.commit()
        statement = sql.SQL("UPDATE {} SET balance = %s WHERE id = %s").format(table)

        def ours(number: int) -> None:
            balance = self._next()
            with self._db.transaction() as t:
                t.update(rows, number % _ROWS, balance=balance)
            assert fired == [balance] * count, (fired, balance)
            fired.clear()

        def triggered(number: int) -> None:
            self._connection.execute(statement, (self._next(), number % _ROWS))
            self._connection.commit()

        return ours, triggered

    def _next(self) -> int:
        """Return a balance that no row has."""
        self._balance += 1
        return self._balance
