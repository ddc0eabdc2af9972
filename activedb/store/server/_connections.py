"""Connections to a server: how they are opened and configured, and how long callers wait.

```
   pool ─► ServerConnection.connect ─► set, read back, ask for the server's process ─► pool
           (keepalives, time limits)        (one round trip)
```

Settings are made by statements, never by options of the start-up packet: poolers drop those,
silently if so configured. A connection whose settings are lost one transaction later is refused.

Parent and child share each socket. So in the child its descriptor is redirected to ``/dev/null``: a
late write does not reach the server, and the server sees the end of the connection only when the
parent closes it.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import math
import os
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Self, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Connection, Engine, Pool, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError

from activedb.config import mask_url
from activedb.errors import (
    ConfigurationError,
    InvalidURL,
    UnsuitablePooler,
    database_closed,
)
from activedb.store.server._patience import bounded_s, limited, until_s
from activedb.store.server._prepared import prepare_on
from activedb.store.server._quoting import literal

__all__ = [
    "ConnectionCache",
    "ServerConnection",
    "await_server",
    "backend_of",
    "close_for_good",
    "engine_for",
    "is_pooled",
    "leave_sockets",
    "ping_if_idle",
    "track_sockets",
]


_IDLE_S_MAX = 1.0


class ConnectionCache:
    """Cache of an engine's SQLAlchemy connections, kept open after use.

    A pool's checkout, reset and checkin take a twentieth of a small transaction's time. So the
    pool only opens connections and limits their number.

    Latches: its own, held briefly; no other latch is taken under it.
    """

    def __init__(self, engine: Engine, kept_max: int, *, prepares: bool = True):
        self._engine = engine
        self._prepares = prepares
        self._kept_max = kept_max
        self._latch = threading.Lock()
        self._kept: list[tuple[Connection, float]] = []
        self._waiting = 0
        self._taken = 0

    def take(self) -> Connection:
        """Return a cached or new connection; one that was idle for a second is pinged first."""
        connection = self._kept_or_new()
        with self._latch:
            self._taken += 1
        return connection

    def _kept_or_new(self) -> Connection:
        while True:
            with self._latch:
                if self._kept:
                    connection, since_s = self._kept.pop()
                else:
                    self._waiting += 1
                    break
            if time.monotonic() - since_s < _IDLE_S_MAX or self._answers(connection):
                return connection
            _drop(connection)
        try:
            connection = self._engine.connect()
        finally:
            with self._latch:
                self._waiting -= 1
        if self._prepares:
            prepare_on(connection, self._is_one_taken)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Roll back uncommitted changes and cache the connection, if it is still alive."""
        with self._latch:
            self._taken -= 1
        try:
            if connection.get_transaction() is not None:  # one whose commit failed is inactive
                connection.rollback()
            if connection.invalidated or connection.closed:
                connection.close()
                return
            driver: Any = connection.connection.driver_connection
            if driver.pgconn.transaction_status != TransactionStatus.IDLE:
                driver.rollback()
        except (DBAPIError, psycopg.Error):
            _drop(connection)
            return
        with self._latch:
            # A thread that waits for the pool does not see cached connections.
            if not self._waiting and len(self._kept) < self._kept_max:
                self._kept.append((connection, time.monotonic()))
                return
        connection.close()

    def drop(self) -> None:
        """Close every cached connection."""
        with self._latch:
            kept, self._kept = self._kept, []
        for connection, _ in kept:
            _drop(connection)

    def close(self) -> None:
        """Close all connections, cached here or in the pool beneath, and cache no more."""
        with self._latch:
            self._kept_max = 0
        self.drop()
        close_for_good(self._engine)

    def _is_one_taken(self) -> bool:
        return self._taken == 1

    def _answers(self, connection: Connection) -> bool:
        dialect = self._engine.dialect
        try:
            return dialect.do_ping(connection.connection.dbapi_connection)  # type: ignore[arg-type]  # it is open
        except psycopg.Error:
            return False


