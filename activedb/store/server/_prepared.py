"""Statements prepared once per connection, and executed below psycopg's cursors.

A transaction that changes one row sends two statements by key. For each, a cursor takes as long as
the server: so these statements use libpq's own calls (`psycopg.pq`), which saves a fifth of the
transaction's time. Statements whose results are not needed one by one are sent as one message: the
BEGIN goes with the first statement, the guard of a key with its locked read, and the writes with
each other and with the COMMIT. Each statement in a message saves one wait. psycopg converts values
and rows, and does the waiting, so Ctrl-C and `cancel` end these waits as they do with cursors.

Other statements are compiled once and sent by the driver directly: the same SQL and values as
SQLAlchemy would send, without its work per execution, which takes
longer than the server needs for one row.

The server answers a statement by key in less time than it takes a core to fall asleep and wake up,
especially on virtual machines, and a thread that has slept finds its caches cold. So a thread that
is the only one at work, and has had quick answers so far, polls for a moment, and yields its core
to other threads between two polls.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.waiting import Ready, Wait
from sqlalchemy import Connection, Dialect, Select
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.dml import UpdateBase

from activedb.store.server._driver_errors import converting, is_lost

__all__ = [
    "PREPARE_THRESHOLD",
    "Prepared",
    "SpinWait",
    "Statement",
    "Step",
    "StepFailed",
    "checked",
    "driver_cursor",
    "execute_alone",
    "fetch",
    "prepare_on",
    "prepared_on",
    "run",
    "takes_messages",
    "together",
]


_AWAKE_S = 0.000_3
_SKIPPED_MAX = 64

_is_possible = hasattr(select, "poll") and hasattr(os, "sched_yield") and (os.cpu_count() or 1) > 1


class SpinWait:
    """Spinner for answers of one kind on one connection.

    Each answer that is late makes it spin half as often.

    Parameters
    ----------
    number : int
        Descriptor of the connection's socket.
    is_alone : callable
        Return whether no other thread needs the core.
    """

    __slots__ = ("_is_alone", "_left", "_poll", "_skipped")

    def __init__(self, number: int, is_alone: Callable[[], bool]):
        self._is_alone = is_alone
        self._skipped = self._left = 0
        if _is_possible:
            poll = select.poll()
            poll.register(number, select.POLLIN)
            self._poll = poll.poll

    def sees_answer(self) -> bool:
        """Return whether an answer is available, after spinning as long as that is worthwhile."""
        if self._left:
            self._left -= 1
            return False
        if not _is_possible or not self._is_alone():
            return False
        poll = self._poll
        until_s = time.perf_counter() + _AWAKE_S
        while not poll(0):
            if time.perf_counter() > until_s:
                self._left = self._skipped = min(2 * self._skipped + 1, _SKIPPED_MAX)
                return False
            os.sched_yield()
        self._skipped = 0
        return True


PREPARE_THRESHOLD = None
"""Setting for psycopg on such connections: it prepares nothing, and so never deallocates all."""

_AGE_S_MAX = 1.0
_INFO = "activedb prepared"
_DROP = b"DEALLOCATE ALL"
_INFERRED = frozenset({0, 20, 21, 23})
"""Types that the server may infer from the context: text, and integers of any size."""

_DOLLARS = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]

Statement: TypeAlias = ClauseElement
Step: TypeAlias = tuple[Statement, Mapping[str, Any]]
"""A statement, and values for all of its parameters."""

# -- statements that are compiled once and then sent directly by the driver ------------------------


_Process = Callable[[Any], Any] | None
_Processors: TypeAlias = Mapping[str, tuple[str, _Process]]


class StepFailed(Exception):
    """Failure of a step.

    Attributes
    ----------
    at : int
        Index of the failed step; the number of steps if the COMMIT failed.
    error : Exception
        Error of the driver, or of the conversion of the values.
    """

    def __init__(self, at: int, error: Exception):
        super().__init__(at, error)
        self.at = at
        self.error = error


class _SQL(NamedTuple):
    """Compiled statement: its text, and its parameters in order."""

    text: bytes
    parameters: list[tuple[str, _Process]]
    formats: list[PyFormat]


class _PreparedStatement:
    """Statement that the server has prepared, once per combination of parameter types.

    The type matters: to a numeric column, say, a float is not the same as its text.
    """

    __slots__ = ("formats", "loaders", "names", "parameters", "statement", "text", "transformer")

    def __init__(self, statement: Statement | None, sql: _SQL, transformer: Any):
        self.statement = statement
        self.text, self.parameters, self.formats = sql
        self.names: dict[tuple[int, ...], bytes] = {}
        self.transformer = transformer
        self.loaders: list[tuple[int, Callable[[Any], Any]]] | None = None


class _MessagePart(NamedTuple):
    """Call of libpq that puts something into a message.

    Attributes
    ----------
    step : int
        Index of the step that it belongs to; -1 before the first one.
    plan : _PreparedStatement or None
        The statement, if it is executed.
    """

    send: Callable[..., object]
    arguments: tuple[Any, ...]
    step: int
    plan: _PreparedStatement | None = None


class Prepared:
    """Prepared statements of one psycopg connection.

    The server plans a prepared statement once and for all, and a plan made while a table is small
    scans the whole table. Replanning every time would cost a sixth of a small transaction, so
    instead all plans are dropped once a second, to keep up with tables that grow.

    REQUIRES: no other code uses the connection meanwhile.
    """

    def __init__(
        self, driver: psycopg.Connection[Any], dialect: Dialect, is_alone: Callable[[], bool]
    ):
        self._commits = SpinWait(driver.pgconn.socket, is_alone)
        self._others = SpinWait(driver.pgconn.socket, is_alone)
        self._driver = driver
        self._low = driver.pgconn
        self._dialect = dialect
        self._plans: dict[Statement, _PreparedStatement] = {}
        self._begin = _PreparedStatement(None, _SQL(b"BEGIN", [], []), None)
        self._commit = _PreparedStatement(None, _SQL(b"COMMIT", [], []), None)
        self._numbers = itertools.count()
        self._since_s = time.monotonic()

    def renew(self) -> None:
        """Drop plans that are too old; one round trip, at most once a second."""
        if self._is_old():
            self._forget()
            self._driver.execute(_DROP)  # psycopg has prepared none here

    def execute(self, steps: Sequence[Step], *, last: bool = False) -> list[list[tuple[Any, ...]]]:
        """Execute statements one after another and return the rows of each; one round trip.

        A statement is prepared right before it is executed for the first time, in the same message:
        to prepare an UPDATE locks its table, which is not to happen before the rows are locked.

        Parameters
        ----------
        last : bool
            Whether to commit along with them.

        Raises
        ------
        StepFailed
            If a step fails; no later step has been executed then.
        """
        low = self._low
        calls: list[_MessagePart] = []
        at = 0
        try:
            if self._is_old():
                self._forget()
                calls.append(_MessagePart(low.send_query_params, (_DROP, None), -1))
            if low.transaction_status == TransactionStatus.IDLE:
                self._add(calls, self._begin, (), None, -1)
            with converting():
                for statement, values in steps:
                    plan = self._plans.get(statement) or self._plan(statement)
                    cells = [values[k] if p is None else p(values[k]) for k, p in plan.parameters]
                    parameters = plan.transformer.dump_sequence(cells, plan.formats)
                    self._add(calls, plan, plan.transformer.types, parameters, at)
                    at += 1
            if last:
                self._add(calls, self._commit, (), None, at)
            at = -1
            results = self._sent(calls, last=last)
            for result, call in zip(results, calls, strict=False):
                at = call.step
                if result.status == ExecStatus.FATAL_ERROR:
                    checked(self._driver, [result])
            if len(results) < len(calls):
                at = calls[len(results)].step
                raise _lost()
        except Exception as error:
            self._since_s = 0.0  # the cause may have been a stale plan, or some are not prepared
            raise StepFailed(max(at, 0), error) from error
        except BaseException:  # interrupted: some that are taken for prepared may not be
            self._since_s = 0.0
            raise
        rows: list[list[tuple[Any, ...]]] = []
        for result, call in zip(results, calls, strict=True):
            if call.plan is not None and 0 <= call.step < len(steps):
                rows.append(self._rows(call.plan, result) if result.ntuples else [])
        return rows

    def _is_old(self) -> bool:
        return time.monotonic() - self._since_s > _AGE_S_MAX

    def _forget(self) -> None:
        self._plans.clear()
        self._begin.names.clear()
        self._commit.names.clear()
        self._since_s = time.monotonic()

    def _add(
        self,
        calls: list[_MessagePart],
        plan: _PreparedStatement,
        came: tuple[int, ...],
        parameters: Any,
        step: int,
    ) -> None:
        """Add the execution of a statement for parameters of some types; first its preparation."""
        name = plan.names.get(came)
        if name is None:
            types = tuple([0 if oid in _INFERRED else oid for oid in came])
            name = plan.names.get(types)
            if name is None:
                name = plan.names[types] = b"activedb_%d" % next(self._numbers)
                calls.append(_MessagePart(self._low.send_prepare, (name, plan.text, types), step))
            plan.names[came] = name
        calls.append(_MessagePart(self._low.send_query_prepared, (name, parameters), step, plan))

    def _sent(self, calls: Sequence[_MessagePart], *, last: bool) -> list[Any]:
        """Send a message and return the server's results; fewer results if one fails."""
        low = self._low
        low.enter_pipeline_mode()
        try:
            watch = self._commits if last else self._others
            return self._driver.wait(_exchanged(low, calls, watch))
        finally:
            self._leave_pipeline()

    def _rows(self, plan: _PreparedStatement, result: Any) -> list[tuple[Any, ...]]:
        transformer = plan.transformer
        if plan.loaders is None:
            plan.loaders = self._loaders(plan.statement, result)
            transformer.set_pgresult(result)
        else:
            transformer.set_pgresult(result, set_loaders=False)
        rows: list[Any] = transformer.load_rows(0, result.ntuples, tuple)
        if plan.loaders:
            with converting():
                rows = [_loaded(row, plan.loaders) for row in rows]
        return rows

    def _plan(self, statement: Statement) -> _PreparedStatement:
        plan = _PreparedStatement(
            statement, _compiled(statement, self._dialect), Transformer(self._driver)
        )
        self._plans[statement] = plan
        return plan

    def _leave_pipeline(self) -> None:
        try:
            self._low.exit_pipeline_mode()
        except psycopg.Error:  # left before its end: the state of the protocol is unknown
            cut(self._driver)  # else what has not been sent yet would be sent, and take effect
            self._driver.close()

    def _loaders(self, statement: Any, result: Any) -> list[tuple[int, Callable[[Any], Any]]]:
        """Return result processors, by position, from the driver's values to SQLAlchemy's types."""
        found = [
            (n, column.type.dialect_impl(self._dialect).result_processor(self._dialect, oid))
            for n, column in enumerate(_columns_of(statement))
            if (oid := result.ftype(n)) is not None
        ]
        return [(n, load) for n, load in found if load is not None]


