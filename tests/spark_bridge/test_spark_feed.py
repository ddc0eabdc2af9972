"""Events that arrive, their order and their punctuation."""

from __future__ import annotations

import gzip
import math
import os
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from activedb.errors import DefinitionError, FeedFailed
from activedb.streams import Files, of_batch
from spark_bridge import SparkFeed, feed

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_feed_csv_arrives_as_event_columns(playground: Any, clicks: Any) -> None:
    playground.write("a.csv", "1.5,CLICK,ann", "2,QUIT,bob")
    (batch,) = playground.run(clicks())
    assert (batch.stream, batch.batch_id, batch.punctuation_us) == ("clicks", 0, 2_000_000)
    assert batch.query_id == playground.feed(clicks()).query_id
    assert batch.param_names == ("user", "length")
    assert batch.table.to_pydict() == {
        "event_type": ["CLICK", "QUIT"],
        "event_time_us": [1_500_000, 2_000_000],
        "event_id": ["ann@1.5", "bob@2"],
        "p_user": ["ann", "bob"],
        "p_length": [3, 3],
        "raw": [None, None],
    }


def test_feed_without_params_has_every_column_under_its_name(
    playground: Any, clicks: Any, column: Any
) -> None:
    playground.write("a.csv", "1,CLICK,ann")
    batches = playground.run(clicks(params=None, id=None))
    assert batches[0].param_names == ("seconds", "kind", "user")
    assert column(batches, "p_user") == ["ann"]
    assert column(batches, "event_id") == [None]


def test_feed_bad_rows_arrive_with_their_text_and_good_ones_without(
    playground: Any, clicks: Any, column: Any
) -> None:
    playground.write(
        "a.csv",
        "1,CLICK,ann",
        "noon,CLICK,bob",  # no time
        ",CLICK,eve",
        "99999999999999,CLICK,max",  # overflows in Spark: beyond the years it knows
        "999999999999,CLICK,moe",  # beyond the years Python knows
        "2,LEAP,joe",  # no declared type
        "3,,joe",
        "4,CLICK,",  # lacks its parameter
        "5,QUIT,",  # needs none
        "6,QUIT",  # a column is missing, and not needed
        "7",
    )
    batches = playground.run(clicks())
    times = [1, None, None, None, None, 2, 3, 4, 5, 6, 7]
    assert column(batches, "event_time_us") == [t and t * 1_000_000 for t in times]
    assert column(batches, "raw") == [
        None,
        '{"seconds":"noon","kind":"CLICK","user":"bob"}',
        '{"seconds":null,"kind":"CLICK","user":"eve"}',
        '{"seconds":"99999999999999","kind":"CLICK","user":"max"}',
        '{"seconds":"999999999999","kind":"CLICK","user":"moe"}',
        '{"seconds":"2","kind":"LEAP","user":"joe"}',
        '{"seconds":"3","kind":null,"user":"joe"}',
        '{"seconds":"4","kind":"CLICK","user":null}',
        None,
        None,
        "7",
    ]
    refused = [r for batch in batches for r in of_batch(clicks(), batch, None).refused]
    reasons = [str(r.error) for r in refused]
    assert reasons[0].endswith(f"{clicks().timestamp} is NULL for seconds = 'noon'")
    assert reasons[6] == "event CLICK lacks user: user is NULL"


def test_feed_json_line_that_does_not_parse_arrives_as_it_is(
    playground: Any, clicks: Any, column: Any
) -> None:
    playground.write(
        "a.json", '{"seconds": "1", "kind": "CLICK", "user": "ann"}', '{"seconds": "2", "ki', "{}"
    )
    schema = "seconds STRING, kind STRING, user STRING"
    batches = playground.run(clicks(source=Files("json", schema=schema)))
    assert column(batches, "event_time_us") == [1_000_000, None, None]
    nulls = '{"seconds":null,"kind":null,"user":null}'
    assert column(batches, "raw") == [None, '{"seconds": "2", "ki', nulls]


def test_feed_values_python_cannot_hold_are_null(playground: Any, clicks: Any, column: Any) -> None:
    playground.write("a.csv", "86400,CLICK,ann", "999999999999,QUIT,bob")
    params = {
        "user": "user",
        "at": "timestamp_seconds(CAST(seconds AS BIGINT))",
        "day": "to_date(timestamp_seconds(CAST(seconds AS BIGINT)))",
    }
    batches = playground.run(clicks(params=params, timestamp="timestamp_seconds(1)"))
    assert column(batches, "p_at") == [datetime(1970, 1, 2, tzinfo=UTC), None]
    assert column(batches, "p_day") == [date(1970, 1, 2), None]


