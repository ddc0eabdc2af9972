"""The same from executors as from one process, for random streams, with a restart in the middle."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import activedb as adb
from activedb.errors import ConfigurationError
from activedb.streams import AtomicBatch, Files, Stream
from spark_bridge import SparkFeed
from tests.ledger import Ledger, open_ledger
from tests.spark_bridge.cluster import CLUSTER, cluster

__all__ = ["cluster"]

pytestmark = pytest.mark.spark

_FIRST_US = 1_000_000_000
_KINDS = ("EXIT", "SAN", "ENTER", "PING", "QUIET")


def ward(db: adb.Database, files_each: int) -> Stream:
    return db.stream(
        "ward",
        source=Files(
            "csv",
            per_batch=files_each,
            schema="us BIGINT, kind STRING, ident STRING, worker STRING, room INT, n INT",
        ),
        type="kind",
        timestamp="timestamp_micros(us)",
        id="ident",
        types={"EXIT": ("worker",), "SAN": (), "ENTER": ("worker",), "PING": (), "QUIET": ()},
        delay=timedelta(seconds=2),
    )


def define_rules(ledger: Ledger) -> None:
    """Keyed ones in two ways, one without a key, one without a pattern, and those that fail."""
    db = ledger.db
    out, san, back, ping = (adb.event(kind) for kind in _KINDS[:4])

    def write(name: str, **options: Any) -> None:
        @db.rule(name=name, **options)
        def rule(t: adb.Transaction, o: adb.Occurrence) -> None:
            parts = [(p.name, p.us, p.id) for p in o.parts.values()]
            ledger.write(t, f"{name} {o.us} {o.id} {sorted(o.params.items(), key=str)} {parts}")
            if name == "alert" and o.params["n"] == 1:
                raise ValueError("no number 1")

    write("alert", on=adb.seq(out, ~san, back).same("worker").within(30), on_abort="triggering")
    write("turns", on=adb.seq(san, out).same("room").within(9).context("chronicle"))
    write("either", on=adb.seq(out, back).same("room", "worker").within(20))
    write("broken", on=adb.seq(out, back).same("worker").within(15).where(_is_divisible))
    write("pairs", on=adb.seq(san, ping).within(2))
    write("pings", on=ping)
    write("lates", on=adb.late("ward"))


def _is_divisible(parts: Any) -> bool:
    return bool(12 % parts["ENTER"].params["n"] < 12)


def rows(rng: random.Random, count: int) -> list[str]:
    """Lines of CSV: few keys and few times, disorder beyond the delay, and what is no event."""
    found = []
    s = 0.0
    for _ in range(count):
        s += rng.choice((0, 0, 0.5, 1))
        us = _FIRST_US + round((s - rng.choice((0, 0, 0, 1, 3, 30))) * 1_000_000)
        kind = rng.choice(_KINDS)
        if rng.random() < 0.03:
            kind = "UNKNOWN"
        if rng.random() < 0.03:
            us = 4_000_000_000_000_000  # in the year 2096
        worker = rng.choice(("ann", "bob", "cid", ""))
        ident = rng.choice(("", "x", "y"))
        found.append(f"{us},{kind},{ident},{worker},{rng.randrange(3)},{rng.randrange(4)}")
    return found


class Played:
    """A stream played through the rules, by executors or by one process."""

    def __init__(self, db: adb.Database, root: Path, *, is_elsewhere: bool, files_each: int):
        self._input = root / "input"
        self._checkpoint = root / f"checkpoint-{is_elsewhere}"
        self._is_elsewhere = is_elsewhere
        self.stream = ward(db, files_each)
        self.ledger = open_ledger(db)
        define_rules(self.ledger)
        self.run = self.stream.run

    def open(self, *, follow: bool = False) -> SparkFeed:
        matchable = self.run.matchable if self._is_elsewhere else None
        return SparkFeed(
            self.stream,
            self._input,
            self._checkpoint,
            follow=follow,
            spark=CLUSTER,
            matchable=matchable,
        )

    def feed(self, apply: Callable[[AtomicBatch], None] | None = None) -> SparkFeed:
        feed = self.open()
        feed.run(apply or self.run.apply)
        return feed

    def finish(self, feed: SparkFeed) -> None:
        self.run.finish(feed.left)

    def outcome(self, *, with_places: bool) -> dict[str, Any]:
        """All that is in the database; rules that one event triggers run beside each other."""
        rows = self.ledger.lines()
        letters = self.ledger.db.dead_letters.list()
        late = self.run.late_events()
        return {
            "rows": sorted(rows),
            "times": [row.split()[1] for row in rows],
            "letters": sorted(
                (
                    x.source,
                    x.identity if with_places else "",
                    x.kind,
                    str({k: v for k, v in x.payload.items() if with_places or k != "position"}),
                    x.error,
                )
                for x in letters
            ),
            "late": sorted(
                (a.occurrence.us, a.occurrence.name, str(dict(a.occurrence.params)))
                + ((a.batch_id, a.position) if with_places else ())
                for a in late
            ),
            "totals": self.run.totals(),
            "punctuation": self.run.punctuation_us,
        }


class Cut(Exception):
    """A feed was cut off."""


@pytest.fixture
def played_on(tmp_path: Path) -> Iterator[Callable[..., Played]]:
    """Yield a function that plays the stream of this test's folder on a database of its own."""
    with contextlib.ExitStack() as databases:

        def play(**how: Any) -> Played:
            db = databases.enter_context(adb.connect("memory://"))
            return Played(db, tmp_path, **how)

        yield play


