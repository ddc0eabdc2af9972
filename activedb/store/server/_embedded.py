"""An embedded PostgreSQL in a folder, shared by every process that uses the folder.

::

    folder/              usually .activedb/ of the working folder
    ├── postgres/        home of the server: data, log, socket and locks (`_postmaster`)
    └── location         instead of postgres/: the path of a home elsewhere (`_home`)

Two lock files in the home decide who starts and who stops the server:

- ``start.lock`` is held exclusively while a server is started, found or stopped.
- ``users.lock`` is held shared by every user of the server, for its life. Whoever leaves tries to
  take it exclusively: who succeeds was the last one and stops the server.

The kernel drops the locks of a killed process, so there are no stale users. A program that ends
without a word, by SIGTERM for instance, cannot stop the server: a small process beside that, the
watcher, does when the last user is gone (`_users_pipe`, `_watcher`).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING, Self

from activedb.errors import ActiveDBError, ConfigurationError
from activedb.store.server._account import server_account
from activedb.store.server._binaries import POSTGRES_VERSION, postgres_programs
from activedb.store.server._filelock import FileLock, exclusive
from activedb.store.server._home import choose_home, existing_home
from activedb.store.server._postmaster import START_S_MAX, STOP_S_MAX, Postmaster
from activedb.store.server._users_pipe import UsersPipe

__all__ = ["POSTGRES_VERSION", "EmbeddedServer", "check_programs", "home_of"]

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_LOCK_S_MAX = 2 * (START_S_MAX + STOP_S_MAX)

logger = logging.getLogger("activedb.store")


class EmbeddedServer:
    """One use of the embedded server of a folder; made by `start`, ended by `close`.

    Several uses may exist at once, in one process and in several; the server runs from the first
    to the last of them. A forked child does not count as a user: it must call `start` itself.

    Attributes
    ----------
    url : str
        SQLAlchemy URL of the server's default database, over a unix socket.
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
        """Use the server of ``folder``: find it running, or start it, made first if need be.

        Parameters
        ----------
        folder : Path
            Made when absent. When root works in a folder that the server's account cannot reach,
            the data are put under ``/var/tmp`` and ``folder/location`` says where.

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
                    users.try_shared()  # cannot fail: who takes it exclusively has our start lock
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
        """End this use; the last one stops the server. Does nothing the second time."""
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
            # The data are safe either way, and whoever closes can do nothing better.
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
    """The home of the server that a folder has; None if no server was ever started there.

    Nothing is made or started.

    Raises
    ------
    ConfigurationError
        The folder cannot be looked at.
    """
    try:
        return existing_home(folder.resolve())
    except OSError as error:
        raise ConfigurationError(
            f"cannot look at the folder {folder} of the embedded server: {error}; run as who owns "
            f"it, or set ACTIVEDB_FOLDER to another one"
        ) from error


def check_programs() -> None:
    """Check that the embedded server's programs are there for who runs it.

    Raises
    ------
    ConfigurationError
        They are not, or there is nobody to run them as.
    """
    postgres_programs(server_account())


def _leave(postmaster: Postmaster, users: FileLock) -> None:
    """Cease to be a user, and stop the server when there is no other. REQUIRES: start lock."""
    users.release()
    others = FileLock(postmaster.home / "users.lock")
    try:
        if others.try_exclusive():
            postmaster.stop()
    finally:
        others.release()
