"""One PostgreSQL server over one folder: initialise, start, find, stop.

The folder (``home``) belongs to the server's account, with mode 0700::

    home/
    ├── data/          the server's data; appears by a rename when complete
    ├── data.new/      being initialised; leftovers of a killed initdb are removed
    ├── server.log     the server's log
    ├── server.lock    held by the server's own processes, see below
    └── .s.PGSQL.5432  the socket, unless the path is too long for one

**Liveness.** ``server.lock`` is locked by the process that starts the server or initialises its
data, and inherited by those programs, so the kernel keeps it locked exactly as long as one of the
server's processes lives: even after the death of the starting process, across containers that share
the folder, and while the sessions of a killed postmaster end. ``postmaster.pid`` proves none of
this (`_pidfile`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import URL

from activedb.errors import ConfigurationError, ServerUnreachable
from activedb.store.server._filelock import FileLock
from activedb.store.server._home import socket_folder
from activedb.store.server._pidfile import PidFile, live_postmaster

if TYPE_CHECKING:
    from activedb.store.server._home import Account

START_S_MAX = 60.0
STOP_S_MAX = 60.0
_CONNECT_S_MAX = 10
_POLL_S = 0.05

_PORT = 5432  # only names the socket file: the server does not listen on TCP
_SOCKET = f".s.PGSQL.{_PORT}"
_SUPERUSER = "postgres"
_DATABASE = "postgres"

# No variable of the caller's environment (PGDATA, PGPORT, LD_LIBRARY_PATH) reaches the server.
_ENVIRONMENT = {"LC_ALL": "C", "PATH": os.defpath}

_INITDB = (
    f"--username={_SUPERUSER}",
    "--encoding=UTF8",
    # The builtin provider sorts the same on every machine and C library.
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    # The socket's folder has mode 0700: only the owner and root can reach it.
    "--auth-local=trust",
    "--auth-host=reject",
    "--set=shared_buffers=64MB",
    "--set=max_connections=100",
    "--set=timezone=UTC",
    "--set=log_timezone=UTC",
)

_LOG_LINES_SHOWN = 12

logger = logging.getLogger("activedb.store")


@dataclass(frozen=True)
class Postmaster:
    """Server of one folder.

    REQUIRES, for every method: the caller holds the folder's start lock.

    Attributes
    ----------
    home : Path
        The server's folder, absolute, owned by ``account``.
    account : Account
        OS account of the server.
    programs : Path
        Folder with ``initdb`` and ``pg_ctl``.
    """

    home: Path
    account: Account
    programs: Path

    @property
    def data(self) -> Path:
        """Folder of the server's data."""
        return self.home / "data"

    def ensure_running(self) -> URL:
        """Start the server unless it runs, wait until it answers, and return its URL.

        Raises
        ------
        ConfigurationError
            The data folder could not be initialised.
        ServerUnreachable
            The server does not start, or does not answer within `START_S_MAX` seconds.
        """
        deadline_s = time.monotonic() + START_S_MAX
        while True:
            self._start_unless_alive()
            url = self._answering()
            if url is not None:
                return url
            if time.monotonic() >= deadline_s:
                raise self._unreachable(
                    f"the embedded server in {self.home} is alive but has not answered for "
                    f"{START_S_MAX:.0f} s; try again later when its log says that it is "
                    f"recovering, else end its processes"
                )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the server if it runs, ending its sessions; return when its processes are gone."""
        file = live_postmaster(self.data)
        if file is None:
            return
        for mode in ("fast", "immediate"):
            stopped = self._run(
                *("pg_ctl", "stop", "-D", self.data.name, "-m", mode),
                *("-w", "-t", f"{STOP_S_MAX:.0f}"),
                wait_s_max=STOP_S_MAX,
            )
            if stopped.returncode == 0:
                break
            logger.warning("pg_ctl stop -m %s in %s: %s", mode, self.home, stopped.stdout.strip())
        deadline_s = time.monotonic() + STOP_S_MAX
        while not self._nobody_alive():
            if time.monotonic() >= deadline_s:
                logger.warning("the embedded server in %s does not end", self.home)
                return
            time.sleep(_POLL_S)
        if file.socket_folder and Path(file.socket_folder) != self.home:
            with contextlib.suppress(OSError):
                Path(file.socket_folder).rmdir()
        logger.info("stopped the embedded server in %s", self.home)

    def _nobody_alive(self) -> bool:
        lock = FileLock(self.home / "server.lock")
        try:
            return lock.try_exclusive()
        finally:
            lock.release()

    def _start_unless_alive(self) -> None:
        lock = FileLock(self.home / "server.lock")
        try:
            if not lock.try_exclusive():
                return
            if live_postmaster(self.data) is not None:
                return  # started manually: alive without holding our lock
            if not (self.data / "PG_VERSION").exists():
                self._initialise(lock)
            self._launch(lock)
        finally:
            lock.hand_over()  # to the server and to programs that initdb started, if they live

    def _initialise(self, lock: FileLock) -> None:
        fresh = self.home / "data.new"
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(fresh)
        made = self._run("initdb", "-D", fresh.name, *_INITDB, lock=lock, wait_s_max=START_S_MAX)
        if made.returncode != 0:
            raise ConfigurationError(
                f"cannot initialise the embedded server in {self.home} as {self.account.name}; "
                f"correct what initdb reports, or set ACTIVEDB_URL to use a server of your own:\n"
                f"{_last_lines(made.stdout)}"
            )
        fresh.rename(self.data)
        folder = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # initdb has synced the contents, but not the new name
        finally:
            os.close(folder)

    def _launch(self, lock: FileLock) -> None:
        """Start the server. REQUIRES: ``lock`` is exclusive, so no server process is alive."""
        folder = socket_folder(self.home, self.account, _SOCKET)
        # Left by a killed server; they would prevent a start if its process is a zombie, or if
        # another process has its number.
        for stale in (self.data / "postmaster.pid", folder / f"{_SOCKET}.lock"):
            stale.unlink(missing_ok=True)
        # Set here rather than by initdb, so that data of older releases get it, too: it allows
        # following changes by others, and makes commits no slower.
        settings = ["-c", "wal_level=logical"]
        options = shlex.join(["-h", "", "-p", str(_PORT), "-k", str(folder), *settings])
        started = self._run(
            # Relative names, because pg_ctl does not quote names well for its shell.
            *("pg_ctl", "start", "-D", self.data.name, "-l", "server.log", "-o", options),
            *("-w", "-t", f"{START_S_MAX:.0f}"),
            lock=lock,
            wait_s_max=START_S_MAX,
        )
        if started.returncode != 0:
            raise self._unreachable(
                f"the embedded server in {self.home} has not started as {self.account.name}; "
                f"correct what its log reports, or try again later when it is recovering"
            )
        logger.info("started the embedded server in %s", self.home)

    def _run(
        self, program: str, *arguments: str, wait_s_max: float, lock: FileLock | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as the server's account.

        It runs in a new session, which keeps the terminal's Ctrl-C away from the server.
        """
        account = self.account if self.account.switch else None
        try:
            return subprocess.run(  # noqa: S603 - no shell, and the programs are the wheel's own
                [str(self.programs / program), *arguments],
                cwd=self.home,
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=wait_s_max + 10,  # beyond the program's own limit
                start_new_session=True,
                pass_fds=() if lock is None else (lock.fd,),
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigurationError(
                f"cannot run {self.programs / program} as {self.account.name}: {error}; set "
                f"ACTIVEDB_URL to use a server of your own"
            ) from error

    def _answering(self) -> URL | None:
        """Return the server's URL if it accepts sessions."""
        file = PidFile.read(self.data)
        if file is None or not file.socket_folder:
            return None
        try:
            psycopg.connect(
                host=file.socket_folder,
                port=file.port,
                user=_SUPERUSER,
                dbname=_DATABASE,
                connect_timeout=_CONNECT_S_MAX,
            ).close()
        except psycopg.OperationalError:
            return None
        return URL.create(
            "postgresql+psycopg",
            username=_SUPERUSER,
            database=_DATABASE,
            query={"host": file.socket_folder, "port": file.port},
        )

    def _unreachable(self, message: str) -> ServerUnreachable:
        log = self.home / "server.log"
        try:
            with open(os.open(log, os.O_RDONLY | os.O_NOFOLLOW), errors="replace") as file:
                lines = _last_lines(file.read())
        except OSError as error:
            lines = f"    ({error.strerror})"
        return ServerUnreachable(f"{message}. The last lines of {log}:\n{lines}")


def _last_lines(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines()[-_LOG_LINES_SHOWN:])
