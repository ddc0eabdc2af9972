"""Real servers and databases for the tests."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import create_engine, make_url, text

from activedb.store.server import EmbeddedServer, _postmaster
from activedb.store.server import _embedded as embedded
from activedb.store.server._home import Account, postgres_programs, server_account
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_VERSION_MIN = 15

# The servers that this process starts may take as long as they need.
_postmaster.START_S_MAX = _postmaster.STOP_S_MAX = PATIENCE_S
embedded._LOCK_S_MAX = 4 * PATIENCE_S


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder with a short path that every account can enter; removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="adb-", dir="/tmp")).resolve()
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def embedded_server() -> Iterator[str]:
    """Yield the URL of an embedded server with data of its own; stopped afterwards.

    What it writes is not waited for: processes are killed in tests, computers are not.
    """
    with temporary_folder() as folder, EmbeddedServer.start(folder / ".activedb") as server:
        engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("ALTER SYSTEM SET fsync = off"))
            connection.execute(text("SELECT pg_reload_conf()"))
        engine.dispose()
        yield server.url


@contextlib.contextmanager
def plain_server(*settings: str) -> Iterator[str]:
    """Yield the URL of a PostgreSQL server as people run it: TCP on loopback, a password.

    The system's own programs are preferred to those of the embedded server. Each of `settings` is
    one of its configuration, ``name=value``.
    """
    with _new_server() as new, _running(new, *settings) as url:
        yield url


@contextlib.contextmanager
def recovering_server() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the URL of a server that refuses everybody as long as it recovers, and what ends that.

    It is a standby that may not be read, until it is promoted.
    """
    with _new_server() as new:
        signal = new.folder / "data" / "standby.signal"
        signal.touch()
        os.chown(signal, new.account.uid, new.account.gid)
        with _running(new, "hot_standby=off") as url:
            yield url, lambda: _run(new, "pg_ctl", "promote", "-D", "data", "-w")


class _New(NamedTuple):
    """A server to be started: who runs its programs, where, and the password of ``tester``."""

    account: Account
    programs: Path
    folder: Path
    password: str


@contextlib.contextmanager
def _new_server() -> Iterator[_New]:
    account = server_account()
    programs = _system_programs() or postgres_programs(account)
    with temporary_folder() as folder:
        new = _New(account, programs, folder, secrets.token_hex(8))
        os.chown(folder, account.uid, account.gid)
        secret = folder / "password"
        secret.write_text(f"{new.password}\n")
        secret.chmod(0o644)  # of a server that lives for one test run
        _run(
            *(new, "initdb", "-D", "data", "-U", "tester", "-E", "UTF8", "--locale=C"),
            *("--auth=scram-sha-256", "--pwfile=password", "--no-sync"),
        )
        yield new


@contextlib.contextmanager
def _running(new: _New, *settings: str) -> Iterator[str]:
    """Yield the URL of a server that runs until the end of the block, or of this process."""
    pg_ctl = new.programs / "pg_ctl"
    stop: list[str | Path] = [pg_ctl, "stop", "-D", "data", "-m", "immediate", "-w"]
    guard = subprocess.Popen(
        ["sh", "-c", 'read -r end; exec "$@"', "sh", *stop],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **_as(new),
    )
    with guard:  # closes the pipe, and waits
        port = _start(new, settings)
        yield f"postgresql+psycopg://tester:{new.password}@127.0.0.1:{port}/postgres"


@contextlib.contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """Yield the URL of an empty database on a server; dropped afterwards, sessions and all."""
    name = f"test_{secrets.token_hex(6)}"
    engine = create_engine(server_url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE template0"))
        try:
            yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
        finally:
            with engine.connect() as connection:
                connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    finally:
        engine.dispose()


def _system_programs() -> Path | None:
    """Return the folder of the newest PostgreSQL of the system that is new enough."""
    found = {}
    on_path = shutil.which("postgres")
    for program in (
        *Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        *([Path(on_path).resolve()] if on_path else []),
    ):
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        version = re.search(r"\d+", said.stdout)
        if version and int(version[0]) >= _VERSION_MIN and (program.parent / "initdb").exists():
            found[int(version[0])] = program.parent
    return found[max(found)] if found else None


def _start(new: _New, settings: tuple[str, ...]) -> int:
    """Start the server on a free port; try another one if a program took it in between."""
    attempts = 3
    for attempt in range(attempts):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        options = f"-h 127.0.0.1 -p {port} -k '' -c fsync=off"
        options += "".join(f" -c {setting}" for setting in settings)
        try:
            _run(
                *(new, "pg_ctl", "start", "-D", "data", "-l", "server.log", "-o", options),
                *("-w", "-t", str(round(PATIENCE_S))),
            )
        except subprocess.CalledProcessError:
            if attempt == attempts - 1:
                raise
        else:
            break
    return port


def _run(new: _New, program: str, *arguments: str) -> None:
    subprocess.run(
        [new.programs / program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
        **_as(new),
    )


def _as(new: _New) -> dict[str, Any]:
    """Return Popen options: folder, account, and a session that Ctrl-C does not reach."""
    switch = new.account.switch
    return {
        "cwd": new.folder,
        "env": {"LC_ALL": "C", "PATH": os.defpath},
        "start_new_session": True,
        "user": new.account.uid if switch else None,
        "group": new.account.gid if switch else None,
        "extra_groups": [] if switch else None,
    }
