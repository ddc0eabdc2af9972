"""Committed rows in Postgres, through SQLAlchemy and psycopg 3."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, MetaData, func, select, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.schema import CreateSchema, DropSchema

from activedb.config import Settings, mask_url
from activedb.errors import ConfigurationError, ServerUnreachable
from activedb.store.replication import Slot, set_session_mark
from activedb.store.server import (
    NOTIFY,
    OUTCOMES,
    PREPARE_THRESHOLD,
    ConnectionCache,
    EmbeddedServer,
    PatientLatch,
    at_least,
    await_server,
    backend_of,
    check_essential,
    close_for_good,
    commit_outcome,
    cut,
    engine_for,
    invalid_option,
    missing_functions,
    ping_if_idle,
    qualified_xid,
    track_sockets,
    translate_errors,
    upgrade,
    xid_of,
)
from activedb.store.session._flat import Latch
from activedb.store.session._ownership import Ownership
from activedb.store.session._plain_use import UserConnection, UserConnections
from activedb.store.session._processes import Backend, Lease, Wakeups, backends, send_wakeup
from activedb.store.session._store import Store
from activedb.store.sql import (
    GUARD_ABSENT,
    GUARD_TABLE,
    GUARD_TO_INSERT,
    Key,
    TableSpec,
    guard_number,
    lock_table,
    numbering,
)

__all__ = ["PostgresStore"]

_SERVER_VERSION_MIN = 150_000
_CANCEL_S_MAX = 1.0
_OUTCOME_S_MIN = 1.0  # to resolve an in-doubt commit even after the time limit
_IDENTITY = text("SELECT pg_postmaster_start_time(), current_database(), current_schema()")


class PostgresStore(Store):
    """Store on any PostgreSQL 15 or newer.

    Parameters
    ----------
    url : sqlalchemy.URL
    metadata : sqlalchemy.MetaData
    settings : Settings
    beneath : EmbeddedServer, optional
        Embedded server to close with this store.
    fresh : bool
        Drop ``settings.db_schema`` with all its contents first.

    Raises
    ------
    ServerUnreachable
        If no server answers, or it refuses the login.
    InvalidURL
        If the URL has an unknown option.
    ConfigurationError
        If the server is too old.
    """

    is_shared = True
    ownership: Ownership
    lease: Lease

    def __init__(
        self,
        url: URL,
        metadata: MetaData,
        settings: Settings,
        *,
        beneath: EmbeddedServer | None = None,
        fresh: bool = False,
        raised: Callable[[str], str] = lambda schema: "",
    ):
        # Locked reads need the newest rows, whatever a role's default is, and the connection with
        # the locks on used tables is idle indefinitely.
        session = {
            "default_transaction_isolation": "read committed",
            "idle_session_timeout": "0",
            "lock_timeout": str(settings.lock_timeout_ms),
            "timezone": "UTC",
        }
        if settings.db_schema is not None:
            session["search_path"] = settings.db_schema
        # Tables grow by the hour; a generic plan made for an empty table would scan it whole.
        other = {**session, "plan_cache_mode": "force_custom_plan"}

        def engine_of(
            connections: int, more: int, asked: Mapping[str, str] = other, **options: Any
        ) -> Engine:
            engine = engine_for(url, asked, pool_size=connections, max_overflow=more, **options)
            ping_if_idle(engine)
            track_sockets(engine)
            return engine

        kept = settings.threads + 2

        def flat_engine(isolation: str) -> Engine:
            return engine_of(
                kept,
                settings.threads + 8,
                {**session, "default_transaction_isolation": isolation},
                connect_args={"prepare_threshold": PREPARE_THRESHOLD},
                needs_sessions=True,
            )

        engine = flat_engine("read committed")
        self._flat = ConnectionCache(engine, kept)
        # Opened when the first transaction asks for it.
        self._serializable = ConnectionCache(flat_engine("serializable"), kept)
        self._users = engine_of(kept, settings.threads + 8)
        self._plain = UserConnections(self._users, self.interrupt)
        # Short transactions have separate connections: a hierarchy may need one while it holds
        # its own, and would wait for itself if all were taken.
        self._short = engine_of(2, settings.threads)
        readers = engine_of(settings.threads, 0, isolation_level="AUTOCOMMIT", pool_timeout=0)
        self._readers = ConnectionCache(readers, settings.threads, prepares=False)
        super().__init__(engine, metadata, raised)
        self._beneath = beneath
        self._patience_s = settings.lock_timeout_ms / 1_000
        try:
            with _first_connection(engine, url, settings.wait_s) as connection:
                self._missing = missing_functions(connection)
                self.tells_outcomes = OUTCOMES.isdisjoint(self._missing)
                check_essential(self._missing)
                version = connection.scalar(text("SHOW server_version_num"))
                if settings.db_schema is not None:
                    _make_schema(connection, settings.db_schema, fresh=fresh)
                self.schema = connection.scalar(select(func.current_schema())) or "public"
        except ConfigurationError:
            engine.dispose()
            raise
        except DBAPIError as error:
            engine.dispose()
            wrong = invalid_option(str(url), error)
            if wrong is not None:
                raise wrong from error
            reason = " ".join(str(error.orig).split())
            if not isinstance(error, OperationalError):
                raise ConfigurationError(
                    f"cannot use schema {settings.db_schema} at {mask_url(str(url))}: {reason}; "
                    f"give the role the right, or have the schema made for it"
                ) from error
            raise ServerUnreachable(
                f"no Postgres answers at {mask_url(str(url))}: {reason}; check ACTIVEDB_URL, or "
                f"leave it out to use the embedded server"
            ) from error
        if int(version or 0) < _SERVER_VERSION_MIN:
            engine.dispose()
            raise ConfigurationError(
                f"the server at {mask_url(str(url))} is PostgreSQL {version}; 15 or newer is needed"
            )
        # One connection for the locks on tables, one for the lease, one to listen for firings:
        # each is held for as long as it is in use, and idle for nearly all that time. And one for
        # each followed slot.
        self._idle = engine_of(3, 8, isolation_level="AUTOCOMMIT")
        self.ownership = Ownership(self._idle, self._short, self.schema)
        self.lease = Lease(self._idle)

    def close(self) -> None:
        self._flat.close()
        self._serializable.close()
        super().close()
        close_for_good(self._users)
        close_for_good(self._short)
        self._readers.close()
        self.lease.close()
        self.ownership.close()
        if self._beneath is not None:
            self._beneath.close()

    def migrate(self) -> None:
        upgrade(self.engine)

    @contextmanager
    def short(self) -> Iterator[Connection]:
        with self._short.begin() as connection:
            yield connection

    def wakeups(self) -> Wakeups:
        return Wakeups(self._idle, self.schema)

    def send_wakeup(self, connection: Connection) -> None:
        if NOTIFY.isdisjoint(self._missing):
            send_wakeup(connection, self.schema)

    def slot(self, name: str) -> Slot:
        return Slot(self._idle, self.short, self.schema, name, self._patience_s)

    def latch(self) -> Latch:
        return PatientLatch()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        with self._users.connect() as connection, self._plain.of(connection):
            yield connection

    def plain_uses(self) -> list[UserConnection]:
        return self._plain.now()

    def check_same_database(self, connection: Connection) -> None:
        if connection.engine is self._users:
            return
        with translate_errors("look at the connection"), self.short() as mine:
            if connection.dialect.name != "postgresql" or (
                connection.execute(_IDENTITY).one() != mine.execute(_IDENTITY).one()
            ):
                raise ConfigurationError(
                    "the connection goes to another database or schema than this database object; "
                    "hand over one to the same server, database and search path"
                )

    def latch_of(self, connection: Connection) -> Latch:
        return PatientLatch()

    def acquire(self, *, serializable: bool = False) -> Connection:
        cache = self._serializable if serializable else self._flat
        connection = cache.take()
        try:
            set_session_mark(connection, self.raised(self.schema))
        except BaseException:
            cache.give_back(connection)
            raise
        return connection

    def begin_writing(self, connection: Connection, latch: Latch) -> None:
        """Do nothing: the transaction began with the first statement."""

    def commit(self, connection: Connection, *, lazily: bool) -> None:
        if lazily:
            connection.execute(text("SET LOCAL synchronous_commit = off"))
        if connection.in_transaction():
            connection.commit()
        else:  # SQLAlchemy has seen none of its statements
            connection.connection.driver_connection.commit()  # type: ignore[union-attr]

    @contextmanager
    def reader(self) -> Iterator[Connection | None]:
        connection = None
        with translate_errors("open a connection to read on"), suppress(PoolTimeout):
            connection = self._readers.take()
        try:
            yield connection
        finally:
            if connection is not None:
                self._readers.give_back(connection)

    def number_of(self, connection: Connection, *, is_ours: bool = True) -> str:
        return xid_of(connection, is_ours=is_ours, missing=self._missing)

    def named(self, connection: Connection, number: str) -> str:
        return qualified_xid(connection, number, missing=self._missing)

    def outcome(self, number: str) -> bool | None:
        with at_least(_OUTCOME_S_MIN):
            return commit_outcome(self._short, number, self._patience_s)

    def interrupt(self, driver_connection: Any) -> None:
        with suppress(psycopg.Error):  # a lost connection has no statement to cancel
            driver_connection.cancel_safe(timeout=_CANCEL_S_MAX)

    def cut(self, driver_connection: Any) -> None:
        cut(driver_connection)

    def backends(self) -> list[Backend]:
        with translate_errors("look who waits at the server"), self.short() as connection:
            return backends(connection)

    def backend_of(self, connection: Connection) -> int | None:
        driver: Any = connection.connection.driver_connection
        return backend_of(driver)

    def release(self, connection: Connection, latch: Latch) -> None:
        cache = self._flat if connection.engine is self.engine else self._serializable
        cache.give_back(connection)

    def lock_table(self, connection: Connection, spec: TableSpec) -> None:
        connection.execute(lock_table(spec, "SHARE"))

    def guard(
        self,
        connection: Connection,
        spec: TableSpec,
        keys: Sequence[Key] | None,
        *,
        exclusive: bool,
    ) -> None:
        # Not a table lock: it would wait, invisibly to this process, for the process's own scans.
        table = self.ownership.name_of(spec)
        if keys is None:
            connection.execute(GUARD_TABLE, {"table": guard_number(table)})
        else:
            numbers = sorted({guard_number(table, key) for key in keys})
            statement = GUARD_TO_INSERT if exclusive else GUARD_ABSENT
            connection.execute(statement, {"table": guard_number(table), "keys": numbers})

    def suspect(self) -> None:
        self._flat.drop()
        self._serializable.drop()
        self._readers.drop()
        self.ownership.suspect()

    def next_number(self, connection: Connection, spec: TableSpec, name: str) -> int | None:
        number: int | None = connection.scalar(numbering(connection.dialect, spec, name))
        return number


@contextmanager
def _first_connection(engine: Engine, address: URL, wait_s: float | None) -> Iterator[Connection]:
    """Yield a transaction on the first connection; wait while the server is starting.

    The time of the first try counts as waiting time: if it is over then, there is no second try.
    """
    began_s = time.monotonic()
    try:
        connection = engine.connect()
    except OperationalError:
        if not await_server(address, wait_s, began_s):
            raise
        connection = engine.connect()
    with connection, connection.begin():
        yield connection


def _make_schema(connection: Connection, schema: str, *, fresh: bool) -> None:
    if fresh:
        connection.execute(DropSchema(schema, cascade=True, if_exists=True))
    quoted = connection.dialect.identifier_preparer.quote(schema)
    if connection.scalar(select(func.to_regnamespace(quoted))) is None:
        # Only if it is missing: this needs a right that the schema's owner may lack.
        connection.execute(CreateSchema(schema, if_not_exists=True))
