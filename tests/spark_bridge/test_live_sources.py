"""Sources that bring their rows themselves: replays, sockets, the clock, Kafka."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from activedb.errors import ConfigurationError, DefinitionError, FeedFailed
from activedb.streams import AtomicBatch, Kafka, Positions, Rate, Replay, Socket, StreamDeclaration
from spark_bridge import SparkFeed, register_sources
from spark_bridge._failures import is_late_python
from tests.databases import until
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

HEADER = {"header": "true"}


def record(playground: Any, name: str, *lines: str) -> None:
    playground.write(name, "seconds,kind,user", *lines)


def offsets(playground: Any) -> list[str]:
    """Return what Spark's checkpoint says about the source in each micro-batch."""
    logs = sorted((playground.checkpoint / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
    return [log.read_text().splitlines()[2] for log in logs]


# -- replays -------------------------------------------------------------------------------


def test_replay_rows_come_once_in_the_order_of_the_recording(
    playground: Any, clicks: Any, column: Any
) -> None:
    record(playground, "b.csv", "5,CLICK,dan", "noon,CLICK,bad", "6", "7,QUIT,")
    record(playground, "a.csv", "1.5,CLICK,ann", "4,CLICK,bob", "3,CLICK,eve")
    stream = clicks(source=Replay(options=HEADER, rows_per_batch=3))
    batches = playground.run(stream)
    assert [batch.table.num_rows for batch in batches] == [3, 3, 1]
    assert column(batches, "p_user") == ["ann", "bob", "eve", "dan", "bad", None, None]
    assert [batch.punctuation_us for batch in batches] == [4_000_000, 6_000_000, 7_000_000]
    assert column(batches, "raw")[3:] == [
        None,
        '{"seconds":"noon","kind":"CLICK","user":"bad"}',
        "6",
        None,
    ]
    assert playground.run(stream) == [], "a recording that has been replayed is at its end"


def test_replay_batch_that_failed_comes_again_the_same(
    playground: Any, clicks: Any, delayed: Any
) -> None:
    record(playground, "a.csv", *(f"{n},CLICK,u{n}" for n in range(100)))
    stream = clicks(
        delay=delayed.delay,
        source=Replay(
            playground.input,
            options=HEADER,
            time="seconds",
            unit="s",
            speed_up=1e9,
            rows_per_batch=30,
        ),
    )

    def fail_at_2(batch: Any) -> None:
        playground.batches.append(batch)
        if batch.batch_id == 2:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        SparkFeed(stream, None, playground.checkpoint).run(fail_at_2)
    failed, planned = playground.batches[-1], offsets(playground)
    SparkFeed(stream, None, playground.checkpoint).run(playground.batches.append)
    again = playground.batches[len(planned) :]
    assert (again[0].query_id, again[0].batch_id) == (failed.query_id, 2)
    assert again[0].punctuation_us == failed.punctuation_us
    assert again[0].table.equals(failed.table)
    assert offsets(playground)[: len(planned)] == planned
    users = [
        user
        for batch in [*playground.batches[:2], *again]
        for user in batch.table.column("p_user").to_pylist()
    ]
    assert users == [f"u{n}" for n in range(100)]
    assert '"end": true' in offsets(playground)[-1]


KILLED = """
import os, signal
from pathlib import Path
import psutil
from spark_bridge import SparkFeed, register_sources
from tests.spark_bridge.test_live_sources import of_numbers, shown
def apply(batch):
    print(shown(batch), flush=True)
    if batch.batch_id == 2:
        for process in psutil.Process().children(recursive=True):
            process.kill()
        os.kill(os.getpid(), signal.SIGKILL)
SparkFeed(of_numbers(), Path("input"), Path("checkpoint")).run(apply)
"""


def of_numbers() -> StreamDeclaration:
    return StreamDeclaration(
        "numbers",
        source=Replay(format="text", rows_per_batch=10),
        type="'LINE'",
        timestamp="timestamp_seconds(CAST(value AS INT))",
        params={"n": "CAST(value AS INT)"},
        types={"LINE": ("n",)},
    )


def shown(batch: AtomicBatch) -> str:
    numbers = batch.table.column("p_n").to_pylist()
    return f"{batch.query_id} {batch.batch_id} {batch.punctuation_us} {numbers}"


@pytest.mark.crash
def test_replay_killed_in_a_batch_goes_on_with_the_same_one(playground: Any, column: Any) -> None:
    playground.write("numbers.txt", *map(str, range(45)))
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=playground.root,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    printed = done.stdout.splitlines()
    batches = playground.run(of_numbers())
    assert [batch.batch_id for batch in batches] == [2, 3, 4]
    assert shown(batches[0]) == printed[-1], "query, rows and punctuation are the same"
    assert column(batches, "p_n") == list(range(20, 45))


def test_replay_of_json_with_columns_found_and_kept(
    playground: Any, clicks: Any, column: Any
) -> None:
    playground.write(
        "a.json",
        '{"seconds": 1, "kind": "CLICK", "user": "ann"}',
        '{"seconds": 2, "ki',
        '{"seconds": 3, "kind": "QUIT", "more": true}',
    )
    source = Replay(format="json", time="seconds", unit="s", speed_up=1e9)
    batches = playground.run(clicks(source=source, id=None))
    assert column(batches, "p_user") == ["ann", None, None]
    assert column(batches, "raw") == [None, '{"seconds": 2, "ki', None]


def test_replay_that_has_changed_or_is_none_is_refused(playground: Any, clicks: Any) -> None:
    stream = clicks(source=Replay(options=HEADER, rows_per_batch=1))
    record(playground, "a.csv", "1,CLICK,ann", "2,CLICK,bob")

    def fail(batch: Any) -> None:
        raise StopIteration

    with pytest.raises(StopIteration):
        playground.feed(stream).run(fail)
    record(playground, "b.csv", "3,CLICK,eve")
    with pytest.raises(FeedFailed, match=r"^stream 'clicks': the recording .* has changed since"):
        playground.run(stream)
    with pytest.raises(ConfigurationError, match="no recording to replay"):
        SparkFeed(stream, None, playground.checkpoint)
    with pytest.raises(ConfigurationError, match="nowhere does not exist"):
        SparkFeed(stream, Path("nowhere"), playground.checkpoint)
    away = clicks(source=Replay(options=HEADER, time="when"))
    with pytest.raises(DefinitionError, match="no column 'when' for its time; it has seconds"):
        SparkFeed(away, playground.input, playground.root / "other").run(playground.batches.append)


def test_replay_is_a_source_of_spark_by_its_name(playground: Any, spark: Any) -> None:
    from pyspark.errors import StreamingQueryException

    record(playground, "a.csv", "1,CLICK,ann", "3601,CLICK,bob")
    register_sources(spark)
    reader = spark.readStream.format("activedb_replay").options(
        path=str(playground.input), format="csv", header="true", time="seconds", unit="s"
    )

    starts, checkpoints = count(), playground.checkpoint

    def is_over() -> bool:
        """Run it; return False if its Python was late, for which Spark waits ten seconds."""
        query = (
            reader.load()
            .writeStream.format("memory")
            .queryName("replayed")
            .option("checkpointLocation", str(checkpoints / str(next(starts))))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(PATIENCE_S)
        except StreamingQueryException as error:
            if not is_late_python(error):
                raise
            return False
        return True

    until(is_over)
    rows = [row.value for row in spark.table("replayed").collect()]
    assert rows == ["1,CLICK,ann", "3601,CLICK,bob"], "what is there now is there now"


def test_replay_batches_are_fitted_to_the_latency(playground: Any, clicks: Any) -> None:
    record(playground, "a.csv", *(f"{n},CLICK,u{n}" for n in range(5000)))
    stream = clicks(source=Replay(options=HEADER, rows_per_batch=10), latency_max=3600)
    batches = playground.run(stream)
    sizes = [batch.table.num_rows for batch in batches]
    # Of the first batch nothing is learnt; then, as an hour is long, each may be double.
    assert sizes[:2] == [10, 10]
    assert sum(sizes) == 5000
    assert max(sizes) >= 1280
    assert all(later <= 2 * size for size, later in pairwise(sizes))


# -- sockets -------------------------------------------------------------------------------


class Server:
    """Server of lines to one client at a time, which closes on request."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._closing = threading.Event()

    def serve(self, *lines: str, close: bool = True) -> None:
        def run() -> None:
            with suppress(OSError):
                connection, _ = self._listening.accept()
                with connection:
                    connection.sendall("".join(f"{line}\n" for line in lines).encode())
                    if not close:
                        self._closing.wait(PATIENCE_S)

        threading.Thread(target=run, daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._listening.close()


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()


def test_socket_lines_come_in_order_until_the_server_closes(
    playground: Any, clicks: Any, column: Any
) -> None:
    with serving() as server:
        server.serve(*(f"{n},CLICK,u{n}" for n in range(500)), "noon")
        source = Socket(
            server.port, format="csv", schema="seconds STRING, kind STRING, user STRING"
        )
        stream = clicks(source=source, params={"user": "user", "read": "timestamp"})
        SparkFeed(stream, None, playground.checkpoint).run(playground.batches.append)
    assert column(playground.batches, "p_user") == [*(f"u{n}" for n in range(500)), None]
    assert column(playground.batches, "raw")[-1] == "noon"
    assert all(column(playground.batches, "p_read"))


def test_socket_after_a_restart_loses_what_was_read_before_and_nothing_else(
    playground: Any, clicks: Any, column: Any
) -> None:
    def fail(batch: Any) -> None:
        if batch.table.num_rows:
            playground.batches.append(batch)
            raise StopIteration

    with serving() as server:
        stream = clicks(
            source=Socket(server.port),
            type="'LINE'",
            timestamp="timestamp",
            id=None,
            params={"text": "value"},
            types={"LINE": ("text",)},
        )
        server.serve("lost 1", "lost 2", close=False)
        with pytest.raises(StopIteration):
            SparkFeed(stream, None, playground.checkpoint).run(fail)
        lost = playground.batches.pop()
        server.serve("new 1", "new 2", "new 3")
        SparkFeed(stream, None, playground.checkpoint).run(playground.batches.append)
        assert playground.batches[0].batch_id == lost.batch_id
        assert playground.batches[0].table.num_rows == 0
        assert column(playground.batches, "p_text") == ["new 1", "new 2", "new 3"]
        server.serve("more")
        SparkFeed(stream, None, playground.checkpoint).run(playground.batches.append)
    assert column(playground.batches, "p_text") == ["new 1", "new 2", "new 3", "more"]


def test_socket_followed_has_one_batch_without_rows_when_nothing_comes_any_more(
    playground: Any, clicks: Any
) -> None:
    with serving() as server:
        source = Socket(server.port, format="csv", schema="seconds INT, kind STRING, user STRING")
        feed = SparkFeed(clicks(source=source), None, playground.checkpoint, follow=True)

        def apply(batch: Any) -> None:
            if batch.table.num_rows:
                playground.batches.append(batch)
            elif playground.batches:  # Spark begins with a batch without rows if nothing is there
                playground.batches.append(batch)
                feed.stop()

        server.serve("5,CLICK,ann", close=False)
        feed.run(apply)
    assert [batch.punctuation_us for batch in playground.batches] == [5_000_000, 5_000_000]


def test_socket_lines_that_came_before_the_connection_broke_are_delivered() -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from spark_bridge._socket_source import SocketReader

    def is_broken(offset: dict[str, Any]) -> bool:
        try:
            reader.latestOffset(offset, ReadMaxRows(2))
        except ConnectionError:
            return True
        return False

    with socket.create_server(("127.0.0.1", 0)) as listening:
        reader = SocketReader({"port": str(listening.getsockname()[1])})
        start = reader.initialOffset()
        reader.latestOffset(start, ReadMaxRows(2))
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"one\ntwo\nthree\n")
            until(lambda: reader.latestOffset(start, ReadMaxRows(9))["line"] == 3)
            end = reader.latestOffset(start, ReadMaxRows(9))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: is_broken(end))
    read = []
    while not is_broken(start):
        start, previous = reader.latestOffset(start, ReadMaxRows(2)), start
        assert not start["end"]
        for partition in reader.partitions(previous, start):
            read += [batch.column("value").to_pylist() for batch in reader.read(partition)]
    assert read == [["one", "two"], ["three"]]


def test_socket_that_nobody_serves_fails_in_one_line(playground: Any, clicks: Any) -> None:
    with serving() as server:
        port = server.port
    stream = clicks(
        source=Socket(port),
        type="'LINE'",
        timestamp="timestamp",
        id=None,
        params=None,
        types={"LINE": ("value",)},
    )
    with pytest.raises(FeedFailed, match=f"^stream 'clicks': no lines from 127.0.0.1:{port}: "):
        SparkFeed(stream, None, playground.checkpoint).run(playground.batches.append)


# -- the clock, Kafka ----------------------------------------------------------------------


def test_rate_rows_are_events_and_the_feed_tells_how_fast(playground: Any, clicks: Any) -> None:
    stream = clicks(
        source=Rate(1000),
        type="'TICK'",
        timestamp="timestamp",
        id=None,
        params={"value": "value"},
        types={"TICK": ("value",)},
        delay=timedelta(seconds=1),
    )
    feed = SparkFeed(stream, None, playground.checkpoint, follow=True)

    def apply(batch: Any) -> None:
        playground.batches.append(batch)
        if len(playground.batches) == 4:
            feed.stop()

    feed.run(apply)
    values = [n for b in playground.batches for n in b.table.column("p_value").to_pylist()]
    assert values == list(range(len(values)))
    last = feed.metrics.last
    assert last is not None
    counted = feed.metrics.counters()
    # It ends soon after it was stopped: others may come by then, and the last may not be counted.
    assert 3 <= counted["batches"] == last.batch_id + 1 <= len(playground.batches)
    assert counted["rows"] == sum(b.table.num_rows for b in playground.batches[: last.batch_id + 1])
    assert 0 < last.apply_s <= last.seconds
    assert last.punctuation_us == playground.batches[last.batch_id].punctuation_us
    assert (last.state_rows, last.state_bytes) == (0, 0)
    with pytest.raises(ConfigurationError, match="never end; follow them"):
        SparkFeed(stream, None, playground.checkpoint)
    with pytest.raises(ConfigurationError, match="fed by Rate, which reads no files: leave out"):
        SparkFeed(stream, playground.input, playground.checkpoint, follow=True)


def test_kafka_without_its_connector_says_how_to_get_it(playground: Any, clicks: Any) -> None:
    stream = clicks(source=Kafka("127.0.0.1:9092", "clicks"))
    said = r"spark\.jars\.packages=org\.apache\.spark:spark-sql-kafka-0-10_2\.13:"
    with pytest.raises(ConfigurationError, match=said):
        SparkFeed(stream, None, playground.checkpoint).run(playground.batches.append)
    wants = clicks(source=Kafka("127.0.0.1:9092", "clicks", connector="a:b:1"))
    with pytest.raises(ConfigurationError, match=r"without spark\.jars\.packages=a:b:1; give it"):
        SparkFeed(wants, None, playground.checkpoint).run(playground.batches.append)
    more = SparkFeed(wants, None, playground.checkpoint, spark={"spark.jars.packages": "c:d:1"})
    with pytest.raises(ConfigurationError, match=r"packages=c:d:1,a:b:1; give it"):
        more.run(playground.batches.append)


def test_kafka_limit_that_no_longer_fits_begins_the_query_anew(
    playground: Any, clicks: Any, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    # Another source with a limit that is read when the query begins: there is no broker here.
    def read(
        spark: Any, stream: StreamDeclaration, source: Kafka, rows_max: int, start: object
    ) -> tuple[Any, None]:
        limits.append(rows_max)
        files = spark.readStream.option("maxFilesPerTrigger", rows_max)
        return files.text(str(playground.input)), None

    monkeypatch.setattr("spark_bridge._reading.read_kafka", read)
    for number in range(20):
        playground.write(f"{number:02}.txt", str(number))
    stream = of_numbers()
    source = Kafka("127.0.0.1:9092", "numbers", rows_per_batch=1)
    stream = replace(stream, source=source, latency_max=3600)
    SparkFeed(stream, None, playground.checkpoint).run(playground.batches.append)
    # A batch at which the query was ended may have come again.
    once = {batch.batch_id: batch for batch in playground.batches}
    assert sorted(once) == list(range(len(once)))
    numbers = [n for batch in once.values() for n in batch.table.column("p_n").to_pylist()]
    assert sorted(numbers) == list(range(20))
    assert limits[0] == 1
    assert len(limits) > 1
    assert all(later >= 2 * limit for limit, later in pairwise(limits))


@pytest.mark.skipif(
    "ACTIVEDB_KAFKA" not in os.environ,
    reason="needs a broker, ACTIVEDB_KAFKA=host:port/topic, with values seconds,kind,user, and "
    "Spark's connector in its settings",
)
def test_kafka_topic_is_read_to_its_end_once(playground: Any, clicks: Any) -> None:
    servers, _, topic = os.environ["ACTIVEDB_KAFKA"].partition("/")
    schema = "seconds STRING, kind STRING, user STRING"
    stream = clicks(source=Kafka(servers, topic, format="csv", schema=schema, rows_per_batch=100))
    SparkFeed(stream, None, playground.checkpoint).run(playground.batches.append)
    assert sum(batch.table.num_rows for batch in playground.batches) > 0
    before = len(playground.batches)
    SparkFeed(stream, None, playground.checkpoint).run(playground.batches.append)
    assert sum(batch.table.num_rows for batch in playground.batches[before:]) == 0
    first, *others = playground.batches
    behind = Positions(first.query_id, 0, [first.position])
    rest: list[AtomicBatch] = []
    resumed = SparkFeed(stream, None, playground.checkpoint.with_name("new"), resume=behind)
    resumed.run(rest.append)
    assert sum(batch.table.num_rows for batch in rest) == sum(b.table.num_rows for b in others)
    assert {batch.continues for batch in rest} <= {first.query_id}
