"""Statements prepared once per connection, and executed below psycopg's cursors.

A transaction that changes one row sends two statements by key. For each, a cursor takes as long as
the server: so these go by libpq's own calls (`psycopg.pq`), which is worth a fifth of the
transaction's time. The first statement takes the BEGIN along, and the last one the COMMIT, each
pair as one message; that is worth another sixth. Values and rows are converted by psycopg, and
waits are its own, so they end at Ctrl-C and by `cancel` as those of its cursors do.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.waiting import Ready, Wait
from sqlalchemy import Connection, Dialect, Select
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql.dml import UpdateBase

__all__ = ["PREPARE_THRESHOLD", "Prepared", "prepare_on", "prepared_on"]

PREPARE_THRESHOLD = None
"""psycopg's, for such connections: it prepares nothing, so it has no reason to DEALLOCATE ALL."""

_AGE_S_MAX = 1.0
_INFO = "activedb prepared"
_DOLLARS = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]

Statement = Select[Any] | UpdateBase
_Process = Callable[[Any], Any] | None


class _SQL(NamedTuple):
    """A statement compiled: its text, and its parameters in their order."""

    text: bytes
    parameters: list[tuple[str, _Process]]
    formats: list[PyFormat]


class _Plan:
    """A statement that the server has prepared."""

    __slots__ = ("loaders", "name", "sql", "transformer")

    def __init__(self, sql: _SQL, name: bytes, transformer: Any):
        self.sql = sql
        self.name = name
        self.transformer = transformer
        self.loaders: list[tuple[int, Callable[[Any], Any]]] | None = None


class Prepared:
    """The prepared statements of one connection of psycopg's.

    The server plans a prepared statement for good, and what it plans while a table is small
    scans the table whole. Planning each time anew would cost a sixth of a small transaction, so
    all plans are dropped once a second instead: a table can grow so fast, but not unnoticed.

    REQUIRES: nobody else uses the connection meanwhile.
    """

    def __init__(self, driver: psycopg.Connection[Any], dialect: Dialect):
        self._driver = driver
        self._low = driver.pgconn
        self._dialect = dialect
        self._plans: dict[Statement, _Plan] = {}
        self._ends: tuple[bytes, bytes] | None = None
        self._numbers = itertools.count()
        self._since_s = time.monotonic()

    def renew(self) -> None:
        """Drop plans that are too old; one round trip, at most once a second."""
        now_s = time.monotonic()
        if now_s - self._since_s > _AGE_S_MAX:
            self._plans.clear()
            self._ends = None
            self._driver.execute("DEALLOCATE ALL")  # psycopg has none here
            self._since_s = now_s

    def execute(
        self, statement: Statement, values: Mapping[str, Any], *, last: bool = False
    ) -> list[tuple[Any, ...]]:
        """Rows of a statement, with `values` for all of its parameters; one round trip.

        Errors are psycopg's.

        Parameters
        ----------
        last : bool
            Commit with it.
        """
        self.renew()
        low = self._low
        plan = self._plans.get(statement) or self._prepare(statement)
        sql, transformer = plan.sql, plan.transformer
        bound = [values[key] if p is None else p(values[key]) for key, p in sql.parameters]
        parameters = transformer.dump_sequence(bound, sql.formats)
        first = low.transaction_status == TransactionStatus.IDLE
        if first or last:
            begin, commit = self._ends or self._prepare_ends()
            low.enter_pipeline_mode()
            try:
                if first:
                    low.send_query_prepared(begin, None)
                low.send_query_prepared(plan.name, parameters)
                if last:
                    low.send_query_prepared(commit, None)
                low.pipeline_sync()
                results = self._driver.wait(_results(low))
            finally:
                self._leave_pipeline()
            result = self._checked(results, 1 + first + last)[first]
        else:
            low.send_query_prepared(plan.name, parameters)
            result = self._result()
        if not result.ntuples:
            return []
        if plan.loaders is None:
            plan.loaders = self._loaders(statement, result)
            transformer.set_pgresult(result)
        else:
            transformer.set_pgresult(result, set_loaders=False)
        rows: list[Any] = transformer.load_rows(0, result.ntuples, tuple)
        if plan.loaders:
            rows = [_loaded(row, plan.loaders) for row in rows]
        return rows

    def _prepare(self, statement: Statement) -> _Plan:
        sql = _compiled(statement, self._dialect)
        plan = _Plan(sql, self._prepared(sql.text), Transformer(self._driver))
        self._plans[statement] = plan
        return plan

    def _prepare_ends(self) -> tuple[bytes, bytes]:
        self._ends = self._prepared(b"BEGIN"), self._prepared(b"COMMIT")
        return self._ends

    def _prepared(self, text: bytes) -> bytes:
        name = b"activedb_%d" % next(self._numbers)
        self._low.send_prepare(name, text)
        self._result()
        return name

    def _result(self) -> Any:
        return self._checked(self._driver.wait(generators.execute(self._low)), 1)[0]

    def _checked(self, results: Sequence[Any], expected: int) -> Sequence[Any]:
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                self._since_s = 0.0  # whatever was wrong, it may have been a plan
                raise error_from_result(result, encoding=self._driver.info.encoding)
        if len(results) != expected:
            raise psycopg.OperationalError("the connection to the server was lost")
        return results

    def _leave_pipeline(self) -> None:
        try:
            self._low.exit_pipeline_mode()
        except psycopg.Error:  # it was left before its end: nobody can tell what comes next
            self._driver.close()

    def _loaders(self, statement: Any, result: Any) -> list[tuple[int, Callable[[Any], Any]]]:
        """By position, what makes values of the driver's those of SQLAlchemy's types."""
        found = [
            (n, column.type.dialect_impl(self._dialect).result_processor(self._dialect, oid))
            for n, column in enumerate(statement.selected_columns)
            if (oid := result.ftype(n)) is not None
        ]
        return [(n, load) for n, load in found if load is not None]


