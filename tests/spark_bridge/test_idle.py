"""Micro-batches without rows are run when due, by a clock that the test drives."""

from __future__ import annotations

from spark_bridge._batch_size import Idle, idle_of, idle_waits_s


def test_idle_each_wait_is_waited_for_once_after_rows() -> None:
    now_s = 100.0
    idle = Idle([0.5, 5.0], lambda: now_s)
    assert not idle.is_due(), "nothing has come yet"
    idle.note_rows()
    due = []
    for step in range(1, 30):
        now_s = 100 + step / 4
        if idle.is_due():
            due.append(now_s)
    assert due == [100.5, 105.5]
    idle.note_rows()
    now_s += 0.25
    idle.note_rows()
    now_s += 0.25
    assert not idle.is_due(), "rows have come meanwhile"
    now_s += 0.25
    assert idle.is_due()


def test_idle_waits_are_enough_to_notice_who_is_silent() -> None:
    assert idle_waits_s(None) == [0.5]
    assert sum(idle_waits_s(10_000_000)) > 10
    assert not idle_of({"idle": "[]"}).is_due()
