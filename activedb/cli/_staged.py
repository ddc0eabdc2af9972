"""``activedb run`` of a stream whose batches a Spark query publishes."""

from __future__ import annotations

import time
from pathlib import Path

from activedb.cli._report import Outcome, Reporter
from activedb.database import Database
from activedb.errors import ConfigurationError
from activedb.streams import Stream

__all__ = ["take_staged"]


def take_staged(
    db: Database,
    stream: Stream,
    input: Path | None,
    reporter: Reporter,
    *,
    fail_fast: bool,
    follow: bool,
    resume: bool,
) -> Outcome:
    """Take the published batches of a stream, with progress; return the figures.

    Detached rules that an earlier process left unfinished are started first.
    """
    if input is not None or resume:
        raise ConfigurationError(
            f"stream {stream.name} takes what Spark publishes in the database, and has neither an "
            "input nor a checkpoint here: leave out --input and --resume"
        )
    run = stream.run
    run.fail_fast = fail_fast
    before = run.totals()
    with reporter.working(
        "waiting for batches from Spark" if follow else "taking the published batches"
    ):
        began = time.monotonic()
        recovered = db.recover()
        if recovered:
            reporter.note(f"first finishing {recovered} detached rules of an earlier run")
        run.on_progress = lambda events: reporter.progress(db, run, events)
        stream.take_staged(follow=follow)
        run.finish()
        seconds = time.monotonic() - began
    return Outcome.of(db, run, before, seconds)
