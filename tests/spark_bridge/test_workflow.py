"""Spark's micro-batches as atomic batches of a workflow, once over a restart of the query."""

from __future__ import annotations

from typing import Any

import pytest

import activedb as adb
from activedb.batches import merged
from activedb.errors import ProgramFailed

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_feed_into_a_workflow_takes_each_micro_batch_once(playground: Any, clicks: Any) -> None:
    stream = clicks()
    with adb.connect("memory://") as db:
        usage = db.workflow("usage", sources=stream.name)
        given: list[list[str]] = []
        is_broken = True

        @usage.program(reads=stream.name)
        def tidy(t: adb.Transaction, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
            if is_broken and any(row["user"] == "bob" for row in batch):
                raise ValueError("no bob yet")
            return [{"user": row["user"], "type": row["event_type"]} for row in batch]

        @usage.program(reads={"tidy": merged(2)})
        def count(t: adb.Transaction, batch: list[dict[str, Any]]) -> None:
            given.append([f"{row['type']} {row['user']}" for row in batch])

        run = db.workflows.open(usage)
        playground.write("a.csv", "1,CLICK,ann", "noon,CLICK,eve")
        playground.feed(stream).run(run.apply)
        playground.write("b.csv", "2,QUIT,bob")
        with pytest.raises(ProgramFailed, match="no bob yet"):
            playground.feed(stream).run(run.apply)
        is_broken = False
        playground.feed(stream).run(run.apply)  # the micro-batch comes again
        assert given == [["CLICK ann", "QUIT bob"]]
        assert [b.id for b in db.workflows.history("usage").batches() if not b.transaction] == [
            "clicks#1",
            "clicks#2",
        ]
        (letter,) = db.dead_letters.list()
        assert "eve" in letter.payload["raw"]
