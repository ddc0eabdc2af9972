"""A streaming DataFrame into a stream or a table: staged by tasks, published once per batch."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa

import activedb as adb
from activedb.errors import ConfigurationError, DefinitionError
from activedb.store.system import sinks, staged_batches, staged_rows
from activedb.streams import Staged

pytest.importorskip("pyspark", reason="no Spark: make test-all installs it")

import pyarrow as pa

from spark_bridge import SparkFeed, events, feed, register_sources, session
from spark_bridge._sink import json_pieces
from tests.databases import Place, place, until

pytestmark = pytest.mark.spark

SCHEMA = "seconds STRING, kind STRING, user STRING"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    # A task is tried twice, a batch has two partitions, a partition several record batches.
    settings = {
        "spark.master": "local[2,2]",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
        "spark.sql.files.maxPartitionBytes": "64",
        "spark.sql.files.openCostInBytes": "0",
    }
    with session(settings) as running:
        register_sources(running)
        yield running


@pytest.fixture
def where(postgres_url: str) -> Iterator[Place]:
    with place(postgres_url) as opened:
        yield opened


class Sinking:
    """A folder of files, a query of Spark over them, and the database it writes to."""

    def __init__(self, spark: Any, root: Path, where: Place) -> None:
        self.spark, self.root, self.where = spark, root, where
        self.input, self.checkpoint = root / "input", root / "checkpoint"
        self.input.mkdir()
        self.db = where.open()
        self.files = 0

    def write(self, *lines: str) -> None:
        """Write a file, which makes a micro-batch."""
        path = self.input / f"{self.files:03}.csv"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.utime(path, (self.files, self.files))  # Spark reads them in this order
        self.files += 1

    def read(self, schema: str = SCHEMA) -> Any:
        options = {"maxFilesPerTrigger": "1", "latestFirst": "false"}
        return self.spark.readStream.schema(schema).options(**options).csv(str(self.input))

    def start(self, df: Any, checkpoint: Path | None = None, **options: str) -> Any:
        given = {"url": self.where._url, "db_schema": self.where._schema, **options}
        return (
            df.writeStream.format("activedb")
            .options(**given)
            .option("checkpointLocation", str(checkpoint or self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, df: Any, checkpoint: Path | None = None, **options: str) -> Any:
        query = self.start(df, checkpoint, **options)
        query.awaitTermination()
        return query

    def failure(self, df: Any, checkpoint: Path | None = None, **options: str) -> str:
        """Run a query that fails; return the reason."""
        return failure_of(self.start(df, checkpoint, **options))

    def forget_last_commit(self) -> int:
        """Let Spark run its last batch again, as if it had been killed before it wrote that."""
        last = max(int(p.name) for p in (self.checkpoint / "commits").glob("[0-9]*"))
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        return last

    def all(self, statement: Any) -> list[tuple[Any, ...]]:
        with self.db.connection() as connection:
            return [tuple(row) for row in connection.execute(statement)]

    def published(self) -> list[tuple[int, int]]:
        c = staged_batches.c
        return [(b, n) for b, n in self.all(sa.select(c.batch_id, c.rows).order_by(c.batch_id))]

    def pieces(self, *, counted: bool) -> int:
        place = staged_rows.c.place
        which = place.is_not(None) if counted else place.is_(None)
        return int(self.all(sa.select(sa.func.count()).where(which))[0][0])


def failure_of(query: Any) -> str:
    """Wait for the end of a query that fails; return the reason."""
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    return str(query.exception())


@pytest.fixture
def sinking(spark: Any, tmp_path: Path, where: Place) -> Sinking:
    return Sinking(spark, tmp_path, where)


def declared(db: adb.Database, **changes: Any) -> adb.Stream:
    given: dict[str, Any] = {
        "source": Staged(),
        "type": "kind",
        "timestamp": "timestamp_seconds(CAST(seconds AS DECIMAL(20, 6)))",
        "id": "concat(user, '@', seconds)",
        "params": {"user": "user", "length": "length(user)"},
        "types": {"CLICK": ("user",), "QUIT": ()},
        "delay": timedelta(seconds=10),
    }
    return db.stream("clicks", **(given | changes))


def clicking(db: adb.Database) -> tuple[adb.Stream, sa.Table]:
    """A stream, and a rule that keeps its clicks in a table."""
    clicks = declared(db)
    seen = sa.Table(
        "seen",
        db.metadata,
        sa.Column("n", sa.Integer, primary_key=True),
        sa.Column("us", sa.BigInteger),
        sa.Column("who", sa.Text),
    )
    db.create_all()

    @db.rule(on=adb.event("CLICK"))
    def keep(t: adb.Transaction, o: adb.Occurrence) -> None:
        t.insert(seen, {"us": o.us, "who": o.params["user"]})

    return clicks, seen


def effects(db: adb.Database, clicks: adb.Stream, seen: sa.Table) -> dict[str, Any]:
    with db.connection() as connection:
        rows = [tuple(row) for row in connection.execute(sa.select(seen).order_by(seen.c.n))]
    run = clicks.run
    return {
        "rows": rows,
        "late": [arrival.occurrence.id for arrival in run.late_events()],
        "letters": [letter.payload for letter in db.dead_letters.list("clicks")],
        "totals": run.totals(),
    }


def test_events_take_the_effect_that_they_have_through_a_feed(
    sinking: Sinking, tmp_path: Path, postgres_url: str
) -> None:
    sinking.write("1,CLICK,ann", "30,CLICK,bob", "25,CLICK,eve", "noon,CLICK,dan", "22,WINK,joe")
    sinking.write("12,CLICK,kim", "21,CLICK,lee")
    sinking.write("60,QUIT,ann", "19,CLICK,joe", "41,CLICK,bob", "20,CLICK,zoe")
    db = sinking.db
    clicks, seen = clicking(db)
    sinking.run(events(sinking.read(), clicks), stream="clicks")
    assert sinking.published() == [(0, 5), (1, 2), (2, 4)]
    assert sinking.pieces(counted=False) == 0
    taken: list[tuple[int, int]] = []
    assert clicks.take_staged(on_batch=lambda *each: taken.append(each)) == 3
    assert taken == [(0, 5), (1, 2), (2, 4)]
    assert clicks.take_staged() == 0
    assert sinking.published() == []
    assert sinking.pieces(counted=True) == 0
    assert clicks.run.punctuation_us == 50_000_000
    clicks.run.finish()
    with place(postgres_url) as elsewhere:
        other = elsewhere.open()
        same, saw = clicking(other)
        run = same.run
        feed(sinking.read(), same, run.apply, tmp_path / "other")
        run.finish()
        expected = effects(other, same, saw)
    assert effects(db, clicks, seen) == expected
    assert sorted(expected["late"]) == ["joe@19", "kim@12"], "20 s was reached with the first batch"
    assert [row[2] for row in expected["rows"]] == ["ann", "zoe", "lee", "eve", "bob", "bob"]
    assert len(expected["letters"]) == 2


def test_batch_that_spark_runs_again_changes_nothing(sinking: Sinking) -> None:
    sinking.write("1,CLICK,ann", "2,CLICK,bob")
    sinking.write("30,CLICK,eve")
    clicks, seen = clicking(sinking.db)
    df = events(sinking.read(), clicks)
    sinking.run(df, stream="clicks")
    assert sinking.forget_last_commit() == 1
    sinking.run(df, stream="clicks")  # no process has taken it yet
    assert sinking.published() == [(0, 2), (1, 1)]
    assert clicks.take_staged() == 2
    before = effects(sinking.db, clicks, seen)
    assert sinking.forget_last_commit() == 1
    sinking.write("31,CLICK,dan")
    sinking.run(df, stream="clicks")  # and now it was taken
    assert sinking.published() == [(2, 1)]
    assert sinking.pieces(counted=False) == 0
    assert effects(sinking.db, clicks, seen) == before
    assert clicks.take_staged() == 1


def publishers() -> list[psutil.Process]:
    """Python processes of Spark's in which batches are published."""
    found = [p for p in psutil.Process().children(recursive=True) if is_publisher(p)]
    return [process for process in found if is_publisher(process.parent())]  # not who forks them


