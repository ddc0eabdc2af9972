"""Spark's errors as text that outlives its JVM.

An exception of pyspark or py4j asks the JVM for its message each time it is printed, and the JVM is
gone by the time a user sees it. The message is therefore copied while the JVM runs.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from typing import Any

_JVM_EXIT_S_MAX = 10
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (\S.*)$", re.MULTILINE)
_QUERY = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: ")
_OF_SOURCE = re.compile(r"\[PYTHON_(?:STREAMING_)?DATA_SOURCE_(?:RUNTIME_)?ERROR\]")
_PYTHON = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): (\S.*)$", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$")


class SparkError(Exception):
    """Spark's full message; ``__cause__`` of the error that sums it up."""


def take_down(error: Exception) -> tuple[str, SparkError]:
    """Return a one-line summary of an error, and Spark's full message about it.

    REQUIRES: the JVM that raised ``error`` has not been stopped.
    """
    status = _jvm_exit_status()
    if status is not None:
        summary = f"Spark's Java process ended unexpectedly, with status {status}"
        return summary, SparkError(f"{summary} ({type(error).__name__})")
    text = str(error)
    return _summary(text), SparkError(text)


def is_late_python(error: Exception) -> bool:
    """Return whether a Python process did not connect to Spark in time."""
    return "Python worker failed to connect back" in str(error)


def _summary(text: str) -> str:
    """Return the first line, or the causes below it if it only says that something failed."""
    of_source = _OF_SOURCE.search(text)
    if of_source is not None:
        # One of our sources, in another process: its error is the last line of the traceback.
        said = _PYTHON.findall(text[of_source.end() :])
        if said:
            return _STATE.sub("", said[-1]).rstrip(". ")
    causes = [_STATE.sub("", cause) for cause in _CAUSE.findall(text)]
    # Spark's own causes carry their condition, `[FAILED_READ_FILE.NO_HINT] ...`; the last cause is
    # the root cause.
    named = [cause for cause in causes if cause.startswith("[")][:1]
    lines = dict.fromkeys([*named, *causes[-1:]]) or [_QUERY.sub("", text.split("\n", 1)[0])]
    return ": ".join(_STATE.sub("", line).rstrip(". ") for line in lines)


def _jvm_exit_status() -> int | None:
    """Return the exit status of the JVM; None if it lives or this process did not start it."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return None
    try:
        gateway.jvm.System.nanoTime()
    except Exception:
        # It does not answer, but may not have ended yet.
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_JVM_EXIT_S_MAX)
    return None
