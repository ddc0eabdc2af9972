"""``activedb bench``: how fast this machine and its server are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from activedb.cli._options import Json, Trace, Url
from activedb.cli._report import Reporter
from activedb.clock import SystemClock
from activedb.config import Settings, mask_url
from activedb.database import Database, connect
from activedb.demo import measure
from activedb.store.server import EmbeddedServer, scratch_schema

__all__ = ["bench"]


def bench(
    seconds: Annotated[
        float, typer.Option(min=0.01, max=3_600, help="How long each figure is measured.")
    ] = 2.0,
    threads: Annotated[
        int | None, typer.Option(min=1, max=256, help="Threads; by default as set.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Measure small transactions, rules and events with this machine and its server.

    In a schema of its own, which is dropped at the end. The figures tell whether a server is slow
    or far away, and what to expect of small rules; they are no comparison with anything.
    """
    reporter = Reporter(as_json=as_json)
    # What is measured is not watched, whatever programs are set to.
    settings = Settings.load(url=url, threads=threads, monitor="off")
    with reporter.working("opening a database"), _opened(settings) as db:
        found = []
        for each in measure(db, seconds):
            found.append(each)
            reporter.update(f"{each.name}: {each.value:,.1f} {each.unit}")
    where = "embedded" if settings.url is None else mask_url(settings.url)
    reporter.rows(
        f"{where}, {settings.threads} threads, {seconds:g} s for each figure",
        ("what", "figure", ""),
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
    """A database in a schema of its own, on the server that the settings name."""
    if settings.url == "memory://":
        with connect("memory://", threads=settings.threads, monitor="off") as db:
            yield db
        return
    with ExitStack() as stack:
        server_url = settings.url
        if server_url is None:
            server_url = stack.enter_context(EmbeddedServer.start(settings.folder)).url
        scratch = stack.enter_context(scratch_schema(server_url, lazily=False))
        # With the address alone a schema that the settings name would come first.
        here = settings.model_copy(update={"url": scratch, "db_schema": None})
        yield stack.enter_context(Database(here, SystemClock()))
