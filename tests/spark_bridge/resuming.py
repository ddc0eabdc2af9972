"""A stream with rules, late rows and dead letters, fed into databases that outlive checkpoints."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Table, Text, create_engine, text

import activedb as adb
from spark_bridge import SparkFeed

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb.streams import AtomicBatch, Source

__all__ = ["SCHEMA", "Fed", "lines"]

SCHEMA = "seconds STRING, kind STRING, name STRING"
_SEEN = {
    "effects": "SELECT * FROM effects",
    "pairs": "SELECT * FROM pairs",
    "ledger": "SELECT batch_id, part, punctuation_us, complete, events, late, dead "
    "FROM activedb_ledger",
    "late": "SELECT us, event_id FROM activedb_late_events",
    "letters": "SELECT identity, reason FROM activedb_dead_letters",
    "waiting": "SELECT us, event_id FROM activedb_stream_events WHERE us >= "
    "(SELECT max(punctuation_us) FROM activedb_ledger)",
}


def lines(batch: int) -> list[str]:
    """Rows of a batch: three in time, one that no event can be made of, one far back."""
    first = 1_000 + 30 * batch
    rows = [(first, "TICK"), (first + 10, "DONE"), (first + 20, "TICK"), (first - 75, "TICK")]
    named = [f"{s},{kind},e{batch}-{place}" for place, (s, kind) in enumerate(rows)]
    return [*named, f"noon,TICK,e{batch}-x"]


@dataclass
class Fed:
    """One database, and the checkpoint of the moment."""

    url: str
    root: Path
    source: Source
    batch_events_max: int = 1_000
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def write(self, *batches: int) -> None:
        """Write the files of these batches."""
        self.input.mkdir(exist_ok=True)
        for batch in batches:
            (self.input / f"{batch:03d}.csv").write_text("\n".join(lines(batch)) + "\n")

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint)

    def run(
        self,
        *,
        resume: bool = False,
        checkpoint: Path | None = None,
        stop: Callable[[AtomicBatch], None] = lambda batch: None,
        stop_at_part: tuple[int, int] | None = None,
    ) -> list[AtomicBatch]:
        """Open the database, feed the stream to its end and close it; return the batches."""
        batches = []
        with adb.connect(self.url, batch_events_max=self.batch_events_max) as db:
            stream = declare(db, self.source, **self.changes)
            db.create_all()
            run = stream.run
            own = getattr(self.source, "path", None) is not None or "source" in self.changes
            feed = SparkFeed(
                stream,
                None if own else self.input,
                checkpoint or self.checkpoint,
                resume=run.positions() if resume else None,
            )
            run.check_continues(feed.query_id, feed.next_batch_id, feed.continues)

            def apply(batch: AtomicBatch) -> None:
                stop(batch)
                batches.append(batch)
                run.apply(batch)

            def reach(point: str) -> None:
                last = run._state.last
                if point == "before commit" and last and stop_at_part == (last.batch_id, last.part):
                    raise ZeroDivisionError

            db._store.trigger = reach
            feed.run(apply)
            db.wait_idle()
        return batches

    def contents(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the contents of the database."""
        engine = create_engine(self.url)
        try:
            with engine.connect() as connection:
                return {
                    name: sorted(map(tuple, connection.execute(text(statement))), key=repr)
                    for name, statement in _SEEN.items()
                }
        finally:
            engine.dispose()

    def beside(self, url: str, root: Path) -> Fed:
        """Another database for the same input."""
        root.mkdir()
        (root / "input").symlink_to(self.input)
        return replace(self, url=url, root=root)


def declare(db: adb.Database, source: Source, **changes: Any) -> adb.Stream:
    """Declare tables, stream and rules."""
    effects = Table("effects", db.metadata, Column("event", Text, primary_key=True))
    pairs = Table(
        "pairs",
        db.metadata,
        Column("first", Text, primary_key=True),
        Column("second", Text, primary_key=True),
    )
    given: dict[str, Any] = {
        "type": "kind",
        "timestamp": "timestamp_seconds(CAST(seconds AS BIGINT))",
        "id": "name",
        "params": {"name": "name"},
        "types": {"TICK": ("name",), "DONE": ("name",)},
        "delay": timedelta(seconds=15),
    }
    stream = db.stream("ticks", source=source, **(given | changes))

    @db.rule(on=adb.event("TICK") | adb.event("DONE"))
    def note(t: adb.Transaction, o: adb.Occurrence) -> None:
        t.insert(effects, {"event": o.params["name"]})

    @db.rule(on=adb.seq(adb.event("DONE"), adb.event("TICK")).context("chronicle"))
    def pair(t: adb.Transaction, o: adb.Occurrence) -> None:
        names = {kind: part.params["name"] for kind, part in o.parts.items()}
        t.insert(pairs, {"first": names["DONE"], "second": names["TICK"]})

    return stream
