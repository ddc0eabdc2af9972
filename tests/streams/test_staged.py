"""Batches that are published for a stream, or into a table, and who takes them: without Spark."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import sqlalchemy as sa

import activedb as adb
from activedb.cli._main import _status
from activedb.errors import (
    CheckpointMismatch,
    ConfigurationError,
    DefinitionError,
    InvalidRow,
    InvalidURL,
    ServerUnreachable,
    StoreError,
    TableOwned,
    TransactionStateError,
)
from activedb.store.journals import Sink, StagedAttempt, Staging
from activedb.store.system import sinks, staged_batches, staged_rows
from activedb.streams import Staged
from tests.databases import PATIENCE_S, Place, in_thread, place, until

pytest.importorskip("pyspark", reason="no Spark")

from spark_bridge._sink import arrow_pieces, json_pieces  # once it can be

pa: Any = pyarrow
SCHEMA = pa.schema(
    [
        ("event_type", pa.string()),
        ("event_time_us", pa.int64()),
        ("event_id", pa.string()),
        ("raw", pa.string()),
        ("p_user", pa.string()),
    ]
)


@pytest.fixture
def where(postgres_url: str) -> Iterator[Place]:
    with place(postgres_url) as opened:
        yield opened


def rows(*users: str) -> Any:
    """Clicks: ``"ann@3"`` is one of ann's at 3 s."""
    clicks = [(user, int(float(s) * 1e6)) for user, s in (each.split("@") for each in users)]
    table = pa.table(
        {
            "event_type": ["CLICK"] * len(clicks),
            "event_time_us": [us for _, us in clicks],
            "event_id": list(users),
            "raw": [None] * len(clicks),
            "p_user": [user for user, _ in clicks],
        },
        schema=SCHEMA,
    )
    return table.to_batches()


@dataclass
class Spark:
    """Stand-in for Spark, which handles a query's batches step by step."""

    staging: Staging
    query_id: str = "query"

    @property
    def sink(self) -> Sink:
        return Sink("stream", "clicks", self.query_id)

    def stage(self, batch_id: int, partition: Sequence[Any]) -> StagedAttempt:
        writer = uuid.uuid4().hex
        pieces = [piece for batch in partition for piece in arrow_pieces(batch)]
        count = self.staging.stage(self.query_id, batch_id, writer, pieces)
        return StagedAttempt(writer, count, sum(batch.num_rows for batch in partition))

    def publish(self, batch_id: int, *partitions: Sequence[Any]) -> bool:
        attempts = [self.stage(batch_id, partition) for partition in partitions]
        return self.staging.publish_to_stream(self.sink, batch_id, attempts)


@contextmanager
def staging_in(where: Place) -> Iterator[Staging]:
    with closing(Staging(where._url, where._schema)) as staging:
        yield staging


@pytest.fixture
def spark(where: Place) -> Iterator[Spark]:
    where.open()
    with staging_in(where) as staging:
        yield Spark(staging)


def opened(where: Place, **changes: Any) -> tuple[adb.Database, adb.Stream, list[str]]:
    """A database with a stream of clicks, and what its rule hears."""
    db = where.open(batch_events_max=2)
    given: dict[str, Any] = {"params": {"user": "user"}, "delay": timedelta(seconds=10)}
    clicks = db.stream(
        "clicks",
        source=Staged(),
        type="'CLICK'",
        timestamp="at",
        types={"CLICK": ("user",)},
        **(given | changes),
    )
    heard: list[str] = []

    @db.rule(on=adb.event("CLICK"))
    def hear(t: adb.Transaction, o: adb.Occurrence) -> None:
        heard.append(str(o.id))

    return db, clicks, heard


def kept(db: adb.Database, *conditions: Any) -> tuple[int, int]:
    """Return how many batches and pieces are there."""
    count = sa.select(sa.func.count())
    with db.connection() as connection:
        batches = connection.scalar(count.select_from(staged_batches))
        pieces = connection.scalar(count.select_from(staged_rows).where(*conditions))
    return int(batches or 0), int(pieces or 0)


