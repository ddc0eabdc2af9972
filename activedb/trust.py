"""Whether a file that says what is to be run can have been written by anybody at all.

Programs that declare rules are run, rule files name functions, and ``[tool.activedb]`` says where
the rows go. So such a file is refused if every account of the machine may write it, or may put
another one in its place: it, or a folder above it, is open to all. In a folder that is open to all
but keeps its entries to their owners, as ``/tmp`` does, entries of this account and of root are
trusted. Who else may write is for whoever has set the modes: a group, a deploying account.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from activedb.errors import UntrustedFile

__all__ = ["VARIABLE", "check_trusted"]

VARIABLE = "ACTIVEDB_TRUST_FILES"
"""Set to 1, nothing is checked: for file systems that know no modes and show every file as open."""


def check_trusted(path: str | os.PathLike[str]) -> None:
    """Refuse a file that every account of the machine may write, or replace.

    Both the path as given and the one behind its symbolic links are looked at. What is missing is
    left to whoever reads the file. Nothing is checked where there are no such modes (Windows).
    O(parts of the path) system calls.

    Raises
    ------
    UntrustedFile
        Naming what is open to all.
    """
    if os.name != "posix" or os.environ.get(VARIABLE) == "1":
        return
    given = Path(os.path.abspath(path))  # as it stands: resolve() would follow the links
    for place in dict.fromkeys((given, given.resolve())):
        _check(place, given)


def _check(place: Path, shown: Path) -> None:
    trusted = {0, os.geteuid()}
    owner_below: int | None = None  # of the entry that the folder at hand has on the way
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
                    f"{shown} is not used: every account may write {part}, so anybody can have "
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
