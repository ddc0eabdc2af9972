"""Trying again: what, how often, and after which pauses."""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activedb import State
from activedb.config import Settings
from activedb.errors import (
    ConnectionLost,
    Deadlock,
    LockNotAvailable,
    LockTimeout,
    RowExists,
    SerializationConflict,
    TransactionAborted,
    TransactionTimeout,
)
from activedb.metrics import NamedCounters
from activedb.transactions._retries import Retries
from tests.databases import PATIENCE_S, in_thread
from tests.transactions.bank import open_bank

if TYPE_CHECKING:
    from activedb import Transaction
    from tests.databases import Place
    from tests.transactions.bank import Bank


@pytest.fixture
def pauses(bank: Bank) -> list[float]:
    """Return the lengths of the pauses so far, in seconds; they are seeded, and not waited for."""
    lengths: list[float] = []
    retries = bank.db._forest.retries
    retries.random = random.Random(int(os.environ["ACTIVEDB_TEST_SEED"]))
    retries.wait = lambda event, delay_s: lengths.append(delay_s)
    return lengths


def failing(error: Exception, times: int, tries: list[Transaction]) -> object:
    """A function of a transaction that fails so often, then returns which try it is."""

    def work(t: Transaction) -> int:
        tries.append(t)
        if len(tries) <= times:
            raise error
        return len(tries)

    return work


@pytest.mark.parametrize(
    "error",
    [
        Deadlock("as if"),
        LockTimeout("as if"),
        SerializationConflict("as if"),
        ConnectionLost("as if", committed=False),
    ],
    ids=lambda error: type(error).__name__,
)
def test_run_tries_what_is_safe_again(bank: Bank, pauses: list[float], error: Exception) -> None:
    tries: list[Transaction] = []
    assert bank.db.run(failing(error, 3, tries)) == 4  # type: ignore[arg-type]
    assert [t.state for t in tries] == [State.ABORTED] * 3 + [State.COMMITTED]
    assert len({t.path for t in tries}) == 1
    assert len(pauses) == 3
    counters = bank.db.admin.counters()
    assert counters["transactions_retried"] == 3
    assert [n for name, n in counters.items() if name.startswith("retries_after_")] == [3]


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLost("as if", committed=None),
        ConnectionLost("as if", committed=True),
        LockNotAvailable("as if"),
        TransactionTimeout("as if"),
        TransactionAborted("as if"),
        RowExists("as if"),
        KeyError("as if"),
    ],
    ids=lambda error: f"{type(error).__name__}-{getattr(error, 'committed', '')}",
)
def test_run_tries_nothing_else_again(bank: Bank, pauses: list[float], error: Exception) -> None:
    tries: list[Transaction] = []
    with pytest.raises(type(error)) as caught:
        bank.db.run(failing(error, 1, tries))  # type: ignore[arg-type]
    assert len(tries) == 1
    assert pauses == []
    assert not hasattr(caught.value, "__notes__")


def test_last_error_says_how_many_tries_there_were(where: Place) -> None:
    bank = open_bank(where.open(retries_max=2))
    tries: list[Transaction] = []
    with pytest.raises(SerializationConflict) as caught:
        bank.db.run(failing(SerializationConflict("as if"), 99, tries))  # type: ignore[arg-type]
    assert len(tries) == 3
    assert caught.value.__notes__ == [f"transaction {tries[0].path} was tried 3 times"]
    assert bank.db.admin.counters()["retries_exhausted"] == 1


def test_error_after_a_retry_says_that_it_was_not_the_first_try(
    bank: Bank, pauses: list[float]
) -> None:
    tries = []

    def work(t: Transaction) -> None:
        tries.append(t)
        raise Deadlock("as if") if len(tries) == 1 else KeyError("second")

    with pytest.raises(KeyError) as caught:
        bank.db.run(work)
    assert caught.value.__notes__ == [f"transaction {tries[0].path} was tried 2 times"]


def test_no_retries_means_one_try(where: Place) -> None:
    bank = open_bank(where.open(retries_max=0))
    tries: list[Transaction] = []
    with pytest.raises(Deadlock):
        bank.db.run(failing(Deadlock("as if"), 9, tries))  # type: ignore[arg-type]
    assert len(tries) == 1


@pytest.mark.parametrize("kind", [LockTimeout, SerializationConflict, ConnectionLost])
def test_child_leaves_what_is_no_deadlock_to_the_top(
    bank: Bank, pauses: list[float], kind: type[Exception]
) -> None:
    tops: list[Transaction] = []
    tries: list[Transaction] = []

    def work(t: Transaction) -> int:
        tops.append(t)
        return t.spawn(failing(kind("as if"), 1, tries)).result()  # type: ignore[arg-type]

    assert bank.db.run(work) == 2
    assert (len(tops), len(tries)) == (2, 2)


def test_child_that_is_a_victim_is_tried_again_alone(bank: Bank, pauses: list[float]) -> None:
    tops: list[Transaction] = []
    tries: list[Transaction] = []

    def work(t: Transaction) -> int:
        tops.append(t)
        t.update(bank.accounts, 1, balance=11)
        return t.spawn(failing(Deadlock("as if"), 3, tries)).result()  # type: ignore[arg-type]

    assert bank.db.run(work) == 4
    assert len(tops) == 1
    assert len({t.path for t in tries}) == 1
    assert bank.committed()[1] == 11