def is_publisher(process: psutil.Process | None) -> bool:
    try:
        words = [] if process is None else process.cmdline()
    except psutil.NoSuchProcess:  # it has just ended
        return False
    return any("python_streaming_sink_runner" in word for word in words)


@pytest.mark.crash
def test_kill_between_staging_and_publishing_leaves_nothing_visible(sinking: Sinking) -> None:
    sinking.write("1,CLICK,ann", "2,CLICK,bob", "3,CLICK,eve")
    clicks, seen = clicking(sinking.db)
    df = events(sinking.read(), clicks)
    with sinking.db.connection() as other, other.begin():
        other.execute(sa.text("LOCK TABLE activedb_sinks"))
        query = sinking.start(df, stream="clicks")
        waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        until(lambda: sinking.all(waiting)[0][0])
        assert sinking.published() == []
        assert sinking.pieces(counted=False) == 2
        assert sinking.pieces(counted=True) == 0
        for process in publishers():
            process.kill()
        failure_of(query)
    sinking.run(df, stream="clicks")
    assert sinking.published() == [(0, 3)]
    assert sinking.pieces(counted=False) == 0, "what the killed run has staged is gone"
    assert clicks.take_staged() == 1
    clicks.run.finish()
    assert [row[2] for row in effects(sinking.db, clicks, seen)["rows"]] == ["ann", "bob", "eve"]


