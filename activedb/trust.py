"""Check that files which name code to run cannot be written by every account of the machine.

Programs that declare rules are run, rule files name functions, and ``[tool.activedb]`` names the
database. Such a file is refused if every account of the machine may write or replace it, because
the file or a folder above it is world-writable. In a world-writable folder with the sticky bit,
such as ``/tmp``, entries of this account and of root are trusted. Any further writers, such as a
group or a deploying account, are the choice of whoever set the modes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from activedb.errors import UntrustedFile

__all__ = ["VARIABLE", "check_trusted"]

VARIABLE = "ACTIVEDB_TRUST_FILES"
"""Set to 1 to skip the check: for file systems without modes, where all look world-writable."""


def check_trusted(path: str | os.PathLike[str]) -> None:
    """Refuse a file that every account of the machine may write, or replace.

    Both the path as given and the target of its symbolic links are checked. A missing file is not
    an error; its reader handles it. No check is made on platforms without such modes (Windows).
    O(parts of the path) system calls.

    Raises
    ------
    UntrustedFile
        Names the file or folder that is world-writable.
    """
    if os.name != "posix" or os.environ.get(VARIABLE) == "1":
        return
    given = Path(os.path.abspath(path))  # not resolve(), which would follow the links
    for place in dict.fromkeys((given, given.resolve())):
        _check(place, given)


def _check(place: Path, shown: Path) -> None:
    trusted = {0, os.geteuid()}
    owner_below: int | None = None  # of the entry of the current folder on the path
    for part in (place, *place.parents):
        try:
            found = part.lstat()
        except OSError:
            owner_below = None
            continue
        is_link = stat.S_ISLNK(found.st_mode)  # its own mode means nothing
        if found.st_mode & stat.S_IWOTH and not is_link:
            keeps = stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)
            if not keeps:
                raise UntrustedFile(
                    f"{shown} is not used: every account may write {part}, so any user can have "
                    f"changed what it says; {_remedy(f'chmod o-w {part}')}"
                )
            if owner_below is not None and owner_below not in trusted:
                raise UntrustedFile(
                    f"{shown} is not used: user {owner_below} has put it into {part}, where every "
                    f"account may; {_remedy('copy it to a folder of your own')}"
                )
        owner_below = found.st_uid


def _remedy(first: str) -> str:
    return f"{first}, or set {VARIABLE}=1 if this file system knows no modes"