def cut(driver: psycopg.Connection[Any]) -> None:
    """Sever a connection from any thread, without waiting; a call waiting on it finds it lost.

    REQUIRES: on another thread, a call on it is under way and cannot end meanwhile.

    That call may close the connection, and its descriptor may be reused for another socket. So this
    shuts down a duplicate of the descriptor: it is the right socket if the connection had the same
    descriptor before and after, because a closed connection never gets a socket again.
    """
    try:
        number = driver.pgconn.socket
        with socket.socket(fileno=os.dup(number)) as copy:
            if driver.pgconn.socket == number:
                copy.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass  # already closed


def checked(driver: psycopg.Connection[Any], results: Sequence[Any]) -> None:
    """Raise the error in results from below the cursor, as psycopg's cursors would.

    An error without SQLSTATE is libpq's own: the connection is lost; so it is without any result.
    """
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            error = error_from_result(result, encoding=driver.info.encoding)
            if error.sqlstate:
                raise error
            raise _lost(str(error))
    if not results:
        raise _lost()


def _lost(said: str = "") -> psycopg.OperationalError:
    return psycopg.OperationalError(said or "the connection to the server was lost")


def _exchanged(low: Any, calls: Sequence[_MessagePart], watch: SpinWait) -> PQGen[list[Any]]:
    """Send a pipeline and receive its results, up to its sync, in one wait if possible.

    psycopg's own generators wait for each message's answer separately, which costs as much as the
    pipeline saves. If this is interrupted anywhere, psycopg cancels what the server does; it is too
    early for that only in the moment before the server has begun.
    """
    for call in calls:
        call.send(*call.arguments)
    low.pipeline_sync()
    while low.flush():
        if (yield Wait.RW) & Ready.R:
            low.consume_input()
    if watch.sees_answer():
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


