"""Lock insertion (algorithm 1), and example 4."""

from __future__ import annotations

import operator

import pytest

from activedb.scheduling import Access, At, SharedTable, STransaction
from activedb.scheduling.locking import (
    FIGURE_3_S2PL,
    AccessMode,
    Granularity,
    ObjectLock,
    locks_of,
)
from tests.scheduling.locking.requests import Requests
from tests.scheduling.locking.ward import ENTER_10, EXIT_2, EXIT_15, at, paper_stream

READ, WRITE, READ_ROWS, WRITE_ROWS = (
    AccessMode.READ,
    AccessMode.WRITE,
    AccessMode.READ_ROWS,
    AccessMode.WRITE_ROWS,
)
accounts = SharedTable("accounts", key=int, initial=0, history=60)
assets = SharedTable("assets", key=int, initial=0)


def made(access: Access) -> STransaction:
    return STransaction(At(1, "", 1), "X", {}, tuple(access.operations))


def test_example_4_inserts_the_locks_of_the_paper() -> None:
    table = ("badges",)
    locks = [set(locks_of(transaction, "table")) for transaction in paper_stream()]
    assert locks == [
        {ObjectLock(table, READ)},
        {ObjectLock(table, READ), ObjectLock(table, WRITE)},
        {ObjectLock(table, READ)},
    ]


def test_example_4_delays_what_would_be_read_or_written_too_late() -> None:
    requests = Requests(FIGURE_3_S2PL)
    locks = {t.at: locks_of(t, "table") for t in paper_stream()}
    for place, needed in locks.items():
        requests.table.insert(place, needed)
    requests.table.punctuate(at(20))
    assert not requests.ask(EXIT_15, locks[EXIT_15])
    assert not requests.ask(ENTER_10, locks[ENTER_10])
    assert requests.ask(EXIT_2, locks[EXIT_2])
    requests.table.release(EXIT_2)
    requests.settle()
    assert requests.granted == {EXIT_2, ENTER_10}
    requests.table.release(ENTER_10)
    requests.settle()
    assert requests.granted == {EXIT_2, ENTER_10, EXIT_15}
    requests.end()


def test_targets_get_write_locks_and_sources_read_locks_on_rows_and_their_tables() -> None:
    access = Access()
    access.write(accounts[1], operator.add, reads=(accounts[2], assets[3]))
    assert set(locks_of(made(access), "row")) == {
        ObjectLock(("accounts",), WRITE_ROWS),
        ObjectLock(("accounts", 1), WRITE),
        ObjectLock(("accounts",), READ_ROWS),
        ObjectLock(("accounts", 2), READ),
        ObjectLock(("assets",), READ_ROWS),
        ObjectLock(("assets", 3), READ),
    }


@pytest.mark.parametrize("granularity", ["table", "row"])
def test_range_and_computed_key_lock_the_table_and_what_the_key_reads(
    granularity: Granularity,
) -> None:
    access = Access()
    access.read(accounts.range(1, 3))
    access.write(assets.computed(int, reads=(accounts[7],)), operator.neg, reads=())
    locks = set(locks_of(made(access), granularity))
    assert {ObjectLock(("accounts",), READ), ObjectLock(("assets",), WRITE)} <= locks
    assert (ObjectLock(("accounts", 7), READ) in locks) == (granularity == "row")


def test_window_locks_its_row() -> None:
    access = Access()
    access.read(accounts[1].window(10))
    assert set(locks_of(made(access), "row")) == {
        ObjectLock(("accounts",), READ_ROWS),
        ObjectLock(("accounts", 1), READ),
    }


def test_key_that_cannot_be_one_locks_the_table() -> None:
    access = Access()
    access.read(SharedTable("any")[[1, 2]])
    assert set(locks_of(made(access), "row")) == {ObjectLock(("any",), READ)}
