"""Ctrl-C while the command starts: one line and a status, instead of a traceback.

Importing takes most of the first second. When this process is the command ``activedb``, a SIGINT
ends it at once until `started`, as there is nothing to clean up yet. Other programs are left alone,
and so is a handler that was set before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

__all__ = ["INTERRUPTED", "started"]

INTERRUPTED = 130  # the status of the process


def _is_command() -> bool:
    """Return whether this process runs ``activedb``, or ``python -m activedb``."""
    if os.path.basename(sys.argv[0]) in ("activedb", "activedb.exe"):
        return True
    arguments = sys.orig_argv[1:]
    return (
        sys.argv[0] == "-m"
        and "-m" in arguments
        and (arguments[arguments.index("-m") + 1 :][:1] == ["activedb"])
    )


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def started() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again, for the command to end as it likes."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    with contextlib.suppress(ValueError):  # imported by another thread than the main one
        signal.signal(signal.SIGINT, _end)