def prepare_on(connection: Connection, is_alone: Callable[[], bool]) -> None:
    """Prepare statements on the driver's connection from now on, with `PREPARE_THRESHOLD`.

    Parameters
    ----------
    is_alone : callable
        Return whether no other connection is in use, so that a thread may spin; see `_prepared`.
    """
    if _INFO not in connection.info:
        driver: Any = connection.connection.driver_connection
        connection.info[_INFO] = Prepared(driver, connection.dialect, is_alone)


def prepared_on(connection: Connection) -> Prepared | None:
    """Return the prepared statements of the driver's connection; None if it prepares none."""
    found: Prepared | None = connection.info.get(_INFO)  # of the driver's connection
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
    return _SQL(str(compiled).encode(), parameters, [PyFormat.TEXT] * len(parameters))


def takes_messages(connection: Connection) -> bool:
    """Return whether `together` works here: on Postgres, and not on a caller's connection."""
    return connection.dialect.name != "sqlite" and prepared_on(connection) is not None


def together(
    connection: Connection, steps: Sequence[Step], *, last: bool = False
) -> list[list[tuple[Any, ...]]]:
    """Send statements as one message and return the rows of each; one round trip.

    REQUIRES: `takes_messages`.

    Parameters
    ----------
    steps : sequence of (statement, values)
        Statements are cached when compiled, so pass the same objects each time.
    last : bool
        Whether to commit along with them.

    Raises
    ------
    StepFailed
    """
    prepared = prepared_on(connection)
    assert prepared is not None
    try:
        return prepared.execute(steps, last=last)
    except StepFailed as failed:
        if isinstance(failed.error, psycopg.Error):
            _invalidate_if_lost(connection, failed.error)
        raise