def test_feed_files_are_read_by_name_whatever_their_age_and_compression(
    playground: Any, clicks: Any, column: Any
) -> None:
    for position, name in enumerate(["c.csv.gz", "a b.csv", "b:1.csv.gz"]):
        path = playground.input / name
        text = f"{position},CLICK,{name}\n".encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        # A month between any two: Spark's own source forgets what is a week older than the rest.
        os.utime(path, (1e9 - position * 2.6e6,) * 2)
    batches = playground.run(clicks())
    assert [batch.batch_id for batch in batches] == [0, 1, 2]
    assert column(batches, "p_user") == ["a b.csv", "b:1.csv.gz", "c.csv.gz"]


def test_feed_files_of_one_batch_keep_the_order_of_their_names(
    playground: Any, clicks: Any, column: Any
) -> None:
    stream = clicks(source=replace(clicks().source, per_batch=2))
    expected = []
    for name, rows in (("a", 2), ("b", 3000), ("c", 1)):  # Spark takes the largest first
        users = [f"{name}{row}" for row in range(rows)]
        playground.write(name, *(f"{row},CLICK,{user}" for row, user in enumerate(users)))
        expected += users
    batches = playground.run(stream)
    assert [batch.table.num_rows for batch in batches] == [3002, 1]
    assert batches[0].param_names == ("user", "length")
    assert column(batches, "p_user") == expected


def test_feed_single_file_with_quoted_lines_is_an_input(
    playground: Any, clicks: Any, column: Any
) -> None:
    playground.write("b.csv", "2,CLICK,bob")
    text = 'she said ""hi"",\nand left'
    path = playground.write("a.csv", "seconds,kind,user", f'1,CLICK,"{text}"')
    options = {"header": "true", "quote": '"', "escape": '"', "multiLine": "true"}
    stream = clicks(source=replace(clicks().source, options=options))
    batches = playground.run(stream, path)
    assert column(batches, "p_user") == [text.replace('""', '"')]


def test_feed_punctuation_is_newest_time_up_to_the_batch_less_delay(
    playground: Any, delayed: Any, column: Any
) -> None:
    playground.write("0.csv", "100.0019,QUIT,", "noon,QUIT,", "999999999999,QUIT,", "50,QUIT,")
    playground.write("1.csv", "-1000,QUIT,", "noon,QUIT,", "85,QUIT,")  # all too old to move it
    playground.write("2.csv", "noon,QUIT,")
    playground.write("3.csv")  # a batch without rows tells its punctuation too
    playground.write("4.csv", "120,QUIT,", "200,QUIT,", "80,QUIT,")
    playground.write("5.csv", "1,QUIT,")
    batches = playground.run(delayed)
    # Whole milliseconds, rounded down.
    expected = [90_001_000, 90_001_000, 90_001_000, 90_001_000, 190_000_000, 190_000_000]
    assert [batch.punctuation_us for batch in batches] == expected
    # Late rows arrive like others: what becomes of them is not Spark's to decide.
    assert column(batches[4], "event_time_us") == [120_000_000, 200_000_000, 80_000_000]
    assert column(batches[5], "event_time_us") == [1_000_000]


def test_feed_accuracy_makes_intervals_that_move_the_punctuation_by_where_they_begin(
    playground: Any, clicks: Any, column: Any
) -> None:
    schema = "seconds STRING, kind STRING, user STRING, low STRING, high STRING"
    moment = "timestamp_seconds(CAST({} AS DECIMAL(20, 6)))"
    stream = clicks(
        source=Files("csv", schema=schema, per_batch=1),
        accuracy=(moment.format("low"), moment.format("high")),
    )
    playground.write("0.csv", "100,CLICK,ann,90,100.5", "100,CLICK,bob,,101")
    playground.write("1.csv", "50,CLICK,eve,50,50", "60,CLICK,joe,61,62", "noon,CLICK,x,1,2")
    batches = playground.run(stream)
    assert batches[0].table.column_names[:4] == [
        "event_type",
        "event_time_us",
        "event_low_us",
        "event_high_us",
    ]
    lows, highs = column(batches, "event_low_us"), column(batches, "event_high_us")
    assert lows == [90_000_000, None, 50_000_000, None, None]
    assert highs == [100_500_000, None, 50_000_000, None, None]
    assert [raw is None for raw in column(batches, "raw")] == [True, False, True, False, False]
    # Of bob nothing is known: 100 is no time between its ends.
    assert [batch.punctuation_us for batch in batches] == [90_000_000, 90_000_000]


