"""Folders of an embedded server: its home and the folder of its socket.

Both may have predictable names in world-writable folders, so a folder is created or verified
through its descriptor: its type, owner and mode; symbolic links are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import tempfile
import threading
from pathlib import Path

from activedb.errors import ConfigurationError
from activedb.store.server._account import Account, server_account
from activedb.store.server._binaries import SHARED_FOLDER

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
            f"{location} names {str(home)!r}, which is no folder {SHARED_FOLDER}/activedb-…; "
            f"correct the file, or remove it to begin with an empty database"
        )
    return home


def _record(location: Path, home: Path) -> None:
    """Write the file atomically, so that no process reads half a path."""
    fresh = location.with_name(f"location.{os.getpid()}.{threading.get_ident()}")
    fresh.write_text(f"{home}\n")
    fresh.replace(location)