# -- publishing ------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_partitions_whoever_was_first(where: Place, spark: Spark) -> None:
    late, early = spark.stage(0, rows("b@2")), spark.stage(0, rows("a@2"))
    nothing = spark.stage(0, [])
    lost = spark.stage(0, rows("x@1"))  # an attempt of which Spark was not told
    assert spark.staging.publish_to_stream(spark.sink, 0, [early, nothing, late])
    db, clicks, heard = opened(where)
    assert kept(db) == (1, 2), f"{lost} counts no more"
    spark.publish(1, rows("c@30"))
    spark.publish(2)
    assert clicks.take_staged() == 3
    assert heard == ["a@2", "b@2"]
    assert kept(db) == (0, 0)


def test_batch_published_twice_at_once_is_published_once(where: Place, spark: Spark) -> None:
    attempts = [[spark.stage(0, rows("a@1"))] for _ in range(4)]
    barrier = threading.Barrier(len(attempts))

    def publish(mine: list[StagedAttempt]) -> bool:
        with staging_in(where) as staging:
            barrier.wait(PATIENCE_S)
            return staging.publish_to_stream(spark.sink, 0, mine)

    futures = [in_thread(publish, mine) for mine in attempts]
    assert sorted(future.result(PATIENCE_S) for future in futures) == [False, False, False, True]
    db, _, _ = opened(where)
    assert kept(db) == (1, 1)


def test_what_comes_after_its_batch_was_published_goes_with_the_next(
    where: Place, spark: Spark
) -> None:
    db, _, _ = opened(where)
    spark.publish(0, rows("a@1"))
    spark.stage(0, rows("a@1"))  # an attempt that is no longer awaited
    assert kept(db, staged_rows.c.place.is_(None)) == (1, 1)
    spark.publish(1, rows("b@2"))
    assert kept(db, staged_rows.c.place.is_(None)) == (2, 0)
    assert kept(db) == (2, 2)


def test_batch_given_up_is_deleted_and_one_that_counts_is_not(where: Place, spark: Spark) -> None:
    db, _, _ = opened(where)
    spark.publish(0, rows("a@1"))
    first = spark.stage(1, rows("b@2"))
    spark.staging.discard("query", 1, [first.writer])
    assert kept(db) == (1, 1)
    with db.connection() as connection:
        writer = connection.scalar(sa.select(staged_rows.c.writer))
    spark.staging.discard("query", 0, [str(writer)])
    assert kept(db) == (1, 1)
    with pytest.raises(StoreError, match="of batch 1 for stream clicks 0 pieces are there and 1"):
        spark.staging.publish_to_stream(spark.sink, 1, [first])
    assert spark.publish(1, rows("b@2"))


def test_batches_that_do_not_continue_are_refused(where: Place, spark: Spark) -> None:
    with pytest.raises(CheckpointMismatch, match="at batch 3, but this database has seen none"):
        spark.publish(3, rows("a@1"))
    spark.publish(0, rows("a@1"))
    with pytest.raises(CheckpointMismatch, match="at batch 2, but this database has stopped at"):
        spark.publish(2, rows("a@1"))
    other = Spark(spark.staging, "other")
    with pytest.raises(CheckpointMismatch, match="by query query so far, and this is query other"):
        other.publish(0, rows("a@1"))
    db, clicks, _ = opened(where)
    assert clicks.take_staged() == 1
    with db.connection() as connection, connection.begin():
        connection.execute(sa.delete(sinks))
    with pytest.raises(CheckpointMismatch, match="by query query so far, and this is query other"):
        other.publish(0, rows("a@1"))


def test_attempt_that_fails_has_staged_nothing(where: Place, spark: Spark) -> None:
    db, _, _ = opened(where)

    def pieces() -> Iterator[bytes]:
        yield from arrow_pieces(rows("a@1")[0])
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        spark.staging.stage("query", 0, "w", pieces())
    assert kept(db) == (0, 0)


def test_long_batch_is_staged_in_pieces(where: Place, spark: Spark) -> None:
    db, clicks, _ = opened(where)
    user = "u" * 1_000_000
    batch = rows(*(f"{user}@{n}" for n in range(9)))[0]
    pieces = list(arrow_pieces(batch))
    assert len(pieces) == 5  # an id and a parameter of a megabyte each, four megabytes at most
    spark.publish(0, [batch])
    assert kept(db) == (1, 5)
    assert clicks.take_staged() == 1
    assert clicks.run.waiting == 9


