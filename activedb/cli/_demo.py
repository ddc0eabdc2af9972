"""``activedb demo``: the hospital ward, recounted at the end."""

from __future__ import annotations

import tempfile
from pathlib import Path

from activedb.cli._job import feed_stream
from activedb.cli._report import Reporter
from activedb.database import connect
from activedb.demo import Ward, compare, define, replay, write_files

__all__ = ["run_demo"]

_SCHEMA = "activedb_demo"
_WORKERS = 60
_FILES = 12


def run_demo(*, events: int, seed: int, url: str | None, reporter: Reporter) -> bool:
    """Run the ward and recount it; return whether the two agree."""
    ward = Ward(workers=_WORKERS, events=events, seed=seed)
    with reporter.working("generating events and opening the database"):
        sightings = ward.sightings()
        db = connect(url, db_schema=_SCHEMA, fresh=True)
    with db, tempfile.TemporaryDirectory(prefix="activedb-demo-") as folder:
        tables = define(db)
        db.create_all()
        (stream,) = db.streams
        arrivals = Path(folder) / "arrivals"
        arrivals.mkdir()
        write_files(sightings, arrivals, files=_FILES)
        outcome = feed_stream(db, stream, arrivals, Path(folder) / "checkpoint", reporter)
        late = {str(late.occurrence.id) for late in stream.run.late_events()}
        actual = tables.contents(db)
        differences = compare(replay(sightings, late), actual)
        statuses = [row[1] for row in actual["worker_status"]]
        outcome.figures["workers by status"] = {s: statuses.count(s) for s in sorted(set(statuses))}
        outcome.figures["agrees with the replay"] = "no" if differences else "yes"
        reporter.result(f"hospital ward, seed {seed}", outcome)
        for difference in differences[:20]:
            reporter.note(difference)
        recount = "an independent replay in event-time order gives"
        reporter.note(
            f"{recount} different rows: {len(differences)} differences"
            if differences
            else f"{recount} the same rows"
        )
        return not differences
