"""Operating-system account of a server, and the files it can reach.

PostgreSQL refuses to run as root, so root's servers run as ``postgres`` or, where there is no such
account, as the unprivileged one in `_ACCOUNTS_FOR_ROOT`. Servers of other users run under the
user's own account.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

_ACCOUNTS_FOR_ROOT = ("postgres", "nobody")

TRAVERSE = 0o1
READ = 0o4


@dataclass(frozen=True)
class Account:
    """OS account of a server.

    Attributes
    ----------
    name : str
        Name for messages.
    uid, gid : int
        User and only group; supplementary groups are dropped.
    switch : bool
        True if programs must be started under another user than this process's own.
    """

    name: str
    uid: int
    gid: int
    switch: bool

    def allows(self, status: os.stat_result, bits: int) -> bool:
        """Return whether the mode bits of ``status`` grant this account all of ``bits``."""
        if status.st_uid == self.uid:
            granted = status.st_mode >> 6
        elif status.st_gid == self.gid:
            granted = status.st_mode >> 3
        else:
            granted = status.st_mode
        return granted & bits == bits

    def barrier(self, path: Path) -> Path | None:
        """Return the outermost ancestor of ``path`` that this account cannot traverse, if any."""
        if not self.switch:
            return None
        for ancestor in reversed(path.parents):
            if not self.allows(ancestor.stat(), TRAVERSE):
                return ancestor
        return None

    def may_read(self, path: Path) -> bool:
        """Return whether this account may read a file, and also run a program or list a folder."""
        if not self.switch:
            return True
        status = path.stat()
        runs = stat.S_ISDIR(status.st_mode) or status.st_mode & stat.S_IXUSR
        return self.allows(status, READ | TRAVERSE if runs else READ)


def server_account() -> Account:
    """Choose the account for the servers of this process.

    Raises
    ------
    ConfigurationError
        Root finds none of the accounts in `_ACCOUNTS_FOR_ROOT`.
    """
    uid = os.geteuid()
    if uid != 0:
        return Account(name=f"user {uid}", uid=uid, gid=os.getegid(), switch=False)
    for name in _ACCOUNTS_FOR_ROOT:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, switch=True)
    raise ConfigurationError(
        "PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' to run it "
        "as; run as another user, or set ACTIVEDB_URL to use a server of your own"
    )
