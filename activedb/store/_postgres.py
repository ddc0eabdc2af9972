"""Committed rows in Postgres, through SQLAlchemy and psycopg 3."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, func, select, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.schema import CreateSchema, DropSchema

from activedb.config import Settings, mask_url
from activedb.errors import ConfigurationError, ServerUnreachable
from activedb.store import _migrations, _outcome
from activedb.store._store import Store
from activedb.store._tables import TableSpec
from activedb.store.embedded import EmbeddedServer

__all__ = ["PostgresStore"]

_SERVER_VERSION_MIN = 150_000


class PostgresStore(Store):
    """Any PostgreSQL 15 or newer.

    Parameters
    ----------
    url : sqlalchemy.URL
    metadata : sqlalchemy.MetaData
    settings : Settings
    beneath : EmbeddedServer, optional
        The embedded server to close with this store.
    fresh : bool
        Drop ``settings.db_schema`` with all that is in it first.

    Raises
    ------
    ServerUnreachable
        If no server answers, or it refuses the login.
    ConfigurationError
        If the server is too old.
    """

    has_arrays = True
    is_shared = True

    def __init__(
        self,
        url: URL,
        metadata: MetaData,
        settings: Settings,
        *,
        beneath: EmbeddedServer | None = None,
        fresh: bool = False,
    ):
        options = f"-c lock_timeout={settings.lock_timeout_ms} -c timezone=UTC"
        # Tables grow by the hour; a generic plan made while one was empty would scan it whole.
        options += " -c plan_cache_mode=force_custom_plan"
        if settings.db_schema is not None:
            options += f" -c search_path={settings.db_schema}"
        connect_args = {"application_name": "activedb", "connect_timeout": 10, **url.query}
        connect_args["options"] = f"{url.query.get('options', '')} {options}".strip()
        address = url.set(drivername="postgresql+psycopg").difference_update_query(["options"])

        def engine_of(connections: int, more: int, **options: Any) -> Engine:
            engine = create_engine(
                address,
                connect_args=connect_args,
                pool_size=connections,
                max_overflow=more,
                **options,
            )
            _outcome.ping_if_idle(engine)
            return engine

        engine = engine_of(settings.threads + 2, settings.threads + 8)
        # Short transactions have connections of their own: a hierarchy may need one while it
        # keeps its own, and would wait for itself if all were taken.
        self._short = engine_of(2, settings.threads)
        self._readers = engine_of(settings.threads, 0, isolation_level="AUTOCOMMIT", pool_timeout=0)
        super().__init__(engine, metadata)
        self._beneath = beneath
        self._patience_s = settings.lock_timeout_ms / 1_000
        try:
            with engine.begin() as connection:
                version = connection.scalar(text("SHOW server_version_num"))
                if settings.db_schema is not None:
                    _make_schema(connection, settings.db_schema, fresh=fresh)
                self.schema = connection.scalar(select(func.current_schema())) or "public"
        except DBAPIError as error:
            engine.dispose()
            reason = " ".join(str(error.orig).split())
            raise ServerUnreachable(
                f"no Postgres answers at {mask_url(str(url))}: {reason}; check ACTIVEDB_URL, or "
                f"leave it out to use the embedded server"
            ) from error
        if int(version or 0) < _SERVER_VERSION_MIN:
            engine.dispose()
            raise ConfigurationError(
                f"the server at {mask_url(str(url))} is PostgreSQL {version}; 15 or newer is needed"
            )

    def close(self) -> None:
        super().close()
        self._short.dispose()
        self._readers.dispose()
        if self._beneath is not None:
            self._beneath.close()

    def migrate(self) -> None:
        _migrations.upgrade(self.engine)

    @contextmanager
    def short(self) -> Iterator[Connection]:
        with self._short.begin() as connection:
            yield connection

    def latch(self) -> AbstractContextManager[Any]:
        return threading.RLock()

    def acquire(self) -> Connection:
        return self.engine.connect()

    def begin_writing(self, connection: Connection, latch: AbstractContextManager[Any]) -> None:
        """Nothing to do: the transaction began with the first statement."""

    def commit(self, connection: Connection, *, lazily: bool) -> None:
        if lazily:
            connection.execute(text("SET LOCAL synchronous_commit = off"))
        connection.commit()

    @contextmanager
    def reader(self) -> Iterator[Connection | None]:
        try:
            connection = self._readers.connect()
        except PoolTimeout:
            yield None
            return
        with connection:
            yield connection

    def number_of(self, connection: Connection) -> str:
        return _outcome.number_of(connection)

    def outcome(self, number: str) -> bool | None:
        return _outcome.outcome(self._short, number, self._patience_s)

    def interrupt(self, connection: Connection) -> None:
        # A connection that was lost has nothing left to interrupt.
        with suppress(psycopg.Error, InvalidRequestError):
            _driver(connection).cancel_safe(timeout=self._patience_s)

    def backend_of(self, connection: Connection) -> int | None:
        try:
            return int(_driver(connection).info.backend_pid)
        except (psycopg.Error, InvalidRequestError):
            return None

    def release(self, connection: Connection, latch: AbstractContextManager[Any]) -> None:
        connection.close()

    def lock_table(self, connection: Connection, spec: TableSpec) -> None:
        name = connection.dialect.identifier_preparer.format_table(spec.table)
        connection.execute(text(f"LOCK TABLE {name} IN SHARE MODE"))

    def guard_absence(self, connection: Connection, table: str, *, exclusive: bool) -> None:
        # Not a table lock: that would wait, on the server alone, for scans of this process.
        lock = func.pg_advisory_xact_lock if exclusive else func.pg_advisory_xact_lock_shared
        guarded = f"activedb rows of {self.schema}.{table}"
        connection.execute(select(lock(func.hashtextextended(guarded, 0))))

    def next_key(self, connection: Connection, spec: TableSpec) -> int:
        name = connection.dialect.identifier_preparer.format_table(spec.table)
        sequence = func.pg_get_serial_sequence(name, spec.generated)
        return int(connection.execute(select(func.nextval(sequence))).scalar_one())


def _make_schema(connection: Connection, schema: str, *, fresh: bool) -> None:
    if fresh:
        connection.execute(DropSchema(schema, cascade=True, if_exists=True))
    connection.execute(CreateSchema(schema, if_not_exists=True))


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    return connection.connection.driver_connection  # type: ignore[return-value]  # psycopg's
