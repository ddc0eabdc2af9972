"""Pipe by which the kernel reports the end of an embedded server's user (`_watcher`)."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from activedb.store.server._filelock import FileLock

if TYPE_CHECKING:
    from activedb.store.server._account import Account

__all__ = ["UsersPipe"]

_PROGRAM = Path(__file__).with_name("_watcher.py")
_START_S_MAX = 120
_NOT_WATCHED = "the embedded server in %s is not watched: %s"
_open_pipes: set[UsersPipe] = set()

logger = logging.getLogger("activedb.store")


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
                raise OSError(f"{path} is no pipe")
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