def run(connection: Connection, statement: UpdateBase, rows: Sequence[dict[str, Any]]) -> None:
    """Execute `statement` once per row; each row has all of its parameters.

    One round trip, however many rows. Errors are the driver's.

    Parameters
    ----------
    statement : INSERT, UPDATE or DELETE
        Cached when compiled, so pass the same object each time.
    """
    sql, processors = _compiled_statement(statement, connection.dialect)
    with converting():
        bound = rows if processors is None else [_bound(processors, row) for row in rows]
        if connection.dialect.name == "sqlite":
            driver: Any = connection.connection.driver_connection
            driver.executemany(sql, bound)
            return
    prepared = prepared_on(connection)
    if prepared is not None:
        prepared.renew()
    with driver_cursor(connection) as cursor, converting():
        if len(bound) == 1:
            cursor.execute(sql, bound[0])
        else:
            cursor.executemany(sql, bound)


def fetch(connection: Connection, steps: Sequence[Step]) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each of several SELECTs, or of writes with a RETURNING clause.

    One round trip; on a caller's connection one per statement. Errors are the driver's.

    Parameters
    ----------
    steps : sequence of (statement, values)
        Statements are cached when compiled, so pass the same objects each time.
    """
    if takes_messages(connection):
        try:
            return together(connection, steps)
        except StepFailed as failed:
            raise failed.error from None
    return [_fetched(connection, statement, values) for statement, values in steps]


def _fetched(
    connection: Connection, statement: Any, values: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    dialect = connection.dialect
    sql, processors = _compiled_statement(statement, dialect)
    kinds: tuple[int, ...] | None = None
    with converting():
        bound = values if processors is None else _bound(processors, values)
        if dialect.name == "sqlite":
            driver: Any = connection.connection.driver_connection
            rows: list[tuple[Any, ...]] = driver.execute(sql, bound).fetchall()
        else:
            with driver_cursor(connection) as cursor:
                rows = cursor.execute(sql, bound).fetchall()
                kinds = tuple([column.type_code for column in cursor.description or ()])
        loaders = _loaders(statement, dialect, kinds) if rows else {}
        if not loaders:
            return rows
        return [
            tuple([loaders[i](cell) if i in loaders else cell for i, cell in enumerate(row)])
            for row in rows
        ]


def execute_alone(connection: Connection, statement: bytes, values: Sequence[bytes]) -> None:
    """Execute a statement outside transactions of SQLAlchemy and psycopg; one round trip.

    Parameters
    ----------
    statement : bytes
        SQL with parameters $1 and so on; its rows are ignored.
    """
    driver: Any = connection.connection.driver_connection
    try:
        driver.pgconn.send_query_params(statement, values)
        checked(driver, driver.wait(generators.execute(driver.pgconn)))
    except psycopg.Error as error:
        _invalidate_if_lost(connection, error)
        raise


@contextmanager
def driver_cursor(connection: Connection) -> Iterator[psycopg.Cursor[Any]]:
    """Yield a psycopg cursor inside SQLAlchemy's transaction."""
    if not connection.in_transaction():
        connection.begin()
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        with driver.cursor() as cursor:
            yield cursor
    except psycopg.Error as error:
        _invalidate_if_lost(connection, error)
        raise


