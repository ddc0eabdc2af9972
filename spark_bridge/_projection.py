"""Projection of the input's columns to those of an atomic batch; routes of the rows to buckets."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    MapType,
    NullType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from activedb.columns import PARAM_PREFIX
from activedb.errors import DefinitionError
from spark_bridge._failures import take_down
from spark_bridge._matching_columns import BESIDE, BUCKET, GROUP, IS_FUTURE, IS_HOME, POSITION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from activedb.streams import StreamDeclaration
    from spark_bridge._matching_plan import MatchingPlan


WATERMARK = "activedb_watermark"
_INPUT = "activedb_input"
_CORRUPT = "activedb_corrupt"
# The years that Python's datetime can hold. A time outside them is a misread number, and one such
# row would carry the watermark beyond everything else.
_TIME_MIN = "0001-01-01 00:00:00"
_TIME_MAX = "9999-12-31 23:59:59.999999"
_FUTURE_S_MAX = 10_000 * 366 * 86_400  # longer than all those years


def under_watermark(
    events: DataFrame, stream: StreamDeclaration, *, future_max_s: float
) -> DataFrame:
    """Return event columns under a Spark watermark, for matching on executors.

    Parameters
    ----------
    events : DataFrame
        See :func:`events`.
    future_max_s : float
        How far ahead of the clock a time moves the watermark; a later time does not.
    """
    # NULL must not move the watermark, and Spark would read it as 1970.
    earliest = sf.lit(_TIME_MIN).cast("timestamp")
    believed = sf.coalesce(_believed(stream, future_max_s), earliest)
    named = events.withColumn(WATERMARK, believed)
    return named.withWatermark(WATERMARK, f"{_delay_ms(stream)} milliseconds")


def events(
    df: DataFrame,
    stream: StreamDeclaration,
    *,
    order: Sequence[str] = (),
    corrupt: str | None = None,
) -> DataFrame:
    """Return ``df`` as event columns: those of the table of an :class:`activedb.AtomicBatch`.

    Parameters
    ----------
    df : DataFrame
        The input.
    stream : StreamDeclaration
        The declaration.
    order : Sequence[str]
        Input columns passed through, not part of the event.
    corrupt : str, optional
        The input column in which Spark's reader keeps the text of a row it could not parse.

    Raises
    ------
    DefinitionError
        If an expression is missing or cannot be understood, the timestamp is no TIMESTAMP, the
        accuracy no interval, or an event type needs a parameter that the input does not have.
    """
    try:
        stream.require_expressions()
    except DefinitionError as error:
        raise DefinitionError(f"stream {stream.name!r}: {error}") from None
    inputs = [name for name in df.columns if name not in order and name != corrupt]
    params = (
        {name: _column(name) for name in inputs}
        if stream.params is None
        else {
            name: _safe(df, stream, f"parameter {name!r}", expression)
            for name, expression in stream.params.items()
        }
    )
    _check_required(stream, params)
    event_id = sf.lit(None) if stream.id is None else _safe(df, stream, "id", stream.id)
    time_us = _time_us(df, stream)
    named = df.select(
        _safe(df, stream, "type", stream.type).cast("string").alias("event_type"),
        time_us.alias("event_time_us"),
        *_interval_us(df, stream, time_us),
        event_id.cast("string").alias("event_id"),
        *_producer(df, stream),
        *(column.alias(PARAM_PREFIX + name) for name, column in params.items()),
        sf.struct(*map(_column, inputs)).alias(_INPUT),
        (sf.lit(None) if corrupt is None else _column(corrupt)).cast("string").alias(_CORRUPT),
        *map(_column, order),
    )
    text = sf.coalesce(_CORRUPT, sf.to_json(_INPUT, {"ignoreNullFields": "false"}))
    kept = (f for f in named.schema if f.name not in (_INPUT, _CORRUPT, *order))
    return named.select(
        *(_within_years(_column(f.name), f.dataType).alias(f.name) for f in kept),
        sf.when(_is_bad(stream), text).alias("raw"),
        *map(_column, order),
    )


def _column(name: str) -> Column:
    return sf.col("`" + name.replace("`", "``") + "`")


def _safe(df: DataFrame, stream: StreamDeclaration, what: str, expression: str) -> Column:
    """Return the column of a SQL expression, NULL where its evaluation fails.

    Settings and the ``try_`` functions cover many failures but not all (``timestamp_millis`` of a
    large number raises in every mode), and one such row would end the query. Spark has the
    expression that its ``try_`` functions are made of, but under no name in SQL.
    """
    try:
        plain = sf.expr(expression)
        df.select(plain)
    except (AnalysisException, ParseException) as error:
        summary, failure = take_down(error)
        raise DefinitionError(
            f"stream {stream.name!r}: the expression for {what}, {expression!r}, "
            f"cannot be understood: {summary}"
        ) from failure
    jvm: Any = df.sparkSession._jvm
    sql = jvm.org.apache.spark.sql
    columns = sql.classic.ExpressionUtils
    return Column(columns.column(sql.catalyst.expressions.TryEval(columns.expression(plain._jc))))


def _time_us(df: DataFrame, stream: StreamDeclaration) -> Column:
    return _moment_us(df, stream, "timestamp", stream.timestamp)


def _moment_us(df: DataFrame, stream: StreamDeclaration, what: str, expression: str) -> Column:
    column = _safe(df, stream, what, expression)
    kind = df.select(column).schema[0].dataType
    # A cast from a number would read it as seconds and from a text by Spark's own rules.
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise DefinitionError(
            f"stream {stream.name!r}: the expression for {what}, {expression!r}, is of "
            f"type {kind.simpleString().upper()}; it must be a TIMESTAMP (see timestamp_millis, "
            "try_to_timestamp)"
        )
    return sf.unix_micros(_within_years(column.cast("timestamp"), TimestampType()))


def _interval_us(df: DataFrame, stream: StreamDeclaration, time_us: Column) -> tuple[Column, ...]:
    """Return the ends of the time's interval, both NULL if there is none; () if it is exact."""
    accuracy = stream.accuracy
    if accuracy is None:
        return ()
    if isinstance(accuracy, tuple):
        what = "the earliest moment", "the latest moment"
        low, high = (_moment_us(df, stream, *end) for end in zip(what, accuracy, strict=True))
    else:
        width = _width_us(df, stream, accuracy)
        low, high = time_us - width, time_us + width
    is_interval = (low <= time_us) & (time_us <= high)
    return (
        sf.when(is_interval, low).alias("event_low_us"),
        sf.when(is_interval, high).alias("event_high_us"),
    )