# -- taking ----------------------------------------------------------------------------------


class Crash(Exception):
    pass


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_crash_before_a_batch_is_deleted_makes_nothing_of_it_again(
    where: Place, spark: Spark, parts: int
) -> None:
    spark.publish(0, rows("a@1", "b@2", "d@4"), rows("f@6"))
    spark.publish(1, rows("h@20", "c@3", "e@5"), rows("g@19"))
    db, clicks, heard = opened(where)
    done: list[int] = []

    def crash(events: int) -> None:
        done.append(events)
        if sum(map(bool, done)) == parts:
            raise Crash

    run = clicks.run
    run.on_progress = crash
    with pytest.raises(Crash):
        clicks.take_staged()
    assert kept(db)[0] == 1, "batch 0 was taken, batch 1 not to its end"
    again, same, more = opened(where)
    assert same.take_staged() == 1
    assert heard + more == ["a@1", "b@2", "c@3", "d@4", "e@5", "f@6"]
    assert same.run.totals()["events"] == 6
    assert same.run.punctuation_us == 10_000_000
    assert same.run.waiting == 2
    assert kept(again) == (0, 0)


def test_batch_whose_number_was_used_by_a_feed_from_python_is_kept(
    where: Place, spark: Spark
) -> None:
    db, clicks, heard = opened(where)
    spark.publish(0, rows("a@1", "b@20"))
    clicks.take_staged()
    clicks.feed([adb.occurrence("CLICK", timestamp=21, user="p")])
    spark.publish(1, rows("c@30"))
    with pytest.raises(CheckpointMismatch, match=r"comes with other rows .* Python"):
        clicks.take_staged()
    assert kept(db)[0] == 1
    assert "c@30" not in heard


def test_follower_is_told_of_a_batch_and_stops_when_told(where: Place, spark: Spark) -> None:
    _, clicks, heard = opened(where, delay=timedelta(0))
    stop, taken = threading.Event(), []

    def follow() -> int:
        return clicks.take_staged(
            follow=True,
            stop=stop,
            poll_s=1e5,
            on_batch=lambda batch_id, rows: taken.append((batch_id, rows)),
        )

    following = in_thread(follow)
    for number in range(3):
        spark.publish(number, rows(f"a@{number}", f"b@{number}"))

        def has_taken(number: int = number) -> bool:
            return len(taken) > number

        until(has_taken)
    stop.set()
    assert following.result(PATIENCE_S) == 3
    assert taken == [(0, 2), (1, 2), (2, 2)]
    assert heard == ["a@0", "b@0", "a@1", "b@1"]


def test_time_that_is_from_the_future_holds_nothing_up(where: Place, spark: Spark) -> None:
    db, clicks, heard = opened(where)
    spark.publish(0, rows("a@1", "z@9e9"))
    spark.publish(1, rows("b@30"))
    spark.publish(2, rows("c@31"))
    assert clicks.take_staged() == 3
    assert clicks.run.punctuation_us == 21_000_000
    assert heard == ["a@1"]
    assert [letter.identity for letter in db.dead_letters.list("clicks")] != []


def test_what_cannot_be_taken_is_refused_with_the_reason(where: Place, spark: Spark) -> None:
    db, clicks, _ = opened(where)
    with pytest.raises(ConfigurationError, match=r"published anything .* there are none"):
        clicks.take_staged()
    spark.staging.publish_to_stream(Sink("stream", "click", "q"), 0, [])
    with pytest.raises(ConfigurationError, match="did you mean 'click'"):
        clicks.take_staged()
    with pytest.raises(ConfigurationError, match="poll_s takes a positive number"):
        clicks.take_staged(poll_s=0)
    with db.transaction(), pytest.raises(TransactionStateError, match="cannot take batches"):
        clicks.take_staged()
    spark.publish(0, [rows("a@1")[0].drop_columns(["p_user"])])
    with pytest.raises(DefinitionError, match="for stream clicks lacks p_user: the stream is decl"):
        clicks.take_staged()
    with db.connection() as connection, connection.begin():
        connection.execute(sa.delete(staged_rows))
    with pytest.raises(StoreError, match="batch 0 of stream clicks has 1 rows, and 0 are there"):
        clicks.take_staged()
    memory = adb.connect("memory://")
    stream = memory.stream("s", source=Staged(), type="'A'", timestamp="t", types={"A": ()})
    with memory, pytest.raises(ConfigurationError, match="Spark cannot write to it"):
        stream.take_staged()


