"""Limits of time, and cancellation from outside."""

from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, event, func, select, update

from activedb import State
from activedb.errors import (
    ConfigurationError,
    Deadlock,
    LockTimeout,
    TransactionCancelled,
    TransactionTimeout,
)
from activedb.transactions._deadlines import Deadlines, Limit
from tests.databases import PATIENCE_S, in_thread, lock_waits, place, until
from tests.nodes import node_of
from tests.transactions.bank import open_bank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from activedb import Child, Transaction
    from tests.databases import Place
    from tests.transactions.bank import Bank

SHORT_S = 0.05


@pytest.fixture
def holder(bank: Bank) -> Iterator[Bank]:
    """Account 2 is locked by another transaction for the whole test."""
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with bank.db.transaction() as t:
            t.get(bank.accounts, 2, for_update=True)
            holding.set()
            assert release.wait(2 * PATIENCE_S)

    other = in_thread(hold)
    assert holding.wait(PATIENCE_S)
    yield bank
    release.set()
    other.result(PATIENCE_S)


def sleep_at_server(t: Transaction) -> None:
    """Run a statement that takes long unless it is ended."""
    t.query(select(func.pg_sleep(2 * PATIENCE_S)))


# -- limits --------------------------------------------------------------------------------


def test_timeout_of_a_transaction_aborts_it_at_its_next_step(bank: Bank) -> None:
    with (
        pytest.raises(TransactionTimeout, match=r"limit of 0\.05 s") as caught,
        bank.db.transaction(timeout=SHORT_S) as t,
    ):
        t.update(bank.accounts, 1, balance=0)
        until(lambda: t.is_rollback_only)
        t.update(bank.accounts, 2, balance=0)
    assert t.path in str(caught.value)
    assert t.state is State.ABORTED
    assert bank.committed() == {1: 10, 2: 20}


def test_timeout_that_is_over_at_the_commit_keeps_nothing(bank: Bank) -> None:
    with pytest.raises(TransactionTimeout), bank.db.transaction(timeout=SHORT_S) as t:
        t.update(bank.accounts, 1, balance=0)
        until(lambda: t.is_rollback_only)
    assert bank.committed() == {1: 10, 2: 20}


def test_timeout_that_is_not_reached_changes_nothing(bank: Bank) -> None:
    with bank.db.transaction(timeout=60) as t, t.subtransaction(timeout=50) as s:
        s.update(bank.accounts, 1, balance=11)
    assert bank.db.with_timeout(60).run(lambda t, by: by + 1, 2) == 3
    assert bank.committed()[1] == 11
    assert all(alarm.ring is None for _, _, alarm in bank.db._forest.deadlines._heap)


def test_timeout_ends_a_wait_for_a_lock_at_once(holder: Bank) -> None:
    began = time.monotonic()
    with pytest.raises(TransactionTimeout), holder.db.transaction(timeout=SHORT_S) as t:
        t.update(holder.accounts, 2, balance=0)
    assert time.monotonic() - began < PATIENCE_S  # half of lock_timeout_ms


def test_timeout_rolls_back_every_inferior(holder: Bank) -> None:
    def deeper(t: Transaction, depth: int) -> None:
        if depth:
            t.spawn(deeper, depth - 1).result()
        t.update(holder.accounts, 2, balance=0)

    with pytest.raises(TransactionTimeout) as caught:
        holder.db.with_timeout(SHORT_S).run(deeper, 10)
    assert not hasattr(caught.value, "__notes__")
    # Counted by another thread, after it has ended the wait.
    until(lambda: holder.db.admin.counters().get("transactions_timed_out"))
    assert holder.db.admin.counters()["transactions_timed_out"] == 1


