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
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, make_url, text

from activedb.store._account import Account, server_account
from activedb.store._binaries import postgres_programs
from activedb.store.embedded import EmbeddedServer
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION_MIN = 15


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
    account = server_account()
    programs = _system_programs() or postgres_programs(account)
    password = secrets.token_hex(8)
    with temporary_folder() as folder:
        os.chown(folder, account.uid, account.gid)
        secret = folder / "password"
        secret.write_text(f"{password}\n")
        secret.chmod(0o644)  # of a server that lives for one test run
        _run(
            *(account, folder, programs / "initdb", "-D", "data", "-U", "tester", "-E", "UTF8"),
            *("--locale=C", "--auth=scram-sha-256", "--pwfile=password", "--no-sync"),
        )
        port = _start(account, folder, programs, settings)
        try:
            yield f"postgresql+psycopg://tester:{password}@127.0.0.1:{port}/postgres"
        finally:
            _run(account, folder, programs / "pg_ctl", "stop", "-D", "data", "-m", "fast", "-w")


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


def _start(account: Account, folder: Path, programs: Path, settings: tuple[str, ...]) -> int:
    """Start the server on a free port; another one when somebody took it in between."""
    attempts = 3
    for attempt in range(attempts):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        options = f"-h 127.0.0.1 -p {port} -k '' -c fsync=off"
        options += "".join(f" -c {setting}" for setting in settings)
        try:
            _run(
                *(account, folder, programs / "pg_ctl", "start", "-D", "data", "-l", "server.log"),
                *("-o", options, "-w", "-t", str(round(PATIENCE_S))),
            )
        except subprocess.CalledProcessError:
            if attempt == attempts - 1:
                raise
        else:
            break
    return port


def _run(account: Account, folder: Path, program: Path, *arguments: str) -> None:
    subprocess.run(
        [program, *arguments],
        cwd=folder,
        env={"LC_ALL": "C", "PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
        start_new_session=True,
        user=account.uid if account.switch else None,
        group=account.gid if account.switch else None,
        extra_groups=[] if account.switch else None,
    )