FAILING = """
    CREATE SEQUENCE tries;
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF position('bad'::bytea IN NEW.data) > 0 AND nextval('tries') IN (2, 4, 6) THEN
            RAISE 'no room';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail BEFORE INSERT ON activedb_staged_rows FOR EACH ROW EXECUTE FUNCTION fail()
"""
"""The server refuses every second piece of bad ones, three times."""


def test_attempts_that_fail_in_the_middle_leave_no_trace(sinking: Sinking) -> None:
    with sinking.db.connection() as c, c.begin():
        c.exec_driver_sql(FAILING)
    # The first partition has what begins in the first 64 bytes.
    good, bad = [f"{n},CLICK,good" for n in range(5)], [f"{n},CLICK,bad" for n in range(4)]
    sinking.write(*good, *bad)
    clicks, _ = clicking(sinking.db)
    df = events(sinking.read(), clicks)
    said = sinking.failure(df, stream="clicks")
    assert "StoreError: cannot stage rows of batch 0: no room" in said
    assert sinking.published() == [], "both attempts of a task have failed"
    sinking.run(df, stream="clicks")  # and now one
    assert sinking.all(sa.text("SELECT last_value FROM tries")) == [(8,)]
    assert sinking.published() == [(0, 9)]
    assert sinking.pieces(counted=False) == 0
    assert clicks.take_staged() == 1
    assert clicks.run.waiting == 9


# -- tables ----------------------------------------------------------------------------------