def seeds() -> range:
    """More by ``ACTIVEDB_TEST_SCALE``; others by ``ACTIVEDB_TEST_SEED``."""
    first = int(os.environ["ACTIVEDB_TEST_SEED"])
    return range(first, first + int(os.environ.get("ACTIVEDB_TEST_SCALE", "1")))


@pytest.mark.parametrize("seed", seeds())
def test_executors_make_what_one_process_makes_with_a_break_in_the_middle(
    played_on: Callable[..., Played], cluster: Any, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    files_each = rng.choice((1, 2))
    (tmp_path / "input").mkdir()
    files = iter(range(9))

    def write() -> None:
        text = "".join(f"{line}\n" for line in lines[:30])
        del lines[:30]
        (tmp_path / "input" / f"{next(files)}.csv").write_text(text, encoding="utf-8")

    lines = rows(rng, 120)
    alone = played_on(is_elsewhere=False, files_each=files_each)
    apart = played_on(is_elsewhere=True, files_each=files_each)
    for _ in range(3):
        write()
    if rng.random() < 0.5:
        # Cut off: the last batch comes again, whether the ledger has it or not.
        cut_at, is_applied = rng.randrange(3 // files_each), rng.random() < 0.5

        def cut(batch: AtomicBatch) -> None:
            if batch.batch_id < cut_at or is_applied:
                apart.run.apply(batch)
            if batch.batch_id == cut_at:
                raise Cut

        with pytest.raises(Cut):
            apart.feed(cut)
        write()
        alone.finish(alone.feed())
    else:
        # The end, and then more: some of it is before what the end has passed.
        for played in (alone, apart):
            played.finish(played.feed())
        write()
        alone.finish(alone.feed())
    feed = apart.feed()
    apart.finish(feed)
    rules = apart.run.matchable().rules
    assert {rule.name for rule in rules} == {"alert", "turns", "either", "broken"}
    assert feed.matched_here.keys() == {"pairs"}
    expected = alone.outcome(with_places=files_each == 1)
    assert apart.outcome(with_places=files_each == 1) == expected
    assert expected["rows"]
    assert expected["letters"]


def test_feed_that_runs_again_knows_the_end_of_before_and_the_rules_of_now(
    played_on: Callable[..., Played], cluster: Any, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()

    def write(name: str, *rows: tuple[int, str, str, int]) -> None:
        lines = [f"{_FIRST_US + s * 1_000_000},{k},,{who},{room},2\n" for s, k, who, room in rows]
        (tmp_path / "input" / name).write_text("".join(lines), encoding="utf-8")

    played = played_on(is_elsewhere=True, files_each=1)
    write("0.csv", (10, "EXIT", "ann", 1), (30, "EXIT", "bob", 1), (40, "EXIT", "ann", 2))
    feed = played.open()
    feed.run(played.run.apply)
    played.finish(feed)

    def define(name: str, key: str) -> None:
        on = adb.seq(adb.event("EXIT"), adb.event("ENTER")).same(key)

        @played.ledger.db.rule(name=name, on=on)
        def rule(t: adb.Transaction, o: adb.Occurrence) -> None:
            raise AssertionError("what was processed before it is none of its")

    define("by another key", "n")
    define("by the same", "worker")
    # 38 is before the end, at 40, and so too late.
    write("1.csv", (38, "ENTER", "ann", 1), (50, "ENTER", "ann", 2), (51, "ENTER", "bob", 3))
    feed.run(played.run.apply)
    feed.run(played.run.apply)  # of nothing new
    played.finish(feed)
    found = played.outcome(with_places=True)
    at = [(row.split()[0], int(row.split()[1]) // 1_000_000 - 1000) for row in found["rows"]]
    expected = [("alert", 50), ("alert", 51), ("broken", 50), ("either", 50), ("lates", 40)]
    assert sorted(at) == expected
    assert found["letters"] == []
    assert found["totals"] == {"events": 5, "late": 1, "dead": 0}


def test_last_rows_complete_what_they_do_when_nothing_comes_any_more(
    played_on: Callable[..., Played], cluster: Any, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    rows = ((10, "EXIT"), (20, "ENTER"), (30, "QUIET"))
    lines = [f"{_FIRST_US + s * 1_000_000},{kind},,ann,1,2\n" for s, kind in rows]
    (tmp_path / "input" / "0.csv").write_text("".join(lines), encoding="utf-8")
    played = played_on(is_elsewhere=True, files_each=1)
    feed = played.open(follow=True)
    sizes = []

    def apply(batch: AtomicBatch) -> None:
        played.run.apply(batch)
        fired = sorted(row.split()[0] for row in played.ledger.lines())
        sizes.append((batch.table.num_rows, fired))
        if len(sizes) == 2:
            feed.stop()

    feed.run(apply)
    # The first has brought the rows to the executors, and the second has none.
    assert sizes == [(0, []), (0, ["alert", "broken", "either"])]


def test_checkpoint_that_began_in_one_process_does_not_go_on_on_executors(
    played_on: Callable[..., Played], cluster: Any, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "0.csv").write_text(f"{_FIRST_US},EXIT,,ann,1,1\n")
    (tmp_path / "checkpoint-True").symlink_to(tmp_path / "checkpoint-False")
    (tmp_path / "checkpoint-False").mkdir()
    played_on(is_elsewhere=False, files_each=1).feed()
    with pytest.raises(ConfigurationError, match="began with the setting scale_out off"):
        played_on(is_elsewhere=True, files_each=1).feed()