def test_child_that_is_always_a_victim_has_the_whole_tried_again_a_bounded_number_of_times(
    where: Place,
) -> None:
    bank = open_bank(where.open(retries_max=2))
    bank.db._forest.retries.wait = lambda event, delay_s: None
    tops: list[Transaction] = []
    tries: list[Transaction] = []

    def work(t: Transaction) -> None:
        def middle(s: Transaction) -> None:
            s.spawn(failing(Deadlock("as if"), 99, tries)).result()  # type: ignore[arg-type]

        tops.append(t)
        t.spawn(middle).result()

    with pytest.raises(Deadlock) as caught:
        bank.db.run(work)
    assert (len(tops), len(tries)) == (3, 9)  # and the middle one leaves it to the top at once
    assert caught.value.__notes__[-1] == f"transaction {tops[0].path} was tried 3 times"


def test_real_deadlock_between_siblings_ends_with_the_work_of_both(bank: Bank) -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)
    tries = []

    def child(s: Transaction, first: int, second: int) -> None:
        tries.append(s)
        add_one(s, bank, first)
        if len(tries) <= 2:
            both.wait()
        add_one(s, bank, second)

    def work(t: Transaction) -> None:
        for pair in ((1, 2), (2, 1)):
            t.spawn(child, *pair)

    in_thread(bank.db.run, work).result(PATIENCE_S)
    assert len(tries) == 3
    assert bank.committed() == {1: 12, 2: 22}


def add_one(t: Transaction, bank: Bank, key: int) -> None:
    row = t.get(bank.accounts, key, for_update=True)
    assert row is not None
    t.update(bank.accounts, key, balance=row["balance"] + 1)


def test_limit_of_time_counts_the_pauses_between_tries(where: Place) -> None:
    bank = open_bank(where.open(reconnect_pause_ms=60_000, reconnect_pause_ms_max=60_000))
    tries: list[Transaction] = []
    lengths: list[float] = []

    def wait(event: threading.Event, delay_s: float) -> None:
        lengths.append(delay_s)
        event.wait(delay_s)

    bank.db._forest.retries.wait = wait
    limit_s = 0.5
    while not any(lengths):  # the limit may be over before there is a pause
        tries.clear()
        lengths.clear()
        limit_s *= 2
        lost = ConnectionLost("as if", committed=False)
        with pytest.raises(TransactionTimeout) as caught:
            bank.db.with_timeout(limit_s).run(failing(lost, 9, tries))  # type: ignore[arg-type]
    assert len(tries) == 1
    assert 0 < lengths[0] <= limit_s
    assert caught.value.__cause__ is lost
    assert caught.value.__notes__ == [f"transaction {tries[0].path} was tried once"]


@given(number=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_pause_is_random_doubles_and_is_bounded(number: int, seed: int) -> None:
    settings = Settings(url="memory://")
    retries = Retries(settings, NamedCounters(), lambda: None)
    retries.random = random.Random(seed)
    for error, first_ms, most_ms, least in (
        (Deadlock("x"), settings.retry_pause_ms, settings.retry_pause_ms_max, 0.0),
        (ConnectionLost("x"), settings.reconnect_pause_ms, settings.reconnect_pause_ms_max, 0.5),
    ):
        longest_s = min(first_ms * 2 ** (number - 1), most_ms) / 1_000
        drawn = [retries.delay_s(error, number) for _ in range(50)]
        assert all(least * longest_s <= pause <= longest_s for pause in drawn)
        assert len(set(drawn)) > 25


@pytest.mark.long
def test_same_seed_gives_the_same_pauses() -> None:
    settings = Settings(url="memory://")
    drawn = []
    for _ in range(2):
        retries = Retries(settings, NamedCounters(), lambda: None)
        retries.random = random.Random(4)
        drawn.append([retries.delay_s(Deadlock("x"), n) for n in range(1, 9)])
    assert drawn[0] == drawn[1]


def test_deadlock_of_siblings_is_tried_again_where_the_abort_gives_up_the_lock(bank: Bank) -> None:
    """Each sibling retains what its first child has locked, and its second wants the other's.

    The victim, a second child, holds nothing: trying that again would not help.
    """
    meeting = threading.Barrier(2, timeout=PATIENCE_S)
    met: set[int] = set()

    def add(t: Transaction, key: int) -> None:
        with t.subtransaction() as s:
            row = s.get(bank.accounts, key, for_update=True)
            assert row is not None
            s.update(bank.accounts, key, balance=row["balance"] + 1)

    def both(s: Transaction, first: int, second: int) -> None:
        add(s, first)
        if first not in met:
            met.add(first)
            meeting.wait()
        s.spawn(add, second).result()

    def work(t: Transaction) -> None:
        for child in [t.spawn(both, 1, 2), t.spawn(both, 2, 1)]:
            child.result()

    before = bank.committed()
    bank.db.run(work)
    after = bank.committed()
    assert [after[key] - before[key] for key in (1, 2)] == [2, 2]  # type: ignore[operator]
    assert bank.db.admin.counters()["transactions_retried"] == 1
