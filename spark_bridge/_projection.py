"""Projection of the input's columns to the columns of an atomic batch."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    DataType,
    DateType,
    DayTimeIntervalType,
    TimestampNTZType,
    TimestampType,
)

from activedb.columns import PARAM_PREFIX
from activedb.errors import DefinitionError
from spark_bridge._failures import take_down

if TYPE_CHECKING:
    from collections.abc import Sequence

    from activedb.streams import StreamDeclaration

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