def _producer(df: DataFrame, stream: StreamDeclaration) -> tuple[Column, ...]:
    if stream.producer is None:
        return ()
    column = _safe(df, stream, "producer", stream.producer)
    return (column.cast("string").alias("event_producer"),)


def _width_us(df: DataFrame, stream: StreamDeclaration, accuracy: str | timedelta) -> Column:
    if isinstance(accuracy, timedelta):
        return sf.lit(accuracy // timedelta(microseconds=1)).cast("bigint")
    column = _safe(df, stream, "accuracy", accuracy)
    kind = df.select(column).schema[0].dataType
    if not isinstance(kind, DayTimeIntervalType):
        raise DefinitionError(
            f"stream {stream.name!r}: the expression for accuracy, {accuracy!r}, is of type "
            f"{kind.simpleString().upper()}; it must be an INTERVAL DAY TO SECOND (see "
            "make_dt_interval), or give two expressions, for the earliest and the latest moment"
        )
    return sf.unix_micros(sf.timestamp_seconds(sf.lit(0)) + column)


def _believed(stream: StreamDeclaration, future_max_s: float) -> Column:
    """Return the event's time (the begin of its interval), NULL if it is from the future.

    The present is the time at which the micro-batch was planned: it is in Spark's checkpoint, and
    so the same when the batch is run again.
    """
    time_us = sf.col("event_time_us" if stream.accuracy is None else "event_low_us")
    time = sf.timestamp_micros(time_us)
    if future_max_s > _FUTURE_S_MAX:
        return time
    last_us = sf.unix_micros(sf.current_timestamp()) + sf.lit(round(future_max_s * 1_000_000))
    return sf.when(time_us <= last_us, time)


def _within_years(column: Column, kind: DataType) -> Column:
    """Return NULL for a date or time that Python cannot hold, the column itself for other types."""
    if not isinstance(kind, DateType | TimestampType | TimestampNTZType):
        return column
    first, last = sf.lit(_TIME_MIN).cast(kind), sf.lit(_TIME_MAX).cast(kind)
    return sf.when(column.between(first, last), column)


def _check_required(stream: StreamDeclaration, params: dict[str, Column]) -> None:
    for name, required in stream.types.items():
        missing = [param for param in required if param not in params]
        if missing:
            raise DefinitionError(
                f"stream {stream.name!r}: event type {name!r} needs "
                f"{', '.join(map(repr, missing))}, but the input has only {', '.join(params)}"
            )


def _is_bad(stream: StreamDeclaration) -> Column:
    """Return whether no event can be made of the row."""
    event_type = sf.col("event_type")
    lacking = sf.lit(None)
    for name, required in stream.types.items():
        lacks = sf.lit(False)
        for param in required:
            lacks = lacks | _column(PARAM_PREFIX + param).isNull()
        lacking = sf.when(event_type == name, lacks).otherwise(lacking)
    # If the time is NULL, so are the ends of its interval.
    time = sf.col("event_time_us" if stream.accuracy is None else "event_low_us")
    return sf.coalesce(lacking, sf.lit(True)) | time.isNull()


def _delay_ms(stream: StreamDeclaration) -> int:
    """Return whole milliseconds, rounded up: a watermark must not be ahead of the declared one."""
    return -(-stream.delay // timedelta(milliseconds=1))


# -- routes of rows: to a bucket, or past the buckets to the process -------------------------------

_ROUTE = "activedb_route"

_ROW_BITS = 33  # of monotonically_increasing_id: the row within its partition
_BLOCK_BITS = 14
_BLOCK_BYTES = 4 << 20  # Spark's blocks of files are no smaller, except the last one
_NUMBER_AT, _NUMBER_CHARS = 10, 6  # position of the group's place in a file name: see FileQueue


def keyable(events: DataFrame) -> list[str]:
    """Return the parameters that can be keys: those compared alike by Spark and Python."""
    nested = ArrayType | MapType | StructType | NullType | VariantType
    return [
        field.name.removeprefix(PARAM_PREFIX)
        for field in events.schema
        if field.name.startswith(PARAM_PREFIX) and not isinstance(field.dataType, nested)
    ]


def routed(events: DataFrame, plan: MatchingPlan, order: Sequence[str]) -> DataFrame:
    """Return a row for each route that a row of `events` takes.

    One route of a row, its home, counts the row; a late row takes only this route. For a row that
    the process needs, the home is the route past the buckets.

    Parameters
    ----------
    events : DataFrame
        See :func:`under_watermark`.
    plan : MatchingPlan
    order : Sequence[str]
        Its columns by which rows are put in order: none, or `FILE_ORDER`.

    Returns
    -------
    DataFrame
        Group, bucket, whether it is the row's home, position, whether the row is from the future;
        the event columns. Its times have no watermark, so that Spark does not drop late rows.
    """
    columns = [name for name in events.columns if name not in (WATERMARK, *order)]
    placed = events.select(
        *map(_column, columns),
        _position(order).alias(POSITION),
        # A time rejected as from the future does not move the watermark: see `under_watermark`.
        (sf.col("raw").isNull() & (sf.unix_micros(WATERMARK) != sf.col("event_time_us"))).alias(
            IS_FUTURE
        ),
    )
    return placed.select("*", sf.explode(_routes(plan)).alias(_ROUTE)).select(
        f"{_ROUTE}.{GROUP}",
        f"{_ROUTE}.{BUCKET}",
        f"{_ROUTE}.{IS_HOME}",
        POSITION,
        IS_FUTURE,
        *map(_column, columns),
    )


def _position(order: Sequence[str]) -> Column:
    """Return the place of a row in its micro-batch, the same when the batch is run again.

    For a single file it is the number of the row. REQUIRES: no file is read in more blocks than
    `_BLOCK_BITS` can hold.
    """
    number = sf.monotonically_increasing_id()
    if not order:
        return number
    from spark_bridge._reading import FILE_ORDER  # it imports the declarations of streams

    name, block = (sf.col(column) for column in FILE_ORDER)
    file = sf.substring(name, _NUMBER_AT, _NUMBER_CHARS).cast("bigint")
    row = number.bitwiseAND(sf.lit((1 << _ROW_BITS) - 1))
    before = sf.shiftleft(file, _BLOCK_BITS) + (block / _BLOCK_BYTES).cast("bigint")
    return sf.shiftleft(before, _ROW_BITS) + row


def _routes(plan: MatchingPlan) -> Column:
    """Return the routes of one row: an array that is not empty."""
    is_event = sf.col("raw").isNull() & ~sf.col(IS_FUTURE)
    kind = sf.col("event_type")
    spread = sf.pmod(sf.col(POSITION), sf.lit(plan.buckets)).cast("int")
    in_group = {
        key: is_event & kind.isin(*frozenset().union(*(rule.types for rule in rules)))
        for key, rules in plan.groups
    }
    passes = ~is_event | (kind.isin(*plan.passed) if plan.passed else sf.lit(False))
    ways = [sf.when(passes, _way(BESIDE, spread, sf.lit(True)))]
    is_home = ~passes
    for key, is_in_group in in_group.items():
        hashed = sf.xxhash64(_column(PARAM_PREFIX + key))
        bucket = sf.pmod(hashed, sf.lit(plan.buckets)).cast("int")
        ways.append(sf.when(is_in_group, _way(key, bucket, is_home)))
        is_home = is_home & ~is_in_group
    # A row that no rule takes is only counted, anywhere.
    anywhere = plan.groups[0][0] if plan.groups else BESIDE
    ways.append(sf.when(is_home, _way(anywhere, spread, sf.lit(True))))
    return sf.filter(sf.array(*ways), lambda way: way.isNotNull())


def _way(group: str, bucket: Column, is_home: Column) -> Column:
    return sf.struct(sf.lit(group).alias(GROUP), bucket.alias(BUCKET), is_home.alias(IS_HOME))