@pytest.mark.parametrize(
    ("url", "schema", "error", "said"),
    [
        ("memory://", None, InvalidURL, "cannot write to 'memory://'"),
        ("nonsense", None, InvalidURL, "cannot write to 'nonsense'"),
        ("postgresql://me:geheim@127.0.0.1:1/d", None, ServerUnreachable, r"//me:\*\*\*@127"),
        (None, "nowhere", ConfigurationError, "activedb's tables are not in schema nowhere"),
        (None, "a b", ConfigurationError, "'a b' is not a name for a schema"),
    ],
)
def test_place_that_cannot_be_written_to_is_refused(
    postgres_url: str, url: str | None, schema: str | None, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        Staging(url or postgres_url, schema)
    assert "geheim" not in str(caught.value)


JOB = """
import activedb as adb
db = adb.connect()
clicks = db.stream(
    "clicks", source=adb.Staged(), type="'CLICK'", timestamp="at", types={"CLICK": ()}
)
"""


def test_run_takes_what_is_published(
    where: Place,
    spark: Spark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spark.publish(0, rows("a@1", "b@2"))
    monkeypatch.setenv("ACTIVEDB_URL", str(where._url))
    monkeypatch.setenv("ACTIVEDB_DB_SCHEMA", str(where._schema))
    job = tmp_path / "job.py"
    job.write_text(JOB)
    assert _status(["run", str(job), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 2
    assert _status(["run", str(job), "--input", str(job)]) == 2
    assert "leave out --input" in capsys.readouterr().err


# -- tables ----------------------------------------------------------------------------------


def insert(spark: Spark, table: str, batch_id: int, values: Any, query_id: str = "query") -> bool:
    (batch,) = pa.table(values).to_batches()
    pieces = list(json_pieces(batch))
    writer = uuid.uuid4().hex
    spark.staging.stage(query_id, batch_id, writer, pieces)
    attempt = StagedAttempt(writer, len(pieces), batch.num_rows)
    sink = Sink("table", table, query_id)
    return spark.staging.publish_to_table(sink, batch_id, [attempt], batch.schema.names)


def test_table_is_written_by_several_queries_and_refuses_whole_batches(
    where: Place, spark: Spark
) -> None:
    db = where.open()
    table = sa.Table("t", db.metadata, sa.Column("n", sa.Integer, primary_key=True))
    db.create_all()
    assert insert(spark, "t", 0, {"n": [1, 2]})
    assert not insert(spark, "t", 0, {"n": [8, 9]})
    assert insert(spark, "t", 0, {"n": [3]}, query_id="other")
    with pytest.raises(InvalidRow, match="cannot insert batch 1 into table t"):
        insert(spark, "t", 1, {"n": ["4", "five"]})
    with pytest.raises(DefinitionError, match="table t has no column N; it has n: select"):
        insert(spark, "t", 1, {"N": [4]})
    with pytest.raises(DefinitionError, match="there is no table activedb_rules to insert into"):
        insert(spark, "activedb_rules", 0, {"name": ["r"]}, query_id="third")
    with pytest.raises(CheckpointMismatch, match="table t: Spark's checkpoint is at batch 2"):
        insert(spark, "t", 2, {"n": [5]})
    db.admin.own(table)
    with pytest.raises(TableOwned, match="table t is kept in the memory of another process"):
        insert(spark, "t", 1, {"n": [4]}, query_id="other")
    with db.connection() as connection:
        assert list(connection.scalars(sa.select(table.c.n).order_by(table.c.n))) == [1, 2, 3]
