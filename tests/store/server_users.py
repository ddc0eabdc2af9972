"""Processes that use an embedded server, and a look at the server's own processes."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil  # type: ignore[import-untyped]

from tests.databases import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

REPOSITORY = Path(__file__).resolve().parents[2]

START = """
import sys
from pathlib import Path
from activedb.store.server import EmbeddedServer
server = EmbeddedServer.start(Path(sys.argv[1]))
print(server.url, flush=True)
"""

# Ends without close(): the interpreter's exit must do.
START_AND_WAIT = f"{START}\nsys.stdin.readline()\n"


class User:
    """A Python process that runs a program with a folder as its argument.

    Leaving the ``with`` ends it by closing its input, or by force after a while.
    """

    def __init__(
        self,
        program: str,
        folder: Path,
        *,
        user: int | None = None,
        python: str = sys.executable,
    ):
        self.process = subprocess.Popen(
            [python, "-W", "error", "-c", program, str(folder)],
            cwd="/",
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )

    @staticmethod
    def environment() -> dict[str, str]:
        """Ours, with what a Python outside our virtual environment needs."""
        ours = os.environ.get("PYTHONPATH", "")
        paths = (str(REPOSITORY), sysconfig.get_path("purelib"), *filter(None, [ours]))
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}

    def line(self) -> str:
        """Wait for the next line it prints; empty when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self) -> int:
        """Let it end and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.finish()
        except subprocess.TimeoutExpired:
            self.kill()
        finally:
            self.process.stdout.close()


def server_processes(folder: Path) -> list[psutil.Process]:
    """Return the live PostgreSQL processes that work somewhere in a folder."""
    found = []
    for process in psutil.process_iter(["name", "cwd"]):
        cwd = process.info["cwd"]  # None for a zombie
        if process.info["name"] == "postgres" and cwd and Path(cwd).is_relative_to(folder):
            found.append(process)
    return found


def watchers(folder: Path) -> list[psutil.Process]:
    """Return the live processes that stop a server in a folder when its users are gone."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command, cwd = process.info["cmdline"], process.info["cwd"]
        is_watcher = any(part.endswith("_watcher.py") for part in command or ())
        if is_watcher and cwd and Path(cwd).is_relative_to(folder):
            found.append(process)
    return found


def postmaster(home: Path) -> psutil.Process:
    """Return the process that ``postmaster.pid`` names."""
    return psutil.Process(int((home / "data" / "postmaster.pid").read_text().split("\n", 1)[0]))


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once a condition of other processes holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, "the awaited condition does not come about"
        pause.wait(0.002)