def test_table_gets_rows_of_all_types_once(sinking: Sinking) -> None:
    with sinking.db.connection() as c, c.begin():
        c.exec_driver_sql(
            'CREATE TABLE "T 100%%" (number serial, n int PRIMARY KEY, "a third" double precision,'
            " exact numeric, at timestamptz, day date, raw bytea, big boolean, list int[],"
            " doc jsonb, span interval, odd real, text text)"
        )
    sinking.write("1", "2", "3", "4")
    df = sinking.read("n STRING")
    df = df.selectExpr(*_columns())
    sinking.run(df, table="T 100%")
    sinking.forget_last_commit()
    sinking.run(df, table="T 100%")
    rows = sinking.all(sa.text('SELECT * FROM "T 100%" ORDER BY number'))
    assert [row[:2] for row in rows] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert rows[0][2:11] == (
        1 / 3,
        Decimal("1.000000"),
        datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        date(2020, 2, 29),
        "€1".encode(),
        False,
        [1, None],
        {"a": 1, "b": {"k": 1}},
        timedelta(days=1, hours=2, minutes=3, seconds=4, microseconds=5),
    )
    assert rows[0][11] is None
    assert math.isnan(rows[1][11])
    assert rows[2][12] == "'%s3"
    assert sinking.pieces(counted=False) == sinking.pieces(counted=True) == 0
    of = sinks.c
    assert sinking.all(sa.select(of.kind, of.name, of.batch_id)) == [("table", "T 100%", 0)]


def _columns() -> list[str]:
    return [
        "CAST(n AS INT) AS n",
        "n / 3 AS `a third`",
        "CAST(n AS DECIMAL(30, 6)) AS exact",
        "timestamp_micros(CAST(n AS BIGINT)) AS at",
        "DATE '2020-02-29' AS day",
        "CAST(concat('€', n) AS BINARY) AS raw",
        "n > 1 AS big",
        "array(CAST(n AS INT), NULL) AS list",
        "named_struct('a', CAST(n AS INT), 'b', map('k', CAST(n AS INT))) AS doc",
        "INTERVAL '1 02:03:04.000005' DAY TO SECOND AS span",
        "CASE WHEN n = '2' THEN CAST('NaN' AS DOUBLE) END AS odd",
        'concat("\'%s", n) AS text',
    ]


def test_table_that_refuses_a_row_gets_none_of_its_batch(sinking: Sinking) -> None:
    with sinking.db.connection() as c, c.begin():
        c.exec_driver_sql("CREATE TABLE small (n int CHECK (n < 3))")
    sinking.write("1")
    sinking.write("2", "3")
    df = sinking.read("n INT")
    said = sinking.failure(df, table="small")
    assert "ConstraintViolation: cannot insert batch 1 into table small" in said
    assert sinking.all(sa.text("SELECT n FROM small")) == [(1,)]
    with sinking.db.connection() as c, c.begin():
        c.exec_driver_sql("ALTER TABLE small DROP CONSTRAINT small_n_check")
    sinking.run(df, table="small")
    assert sinking.all(sa.text("SELECT n FROM small ORDER BY n")) == [(1,), (2,), (3,)]
    assert sinking.pieces(counted=False) == 0


# -- what is refused -------------------------------------------------------------------------


def writer(columns: str, *, overwrite: bool = False, **options: str) -> Any:
    """Return what Spark asks of the data source when it plans a batch."""
    from pyspark.sql.types import StructType

    from spark_bridge._sink import ActiveDBSink

    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    return ActiveDBSink(dict(options)).streamWriter(schema, overwrite)