def ping_if_idle(engine: Engine) -> None:
    """Ping a pooled connection that was idle for a second before it is used again."""

    def returned(dbapi_connection: Any, record: Any) -> None:
        record.info["idle since"] = time.monotonic()

    def taken(dbapi_connection: Any, record: Any, proxy: Any) -> None:
        since = record.info.get("idle since")
        if since is None or time.monotonic() - since < _IDLE_S_MAX:
            return
        try:
            engine.dialect.do_ping(dbapi_connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError from error  # the pool opens another one

    event.listen(engine, "checkin", returned)
    event.listen(engine, "checkout", taken)


def _drop(connection: Connection) -> None:
    connection.invalidate()
    connection.close()


# -- connections that a forked child inherits: it must neither use them nor end their sessions -----


_connections: WeakSet[Any] = WeakSet()


def track_sockets(engine: Engine) -> None:
    """Remember an engine's new connections, for `leave_sockets`."""
    event.listen(engine, "connect", lambda connection, _: _connections.add(connection))


def leave_sockets() -> None:
    """Detach from every remembered connection. REQUIRES: this is a forked child."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for connection in list(_connections):
            with contextlib.suppress(OSError, psycopg.Error):  # already closed
                os.dup2(nowhere, connection.fileno(), inheritable=False)
    finally:
        os.close(nowhere)
    _connections.clear()


# -- check of whether a server accepts connections, without a login, like ``pg_isready`` -----------

_ASK_S_MAX = 5.0
_LENGTH = struct.Struct("!I")
_TLS = struct.pack("!II", 8, 80877103)
_NAMES = b"user\0activedb\0database\0activedb\0application_name\0activedb\0\0"
_START = struct.pack("!II", 8 + len(_NAMES), 3 << 16) + _NAMES
_STARTING = b"57P03"
_ANSWER_MAX = 10_000


class Readiness(enum.Enum):
    """Server's answer to a process that wants to connect."""

    READY = enum.auto()
    STARTING = enum.auto()
    SILENT = enum.auto()


def readiness(places: Iterable[tuple[str, int]], ask_s: float) -> Readiness:
    """Return the best answer of several servers, each a host or socket folder, and a port.

    Each server may take `ask_s` for an answer.
    """
    found = {_of(host, port, ask_s) for host, port in places}
    order = (Readiness.READY, Readiness.STARTING, Readiness.SILENT)
    return next((one for one in order if one in found), Readiness.SILENT)


def _of(host: str, port: int, ask_s: float) -> Readiness:
    try:
        with contextlib.ExitStack() as stack:
            if host.startswith(("/", "@")):
                wire = stack.enter_context(socket.socket(socket.AF_UNIX))
                wire.settimeout(ask_s)
                name = os.path.join(host, f".s.PGSQL.{port}")
                wire.connect(f"\0{name[1:]}" if host.startswith("@") else name)
            else:
                address = socket.create_connection((host, port), timeout=ask_s)
                wire = stack.enter_context(address)
                wire.sendall(_TLS)
                if wire.recv(1) == b"S":
                    wire = stack.enter_context(_unverified().wrap_socket(wire))
            wire.sendall(_START)
            return _understood(wire)
    except (OSError, ValueError):
        return Readiness.SILENT


def _understood(wire: socket.socket) -> Readiness:
    """Read the first message: an error with its code, or a request to authenticate."""
    head = _exactly(wire, 5)
    if head[:1] != b"E":
        return Readiness.READY
    size = min(_LENGTH.unpack(head[1:])[0] - 4, _ANSWER_MAX)
    fields = _exactly(wire, size).split(b"\0")
    return Readiness.STARTING if b"C" + _STARTING in fields else Readiness.READY


def _exactly(wire: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = wire.recv(size - len(found))
        if not more:
            raise ConnectionError("the server hung up")
        found += more
    return found


def _unverified() -> ssl.SSLContext:
    """Return a context without verification: nothing secret is sent; the later login verifies."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# -- connections to a server: how they are opened and configured, and how long callers wait --------


T = TypeVar("T")
_LOG = logging.getLogger(__name__)

_CONNECT_S_MAX = 10
_TO_THE_SERVER = {
    "connect_timeout": str(_CONNECT_S_MAX),
    # A server or network that has fallen silent is detected within a minute, even by a thread
    # that only waits for an answer; a Unix socket needs none of this: its peer cannot vanish.
    "keepalives": "1",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "40000",
}
"""Parameters of libpq, unless the URL sets them."""

_FORMS = {
    "array_nulls": "on",
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "extra_float_digits": "1",
    "intervalstyle": "postgres",
    "standard_conforming_strings": "on",
}
"""Settings on which the texts of values depend: drivers, and statements made here, rely on them."""

_ISOLATION = "default_transaction_isolation"
_SINCE = {"idle_session_timeout": 140_000}
_OPTION = re.compile(r"(?:-c\s*|--)([A-Za-z_][\w.-]*)=((?:\\.|[^\\\s])*)(?:\s+|$)", re.DOTALL)
_WRONG_SETTINGS = {"42704", "22023", "55P02"}  # unknown, invalid value, only at server start
_RIGHT_MISSING = "42501"
_LOOKS = 4
_MAY_COME = {Readiness.STARTING: 10.0, Readiness.SILENT: 0.0}
"""States of a server that is not ready yet, and the default waiting time for each."""
_PAUSE_S = 0.1
_PORT = 5432
_TOLD_EVERY_S = 2.0


class _ServerCursor(psycopg.ServerCursor[Any]):
    """Server-side cursor that closes even if the server cannot be reached any more."""

    def close(self) -> None:
        try:
            super().close()
        finally:
            psycopg.Cursor.close(self)

    def __del__(self, *given: Any) -> None:
        # SQLAlchemy does not close the cursor of a statement in which the connection was lost.
        if self.connection.closed:
            psycopg.Cursor.close(self)
        super().__del__(*given)


class ServerConnection(psycopg.Connection[Any]):
    """Connection whose waits are bounded by the time limit of its thread's work.

    Attributes
    ----------
    backend : int
        Server process id, as reported by the server; the protocol's may be a pooler's.
    """

    backend: int = 0

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self.server_cursor_factory = _ServerCursor

    @classmethod
    def connect(cls, conninfo: str = "", **parameters: Any) -> Self:
        """Open a connection, within the time left for this thread's work."""
        given = parameters.get("connect_timeout")
        try:
            longest_s = int(float(given or 0)) or math.inf
        except (ValueError, OverflowError):
            raise psycopg.ProgrammingError(
                f"invalid value of connection option connect_timeout: {given!r}"
            ) from None
        left_s = bounded_s(longest_s)
        if left_s < longest_s:
            # libpq takes whole seconds, at least two.
            parameters["connect_timeout"] = max(2, math.ceil(left_s))
        return super().connect(conninfo, **parameters)

    def wait(self, gen: PQGen[T], *given: Any, **more: Any) -> T:
        """Wait like psycopg, up to the limit of this thread's work; then the connection is lost."""
        at_s = until_s()
        if at_s == math.inf:
            return super().wait(gen, *given, **more)
        return super().wait(_bounded(gen, self, at_s), *given, **more)


def engine_for(
    address: URL,
    settings: Mapping[str, str],
    *,
    application: str = "activedb",
    connect_args: Mapping[str, Any] | None = None,
    poolclass: type[Pool] | None = None,
    needs_sessions: bool = False,
    **options: Any,
) -> Engine:
    """Return an engine whose connections have `settings`, and the settings in the URL's options.

    Whatever the defaults of the role or the database are, texts of values have the form that
    drivers expect.

    Parameters
    ----------
    address : sqlalchemy.URL
        URL of a Postgres.
    settings : mapping of str to str
        Settings of the server's session; they override the URL's.
    application : str
        Application name reported to the server, unless the URL has one.
    connect_args : mapping, optional
        Parameters for psycopg, in addition to those of the URL.
    poolclass : type, optional
        Class of the pool; the default waits no longer than this thread's work may take.
    needs_sessions : bool
        Check, with the first connection, that each connection keeps one server process for as
        long as it is open.
    **options
        Arguments for ``create_engine``.

    Raises
    ------
    UnsuitablePooler
        When a connection is opened, if its settings do not persist.
    """
    plain, asked, parameters = _taken_apart(address)
    if "application_name" not in address.query:
        parameters["application_name"] = application
    wanted = {**asked, **_FORMS, **settings}
    engine = create_engine(
        plain,
        connect_args={**parameters, **(connect_args or {})},
        hide_parameters=True,  # rows must not appear in logs and tracebacks
        poolclass=poolclass or _PatientPool,
        **options,
    )

    unchecked = [True] if needs_sessions else []

    def opened(dialect: Any, record: Any, given: list[Any], named: dict[str, Any]) -> Any:
        driver = ServerConnection.connect(*given, **named)
        try:
            with limited(time.monotonic() + _CONNECT_S_MAX):
                _set_up(driver, wanted)
                if unchecked:
                    _check_keeps_session(driver, lambda: ServerConnection.connect(*given, **named))
                    unchecked.clear()
        except BaseException:
            driver.close()
            raise
        return driver

    event.listen(engine, "do_connect", opened)
    return engine


def close_for_good(engine: Engine) -> None:
    """Close the connections of an engine, those in use when they are returned; open no others."""
    for opening in list(engine.dialect.dispatch.do_connect):
        event.remove(engine, "do_connect", opening)
    event.listen(engine, "do_connect", _refuse)
    event.listen(engine, "checkin", lambda driver, record: record.invalidate())
    engine.dispose()


def _refuse(*_: Any) -> None:
    raise database_closed()


def backend_of(driver: psycopg.Connection[Any]) -> int:
    """Return the id of a connection's server process; a round trip on a foreign connection."""
    if isinstance(driver, ServerConnection):
        return driver.backend
    row = driver.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def is_pooled(driver: psycopg.Connection[Any]) -> bool:
    """Return whether a pooler stands between this process and the server."""
    return driver.info.backend_pid != backend_of(driver)


def await_server(address: URL, wait_s: float | None, began_s: float | None = None) -> bool:
    """Wait for a server that is starting or recovering; return whether it may accept connections.

    Parameters
    ----------
    wait_s : float or None
        Waiting time. None: ten seconds for a server that reports that it is starting, and none if
        nothing answers.
    began_s : float, optional
        Start of the waiting time, by the monotonic clock; default now.
    """
    plain = _taken_apart(address)[0]
    places = list(_places(plain))
    began_s = told_s = time.monotonic() if began_s is None else began_s
    longest_s = max(_MAY_COME.values()) if wait_s is None else wait_s
    while True:
        left_s = began_s + longest_s - time.monotonic()
        if left_s <= 0:
            return False
        if not places:
            return True
        found = readiness(places, min(_ASK_S_MAX, left_s / len(places)))
        if found is Readiness.READY:
            return True
        longest_s = _MAY_COME[found] if wait_s is None else wait_s
        now_s = time.monotonic()
        if now_s - began_s >= longest_s:
            return False
        if now_s - told_s >= _TOLD_EVERY_S:
            told_s = now_s
            _LOG.warning(
                "the server at %s %s; waiting for it, %.0f of %g s",
                mask_url(plain.render_as_string(hide_password=False)),
                "is starting" if found is Readiness.STARTING else "does not answer",
                now_s - began_s,
                longest_s,
            )
        threading.Event().wait(min(_PAUSE_S, began_s + longest_s - now_s))


# -- inside --------------------------------------------------------------------------------


class _PatientPool(QueuePool):
    """Pool whose callers wait no longer than the work of their thread may take."""

    @property
    def _timeout(self) -> float:  # the time that SQLAlchemy's pool waits
        return bounded_s(self._longest_s)

    @_timeout.setter
    def _timeout(self, seconds: float) -> None:
        self._longest_s = seconds


def _bounded(gen: PQGen[T], driver: psycopg.Connection[Any], at_s: float) -> PQGen[T]:
    """Run `gen`; fail if no answer has begun by the limit, or is incomplete after the grace.

    An answer that is available at once is read, however late it is: so remaining work on a live
    server, such as a rollback, still succeeds.
    """
    last_s = max(at_s, time.monotonic()) + 1.0
    try:
        wait = next(gen)
        while True:
            ready = yield wait
            now_s = time.monotonic()
            if now_s > (last_s if ready else at_s):
                driver.close()  # because the answer may still arrive at any time
                raise psycopg.OperationalError("the time limit was over before the server answered")
            wait = gen.send(ready)
    except StopIteration as ended:
        result: T = ended.value
        return result


@contextmanager
def _by_itself(driver: psycopg.Connection[Any]) -> Iterator[None]:
    """Run each statement of the block in autocommit; the connection is unusable after an error."""
    before, driver.autocommit = driver.autocommit, True
    yield
    driver.autocommit = before


def _set_up(driver: ServerConnection, wanted: Mapping[str, str]) -> None:
    """Make the wanted settings, and read them back in the next transaction; one round trip.

    Raises
    ------
    InvalidURL
        If the server refuses a setting.
    UnsuitablePooler
        If a setting did not persist.
    """
    version = driver.info.server_version
    names = [name for name in wanted if version >= _SINCE.get(name, 0)]
    set_all = ", ".join(
        f"set_config({literal(name)}, {literal(wanted[name])}, false)" for name in names
    )
    read_all = "".join(f", current_setting({literal(name)})" for name in names)
    try:
        with _by_itself(driver):
            cursor = driver.execute(
                (f"BEGIN; SELECT {set_all}; COMMIT; " if names else "")
                + f"SELECT pg_backend_pid(), current_setting('transaction_isolation'){read_all}"
            )
            found: list[Any] = []
            while True:
                if cursor.description is not None:
                    found.append(cursor.fetchone() or ())
                if not cursor.nextset():
                    break
    except psycopg.Error as error:
        said = str(error).strip().splitlines()[0]
        if error.sqlstate in _WRONG_SETTINGS:
            raise InvalidURL(
                f"the server refuses a setting that the URL's options name: {said}; correct what "
                f"is behind options= in the URL"
            ) from error
        if error.sqlstate == _RIGHT_MISSING:
            raise ConfigurationError(
                f"the role may not set up its own connections: {said}; grant it the right"
            ) from error
        raise
    *before, (driver.backend, isolation, *after) = found
    if not names:
        return
    for name, then, now in zip(names, before[0], after, strict=True):
        if then != now:
            raise _lost(name, then, now)
    if _ISOLATION in wanted and isolation != wanted[_ISOLATION]:
        raise _lost("transaction_isolation", wanted[_ISOLATION], isolation)


def _check_keeps_session(
    driver: ServerConnection, open_another: Callable[[], ServerConnection]
) -> None:
    """Check that a connection keeps its server process; without a pooler, nothing is asked.

    Two connections alternately ask for their server process: a pooler that shares server sessions
    among clients hands out either the last used session or the longest idle one, and both policies
    are detected.
    """
    if not is_pooled(driver):
        return
    with closing(open_another()) as other:
        served: dict[ServerConnection, int] = {}
        for each in (driver, driver, other) * _LOOKS:
            with _by_itself(each):
                row = each.execute("SELECT pg_backend_pid()").fetchone()
            assert row is not None
            if served.setdefault(each, row[0]) != row[0] or len({*served.values()}) < len(served):
                raise _shared()


def _lost(name: str, wanted: str, found: str) -> UnsuitablePooler:
    return UnsuitablePooler(
        f"the setting {name} was set to {wanted!r} on a new connection and is {found!r} one "
        f"transaction later: something between here and the server does not keep sessions. "
        f"Connect to the server itself, or through a pooler in session mode (pgbouncer: pool_mode "
        f"= session)"
    )


def _shared() -> UnsuitablePooler:
    return UnsuitablePooler(
        "the pooler between here and the server gives one connection several of the server's "
        "sessions in turn (transaction or statement pooling), so locks and settings of a session "
        "do not hold. Connect to the server itself, or through a pooler in session mode "
        "(pgbouncer: pool_mode = session)"
    )


def _taken_apart(address: URL) -> tuple[URL, dict[str, str], dict[str, str]]:
    """Return a URL without options, the settings in its options, and connection parameters."""
    asked, rest = _options(str(address.query.get("options", "")))
    parameters = {
        name: value for name, value in _TO_THE_SERVER.items() if name not in address.query
    }
    if rest:
        parameters["options"] = rest
    plain = address.set(drivername="postgresql+psycopg").difference_update_query(["options"])
    return plain, asked, parameters


def _places(address: URL) -> Iterator[tuple[str, int]]:
    """Yield the hosts and ports of a URL; none if they are left to libpq's defaults."""
    ports = _listed(address.query.get("port")) or [str(address.port or _PORT)]
    hosts = _listed(address.query.get("host")) or ([address.host] if address.host else [])
    for number, host in enumerate(hosts):
        # A host may include its port: SQLAlchemy writes several hosts this way.
        name, _, port = host.rpartition(":") if host[:1] != "/" else (host, "", "")
        is_both = bool(name) and port.isdecimal()
        given = ports[number] if len(ports) == len(hosts) else ports[0]
        yield (name if is_both or host[:1] == "/" else host), int(port if is_both else given)


def _listed(value: str | tuple[str, ...] | None) -> list[str]:
    values = (value,) if isinstance(value, str) else value or ()
    return [part for each in values for part in each.split(",") if part]


def _options(text: str) -> tuple[dict[str, str], str]:
    """Return the settings in libpq's options, and the rest of the text."""
    found: dict[str, str] = {}

    def take(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_") if match[0].startswith("--") else match[1]
        found[name] = re.sub(r"\\(.)", r"\1", match[2], flags=re.DOTALL)
        return ""

    return found, _OPTION.sub(take, text.strip()).strip()
