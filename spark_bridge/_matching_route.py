"""Routes of a stream's rows: to a bucket, or past the buckets to the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, MapType, NullType, StructType, VariantType

from activedb.columns import PARAM_PREFIX
from spark_bridge._matching_columns import BESIDE, BUCKET, GROUP, IS_FUTURE, IS_HOME, POSITION
from spark_bridge._projection import WATERMARK
from spark_bridge._reading import FILE_ORDER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from spark_bridge._matching_plan import MatchingPlan

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


def _column(name: str) -> Column:
    return sf.col("`" + name.replace("`", "``") + "`")