@pytest.mark.parametrize(
    "accuracy", [timedelta(milliseconds=1500), "make_dt_interval(0, 0, 0, length(user) / 2.0)"]
)
def test_feed_accuracy_as_a_width_is_taken_off_and_added(
    accuracy: Any, playground: Any, clicks: Any, column: Any
) -> None:
    playground.write("0.csv", "100,CLICK,ann")
    batches = playground.run(clicks(accuracy=accuracy))
    assert column(batches, "event_low_us") == [98_500_000]
    assert column(batches, "event_high_us") == [101_500_000]


def test_feed_of_producers_has_the_punctuation_of_the_one_furthest_behind(
    playground: Any, clicks: Any, column: Any
) -> None:
    stream = clicks(producer="user", delay=timedelta(seconds=5))
    playground.write("0.csv", "100,CLICK,ann", "40,CLICK,bob", "noon,CLICK,bob", "200,QUIT,")
    playground.write("1.csv", "60,CLICK,bob", "1,CLICK,ann")

    def fail_at_1(batch: Any) -> None:
        playground.batches.append(batch)
        if batch.batch_id == 1:
            raise StopIteration

    with pytest.raises(StopIteration):
        playground.feed(stream).run(fail_at_1)
    playground.write("2.csv", "150,CLICK,ann")
    playground.run(stream)
    assert [batch.batch_id for batch in playground.batches] == [0, 1, 1, 2]
    known = [s * 1_000_000 for s in (35, 55, 55, 55)]
    assert [batch.punctuation_us for batch in playground.batches] == known
    assert column(playground.batches[0], "event_producer") == ["ann", "bob", "bob", None]


def test_feed_files_per_batch_are_fitted_to_the_latency_and_the_feed_tells_how_fast(
    playground: Any, clicks: Any, column: Any
) -> None:
    for number in range(10):
        playground.write(f"{number}.csv", f"{number},CLICK,u{number}")
    feed = playground.feed(clicks(latency_max=timedelta(hours=1)))
    feed.run(playground.batches.append)
    assert column(playground.batches, "p_user") == [f"u{number}" for number in range(10)]
    # Nothing is learnt of the first; then each is double, as an hour is long.
    assert [batch.table.num_rows for batch in playground.batches] == [1, 1, 2, 4, 2]
    assert feed.metrics.counters() == {"batches": 5, "rows": 10}
    assert feed.metrics.last.rows == 2
    assert feed.metrics.last.punctuation_us == playground.batches[-1].punctuation_us == 9_000_000
    assert 0 < feed.metrics.batch_s(0.5) <= feed.metrics.batch_s(1)


def test_feed_time_from_the_future_does_not_move_the_punctuation(
    playground: Any, delayed: Any, column: Any
) -> None:
    now_s = datetime.now(UTC).timestamp()
    year_3000_s = 32_503_680_000
    soon_s = int(now_s) + 30
    playground.write("0.csv", "100,QUIT,", f"{year_3000_s},QUIT,", f"{int(now_s) + 600},QUIT,")
    playground.write("1.csv", "110,QUIT,", f"{soon_s},QUIT,")
    playground.write("2.csv", "120,QUIT,")
    batches = playground.run(delayed)
    soon_us = (soon_s - 10) * 1_000_000
    expected = [90_000_000, soon_us, soon_us]
    assert [batch.punctuation_us for batch in batches] == expected
    assert year_3000_s * 1_000_000 in column(batches[0], "event_time_us"), "the row arrives itself"


def test_feed_time_from_the_future_is_believed_if_that_is_wanted(
    playground: Any, delayed: Any
) -> None:
    playground.write("0.csv", "100,QUIT,", "32503680000,QUIT,")
    feed = SparkFeed(delayed, playground.input, playground.checkpoint, future_max_s=math.inf)
    feed.run(playground.batches.append)
    assert playground.batches[0].punctuation_us == 32_503_679_990_000_000


