"""Advisory locks on files (``flock``), which the kernel drops when their holders die.

A lock belongs to an *open file description*, not to a process: two `FileLock` objects of one
process exclude each other like those of two processes, and a description that a child inherits
keeps the lock for as long as the child lives. The embedded server relies on both facts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_POLL_S = 0.05

_latch = threading.Lock()
_open_locks: set[FileLock] = set()  # guarded by _latch


class FileLock:
    """Lock on one file, exclusive or shared, that never waits in the kernel.

    Parameters
    ----------
    path : Path
        The file; created with mode 0600 if absent, never followed if it is a symbolic link.
    """

    def __init__(self, path: Path):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._path = path
        with _latch:
            self._fd: int | None = os.open(path, flags, 0o600)
            _open_locks.add(self)

    @property
    def fd(self) -> int:
        """Descriptor of the open file; raises `ValueError` if it is closed."""
        if self._fd is None:
            raise ValueError(f"{self._path} is closed")
        return self._fd

    def try_exclusive(self) -> bool:
        """Take the lock exclusively unless it is held; return whether it was taken."""
        return self._try(fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        """Take the lock shared unless it is held exclusively; return whether it was taken."""
        return self._try(fcntl.LOCK_SH)

    def release(self) -> None:
        """Release the lock for every process that inherited it, and close the file.

        Unlocking comes first: while a thread starts a program, a child may briefly hold a copy.
        """
        with _latch:
            if self._fd is not None:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.hand_over()

    def hand_over(self) -> None:
        """Close the file here; child processes that inherited it keep the lock."""
        with _latch:
            _open_locks.discard(self)
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _try(self, operation: int) -> bool:
        try:
            fcntl.flock(self.fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConfigurationError(
                f"cannot lock {self._path}: {error.strerror}; put the folder on a file system "
                f"that supports locks, or set ACTIVEDB_URL to use a server of your own"
            ) from error
        return True


@contextlib.contextmanager
def exclusive(path: Path, wait_s_max: float) -> Iterator[None]:
    """Hold the lock on ``path`` exclusively for the body of a ``with``.

    Raises
    ------
    ConfigurationError
        The lock was not free within ``wait_s_max`` seconds.
    """
    lock = FileLock(path)
    try:
        deadline_s = time.monotonic() + wait_s_max
        while not lock.try_exclusive():
            if time.monotonic() >= deadline_s:
                raise ConfigurationError(
                    f"another process has held {path} for over {wait_s_max:.0f} s while it "
                    f"starts or stops the embedded server; wait for it or end it, then try again"
                )
            time.sleep(_POLL_S)
        yield
    finally:
        lock.release()


def _close_inherited() -> None:
    """Close all lock files in a forked child, so that it does not prolong the parent's locks."""
    for lock in _open_locks:
        if lock._fd is not None:
            os.close(lock._fd)
            lock._fd = None
    _open_locks.clear()
    _latch.release()


os.register_at_fork(
    before=_latch.acquire, after_in_parent=_latch.release, after_in_child=_close_inherited
)
