"""``python -m activedb.testing.killed``: run a file's function until its process is killed.

`run_until_killed` starts it and documents the arguments: the point, the number of the time it is
reached, a file that gets a line for each point reached, the file to run, the name of the function
(empty: the file is a script), and its arguments.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from activedb.database import Database
from activedb.testing._crashes import Crash, arm

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Run the given function or script; every database that it opens has the point."""
    point, nth, log, file, function, *given = arguments
    # Each line is in the file once the point is passed, whatever happens to the process then.
    lines = os.open(log, os.O_WRONLY | os.O_APPEND)
    crash = Crash(
        point, int(nth), _die, on_reach=lambda reached: os.write(lines, f"{reached}\n".encode())
    )
    _arm_all(crash)
    sys.path.insert(0, str(Path(file).parent))
    if function:
        module = runpy.run_path(file, run_name=Path(file).stem)
        module[function](*json.loads(given[0]))
    else:
        sys.argv = [file, *given]
        runpy.run_path(file, run_name="__main__")


def _arm_all(crash: Crash) -> None:
    """Arm the databases that this process opens from now on, as soon as they are open."""
    opened = Database.__init__

    def init(self: Database, *arguments: Any, **options: Any) -> None:
        opened(self, *arguments, **options)
        arm(self, crash)

    Database.__init__ = init  # type: ignore[method-assign]  # this process does nothing else


def _die(point: str) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable: SIGKILL cannot be handled")


if __name__ == "__main__":
    main(sys.argv[1:])