def test_feed_delay_finer_than_a_millisecond_is_rounded_up(playground: Any, clicks: Any) -> None:
    playground.write("0.csv", "100,QUIT,")
    (batch,) = playground.run(clicks(delay=timedelta(days=0, microseconds=1)))
    assert batch.punctuation_us == 99_999_000


def test_feed_apply_raises_same_exception_leaves_and_same_batch_comes_again(
    playground: Any, delayed: Any
) -> None:
    for number in range(4):
        lines = [f"{number * 100 + row},CLICK,u{row}" for row in (3, 1, 2)]
        playground.write(f"{number}.csv", *lines, "noon,CLICK,bad")
    error = ValueError("the third batch fails")

    def fail_at_2(batch: Any) -> None:
        playground.batches.append(batch)
        if batch.batch_id == 2:
            raise error

    with pytest.raises(ValueError, match="the third") as raised:
        playground.feed(delayed).run(fail_at_2)
    assert raised.value is error
    assert raised.value.__cause__ is None
    failed = playground.batches[-1]
    playground.write("0a.csv", "1,CLICK,new")  # comes after what has begun
    batches = playground.run(delayed)
    assert [batch.batch_id for batch in batches] == [2, 3, 4]
    again = batches[0]
    assert again.query_id == failed.query_id
    assert again.punctuation_us == failed.punctuation_us == 193_000_000
    assert again.table.equals(failed.table)
    # The file that is new comes first by name among those that had not begun.
    assert [batch.table.column("p_user").to_pylist()[0] for batch in batches[1:]] == ["new", "u3"]
    assert [batch.punctuation_us for batch in batches[1:]] == [193_000_000, 293_000_000]


def test_feed_second_run_reads_only_what_is_new(playground: Any, clicks: Any, column: Any) -> None:
    playground.write("b.csv", "1,CLICK,ann")
    first = playground.run(clicks())
    assert playground.run(clicks()) == []
    playground.write("a.csv", "2,CLICK,bob")
    second = playground.run(clicks())
    assert column(second, "p_user") == ["bob"]
    assert second[0].batch_id == first[0].batch_id + 1
    assert second[0].query_id == first[0].query_id
    assert (first[0].punctuation_us, second[0].punctuation_us) == (1_000_000, 2_000_000)


def test_feed_file_removed_once_read_is_not_missed(
    playground: Any, clicks: Any, column: Any
) -> None:
    paths = [playground.write(f"{number}.csv", f"{number},CLICK,ann") for number in range(2)]

    def apply(batch: Any) -> None:
        paths[batch.batch_id].unlink()
        playground.batches.append(batch)

    playground.feed(clicks()).run(apply)
    assert column(playground.batches, "event_id") == ["ann@0", "ann@1"]


def test_feed_schema_not_declared_is_kept_as_first_found(
    playground: Any, clicks: Any, column: Any
) -> None:
    stream = clicks(source=Files("json"), params=None)
    playground.write("a.json", '{"seconds": 1, "kind": "CLICK", "user": 7}')
    playground.write("b.json", '{"seconds": 2, "kind": "CLICK", "user": "ann", "more": true}')
    playground.run(stream)
    playground.write("c.json", '{"seconds": 3, "kind": "QUIT", "more": true}')
    playground.run(stream)
    assert [batch.param_names for batch in playground.batches] == [("kind", "seconds", "user")] * 3
    assert column(playground.batches, "p_user") == [7, None, None]
    assert "ann" in column(playground.batches, "raw")[1]


def test_feed_following_takes_files_that_come_until_stopped(
    playground: Any, clicks: Any, column: Any
) -> None:
    following = playground.feed(clicks(), follow=True)  # of an empty folder

    def apply(batch: Any) -> None:
        playground.batches.append(batch)
        if len(playground.batches) == 3:
            following.stop()
        else:
            playground.write(f"{3 - len(playground.batches)}.csv", "2,CLICK,later")

    playground.write("3.csv", "1,CLICK,first")
    following.run(apply)
    assert column(playground.batches, "p_user") == ["first", "later", "later"]


def test_feed_following_runs_one_batch_without_rows_when_nothing_comes_any_more(
    playground: Any, clicks: Any
) -> None:
    following = playground.feed(clicks(), follow=True)

    def apply(batch: Any) -> None:
        playground.batches.append(batch)
        if len(playground.batches) == 2:
            following.stop()

    playground.write("a.csv", "5,CLICK,ann")
    following.run(apply)
    assert [batch.table.num_rows for batch in playground.batches] == [1, 0]
    # The rows' own batch says what they complete, so that one has nothing to add.
    assert [batch.punctuation_us for batch in playground.batches] == [5_000_000, 5_000_000]
    playground.write("b.csv", "6,CLICK,bob")
    assert [batch.batch_id for batch in playground.run(clicks())] == [2]


