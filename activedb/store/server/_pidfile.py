"""Contents of a ``postmaster.pid``, and checks of whether it is stale."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Self


class PidFile(NamedTuple):
    """Relevant lines of the file.

    Attributes
    ----------
    pid : int
        Process id of the postmaster, if the file is not stale.
    socket_folder, port : str
        Address on which it listens; empty while it is starting.
    """

    pid: int
    socket_folder: str
    port: str

    @classmethod
    def read(cls, data: Path) -> Self | None:
        """Read the file of a data folder; None if it is missing or being written."""
        try:
            # pid, data folder, start time, port, socket folder, TCP address, memory key, status
            lines = (data / "postmaster.pid").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return None
        if not lines or not lines[0].isdecimal():
            return None
        port, socket_folder = (lines[3], lines[4]) if len(lines) > 4 else ("", "")
        return cls(int(lines[0]), socket_folder, port)


def live_postmaster(data: Path) -> PidFile | None:
    """Read the file of a data folder, unless its process is not a postmaster in that folder.

    The process may be gone, be a zombie that is never reaped, or be another process with the same
    number, after a restart of the machine.
    """
    file = PidFile.read(data)
    if file is None:
        return None
    process = Path("/proc", str(file.pid))
    try:
        # A postmaster's working folder is its data folder; a zombie has none.
        works_here = (process / "cwd").samefile(data)
    except PermissionError:  # root without the right to look, as in many containers
        works_here = _is_postgres(process)
    except (FileNotFoundError, ProcessLookupError):
        works_here = not Path("/proc/self").exists() and _is_process(file.pid)
    return file if works_here else None


def _is_postgres(process: Path) -> bool:
    try:
        program = (process / "cmdline").read_bytes().partition(b"\0")[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return os.path.basename(program) == b"postgres"


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False  # gone, or another user's
    return True
