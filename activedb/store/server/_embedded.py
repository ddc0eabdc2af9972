"""Embedded PostgreSQL in a folder, shared by every process that uses the folder.

::

    folder/              usually .activedb/ of the working folder
    ├── postgres/        home of the server: data, log, socket and locks (`_postmaster`)
    └── location         instead of postgres/: the path of a home elsewhere (`_home`)

Two lock files in the home coordinate the start and stop of the server:

- ``start.lock`` is held exclusively while a server is started, found or stopped.
- ``users.lock`` is held shared by every user of the server as long as it uses it. A leaving user
  tries to take it exclusively: if that succeeds, it was the last user, and stops the server.

The kernel drops the locks of a killed process, so there are no stale users. A program that ends
without cleaning up, by SIGTERM for instance, cannot stop the server: a small process next to the
server, the watcher, stops it when the last user is gone (`_watcher`).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

from activedb.errors import ActiveDBError, ConfigurationError
from activedb.store.server._filelock import FileLock, exclusive
from activedb.store.server._home import (
    POSTGRES_VERSION,
    choose_home,
    existing_home,
    postgres_programs,
    server_account,
)
from activedb.store.server._postmaster import START_S_MAX, STOP_S_MAX, Postmaster

__all__ = ["POSTGRES_VERSION", "EmbeddedServer", "check_programs", "home_of"]


# -- pipe by which the kernel reports the end of an embedded server's user (`_watcher`) ------------

_PROGRAM = Path(__file__).with_name("_watcher.py")
_START_S_MAX = 120
_NOT_WATCHED = "the embedded server in %s is not watched: %s"
_open_pipes: set[UsersPipe] = set()


class UsersPipe:
    """Writing end that one use of a server holds, from `open_in` to `close`."""

    def __init__(self, fd: int):
        self._fd: int | None = fd
        _open_pipes.add(self)

    @classmethod
    def open_in(cls, home: Path, account: Account, programs: Path) -> UsersPipe | None:
        """Open the pipe of a server, and start a watcher on it. REQUIRES: the start lock.

        Returns None if there is no pipe. If the watcher does not start, that is logged; a server
        whose last user is killed then runs until another user ends.
        """
        path = home / "users.pipe"
        try:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            # Also for reading, since opening for writing alone would wait for a reader.
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.close(fd)
                raise OSError(f"{path} is not a pipe")
        except OSError as error:
            logger.info(_NOT_WATCHED, home, error)
            return None
        pipe = cls(fd)
        try:
            _watch(home, account, programs, fd)
        except (OSError, subprocess.SubprocessError) as error:
            logger.info(_NOT_WATCHED, home, error)
        return pipe  # the watcher of a later user notices this user's end, too

    def close(self) -> None:
        """Close the pipe; safe to call again."""
        _open_pipes.discard(self)
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _watch(home: Path, account: Account, programs: Path, fd: int) -> None:
    """Start a watcher, unless there is one."""
    lock = FileLock(home / "watcher.lock")
    try:
        if lock.try_exclusive():
            switched = (str(account.uid), str(account.gid)) if account.switch else ("", "")
            subprocess.run(  # noqa: S603 - no shell, and our own program
                [
                    *(sys.executable, "-I", "-S", str(_PROGRAM), str(home), str(programs)),
                    *(*switched, str(lock.fd), str(fd)),
                ],
                cwd="/",
                env={"PATH": os.defpath},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_START_S_MAX,
                start_new_session=True,
                pass_fds=(lock.fd, fd),
                check=True,
            )
    finally:
        lock.hand_over()


def _close_inherited() -> None:
    """Close every pipe in a forked child, which does not count as a user."""
    for pipe in list(_open_pipes):
        pipe.close()


os.register_at_fork(after_in_child=_close_inherited)


if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from activedb.store.server._home import Account

_LOCK_S_MAX = 2 * (START_S_MAX + STOP_S_MAX)

logger = logging.getLogger("activedb.store")


class EmbeddedServer:
    """Use of the embedded server of a folder, from `start` to `close`.

    Several uses may exist at once, in one process and in several; the server runs from the first
    to the last of them. A forked child does not count as a user: it must call `start` itself.

    Attributes
    ----------
    url : str
        SQLAlchemy URL of the server's default database, over a Unix socket.
    home : Path
        Folder with the server's data, log and socket.
    """

    def __init__(self, postmaster: Postmaster, users: FileLock, pipe: UsersPipe | None, url: str):
        self._postmaster = postmaster
        self._users = users
        self._pipe = pipe
        self._owner_pid = os.getpid()
        self._latch = threading.Lock()
        self._closed = False  # guarded by _latch
        self.url = url
        self.home = postmaster.home
        atexit.register(self.close)

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Use the server of ``folder``: find it running, or start it, initialised first if needed.

        Parameters
        ----------
        folder : Path
            Created if absent. When root works in a folder that the server's account cannot reach,
            the data are put under ``/var/tmp`` and ``folder/location`` has their path.

        Raises
        ------
        ConfigurationError
            The folder, the programs or the account cannot be used.
        ServerUnreachable
            The server does not start or answer in time; the message shows the end of its log.
        """
        try:
            home, account = choose_home(folder)
            postmaster = Postmaster(home, account, postgres_programs(account))
            with exclusive(home / "start.lock", _LOCK_S_MAX):
                users = FileLock(home / "users.lock")
                try:
                    users.try_shared()  # cannot fail: an exclusive holder would have our start lock
                    url = postmaster.ensure_running()
                except ActiveDBError:
                    users.release()
                    raise  # a server that is still recovering is left to finish
                except BaseException:
                    _leave(postmaster, users)
                    raise
                pipe = UsersPipe.open_in(home, account, postmaster.programs)
                return cls(postmaster, users, pipe, url.render_as_string(hide_password=False))
        except OSError as error:
            raise ConfigurationError(
                f"cannot use the folder {folder} for the embedded server: {error}; set "
                f"ACTIVEDB_FOLDER to another folder, or ACTIVEDB_URL to a server of your own"
            ) from error

    def close(self) -> None:
        """End this use; the last use stops the server. A second call does nothing."""
        if os.getpid() != self._owner_pid:
            return
        with self._latch:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        try:
            with exclusive(self.home / "start.lock", _LOCK_S_MAX):
                _leave(self._postmaster, self._users)
        except (ActiveDBError, OSError) as error:
            # The data are safe either way, and a closing caller could not do anything about it.
            logger.warning("cannot stop the embedded server in %s: %s", self.home, error)
            self._users.release()
        finally:
            if self._pipe is not None:
                self._pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def home_of(folder: Path) -> Path | None:
    """Return the home of a folder's server; None if no server was ever started there.

    Nothing is created or started.

    Raises
    ------
    ConfigurationError
        The folder cannot be accessed.
    """
    try:
        return existing_home(folder.resolve())
    except OSError as error:
        raise ConfigurationError(
            f"cannot look at the folder {folder} of the embedded server: {error}; run as who owns "
            f"it, or set ACTIVEDB_FOLDER to another one"
        ) from error


def check_programs() -> None:
    """Check that the embedded server's programs exist and can be run by the server's account.

    Raises
    ------
    ConfigurationError
        They do not exist, or no account can run them.
    """
    postgres_programs(server_account())


def _leave(postmaster: Postmaster, users: FileLock) -> None:
    """Stop being a user, and stop the server if there is no other user. REQUIRES: start lock."""
    users.release()
    others = FileLock(postmaster.home / "users.lock")
    try:
        if others.try_exclusive():
            postmaster.stop()
    finally:
        others.release()
