"""Peer: Spark's ``foreachBatch`` with one SQL transaction for each event, through psycopg."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks._nested_rows import Server
from benchmarks._pipeline_places import TIME, TYPE
from benchmarks._pipeline_spark import check
from benchmarks._pipeline_workload import Workload
from spark_bridge import session

__all__ = ["per_event_per_s"]


def per_event_per_s(
    workload: Workload, server: Server, folder: Path, checkpoint: Path, columns: Any
) -> float:
    """Return events per second, for files that have been read before; the written rows are checked.

    Only the batch function counts: Spark's start and its bookkeeping do not. The peer does not
    prevent that an event is processed twice after a crash.

    Parameters
    ----------
    workload : Workload
    server : Server
        The server, with an empty schema.
    folder : Path
        The events as files.
    checkpoint : Path
    columns : GeneratedEvents
        The same events.
    """
    with server.connection() as connection:
        connection.autocommit = True
        do = workload.per_event(connection)
        taken_s = _run(workload, folder, checkpoint, do)
        check(
            workload.found(connection), workload.expected(columns), "one SQL transaction per event"
        )
    return len(columns) / taken_s


def _run(workload: Workload, folder: Path, checkpoint: Path, do: Any) -> float:
    taken_s: list[float] = []

    def each(batch: Any, _: int) -> None:
        began_s = time.perf_counter()
        table = batch.toArrow()
        # Microseconds since 1970, as numbers.
        rows = [table[TIME].cast("int64"), table[TYPE], *(table[name] for name in workload.params)]
        for event in zip(*(column.to_pylist() for column in rows), strict=True):
            do(event)
        taken_s.append(time.perf_counter() - began_s)

    with session() as spark:
        schema = spark.read.parquet(str(folder)).schema
        df = spark.readStream.schema(schema).parquet(str(folder))
        writer = df.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    return sum(taken_s)