def test_feed_broken_file_fails_in_one_line_and_goes_on_when_mended(
    playground: Any, clicks: Any, column: Any
) -> None:
    playground.write("a.csv", "1,CLICK,ann")
    broken = playground.write("b.csv.gz", "this is no gzip")
    playground.write("c.csv", "2,CLICK,eve")
    with pytest.raises(FeedFailed) as raised:
        playground.run(clicks())
    assert str(raised.value) == (
        "stream 'clicks': [FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
        f"{broken}: not a gzip file"
    )
    assert "at org.apache.spark" in str(raised.value.__cause__)
    broken.write_bytes(gzip.compress(b"1,CLICK,bob\n"))
    playground.run(clicks())
    assert column(playground.batches, "p_user") == ["ann", "bob", "eve"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"type": "knd"}, "the expression for type, 'knd', cannot be understood: .*knd"),
        ({"type": "kind +"}, "the expression for type, 'kind +', cannot be understood"),
        ({"params": {"user": "nope(user)"}}, "the expression for parameter 'user', 'nope"),
        ({"timestamp": "CAST(seconds AS BIGINT)"}, "is of type BIGINT; it must be a TIMESTAMP"),
        (
            {"accuracy": "1.5"},
            "accuracy, '1.5', is of type .*; it must be an INTERVAL DAY TO SECOND",
        ),
        ({"accuracy": ("kind", "kind")}, "the earliest moment, 'kind', is of type STRING; it must"),
        ({"params": None, "types": {"CLICK": ("name",)}}, "'CLICK' needs 'name', but the input"),
        ({"source": Files("csv", schema="seconds SORT OF")}, "stream 'clicks': .*"),
        ({"source": Files("csv", schema="INT")}, "the schema must list columns"),
    ],
)
def test_feed_declaration_that_spark_does_not_understand_is_refused(
    playground: Any, clicks: Any, changes: dict[str, Any], said: str
) -> None:
    playground.write("a.csv", "1,CLICK,ann")
    with pytest.raises(DefinitionError) as raised:
        playground.run(clicks(**changes))
    raised.match(said.replace("+", r"\+"))
    assert "\n" not in str(raised.value)


def test_feed_of_any_streaming_dataframe(playground: Any, clicks: Any, spark: Any) -> None:
    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=3, numPartitions=1, startTimestamp=50_000, advanceMillisPerBatch=20_000
    )
    stream = clicks(
        source=None,
        type="'TICK'",
        timestamp="timestamp",
        id=None,
        params={"value": "value"},
        types={"TICK": ("value",)},
        delay=timedelta(seconds=10),
    )

    def apply(batch: Any) -> None:
        playground.batches.append(batch)
        if batch.batch_id == 3:
            raise StopIteration

    for _ in range(2):
        with pytest.raises(StopIteration):
            feed(source.load(), stream, apply, playground.checkpoint, follow=True)
    batches = playground.batches
    assert [batch.batch_id for batch in batches] == [0, 1, 2, 3, 3]
    assert batches[4].table.equals(batches[3].table)
    assert len({batch.query_id for batch in batches}) == 1
    known = [s * 1_000_000 for s in (40, 60, 80, 100, 100)]
    assert [batch.punctuation_us for batch in batches] == known
    assert batches[1].table.column("p_value").to_pylist() == [3, 4, 5]


def test_feed_of_a_dataframe_to_its_end(playground: Any, clicks: Any, spark: Any) -> None:
    playground.write("a.txt", "1 CLICK", "2 CLICK")
    lines = spark.readStream.text(str(playground.input))
    parts = lines.selectExpr("split(value, ' ')[0] AS seconds", "split(value, ' ')[1] AS kind")
    stream = clicks(id=None, params={"user": "seconds"})
    feed(parts, stream, playground.batches.append, playground.checkpoint)
    (batch,) = playground.batches
    assert batch.table.column("event_time_us").to_pylist() == [1_000_000, 2_000_000]
    with pytest.raises(DefinitionError, match="the DataFrame is not streaming"):
        feed(spark.range(1), stream, playground.batches.append, playground.checkpoint)
