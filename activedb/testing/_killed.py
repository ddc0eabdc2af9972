"""Run of a function in a separate process, which is killed at a named point."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activedb.errors import ConfigurationError
from activedb.testing._crashes import checked_point

__all__ = ["Killed", "run_until_killed"]

_OUTPUT_MAX = 4_000  # characters of a process's output, in a failure


@dataclass(frozen=True, slots=True)
class Killed:
    """A process that was killed at the named point.

    Attributes
    ----------
    point : str
    reached : Counter of str
        Number of times each point was reached.
    output : str
        Output of the process, on both channels.
    """

    point: str
    reached: Counter[str]
    output: str


def run_until_killed(
    target: Callable[..., Any] | str | os.PathLike[str],
    *arguments: Any,
    at: str,
    nth: int = 1,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> Killed:
    """Run a function or a script in a separate process, which kills itself at a point.

    It uses SIGKILL, so no cleanup runs: the server rolls back open transactions, as after any
    crash.

    Parameters
    ----------
    target : callable or path
        A function at the top level of a module, which the process loads by its file, so without
        relative imports; or a script, which is run as ``__main__``.
    *arguments
        For a function: values that JSON can represent. For a script: strings.
    at : str
        One of `POINTS`, in any database that the process opens.
    nth : int
        Number of the time the point is reached, from 1.
    variables : mapping, optional
        Additions to the environment, such as ``ACTIVEDB_URL``.
    timeout_s : float
        Time after which the process is ended and the test fails.

    Raises
    ------
    ConfigurationError
        If there is no such point, or `target` is neither.
    AssertionError
        If the process was not killed at the point; the message has its output, and the points
        reached.
    """
    __tracebackhide__ = True
    checked_point(at)
    file, function = _place(target)
    with tempfile.TemporaryDirectory(prefix="activedb-") as folder:
        log, said = Path(folder) / "points", Path(folder) / "output"
        log.touch()
        head = [sys.executable, "-m", "activedb.testing.killed", at, str(nth), str(log), str(file)]
        given = [function, json.dumps(arguments)] if function else ["", *map(str, arguments)]
        try:
            # A file, not a pipe: processes started by the killed one may keep the pipe open for
            # long.
            with said.open("wb") as output:
                done = subprocess.run(  # noqa: S603 - this interpreter, and the test's own file
                    [*head, *given],
                    env={**os.environ, "PYTHONPATH": _path(), **(variables or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=timeout_s,
                    check=False,
                )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(
                f"the process has not ended after {timeout_s:g} s: {_missed(at, nth, _points(log))}"
                f"\n{_text(said)[-_OUTPUT_MAX:]}"
            ) from error
        reached, printed = _points(log), _text(said)
    if done.returncode != -signal.SIGKILL or reached[at] < nth:
        raise AssertionError(
            f"the process ended by itself, with status {done.returncode}: "
            f"{_missed(at, nth, reached)}\n{printed[-_OUTPUT_MAX:]}"
        )
    return Killed(at, reached, printed)


def _place(target: Callable[..., Any] | str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the file, and the name of the function in it; empty for a script."""
    if isinstance(target, str | os.PathLike):
        file = Path(target)
        if not file.is_file():
            raise ConfigurationError(f"there is no script {file}")
        return file.resolve(), ""
    name = getattr(target, "__qualname__", "")
    source = inspect.getsourcefile(target) if inspect.isfunction(target) else None
    if source is None or not name.isidentifier():
        raise ConfigurationError(
            f"{target!r} cannot be run in another process: give a function that is defined at the "
            f"top level of a module, or the path of a script"
        )
    return Path(source).resolve(), name


def _path() -> str:
    """Return this process's import path, for the other process."""
    return os.pathsep.join(dict.fromkeys(str(Path(part).resolve()) for part in sys.path))


def _points(log: Path) -> Counter[str]:
    return Counter(log.read_text(encoding="utf-8").splitlines())


def _text(output: Path) -> str:
    return output.read_text(encoding="utf-8", errors="replace")


def _missed(at: str, nth: int, reached: Counter[str]) -> str:
    counts = ", ".join(f"{point} ({count})" for point, count in sorted(reached.items()))
    times = "once" if nth == 1 else f"{nth} times"
    return f"it should have come to {at!r} {times}; it came to: {counts or 'no point'}"