def test_limit_of_a_transaction_that_has_ended_starts_no_thread(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alarm looks again after a while, when the program may be about to end."""
    with bank.db.transaction() as t:
        pass

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading, "Thread", refuse)
    node_of(t)._interrupt_beside(1, math.inf)


def test_timeout_is_not_tried_again(bank: Bank) -> None:
    tries = []

    def work(t: Transaction) -> None:
        tries.append(t)
        until(lambda: t.is_rollback_only)

    while not tries:  # the limit may be over before a try has begun
        with pytest.raises(TransactionTimeout):
            bank.db.with_timeout(SHORT_S).run(work)
    assert len(tries) == 1


@contextmanager
def plain_sql(bank: Bank) -> Iterator[None]:
    """Another thread keeps the one connection of memory:// for the whole block."""
    has_it, let_go = threading.Event(), threading.Event()

    def keep() -> None:
        with bank.db.connection() as connection:
            connection.execute(update(bank.accounts).values(balance=7))
            has_it.set()
            assert let_go.wait(2 * PATIENCE_S)
            connection.commit()

    other = in_thread(keep)
    assert has_it.wait(PATIENCE_S)
    try:
        yield
    finally:
        let_go.set()
        other.result(PATIENCE_S)


@pytest.mark.long
@pytest.mark.parametrize("children", [0, 2])
def test_timeout_ends_a_wait_for_the_connection_in_memory(children: int) -> None:
    with place(None) as where:
        bank = open_bank(where.open(), {1: 10, 2: 20})

        def write(s: Transaction) -> None:
            s.execute(update(bank.accounts).values(balance=0))

        def work(t: Transaction) -> None:
            for _ in range(children):  # while one waits for the connection, others wait for that
                t.spawn(write)
            if not children:
                t.update(bank.accounts, 1, balance=0)

        with plain_sql(bank):
            ended = in_thread(bank.db.with_timeout(SHORT_S).run, work).exception(PATIENCE_S)
        assert type(ended) is TransactionTimeout, ended
        assert bank.committed() == {1: 7, 2: 7}
        assert bank.db.admin.counters().get("sessions_lost", 0) == 0


def test_lock_timeout_ends_a_wait_for_the_connection_in_memory() -> None:
    with place(None) as where:
        bank = open_bank(where.open(lock_timeout_ms=20), {1: 10})

        def work() -> None:
            with bank.db.transaction() as t:
                t.update(bank.accounts, 1, balance=0)

        with plain_sql(bank):
            ended = in_thread(work).exception(PATIENCE_S)
        assert type(ended) is LockTimeout, ended
        assert bank.committed() == {1: 7}


def test_timeout_of_a_child_leaves_its_parent_free_to_go_on(holder: Bank) -> None:
    with holder.db.transaction() as t:
        with pytest.raises(TransactionTimeout) as caught, t.subtransaction(timeout=SHORT_S) as s:
            s.update(holder.accounts, 1, balance=0)
            s.update(holder.accounts, 2, balance=0)
        assert s.path in str(caught.value)
        child = t.with_timeout(SHORT_S).spawn(
            lambda s, key: s.update(holder.accounts, key, balance=0), 2
        )
        with pytest.raises(TransactionTimeout):
            child.result()
        t.update(holder.accounts, 1, balance=11)
    assert in_thread(lambda: holder.db.run(lambda t: t.get(holder.accounts, 1))).result(
        PATIENCE_S
    ) == {
        "id": 1,
        "balance": 11,
        "owner": None,
    }


def test_timeout_of_a_queued_child_keeps_it_from_running(where: Place) -> None:
    bank = open_bank(where.open(threads=1), {1: 10})
    go = threading.Event()
    ran = []
    with bank.db.transaction() as t:
        busy = t.spawn(lambda s: go.wait(PATIENCE_S))
        queued = t.with_timeout(1e-6).spawn(lambda s: ran.append(s))
        with pytest.raises(TransactionTimeout, match=r"limit of 1e-06 s"):
            queued.result()
        go.set()
        busy.result()
    assert ran == []


def test_timeout_ends_a_statement_at_the_server(where: Place, bank: Bank) -> None:
    if where.is_memory:
        pytest.skip("nothing sleeps in memory")
    began = time.monotonic()
    with pytest.raises(TransactionTimeout), bank.db.transaction(timeout=0.3) as t:
        sleep_at_server(t)
    at_server = threading.Event()

    def child(s: Transaction) -> None:
        at_server.set()
        sleep_at_server(s)

    with bank.db.transaction() as t:
        spawned = t.with_timeout(0.3).spawn(child)
        until(lambda: at_server.is_set() or spawned.is_done)  # a thread of the pool has it
        with pytest.raises(TransactionTimeout):
            spawned.result()
        t.update(bank.accounts, 1, balance=11)
    assert time.monotonic() - began < PATIENCE_S
    assert bank.committed() == {1: 11, 2: 20}


@pytest.mark.long
def test_timeout_of_a_child_leaves_the_statements_of_its_sibling_alone(
    where: Place, bank: Bank
) -> None:
    if where.is_memory:
        pytest.skip("nothing sleeps in memory")

    def sibling(s: Transaction) -> list[Any]:
        started.set()
        return s.query(select(func.pg_sleep(1)))

    def child(s: Transaction) -> None:
        assert started.wait(PATIENCE_S)
        until(lambda: s.is_rollback_only)
        s.get(bank.accounts, 1)

    started = threading.Event()
    with bank.db.transaction() as t:
        other = t.spawn(sibling)
        timed = t.with_timeout(0.3).spawn(child)
        with pytest.raises(TransactionTimeout):
            timed.result()
        assert len(other.result()) == 1


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, True, "5"])
def test_timeout_that_is_none_is_refused_where_it_is_given(bank: Bank, wrong: Any) -> None:
    with bank.db.transaction() as t:
        gives: list[Callable[[], object]] = [
            lambda: bank.db.transaction(timeout=wrong),
            lambda: bank.db.with_timeout(wrong),
            lambda: t.subtransaction(timeout=wrong),
            lambda: t.with_timeout(wrong),
        ]
        for give in gives:
            with pytest.raises(ConfigurationError, match="not a time limit"):
                give()


