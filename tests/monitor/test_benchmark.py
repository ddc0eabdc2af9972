"""The benchmark of the monitor measures what it says."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from benchmarks.monitor import Workload
from tests.databases import until


def test_workload_runs_rules_and_is_watched_only_if_asked() -> None:
    with (
        closing(Workload("memory://", "off", watched=False)) as off,
        closing(Workload("memory://", "on", watched=True)) as on,
    ):
        assert off.db.admin.monitor is None
        monitor = on.db.admin.monitor
        assert monitor is not None
        for workload in (off, on):
            before = workload.db.admin.counters()
            assert workload.per_s(10) > 0
            after = workload.db.admin.counters()
            assert after["transactions_committed"] - before["transactions_committed"] == 10
            assert after["rules_fired"] == 5  # the condition is true every second time
        assert on.look_ms(2) > 0
        assert monitor.state()["forest"]["total"] == 0


@pytest.mark.long
def test_workload_that_is_polled_is_looked_at_by_another_process() -> None:
    with closing(Workload("memory://", "polled", watched=True)) as polled:
        looks: list[int] = []
        monitor = polled.db.admin.monitor
        assert monitor is not None
        state = monitor.state

        def noted(since: int = 0) -> Any:
            looks.append(since)
            return state(since)

        monitor.state = noted  # type: ignore[method-assign]
        polled.be_polled()
        until(lambda: len(looks) >= 2)
        assert looks[0] == 0
