"""Errors and process deaths at named points, in this process or in one that is run to be killed."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activedb.database import Database
from activedb.errors import ConfigurationError
from activedb.firing import Ran, RuleListener, Triggered
from activedb.spelling import did_you_mean
from activedb.store.session import TRIGGER_POINTS
from activedb.transactions import TransactionNode, current_transaction

__all__ = [
    "POINTS",
    "Crash",
    "Crashed",
    "Killed",
    "arm",
    "checked_point",
    "crashing",
    "run_until_killed",
]


POINTS: tuple[str, ...] = (*TRIGGER_POINTS, "before rule NAME", "after rule NAME")
"""Points at which a crash can be injected: points of a commit, and begin and end of a rule."""

_OF_RULES = ("before rule ", "after rule ")


class Crashed(Exception):  # named after the event
    """Error raised at the point that a test has named."""


class Crash(RuleListener):
    """Action at the n-th time that a point is reached; safe to use from many threads.

    Parameters
    ----------
    point : str
        One of `POINTS`, with a rule's name for NAME.
    nth : int
        Number of the time, from 1, counted over all threads.
    act : callable ``(point)``
        The action.
    on_reach : callable ``(point)``, optional
        Called at every point that is reached, before the action.

    Attributes
    ----------
    reached : Counter of str
        Number of times each point was reached.
    has_happened : bool
    """

    def __init__(
        self,
        point: str,
        nth: int,
        act: Callable[[str], object],
        on_reach: Callable[[str], object] = lambda point: None,
    ):
        self.point = checked_point(point)
        if isinstance(nth, bool) or not isinstance(nth, int) or nth < 1:
            raise ConfigurationError(f"nth counts from 1, and is not {nth!r}")
        self.reached: Counter[str] = Counter()
        self.has_happened = False
        self._nth = nth
        self._act = act
        self._on_reach = on_reach
        self._latch = threading.Lock()

    def reach(self, point: str) -> None:
        """Record that a point is reached, and act if it is the chosen one."""
        with self._latch:
            self.reached[point] += 1
            is_it = point == self.point and self.reached[point] == self._nth
            self.has_happened = self.has_happened or is_it
            self._on_reach(point)
        if is_it:
            self._act(point)

    def starts(self, s: TransactionNode, item: Triggered) -> None:
        self.reach(f"before rule {item.rule.name}")

    def ran(
        self,
        s: TransactionNode,
        item: Triggered,
        outcome: Ran,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        if outcome == "acted":
            self.reach(f"after rule {item.rule.name}")

    def missed(self) -> str:
        """Return the reason why the action has not run."""
        counts = ", ".join(f"{point} ({count})" for point, count in sorted(self.reached.items()))
        return (
            f"the point {self.point!r} was not reached {self._nth} time"
            f"{'' if self._nth == 1 else 's'}; reached were: {counts or 'none'}"
        )


def checked_point(point: str) -> str:
    """Return `point`, if such a point exists.

    Raises
    ------
    ConfigurationError
        If it does not exist.
    """
    is_of_rule = isinstance(point, str) and point.startswith(_OF_RULES)
    if point in TRIGGER_POINTS or (is_of_rule and point.split(" ", 2)[2:] != [""]):
        return point
    raise ConfigurationError(
        f"there is no point {point!r}: {did_you_mean(point, POINTS)}; the points are "
        f"{', '.join(POINTS)}"
    )


def arm(db: Database, crash: Crash) -> Callable[[], None]:
    """Make a database report its points to a crash; return a function that undoes this."""
    store, listeners = db.admin.internals.store, db.admin.internals.triggering.listeners
    before = store.trigger

    def reach(point: str) -> None:
        before(point)
        crash.reach(point)

    store.trigger = reach
    listeners.add(crash)

    def disarm() -> None:
        store.trigger = before
        listeners.remove(crash)

    return disarm


@contextmanager
def crashing(databases: Sequence[Database], point: str, nth: int = 1) -> Iterator[Crash]:
    """Raise `Crashed` at a point, and end the block there.

    It is an error, not a death: the thread that runs the transaction gets it and cleans up.
    `run_until_killed` shows what a killed process leaves behind.

    Raises
    ------
    ConfigurationError
        If there is no such point.
    AssertionError
        If it was not reached, not even by the detached rules that the block started.
    """
    __tracebackhide__ = True

    def raise_there(point: str) -> None:
        raise Crashed(f"as the test has asked for: {point}")

    crash = Crash(point, nth, raise_there)
    disarm = [arm(db, crash) for db in databases]
    try:
        yield crash
        if not crash.has_happened and current_transaction() is None:
            for db in databases:
                db.wait_idle()
    except Exception as error:
        if not _is_of_crash(error):
            raise
    finally:
        for each in disarm:
            each()
    if not crash.has_happened:
        raise AssertionError(crash.missed())


def _is_of_crash(error: BaseException | None) -> bool:
    """Return whether an error is that of the crash, or was raised because of it."""
    while error is not None:
        if isinstance(error, Crashed):
            return True
        error = error.__cause__  # not the context: a test's own failure after the crash has one
    return False


# -- run of a function in a separate process, which is killed at a named point ---------------------


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
