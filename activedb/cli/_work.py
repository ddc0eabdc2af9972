"""``activedb work``: a worker for the rules of a file."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from activedb.cli._job import opened
from activedb.cli._report import Outcome, Reporter, counted
from activedb.database import Database

__all__ = ["Stop", "run_worker", "told_to_stop"]

_INTERRUPTED = 130


def run_worker(file: Path, url: str | None, poll_s: float, reporter: Reporter) -> None:
    """Load the file and run what other processes have recorded for its rules, until a signal.

    Raises
    ------
    ConfigurationError, DefinitionError
        If the file is not valid, or its database is in memory.
    """
    with ExitStack() as stack:
        with reporter.working("opening the database"):
            db = stack.enter_context(opened(file, url))
            db.create_all()
        began = time.monotonic()
        with reporter.working("waiting for firings"), told_to_stop() as stop:
            taken = db.run_worker(stop, poll_s=poll_s, on_progress=_progress(db, stop, reporter))
        counts = db.admin.counters()
        seconds = time.monotonic() - began
        figures = {
            "firings taken": taken,
            "rules fired": counts.get("rules_fired", 0),
            "rules failed": counts.get("rules_failed", 0),
            "rules quarantined": counts.get("rules_quarantined", 0),
            "transactions retried": counts.get("transactions_retried", 0),
            "seconds": round(seconds, 2),
            "firings per second": round(taken / seconds, 1) if seconds else 0,
        }
        reporter.result(f"worker of {file}", Outcome(figures))


def _progress(
    db: Database, stop: threading.Event, reporter: Reporter
) -> Callable[[int, int], None]:
    def progress(taken: int, running: int) -> None:
        if stop.is_set():
            rules = counted(running, "running rule")
            reporter.note(f"waiting for {rules} to end; a second signal stops at once")
            return
        failed = db.admin.counters().get("rules_failed", 0)
        reporter.update(f"{taken:,} firings taken, {running:,} running, {failed:,} failed")

    return progress


class Stop(threading.Event):
    """Event set when the process is told to stop; ``interrupted``: by Ctrl-C."""

    interrupted = False


@contextmanager
def told_to_stop() -> Iterator[Stop]:
    """Yield an event set by the first SIGINT or SIGTERM; the second ends the process at once."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            # The server rolls back what runs, and other workers take it over, as after any crash.
            if os.isatty(2):
                os.write(2, b"\x1b[?25h\n")  # the cursor, which the progress line has hidden
            os._exit(_INTERRUPTED)
        stop.interrupted = number == signal.SIGINT
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
