"""Update of a row with one immediate rule, against the same as a plpgsql trigger."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from psycopg import sql

import activedb
from benchmarks._nested_parts import Figure, p50, times_in_turn
from benchmarks._nested_rows import Server, rows_of

__all__ = ["OneRule"]

_ROWS = 100
_PEER = "trigger"

_TRIGGER_WRITES = {
    "rule": "UPDATE {written} SET balance = NEW.balance WHERE id = NEW.id;",
    "audit": "INSERT INTO {written} (id, balance) VALUES (NEW.balance, NEW.id);",
}


class OneRule:
    """One run: transactions that update one row, ours and psycopg's in turn, for each rule.

    ``immediate_rule_…``: the rule, and the trigger, update the row of another table with the same
    key. ``immediate_audit_…``: they insert a row into a table that only grows.
    """

    def __init__(self, server: Server, transactions: int):
        self._transactions = transactions
        self._db = server.database(threads=4)
        self._connection = server.connection()
        self._done = 0
        self._calls = {kind: self._define(kind) for kind in _TRIGGER_WRITES}

    def close(self) -> None:
        """Close the database and the connection."""
        self._connection.close()
        self._db.close()

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        figures = {}
        for kind, calls in self._calls.items():
            ours, triggers = times_in_turn(calls, self._transactions)
            figures[f"immediate_{kind}_per_s"] = Figure(
                1 / p50(ours), "txn/s", _PEER, 1 / p50(triggers)
            )
            figures[f"immediate_{kind}_ratio_to_trigger"] = Figure(
                p50(triggers) / p50(ours), "times"
            )
        return figures

    def _define(self, kind: str) -> tuple[Callable[[int], None], Callable[[int], None]]:
        """Create tables, rule and trigger of one kind; return one transaction of each."""
        count = _ROWS if kind == "rule" else 0
        rows = rows_of(self._db, f"{kind}_rows", _ROWS)
        written = rows_of(self._db, f"{kind}_written", count)
        rows_of(self._db, f"{kind}_trigger_rows", _ROWS)
        rows_of(self._db, f"{kind}_trigger_written", count)

        def rule(t: activedb.Transaction, o: activedb.Occurrence) -> None:
            t.update(written, o.params["id"], balance=o.params["balance"])

        def audit(t: activedb.Transaction, o: activedb.Occurrence) -> None:
            t.insert(written, {"id": o.params["balance"], "balance": o.params["id"]})

        action = rule if kind == "rule" else audit
        self._db.rule(on=activedb.updated(rows), name=f"immediate {kind}")(action)

        function, table = sql.Identifier(f"{kind}_fires"), sql.Identifier(f"{kind}_trigger_rows")
        body = _TRIGGER_WRITES[kind].format(written=f"{kind}_trigger_written")
        self._connection.execute(
            sql.SQL("CREATE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS {}").format(
                function, sql.Literal(f"BEGIN {body} RETURN NULL; END")
            )
        )
        self._connection.execute(
            sql.SQL(
                "CREATE TRIGGER fires AFTER UPDATE ON {} FOR EACH ROW EXECUTE FUNCTION {}()"
            ).format(table, function)
        )
        self._connection.commit()
        statement = sql.SQL("UPDATE {} SET balance = %s WHERE id = %s").format(table)

        def change(key: int, balance: int, t: activedb.Transaction) -> None:
            t.update(rows, key, balance=balance)

        def ours(number: int) -> None:
            self._db.run(partial(change, number % _ROWS, self._next()))

        def triggered(number: int) -> None:
            self._connection.execute(statement, (self._next(), number % _ROWS))
            self._connection.commit()

        return ours, triggered

    def _next(self) -> int:
        """Return a balance that no row has: it is also the key of the audit's row."""
        self._done += 1
        return self._done
