"""A small stream from files through Spark into rules, which says where it is and waits for leave.

As a program, ``python -m tests.end_to_end.phases_job '{"url": …, "again": …, "folder": …,
"points": …}'``, it connects to the socket ``points`` at each phase of each batch, sends the two,
and goes on when it is answered. Who listens may kill it there, or its JVM, or its server. At the
end it does the same once more, undisturbed, in the database ``again``. Batch N has the rows of the
file N: its events, some of which fail, some of which are late.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, Table, Text

import activedb as adb
import spark_bridge._feed
import spark_bridge._file_drive
import spark_bridge._listener
from activedb.errors import FeedFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb.streams import StreamRun

PHASES = (
    "started",  # the query runs, and has no batch yet
    "evaluating",  # Spark reads the rows and evaluates the stream's expressions
    "handed over",  # the batch is in Python, nothing has been done with it
    "rules",  # a rule runs
    "before commit",  # the effects and the ledger row are written
    "after commit",  # Postgres has committed, Spark knows nothing of it
    "spark committed",  # Spark has committed, the queue of files knows nothing of it
    "between batches",  # nothing is going on
)
"""Phases in the order in which a batch goes through them."""
ROWS = 4
"""Number of rows of a file."""
TABLES = ("effects", "pairs", "audit")


def write_input(folder: Path, batches: int) -> None:
    """Write the files, a batch each.

    Times go on by 10 s from row to row; the last row of each file lies three files back, so that it
    is late from the third batch on.
    """
    folder.mkdir()
    for batch in range(batches):
        lines = []
        for place in range(ROWS):
            seconds = 10_000 + 10 * (batch * ROWS + place)
            if place == ROWS - 1:
                seconds -= 10 * 3 * ROWS + 5
            kind = {1: "FAIL", 2: "DONE"}.get((batch + place) % ROWS, "TICK")
            lines.append(f"{seconds},{kind},e{batch}-{place}\n")
        if batch % 3 == 0:
            lines.append(f"nonsense,TICK,e{batch}-x\n")
        (folder / f"{batch:03d}.csv").write_text("".join(lines))


class Points:
    """Reporter of the program's phase, from any of its processes and threads.

    Attributes
    ----------
    batch : int
        The batch at hand.
    silent : bool
        Whether to go on without leave.
    """

    def __init__(self, address: str):
        self.address = address
        self.batch = 0
        self.silent = False

    def reach(self, phase: str, batch: int | None = None) -> str:
        """Come to a phase of a batch, by default of the one at hand; returns the answer."""
        if self.silent:
            return "go"
        with Client(self.address) as listener:
            listener.send((phase, self.batch if batch is None else batch))
            answer: str = listener.recv()
        return answer

    def of_commit(self, point: str) -> None:
        """Come to a point of a commit, which counts if the commit is that of a batch."""
        if point in PHASES and threading.current_thread() is threading.main_thread():
            self.reach(point)


def declare(db: adb.Database, points: Points) -> adb.Stream:
    """Declare tables, stream and rules."""
    effects = Table(
        "effects",
        db.metadata,
        Column("event", Text, primary_key=True),
        Column("times", Integer, nullable=False),
    )
    pairs = Table(
        "pairs",
        db.metadata,
        Column("first", Text, primary_key=True),
        Column("second", Text, primary_key=True),
    )
    audit = Table("audit", db.metadata, Column("event", Text, primary_key=True))
    stream = db.stream(
        "phases",
        source=adb.Files("csv", schema="seconds STRING, kind STRING, name STRING"),
        type="kind",
        timestamp="timestamp_seconds(CAST(seconds AS BIGINT))",
        id="name",
        params={"name": "name"},
        types={"TICK": ("name",), "FAIL": ("name",), "DONE": ("name",)},
        delay=timedelta(seconds=15),
    )

    @db.rule(on=adb.event("TICK") | adb.event("FAIL") | adb.event("DONE"), priority=2)
    def count(t: adb.Transaction, o: adb.Occurrence) -> None:
        points.reach("rules")
        name = o.params["name"]
        row = t.get(effects, name, for_update=True)
        if row is None:
            t.insert(effects, {"event": name, "times": 1})
        else:
            t.update(effects, name, times=row["times"] + 1)

    @db.rule(on=adb.event("FAIL"), priority=1)
    def fail(t: adb.Transaction, o: adb.Occurrence) -> None:
        raise ValueError(f"{o.params['name']} is no good")

    @db.rule(on=adb.seq(adb.event("TICK"), adb.event("DONE")).context("recent"))
    def pair(t: adb.Transaction, o: adb.Occurrence) -> None:
        names = {kind: part.params["name"] for kind, part in o.parts.items()}
        t.insert(pairs, {"first": names["TICK"], "second": names["DONE"]})

    @db.rule(on=adb.inserted(pairs), coupling="detached")
    def write_down(t: adb.Transaction, o: adb.Occurrence) -> None:
        assert o.new is not None
        t.insert(audit, {"event": o.new["second"]})

    return stream


def hook(points: Points) -> None:
    """Have Spark's side say where it is."""
    listener: Any = spark_bridge._listener._ProgressListener
    queue: Any = spark_bridge._file_drive.FileQueue
    settle: Callable[[Any], None] = queue.settle

    def on_query_started(self: Any, event: Any) -> None:
        points.reach("started", 0)

    def settle_between(self: Any) -> None:
        points.reach("spark committed")
        settle(self)
        points.reach("between batches")

    listener.onQueryStarted = on_query_started
    queue.settle = settle_between


