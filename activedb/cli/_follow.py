"""``activedb follow``: changes made by any program trigger the rules of a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from activedb.changes import FollowProgress
from activedb.cli._job import opened
from activedb.cli._report import Outcome, Reporter
from activedb.cli._work import told_to_stop
from activedb.database import Database
from activedb.errors import ConfigurationError

__all__ = ["run_follower", "stop_following"]


def run_follower(
    file: Path,
    url: str | None,
    *,
    slot: str,
    tables: Sequence[str],
    poll_s: float,
    whole_rows: bool,
    reporter: Reporter,
) -> bool:
    """Load the file and follow changes for its rules, until a signal.

    Return True if the signal was Ctrl-C; SIGTERM is a normal end.

    Raises
    ------
    ConfigurationError, DefinitionError
        If the file is not valid, or its database cannot be followed.
    """
    with ExitStack() as stack:
        with reporter.working("opening the database"):
            db = stack.enter_context(opened(file, url))
            db.create_all()
        chosen = [_table(db, name) for name in tables]
        began = time.monotonic()
        with reporter.working(f"following slot {slot}"), told_to_stop() as stop:
            done = db.changes.follow(
                *chosen,
                slot=slot,
                stop=stop,
                poll_s=poll_s,
                whole_rows=whole_rows,
                on_progress=_progress(db, reporter),
            )
        counts = db.admin.counters()
        figures = {
            "transactions": done.transactions,
            "changes": done.changes,
            "firings": done.firings,
            "tables truncated": done.truncated,
            "rules fired": counts.get("rules_fired", 0),
            "rules failed": counts.get("rules_failed", 0),
            "lag bytes": done.lag_bytes,
            "lag seconds": round(done.lag_s, 3),
            "seconds": round(time.monotonic() - began, 2),
        }
        reporter.result(f"changes followed for {file}", Outcome(figures))
        return stop.interrupted


def stop_following(file: Path, url: str | None, slot: str, reporter: Reporter) -> None:
    """Drop a slot with its recorded state.

    Raises
    ------
    ConfigurationError
        If it is being followed, or belongs to another program.
    """
    with opened(file, url) as db:
        is_dropped = db.changes.unfollow(slot)
    reporter.result(f"slot {slot}", Outcome({"slot": slot, "dropped": is_dropped}))


def _table(db: Database, name: str) -> object:
    table = db.metadata.tables.get(name)
    if table is None:
        known = ", ".join(sorted(db.metadata.tables)) or "none"
        raise ConfigurationError(f"the file declares no table {name}; its tables are: {known}")
    return table


def _progress(db: Database, reporter: Reporter) -> Callable[[FollowProgress], None]:
    def progress(now: FollowProgress) -> None:
        failed = db.admin.counters().get("rules_failed", 0)
        reporter.update(
            f"{now.transactions:,} transactions, {now.changes:,} changes, {now.firings:,} firings, "
            f"{failed:,} failed; {now.lag_bytes:,} bytes and {now.lag_s:.1f} s behind"
        )

    return progress