def test_limits_of_many_transactions_need_one_thread_and_leave_nothing(bank: Bank) -> None:
    forest = bank.db._forest
    before = threading.active_count()
    opened = [bank.db.transaction(timeout=3_600) for _ in range(50)]
    assert threading.active_count() <= before + 1
    for t in opened:
        node_of(t).commit()
    for number in range(500):
        with bank.db.transaction(timeout=3_600) as t:
            t.update(bank.accounts, 1, balance=number)
    assert len(forest.deadlines._heap) < 200
    thread = forest.deadlines._thread
    assert thread is not None
    forest.close()
    assert not thread.is_alive()


def test_deadlines_ring_in_order_of_time_and_never_once_dropped() -> None:
    deadlines = Deadlines()
    rung: list[str] = []
    now = time.monotonic()
    go = threading.Event()
    deadlines.at(now, lambda: go.wait(PATIENCE_S))  # until all are there, however long that takes
    deadlines.at(now + 0.06, lambda: rung.append("late"))
    deadlines.at(now + 0.02, lambda: rung.append("early"))
    deadlines.at(now + 0.04, lambda: rung.append("dropped")).drop()
    deadlines.at(now + 0.03, lambda: 1 / 0)  # one that fails does not stop the others
    deadlines.at(now - 1, lambda: rung.append("overdue"))
    go.set()
    until(lambda: len(rung) == 3)
    assert rung == ["overdue", "early", "late"]
    far = deadlines.at(now + 3_600, lambda: rung.append("far"))
    deadlines.close()
    far.drop()
    assert rung[3:] == []


def test_limit_says_what_is_left() -> None:
    limit = Limit.after(1_000)
    assert limit is not None
    assert 900 < limit.left_s <= 1_000
    assert Limit.after(None) is None


# -- cancellation --------------------------------------------------------------------------


def test_cancel_from_another_thread_aborts_at_the_next_step(bank: Bank) -> None:
    with (
        pytest.raises(TransactionCancelled, match=r"was cancelled: too dear"),
        bank.db.transaction() as t,
    ):
        t.update(bank.accounts, 1, balance=0)
        in_thread(t.cancel, "too dear").result(PATIENCE_S)
        t.get(bank.accounts, 1)
    assert t.state is State.ABORTED
    assert bank.committed() == {1: 10, 2: 20}
    assert bank.db.admin.counters()["transactions_cancelled"] == 1