def _invalidate_if_lost(connection: Connection, error: psycopg.Error) -> None:
    """Invalidate a lost connection, because SQLAlchemy does not see the driver's errors here."""
    if connection.invalidated:
        return
    driver: Any = connection.connection.driver_connection
    if driver.closed or driver.broken or is_lost(error):
        connection.invalidate(error)


_BY_NAME = SQLiteDialect_pysqlite(paramstyle="named")


@lru_cache(maxsize=1_024)
def _compiled_statement(
    statement: UpdateBase | Select[Any], dialect: Dialect
) -> tuple[str, _Processors | None]:
    """Return the SQL, and the name and bind processor of each parameter.

    None: the parameters are bound as they are.
    """
    by_name = _BY_NAME if dialect.name == "sqlite" else dialect
    compiled: Any = statement.compile(dialect=by_name)
    names: Mapping[str, str] = compiled.escaped_bind_names
    found = {
        key: (names.get(key, key), bind.type.dialect_impl(dialect).bind_processor(dialect))
        for key, bind in compiled.binds.items()
    }
    is_plain = all(key == name and process is None for key, (name, process) in found.items())
    return str(compiled), None if is_plain else found


def _bound(processors: _Processors, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: values[key] if process is None else process(values[key])
        for key, (name, process) in processors.items()
    }


def _columns_of(statement: Any) -> Iterable[Any]:
    """Return the columns of a statement's rows; of a write, those of its RETURNING clause."""
    is_write = isinstance(statement, UpdateBase)
    columns: Iterable[Any] = statement.exported_columns if is_write else statement.selected_columns
    return columns


@lru_cache(maxsize=1_024)
def _loaders(
    statement: Statement, dialect: Dialect, kinds: tuple[int, ...] | None
) -> Mapping[int, Callable[[Any], Any]]:
    """Return result processors, by position, from the driver's values to SQLAlchemy's types.

    Parameters
    ----------
    kinds : tuple of int or None
        The driver's types of the columns; None if it has none.
    """
    columns = list(_columns_of(statement))
    found = {
        position: column.type.dialect_impl(dialect).result_processor(dialect, kind)
        for position, (column, kind) in enumerate(
            zip(columns, kinds or [None] * len(columns), strict=True)
        )
    }
    return {position: load for position, load in found.items() if load is not None}