def _results(low: Any) -> PQGen[list[Any]]:
    """What the server answers to the messages of a pipeline, up to its sync, in one wait if it can.

    psycopg's own generators wait for the answer to each message by itself, which costs as much as
    the pipeline gains.
    """
    while low.flush():
        if (yield Wait.RW) & Ready.R:
            low.consume_input()
    results: list[Any] = []
    while True:
        while low.is_busy():
            if (yield Wait.R):
                low.consume_input()
        result = low.get_result()
        if result is None:
            if low.status != ConnStatus.OK:
                return results
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return results
        else:
            results.append(result)


def prepare_on(connection: Connection) -> None:
    """Let the driver's connection prepare statements from now on; one with `PREPARE_THRESHOLD`."""
    driver: Any = connection.connection.driver_connection
    connection.info.setdefault(_INFO, Prepared(driver, connection.dialect))


def prepared_on(connection: Connection) -> Prepared | None:
    """The prepared statements of the driver's connection; None where everything is planned."""
    found: Prepared | None = connection.info.get(_INFO)  # of the driver's, which has one life
    return found


def _loaded(
    row: Sequence[Any], loaders: Sequence[tuple[int, Callable[[Any], Any]]]
) -> tuple[Any, ...]:
    cells = list(row)
    for n, load in loaders:
        cells[n] = load(cells[n])
    return tuple(cells)


@lru_cache(maxsize=1_024)
def _compiled(statement: Statement, dialect: Dialect) -> _SQL:
    compiled: Any = statement.compile(dialect=_DOLLARS)
    parameters = [
        (key, compiled.binds[key].type.dialect_impl(dialect).bind_processor(dialect))
        for key in compiled.positiontup
    ]
    # As text, so that the server infers the types: from SQLAlchemy's casts, or the columns.
    return _SQL(str(compiled).encode(), parameters, [PyFormat.TEXT] * len(parameters))