EVENT = "event_type STRING, event_time_us BIGINT, event_id STRING, raw STRING, p_x INT"


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (EVENT, {}, "give one of the options stream and table"),
        (EVENT, {"stream": "a", "table": "b"}, "give one of the options stream and table"),
        (EVENT, {"stream": "a", "url": ""}, "the option url is missing"),
        ("a INT, a INT", {"table": "t"}, "columns have the same name"),
        ("a INT", {"stream": "s"}, "'s' takes the columns event_type STRING, .* not a INT: make"),
        (EVENT + ", event_low_us BIGINT", {"stream": "s"}, "event_high_us BIGINT, and p_"),
        (EVENT.replace("BIGINT", "INT"), {"stream": "s"}, "takes the columns"),
        (EVENT + ", more INT", {"stream": "s"}, "takes the columns"),
    ],
)
@pytest.mark.usefixtures("spark")  # who reads the columns needs a session
def test_writer_that_has_no_meaning_is_refused(
    columns: str, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACTIVEDB_URL", raising=False)
    with pytest.raises((ConfigurationError, DefinitionError), match=said):
        writer(columns, **options)
    monkeypatch.setenv("ACTIVEDB_URL", "postgresql://here")
    with pytest.raises(DefinitionError, match="use outputMode append"):
        writer(EVENT, stream="s", overwrite=True)
    assert writer(EVENT + ", event_producer STRING", stream="s") is not None


def test_feed_of_what_a_query_publishes_is_refused(tmp_path: Path) -> None:
    with adb.connect("memory://") as db:
        clicks = declared(db)
    with pytest.raises(DefinitionError, match=r"take its batches with stream\.take_staged"):
        SparkFeed(clicks, None, tmp_path)


def test_password_is_in_no_text(sinking: Sinking, capfd: pytest.CaptureFixture[str]) -> None:
    sinking.write("1,CLICK,ann")
    url = "postgresql+psycopg://me:geheim@127.0.0.1:1/db"
    query = sinking.start(sinking.read(), table="t", url=url)
    said = failure_of(query)
    query.explain(True)
    said += capfd.readouterr().out
    assert "ServerUnreachable: no Postgres answers at postgresql+psycopg://me:***@127.0.0.1" in said
    assert "WriteToMicroBatchDataSource" in said
    assert "geheim" not in said


def test_checkpoint_that_does_not_belong_to_the_database_is_refused(sinking: Sinking) -> None:
    sinking.write("1,CLICK,ann")
    clicks, _ = clicking(sinking.db)
    df = events(sinking.read(), clicks)
    sinking.run(df, stream="clicks")
    said = sinking.failure(df, sinking.root / "another", stream="clicks")
    assert "CheckpointMismatch: stream clicks was fed by query" in said
    assert sinking.published() == [(0, 1)]


# -- the guide -------------------------------------------------------------------------------


def test_guide_runs_as_it_stands(
    sinking: Sinking, capsys: pytest.CaptureFixture[str], database_url: str
) -> None:
    sinking.write("north,2026-01-01 08:00:00,ann", "south,2026-01-01 08:01:00,bob")
    sinking.write("south,2026-01-01 08:02:00,eve")
    adb.connect(database_url).close()
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE passes (gate text, at timestamptz, n serial)")
    guide = (Path(__file__).parents[2] / "docs/sink.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python fragment\n(.*?)^```", guide, re.M | re.S)
    assert len(blocks) == 4
    names: dict[str, Any] = {
        "spark": sinking.spark,
        "folder": str(sinking.input),
        "url": database_url,
        "checkpoint": str(sinking.checkpoint),
        "checkpoint_of_table": str(sinking.root / "of_table"),
    }
    for block in blocks:
        exec(block, names)
    said = capsys.readouterr().out.splitlines()
    assert said == ["ann at gate north", "bob at gate south", "eve at gate south"]
    with engine.begin() as connection:
        rows = connection.exec_driver_sql("SELECT gate, at FROM passes ORDER BY n").all()
    assert rows[0] == ("north", datetime(2026, 1, 1, 8, tzinfo=UTC))
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (pa.binary(), b"ab", r"\x6162"),
        (pa.bool_(), True, "true"),
        (pa.timestamp("us"), datetime(2026, 1, 1), "2026-01-01T00:00:00"),
        (pa.int64(), 7, "7"),
    ],
)
def test_keys_of_maps_have_the_form_of_values(kind: Any, key: Any, text: str) -> None:
    maps = pa.array([[(key, 1)]], type=pa.map_(kind, pa.int64()))
    (piece,) = json_pieces(pa.RecordBatch.from_arrays([maps], ["m"]))
    assert json.loads(piece) == [{"m": {text: 1}}]
