"""The census: how many transactions live and wait."""

from __future__ import annotations

from lockmgr import Census, LockManager, Mode, VerifyingLockTable

A = ("a",)


def test_census_counts_who_lives_and_who_waits() -> None:
    table = VerifyingLockTable()
    assert table.census() == Census(0, 0, 0)
    table.begin(1)
    table.begin(2, 1)
    table.begin(3)
    table.request(2, A, Mode.X)
    table.request(3, A, Mode.X)
    assert table.census() == Census(live=3, top_level=2, waiting=1)
    table.commit(2)
    table.commit(1)
    assert table.census() == Census(live=1, top_level=1, waiting=0)


def test_census_of_transactions_that_await_an_end_counts_no_request() -> None:
    table = VerifyingLockTable()
    table.begin(1)
    table.begin(2)
    table.await_end(2, 1)
    assert table.census() == Census(live=2, top_level=2, waiting=0)


def test_census_of_a_manager_is_that_of_its_table() -> None:
    manager = LockManager()
    manager.begin(1)
    manager.begin(2, 1)
    assert manager.census() == Census(live=2, top_level=1, waiting=0)
