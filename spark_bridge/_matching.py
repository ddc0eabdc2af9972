"""Matching of a stream's keyed rules on executors, before, between and after its batches."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from activedb.streams import Matched
from spark_bridge._checkpoint import next_batch_id, read_next_punctuation_us
from spark_bridge._matching_bucket import Passed
from spark_bridge._matching_columns import BUCKET, GROUP, IS_FUTURE, PASSED, POSITION
from spark_bridge._matching_plan import MatchingPlan, begin, plan_of, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from activedb.streams import Matchable, StreamDeclaration


_CHECK = "spark.sql.streaming.unsupportedOperationCheck"


@contextmanager
def numbering_rows(spark: SparkSession) -> Iterator[None]:
    """Allow a query that begins in the block to number the rows of each micro-batch.

    Spark refuses this because the numbers begin again with each micro-batch; here that is intended.
    """
    before = spark.conf.get(_CHECK)
    spark.conf.set(_CHECK, "false")
    try:
        yield
    finally:
        spark.conf.set(_CHECK, str(before))


class MatchingOnExecutors:
    """Matching on executors in one run of a feed.

    Parameters
    ----------
    stream : StreamDeclaration
    matchable : Matchable
        The matchable rules when the run begins.
    checkpoint : Path
        Checkpoint of the query. Executors read and write it, so it must be on storage that they
        share.
    future_max_s : float
        How far ahead of the clock a time moves the watermark.

    Attributes
    ----------
    here : dict of str to str
        Rules that are matched by the process that runs the actions, with the reasons; complete when
        the query begins.
    """

    def __init__(
        self, stream: StreamDeclaration, matchable: Matchable, checkpoint: Path, future_max_s: float
    ):
        self.here = dict(matchable.here)
        self._stream = stream
        self._matchable = matchable
        self._checkpoint = checkpoint
        self._future_max_s = future_max_s
        self._plan: MatchingPlan | None = None

    def spread(self, events: DataFrame, order: Sequence[str]) -> DataFrame:
        """Return the rows that result from event columns: rows that pass through, and matches.

        Parameters
        ----------
        events : DataFrame
            Result of :func:`events`.
        order : Sequence[str]
            Its columns by which rows are put in order.
        """
        from spark_bridge import _matching_operator as operator
        from spark_bridge import _projection as projection
        from spark_bridge._pickling import dumps

        spark = events.sparkSession
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        self._plan = self._planned(partitions=partitions, keys=projection.keyable(events))
        marked = projection.under_watermark(events, self._stream, future_max_s=self._future_max_s)
        routed = projection.routed(marked, self._plan, order)
        schema = operator.output_schema(routed.schema)
        processor = operator.Matching(dumps(self._plan), str(self._checkpoint), schema.names)
        return routed.groupBy(GROUP, BUCKET).transformWithState(
            statefulProcessor=processor,
            outputStructType=schema,
            outputMode="Append",
            timeMode="EventTime",
        )

    def taken_apart(self, table: Any) -> tuple[Any, Matched]:
        """Return the rows of a micro-batch that pass through, and the matches.

        Parameters
        ----------
        table : pyarrow.Table
            Result of :meth:`spread` for it.
        """
        is_row = table.column(PASSED).is_null()
        passed = table.column(PASSED).drop_null().to_pylist()
        rows = table.filter(is_row).sort_by(POSITION)
        positions = rows.column(POSITION).to_pylist()
        flags = rows.column(IS_FUTURE).to_pylist()
        matched = self._matched(
            passed,
            positions=positions,
            from_future=frozenset(
                place for place, flag in zip(positions, flags, strict=True) if flag
            ),
        )
        return rows.drop_columns([PASSED, POSITION, IS_FUTURE]), matched

    def left(self, spark: SparkSession) -> Matched | None:
        """Return the matches of the waiting events, if no more come; None before the first batch.

        It is computed where the state is. REQUIRES: the query has ended.
        """
        batch_id = next_batch_id(self._checkpoint)
        if batch_id == 0:
            return None
        from spark_bridge._matching_operator import STATE

        plan = self._plan = self._plan or self._planned()
        states = (
            spark.read.format("statestore")
            .option("stateVarName", STATE)
            .load(str(self._checkpoint))
            .selectExpr(f"key.{GROUP} AS key", "value.json AS json")
        )

        def work(rows: Iterable[Any]) -> Iterator[str]:
            from spark_bridge._matching_operator import left_of

            return left_of(plan, batch_id, ((row.key, row.json) for row in rows))

        passed = states.rdd.mapPartitions(work).collect()
        return self._matched(
            passed,
            batch_id=batch_id - 1,
            punctuation_us=read_next_punctuation_us(self._checkpoint, batch_id - 1),
        )

    def _planned(self, **of_query: Any) -> MatchingPlan:
        state = begin(self._checkpoint, self._matchable, **of_query)
        batch_id = next_batch_id(self._checkpoint)
        plan, self.here = plan_of(self._stream.name, self._matchable, state, batch_id=batch_id)
        write(self._checkpoint, state.remembering(plan))
        return plan

    def _matched(self, passed: Iterable[str], **others: Any) -> Matched:
        assert self._plan is not None
        found = [Passed.restore(json.loads(text)) for text in passed]
        newest = [each.newest_us for each in found if each.newest_us is not None]
        return Matched(
            rules=self._plan.rules,
            passed=self._plan.passed,
            completions=[each for of_bucket in found for each in of_bucket.completions],
            processed=sum(of_bucket.processed for of_bucket in found),
            newest_us=max(newest, default=None),
            **others,
        )