def test_cancel_ends_a_wait_for_a_lock(holder: Bank) -> None:
    waits = lock_waits(holder.db)
    opened: list[Transaction] = []

    def work(t: Transaction) -> None:
        opened.append(t)
        t.update(holder.accounts, 2, balance=0)

    running = in_thread(holder.db.run, work)
    until(lambda: lock_waits(holder.db) > waits)
    opened[0].cancel()
    with pytest.raises(TransactionCancelled):
        running.result(PATIENCE_S)
    assert len(opened) == 1


def test_cancel_ends_a_statement_at_the_server(where: Place, bank: Bank) -> None:
    if where.is_memory:
        pytest.skip("nothing sleeps in memory")
    opened: list[Transaction] = []

    def work(t: Transaction) -> None:
        opened.append(t)
        sleep_at_server(t)

    running = in_thread(bank.db.run, work)
    until(lambda: opened)
    opened[0].cancel()  # maybe before the statement has reached the server
    with pytest.raises(TransactionCancelled):
        running.result(PATIENCE_S)


def test_cancel_that_comes_before_the_statement_reaches_the_server_ends_it_too(
    where: Place, bank: Bank
) -> None:
    if where.is_memory:
        pytest.skip("nothing sleeps in memory")
    opened: list[Transaction] = []

    def too_early(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "pg_sleep" in statement:
            in_thread(opened[0].cancel).result(PATIENCE_S)

    def work(t: Transaction) -> None:
        opened.append(t)
        sleep_at_server(t)

    event.listen(Engine, "before_cursor_execute", too_early)
    try:
        with pytest.raises(TransactionCancelled):
            in_thread(bank.db.run, work).result(PATIENCE_S)
    finally:
        event.remove(Engine, "before_cursor_execute", too_early)
    assert opened[0].state is State.ABORTED


def test_cancel_of_a_child_leaves_its_parent_free_to_go_on(holder: Bank) -> None:
    waits = lock_waits(holder.db)
    with holder.db.transaction() as t:
        child = t.spawn(lambda s: s.update(holder.accounts, 2, balance=0))
        until(lambda: lock_waits(holder.db) > waits)
        in_thread(child.cancel, "not needed").result(PATIENCE_S)
        with pytest.raises(TransactionCancelled, match="not needed") as caught:
            child.result()
        assert child.path in str(caught.value)
        t.update(holder.accounts, 1, balance=11)
    assert t.state is State.COMMITTED


def test_cancel_of_a_queued_child_keeps_it_from_running(where: Place) -> None:
    bank = open_bank(where.open(threads=1), {1: 10})
    go = threading.Event()
    ran = []
    with bank.db.transaction() as t:
        busy = t.spawn(lambda s: go.wait(PATIENCE_S))
        until(lambda: busy._task.claimed)
        queued = t.spawn(lambda s: ran.append(s))
        in_thread(queued.cancel).result(PATIENCE_S)
        go.set()
        with pytest.raises(TransactionCancelled):
            queued.result()
        busy.result()
    assert ran == []


def test_cancel_of_a_cancelled_or_ended_transaction_does_nothing(bank: Bank) -> None:
    with bank.db.transaction() as t:
        child = t.spawn(lambda s: s.update(bank.accounts, 1, balance=11))
        child.result()
        child.cancel("late")
    t.cancel("late")
    with pytest.raises(TransactionCancelled, match="first"), bank.db.transaction() as u:
        u.cancel("first")
        u.cancel("second")
    assert bank.committed()[1] == 11
    assert bank.db.admin.counters()["transactions_cancelled"] == 1


def test_cancel_while_a_child_waits_for_its_next_try_ends_that(bank: Bank) -> None:
    """A pause between two tries is a wait like any other."""
    pausing = threading.Event()
    tries = []

    def wait(event: threading.Event, delay_s: float) -> None:
        pausing.set()
        assert event.wait(PATIENCE_S)

    def fails(s: Transaction) -> None:
        tries.append(s)
        raise Deadlock("as if")

    bank.db._forest.retries.wait = wait
    for end in ("child", "parent"):
        pausing.clear()
        tries.clear()
        with pytest.raises(TransactionCancelled), bank.db.transaction() as t:
            child: Child[None] = t.spawn(fails)
            assert pausing.wait(PATIENCE_S)
            in_thread((child if end == "child" else t).cancel).result(PATIENCE_S)
            child.result()
        assert len(tries) == 1