def at_point(address: str) -> Callable[[str, str], str]:
    """A function of Spark's: the kind of a row, once that row's batch may be evaluated."""

    def kind_of(kind: str, name: str) -> str:
        with Client(address) as listener:
            listener.send(("evaluating", int(name[1:].split("-")[0])))
            listener.recv()
        return kind

    return kind_of


class Feeding:
    """Feeder of a stream into one database after another, with one Spark while that lives."""

    def __init__(self, points: Points, input: Path):
        self._points = points
        self._input = input
        self._spark = ExitStack()

    def work(self, url: str, checkpoint: Path) -> None:
        """Feed the stream to its end, again if Spark fails."""
        points = self._points
        with adb.connect(url) as db:
            stream = declare(db, points)
            db.create_all()
            run = stream.run
            db.recover()
            db._store.trigger = points.of_commit
            while True:
                try:
                    self._feed(run, stream, checkpoint)
                except FeedFailed as error:
                    self._spark.close()
                    points.reach(f"failed: {error}")
                else:
                    run.finish()
                    return

    def _feed(self, run: StreamRun, stream: adb.Stream, checkpoint: Path) -> None:
        points, declared = self._points, stream.declaration
        if points.reach("begin") == "watch":
            declared = replace(declared, type="at_point(kind, name)")
        fed = spark_bridge.SparkFeed(declared, self._input, checkpoint)
        run.check_continues(fed.query_id, fed.next_batch_id)

        def apply(batch: adb.AtomicBatch) -> None:
            points.batch = batch.batch_id
            points.reach("handed over")
            run.apply(batch)

        spark = self._spark.enter_context(spark_bridge.session())
        spark.udf.register("at_point", at_point(points.address))
        fed.run(apply)

    def close(self) -> None:
        """End Spark."""
        self._spark.close()


def main(given: dict[str, Any]) -> None:
    """Process all files while a listener follows, then undisturbed."""
    points, folder = Points(given["points"]), Path(given["folder"])
    hook(points)
    with closing(Feeding(points, folder / "input")) as feeding:
        feeding.work(given["url"], folder / "checkpoint")
        points.silent = True
        feeding.work(given["again"], folder / "undisturbed")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
