"""``activedb demo``, the hospital ward; ``activedb bench``, the speed of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from activedb.cli._options import Json, Trace, Url
from activedb.cli._report import Reporter
from activedb.cli._running import feed_stream
from activedb.clock import SystemClock
from activedb.config import Settings, mask_url
from activedb.database import Database, connect
from activedb.demo import Ward, compare, define, measure, replay, write_files
from activedb.store.server import EmbeddedServer, scratch_schema

__all__ = ["bench", "run_demo"]


def bench(
    seconds: Annotated[
        float, typer.Option(min=0.01, max=3_600, help="Seconds for each measurement.")
    ] = 2.0,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Number of threads. Default: the setting threads."),
    ] = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Measure the speed of small transactions, rules and events on this machine and its server.

    Uses a temporary schema, which is dropped at the end. The figures show whether the server is
    slow or far away, and what speed to expect of small rules. They do not compare activedb with
    other systems.
    """
    reporter = Reporter(as_json=as_json)
    # The monitor stays off during the measurement, whatever the settings say.
    settings = Settings.load(url=url, threads=threads, monitor="off")
    with reporter.working("opening a database"), _opened(settings) as db:
        found = []
        for each in measure(db, seconds):
            found.append(each)
            reporter.update(f"{each.name}: {each.value:,.1f} {each.unit}")
    where = "embedded" if settings.url is None else mask_url(settings.url)
    reporter.rows(
        f"{where}, {settings.threads} threads, {seconds:g} s per measurement",
        ("measurement", "value", "unit"),
        [(each.name, f"{each.value:,.2f}", each.unit) for each in found],
        {
            "url": where,
            "threads": settings.threads,
            "seconds": seconds,
            "figures": [asdict(each) for each in found],
        },
    )


@contextmanager
def _opened(settings: Settings) -> Iterator[Database]:
    """Yield a database in a temporary schema, on the server that the settings name."""
    if settings.url == "memory://":
        with connect("memory://", threads=settings.threads, monitor="off") as db:
            yield db
        return
    with ExitStack() as stack:
        server_url = settings.url
        if server_url is None:
            server_url = stack.enter_context(EmbeddedServer.start(settings.folder)).url
        scratch = stack.enter_context(scratch_schema(server_url, lazily=False))
        # With only the address, a schema from the settings would come first.
        here = settings.model_copy(update={"url": scratch, "db_schema": None})
        yield stack.enter_context(Database(here, SystemClock()))


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
