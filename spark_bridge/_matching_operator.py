"""Spark's stateful operator, which runs the buckets on executors.

A bucket's state is one value in Spark's state store, in JSON. The operator is called when rows
arrive for a bucket, and by a timer when the watermark has passed its first waiting event.

Each time a query begins, Spark starts a Python process only to ask for the state's name and type.
So this module imports neither activedb nor its own neighbours before there are rows.
"""

from __future__ import annotations

import json
import pickle
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StringType, StructField, StructType

from spark_bridge._matching_columns import BESIDE, IS_FUTURE, IS_HOME, PASSED, POSITION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
    )

    from activedb.columns import Arrival
    from spark_bridge._matching_bucket import Bucket
    from spark_bridge._matching_plan import MatchingPlan

STATE = "bucket"
_STATE_SCHEMA = StructType([StructField("json", StringType())])
_BATCH_ID = "streaming.sql.batchId"  # set by Spark for its tasks


def output_schema(routed: StructType) -> StructType:
    """Return the output columns: those of a passed row, or of a bucket's result."""
    kept = [routed[POSITION], routed[IS_FUTURE]]
    events = [field for field in routed if not field.name.startswith("activedb_")]
    fields = [StructField(f.name, f.dataType) for f in (*kept, *events)]
    return StructType([StructField(PASSED, StringType()), *fields])


class Matching(StatefulProcessor):
    """Stateful processor that runs the bucket of each Spark key.

    Parameters
    ----------
    plan : bytes
        The pickled `MatchingPlan`.
    checkpoint : str
        Path of the query's checkpoint, on this machine and the executors.
    names : sequence of str
        The output columns.
    """

    def __init__(self, plan: bytes, checkpoint: str, names: list[str]):
        self._pickled = plan
        self._checkpoint = Path(checkpoint)
        self._names = names

    @cached_property
    def _plan(self) -> MatchingPlan:
        plan: MatchingPlan = pickle.loads(self._pickled)  # noqa: S301  # sent by the driver
        return plan

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._state = handle.getValueState(STATE, _STATE_SCHEMA)

    def handleInputRows(  # noqa: N802  # the name is Spark's
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Process the rows of one micro-batch, and advance to its punctuation."""
        group = key[0]
        if group == BESIDE:
            yield from map(self._as_it_is, rows)
            return
        batch_id = _batch_id()
        bucket, timer_ms = self._load(group)
        late_us = self._late_us(batch_id)
        for row in rows:
            us = row["event_time_us"]
            is_late = late_us is not None and us < late_us
            arrival = None if is_late else self._arrival(row, us, batch_id)
            if arrival is not None:
                bucket.take(arrival, home=row[IS_HOME])
            elif row[IS_HOME]:  # late, or an event that cannot be kept, which becomes a dead letter
                yield self._as_it_is(row)
        if timer_ms is not None:
            self._handle.deleteTimer(timer_ms)
        yield from self._go_on(bucket, batch_id)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Advance to the punctuation of a micro-batch without rows for the bucket."""
        bucket, _ = self._load(key[0])
        expired_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield from self._go_on(bucket, _batch_id(), expired_ms=expired_ms)

    def close(self) -> None:
        """Do nothing, as nothing is open."""

    def _load(self, group: str) -> tuple[Bucket, int | None]:
        from spark_bridge._matching_bucket import Bucket
        from spark_bridge._worker_memory import keep_what_is_loaded

        keep_what_is_loaded()
        plan = self._plan
        kept = self._state.get()
        state = None if kept is None else json.loads(kept[0])
        bucket = Bucket(plan.rules_of(group), state, since=plan.since)
        return bucket, None if state is None else state["timer_ms"]

    def _go_on(
        self, bucket: Bucket, batch_id: int, *, expired_ms: int | None = None
    ) -> Iterator[Row]:
        punctuation_us = _punctuation_us(self._checkpoint, batch_id)
        timer_ms = None
        if punctuation_us is not None:
            passed = bucket.advance(punctuation_us, done_us=self._plan.reached_us(batch_id))
            if passed.processed or passed.completions:
                yield self._row({PASSED: json.dumps(passed.record())})
        if bucket.due_us is not None:
            timer_ms = max(0, bucket.due_us // 1000)
            if timer_ms == expired_ms:  # Spark forgets it when this returns
                timer_ms += 1
            self._handle.registerTimer(timer_ms)
        self._state.update((json.dumps({**bucket.state(), "timer_ms": timer_ms}),))

    def _late_us(self, batch_id: int) -> int | None:
        """Return the time before which rows are late, given by the rows of earlier batches."""
        before_us = _punctuation_us(self._checkpoint, batch_id)
        known = [us for us in (before_us, self._plan.reached_us(batch_id)) if us is not None]
        return max(known, default=None)

    def _arrival(self, row: Row, us: int, batch_id: int) -> Arrival | None:
        """Return the event of a row; None if it cannot be kept."""
        from activedb.clock import moment_of
        from activedb.columns import PARAM_PREFIX, Arrival
        from activedb.errors import BadEvent
        from activedb.events import Occurrence
        from activedb.streams import keepable_params

        params = {
            name.removeprefix(PARAM_PREFIX): row[name]
            for name in self._names
            if name.startswith(PARAM_PREFIX)
        }
        try:
            o = Occurrence(row["event_type"], moment_of(us), params, id=row["event_id"])
            keepable_params(o)
        except BadEvent:
            return None
        return Arrival(o, batch_id, row[POSITION])

    def _as_it_is(self, row: Row) -> Row:
        return self._row({name: row[name] for name in self._names if name != PASSED})

    def _row(self, values: dict[str, Any]) -> Row:
        return Row(**{name: values.get(name) for name in self._names})


def left_of(plan: MatchingPlan, batch_id: int, states: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the results of the events that wait in buckets when there are no more, as JSON.

    Parameters
    ----------
    batch_id : int
        The next micro-batch.
    states : iterable of (str, str)
        Groups and states of buckets.
    """
    from spark_bridge._matching_bucket import Bucket

    for group, state in states:
        bucket = Bucket(plan.rules_of(group), json.loads(state), since=plan.since)
        passed = bucket.advance(None, done_us=plan.reached_us(batch_id))
        if passed.newest_us is not None:
            yield json.dumps(passed.record())


def _punctuation_us(checkpoint: Path, batch_id: int) -> int | None:
    from spark_bridge._checkpoint import read_punctuation_us

    return read_punctuation_us(checkpoint, batch_id)


def _batch_id() -> int:
    context = TaskContext.get()
    assert context is not None
    text = context.getLocalProperty(_BATCH_ID)
    assert text is not None
    return int(text)
