"""Streaming Ledger workload of the pipeline: its program in columns, and SQL for one event.

The tables have room to update a row within its page, which halves the server's work; one event at a
time benefits as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import Column, Double, Integer, Table

from benchmarks._examples import load
from benchmarks._nested_rows import Server
from benchmarks._pipeline_places import TIME, TYPE
from benchmarks._pipeline_workload import Opened, PerEvent, Rows

__all__ = ["Ledger"]

_EXAMPLE: Any = load("streaming_ledger")
_NAMES: Final = ("accounts", "assets")
_FILL_PERCENT: Final = 45

# One statement is one round trip, and one transaction. One UPDATE changes both balances of a table,
# if both senders have enough.
_TRANSFER = """
WITH enough AS (
    SELECT FROM accounts AS a, assets AS b
    WHERE a.id = %(from0)s AND a.balance >= %(amount0)s
        AND b.id = %(from1)s AND b.balance >= %(amount1)s),
moved AS (
    UPDATE accounts SET balance = balance
        + CASE id WHEN %(from0)s THEN -%(amount0)s ELSE %(amount0)s END
    WHERE id IN (%(from0)s, %(to0)s) AND EXISTS (SELECT FROM enough))
UPDATE assets SET balance = balance + CASE id WHEN %(from1)s THEN -%(amount1)s ELSE %(amount1)s END
WHERE id IN (%(from1)s, %(to1)s) AND EXISTS (SELECT FROM enough)
"""
_DEPOSIT = """
WITH put AS (
    UPDATE accounts SET balance = balance + %(amount0)s
    WHERE id = %(to0)s AND %(amount0)s > 0 AND %(amount1)s > 0)
UPDATE assets SET balance = balance + %(amount1)s
WHERE id = %(to1)s AND %(amount0)s > 0 AND %(amount1)s > 0
"""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Deposits and transfers of length 4, at the defaults of (Mao et al., table 6).

    Parameters
    ----------
    accounts : int
        Number of accounts, and of assets.
    """

    accounts: int = _EXAMPLE.ACCOUNTS
    name: str = "sl"
    params: tuple[str, ...] = ("from0", "to0", "amount0", "from1", "to1", "amount1")

    def events(self, count: int) -> Any:
        """Return `count` events, 1,000 for each second of their time."""
        return _EXAMPLE.columns(count, accounts=self.accounts)

    def open(self, server: Server, source: Any) -> Opened:
        """Create the tables, filled, the stream and the program on it."""
        db = server.database(threads=4)
        program = _EXAMPLE.program(accounts=self.accounts)
        tables = {
            shared: Table(
                shared.name,
                db.metadata,
                Column("id", Integer, primary_key=True, autoincrement=False),
                Column("balance", Double, nullable=False),
                postgresql_with={"fillfactor": _FILL_PERCENT},
            )
            for shared in program.tables
        }
        db.create_all()
        with server.connection() as connection:
            self._fill(connection)
        stream = db.stream(
            "ledger",
            source=source,
            type=TYPE,
            timestamp=TIME,
            params={name: name for name in self.params},
            types=dict.fromkeys(program.types, ()),
        )
        stream.program(program, tables=tables, scheduler="columns")
        return Opened(db, stream, stream.run)

    def per_event(self, connection: psycopg.Connection) -> PerEvent:
        """Create the same tables and return one statement per event."""
        for name in _NAMES:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE {} (id integer PRIMARY KEY, balance double precision NOT NULL) "
                    "WITH (fillfactor = {})"
                ).format(sql.Identifier(name), _FILL_PERCENT)
            )
        self._fill(connection)
        statements = {"TRANSFER": _TRANSFER, "DEPOSIT": _DEPOSIT}
        names, cursor = self.params, connection.cursor()

        def do(event: tuple[Any, ...]) -> None:
            _, type_, *values = event
            given = dict(zip(names, values, strict=True))
            cursor.execute(statements[type_], given, prepare=True)

        return do

    def expected(self, columns: Any) -> Rows:
        """Return the tables that the example's loop computes."""
        books = _EXAMPLE.replay(columns, self.accounts).tables
        return {name: list(enumerate(books[name])) for name in _NAMES}

    def found(self, connection: psycopg.Connection) -> Rows:
        """Return the balances."""
        return {
            name: connection.execute(
                sql.SQL("SELECT id, balance FROM {} ORDER BY id").format(sql.Identifier(name))
            ).fetchall()
            for name in _NAMES
        }

    def _fill(self, connection: psycopg.Connection) -> None:
        for name in _NAMES:
            table = sql.Identifier(name)
            connection.execute(
                sql.SQL("INSERT INTO {} SELECT id, %s FROM generate_series(0, %s) AS id").format(
                    table
                ),
                (_EXAMPLE.BALANCE, self.accounts - 1),
            )
            connection.execute(sql.SQL("ANALYZE {}").format(table))
        connection.commit()
