"""Parallel children: results, errors, aborts, threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from activedb import State
from activedb.errors import TransactionAborted
from tests.databases import in_thread, lock_waits, until
from tests.transactions.bank import open_bank

if TYPE_CHECKING:
    from activedb import Transaction
    from tests.databases import Place
    from tests.transactions.bank import Bank

pytestmark = pytest.mark.timeout(30)


def test_spawn_children_really_run_at_the_same_time(bank: Bank) -> None:
    meeting = threading.Barrier(3, timeout=5)

    def child(s: Transaction, key: int) -> int:
        s.insert(bank.accounts, {"id": key, "balance": key})
        meeting.wait()
        return key

    with bank.db.transaction() as t:
        children = [t.spawn(child, key) for key in (3, 4, 5)]
        assert [c.result() for c in children] == [3, 4, 5]
        assert t.query(select(func.count()).select_from(bank.accounts)) == [(5,)]
    assert bank.committed() == {1: 10, 2: 20, 3: 3, 4: 4, 5: 5}


def test_spawn_child_sees_the_parent_and_the_parent_sees_it_after_its_end(bank: Bank) -> None:
    def child(s: Transaction) -> int:
        row = s.get(bank.accounts, 1, for_update=True)
        assert row is not None
        s.update(bank.accounts, 1, balance=row["balance"] * 2)
        return int(row["balance"])

    with bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=11)
        assert t.spawn(child).result() == 11
        assert t.get(bank.accounts, 1) == {"id": 1, "balance": 22, "owner": None}
    assert bank.committed()[1] == 22


def test_spawn_child_is_joined_by_the_commit(bank: Bank) -> None:
    go = threading.Event()

    def child(s: Transaction) -> None:
        assert go.wait(5)
        s.update(bank.accounts, 1, balance=0)

    with bank.db.transaction() as t:
        t.spawn(child)
        go.set()
    assert bank.committed()[1] == 0


def test_spawn_error_nobody_has_seen_aborts_the_parent_at_its_commit(bank: Bank) -> None:
    def child(s: Transaction) -> None:
        s.update(bank.accounts, 2, balance=0)
        raise LookupError("child")

    with pytest.raises(LookupError, match="child"), bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=0)
        t.spawn(child)
    assert t.state is State.ABORTED
    assert bank.committed() == {1: 10, 2: 20}


def test_spawn_error_seen_by_the_parent_undoes_the_child_alone(bank: Bank) -> None:
    def child(s: Transaction) -> None:
        s.update(bank.accounts, 2, balance=0)
        raise LookupError("child")

    with bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=0)
        spawned = t.spawn(child)
        with pytest.raises(LookupError):
            spawned.result()
    assert bank.committed() == {1: 0, 2: 20}


def test_spawn_child_that_aborts_itself_is_undone_alone_once_seen(bank: Bank) -> None:
    def child(s: Transaction) -> None:
        s.update(bank.accounts, 2, balance=0)
        s.abort("no")

    with bank.db.transaction() as t:
        spawned = t.spawn(child)
        with pytest.raises(TransactionAborted, match="no"):
            spawned.result()
        assert t.get(bank.accounts, 2) == {"id": 2, "balance": 20, "owner": None}
    assert t.state is State.COMMITTED


def test_spawn_first_error_of_several_is_raised_after_all_have_ended(bank: Bank) -> None:
    both = threading.Barrier(2, timeout=5)
    ended = []

    def child(s: Transaction, name: str) -> None:
        both.wait()
        ended.append(name)
        raise LookupError(name)

    with pytest.raises(LookupError, match="first"), bank.db.transaction() as t:
        t.spawn(child, "first")
        t.spawn(child, "second")
    assert sorted(ended) == ["first", "second"]


def test_abort_takes_along_a_child_that_waits_for_a_lock(bank: Bank) -> None:
    release = threading.Event()

    def other() -> None:
        with bank.db.transaction() as t:
            t.update(bank.accounts, 2, balance=21)
            holding.set()
            assert release.wait(8)

    holding = threading.Event()
    outsider = in_thread(other)
    assert holding.wait(5)

    def child(s: Transaction) -> None:
        s.update(bank.accounts, 1, balance=0)
        s.update(bank.accounts, 2, balance=0)

    def parent() -> None:
        waits = lock_waits(bank.db)
        with bank.db.transaction() as t:
            t.spawn(child)
            until(lambda: lock_waits(bank.db) > waits)
            t.abort()

    in_thread(parent).result(5)
    release.set()
    outsider.result(5)
    assert bank.committed() == {1: 10, 2: 21}


def test_error_in_the_parent_takes_along_inferiors_at_every_depth(bank: Bank) -> None:
    started = threading.Event()
    states = []

    def grandchild(s: Transaction) -> None:
        s.insert(bank.accounts, {"id": 3, "balance": 1})
        started.set()
        until(lambda: s.is_doomed)
        try:
            s.update(bank.accounts, 1, balance=0)
        finally:
            states.append("refused")

    def child(s: Transaction) -> None:
        s.spawn(grandchild)
        s.update(bank.accounts, 2, balance=0)

    def parent() -> None:
        with bank.db.transaction() as t:
            t.spawn(child)
            assert started.wait(5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_thread(parent).result(8)
    assert states == ["refused"]
    assert bank.committed() == {1: 10, 2: 20}


def test_parent_waits_for_a_row_that_its_child_holds(bank: Bank) -> None:
    wrote = threading.Event()
    go_on = threading.Event()

    def child(s: Transaction) -> None:
        s.update(bank.accounts, 1, balance=50)
        wrote.set()
        assert go_on.wait(5)

    def let_go(waits: int) -> None:
        until(lambda: lock_waits(bank.db) > waits)
        go_on.set()

    def parent() -> None:
        waits = lock_waits(bank.db)
        with bank.db.transaction() as t:
            t.spawn(child)
            assert wrote.wait(5)
            helper = in_thread(let_go, waits)
            row = t.get(bank.accounts, 1)
            helper.result(5)
            assert row is not None
            assert row["balance"] == 50

    in_thread(parent).result(8)


def test_child_may_use_what_its_parent_touched_again_after_the_spawn(bank: Bank) -> None:
    touched = threading.Event()

    def child(s: Transaction) -> None:
        assert touched.wait(5)
        s.update(bank.accounts, 1, balance=50)

    with bank.db.transaction() as t:
        spawned = t.spawn(child)
        t.update(bank.accounts, 1, balance=11)
        touched.set()
        spawned.result()
        assert t.get(bank.accounts, 1) == {"id": 1, "balance": 50, "owner": None}
    assert bank.committed()[1] == 50


def test_one_thread_is_enough_for_spawns_fifty_deep(where: Place) -> None:
    bank = open_bank(where.open(threads=1), {1: 0})

    def deeper(t: Transaction, depth: int) -> int:
        if depth == 0:
            return 0
        left = t.spawn(deeper, depth - 1)
        below = left.result()
        row = t.get(bank.accounts, 1, for_update=True)
        assert row is not None
        t.update(bank.accounts, 1, balance=row["balance"] + 1)
        return below + 1

    assert in_thread(lambda: bank.db.run(deeper, 50)).result(15) == 50
    assert bank.committed() == {1: 50}


def test_one_thread_is_enough_for_a_wide_tree_that_is_joined_by_commits(where: Place) -> None:
    bank = open_bank(where.open(threads=1))

    def tree(t: Transaction, depth: int, name: int) -> None:
        if depth == 0:
            t.insert(bank.accounts, {"id": name, "balance": 0})
            return
        for branch in range(3):
            t.spawn(tree, depth - 1, name * 3 + branch)

    in_thread(lambda: bank.db.run(tree, 3, 0)).result(15)
    assert sorted(bank.committed()) == list(range(27))
