"""Depth and width without limit other than memory, on few threads."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from activedb import State
from activedb.errors import TransactionAborted, TransactionCancelled
from lockmgr import LockManager, LockTable
from tests.databases import in_thread, until
from tests.effort import calls_of
from tests.patience import PATIENCE_S
from tests.transactions.bank import Bank, open_bank

if TYPE_CHECKING:
    from activedb import Transaction
    from tests.databases import Place

DEEP = 2_000
WIDE = 2_000


def big_bank(where: Place, threads: int) -> Bank:
    """A bank whose lock table is not verified after each call, which is O(all locks)."""
    db = where.open(threads=threads)
    db._forest.locks = LockManager(LockTable())
    return open_bank(db, {1: 0})


def add_one(t: Transaction, bank: Bank) -> None:
    row = t.get(bank.accounts, 1, for_update=True)
    assert row is not None
    t.update(bank.accounts, 1, balance=row["balance"] + 1)


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 4])
def test_deep_spawns_with_results_end_and_delegate_all_the_way_up(
    where: Place, threads: int
) -> None:
    bank = big_bank(where, threads)

    def deeper(t: Transaction, depth: int) -> int:
        below = t.spawn(deeper, depth - 1).result() if depth else 0
        add_one(t, bank)
        return below + 1

    assert in_thread(bank.db.run, deeper, DEEP).result(PATIENCE_S) == DEEP + 1
    assert bank.committed() == {1: DEEP + 1}
    until(lambda: len(bank.db._forest.pool._alive) <= threads)


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 4])
def test_deep_spawns_joined_by_commits_end(where: Place, threads: int) -> None:
    bank = big_bank(where, threads)

    def deeper(t: Transaction, depth: int) -> None:
        if depth:
            t.spawn(deeper, depth - 1)
        t.insert(bank.accounts, {"id": depth + 2, "balance": depth})

    in_thread(bank.db.run, deeper, DEEP).result(PATIENCE_S)
    assert len(bank.committed()) == DEEP + 2


@pytest.mark.parametrize("frames", [0, 60])
def test_deep_spawns_by_functions_that_call_functions_end(where: Place, frames: int) -> None:
    """Tasks that help each other on one stack must leave the functions room to recurse."""
    bank = big_bank(where, 2)

    def deeper(t: Transaction, depth: int, more: int = frames) -> int:
        if more:
            return deeper(t, depth, more - 1)
        return 1 + t.spawn(deeper, depth - 1).result() if depth else 0

    assert in_thread(bank.db.run, deeper, 200).result(PATIENCE_S) == 200


def test_deep_sequential_subtransactions_end_one_after_another(where: Place) -> None:
    bank = big_bank(where, 1)
    with contextlib.ExitStack() as blocks:
        t = blocks.enter_context(bank.db.transaction())
        for _ in range(DEEP):
            t = blocks.enter_context(t.subtransaction())
            add_one(t, bank)
        assert len(t.path.split("/")) == DEEP + 1
    assert bank.committed() == {1: DEEP}


def test_deep_sequential_subtransactions_left_open_abort_with_the_top(where: Place) -> None:
    bank = big_bank(where, 1)
    opened: list[Transaction] = []
    with bank.db.transaction() as t:
        opened.append(t)
        for _ in range(DEEP):
            opened.append(opened[-1].subtransaction())
            add_one(opened[-1], bank)
        t.abort("enough")
    assert {node.state for node in opened} == {State.ABORTED}
    assert bank.committed() == {1: 0}


@pytest.mark.parametrize("threads", [1, 4])
def test_wide_spawns_end_with_every_result(where: Place, threads: int) -> None:
    bank = big_bank(where, threads)

    def child(s: Transaction, key: int) -> int:
        s.insert(bank.accounts, {"id": key, "balance": key})
        return key

    def parent(t: Transaction) -> list[int]:
        return [c.result() for c in [t.spawn(child, key) for key in range(2, WIDE + 2)]]

    assert in_thread(bank.db.run, parent).result(PATIENCE_S) == list(range(2, WIDE + 2))
    assert len(bank.committed()) == WIDE + 1


@pytest.mark.parametrize("threads", [1, 4])
def test_wide_spawns_that_want_one_row_take_turns(where: Place, threads: int) -> None:
    bank = big_bank(where, threads)

    def parent(t: Transaction) -> None:
        for _ in range(300):
            t.spawn(add_one, bank)

    in_thread(bank.db.run, parent).result(PATIENCE_S)
    assert bank.committed() == {1: 300}


@pytest.mark.long
def test_deep_error_of_the_innermost_child_reaches_the_top_as_it_was(where: Place) -> None:
    bank = big_bank(where, 4)

    def deeper(t: Transaction, depth: int) -> None:
        t.insert(bank.accounts, {"id": depth + 2, "balance": depth})
        if depth == 0:
            raise LookupError("the innermost")
        t.spawn(deeper, depth - 1)

    with pytest.raises(LookupError, match="the innermost") as caught:
        in_thread(bank.db.run, deeper, DEEP).result(PATIENCE_S)
    assert not hasattr(caught.value, "__notes__")
    assert bank.committed() == {1: 0}


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 4])
def test_deep_hierarchy_that_is_cancelled_at_the_top_ends_everywhere(
    where: Place, threads: int
) -> None:
    bank = big_bank(where, threads)
    tops: list[Transaction] = []
    leaves: list[Transaction] = []

    def deeper(t: Transaction, depth: int) -> None:
        if depth == DEEP:
            tops.append(t)
        if depth == 0:
            add_one(t, bank)
            leaves.append(t)
            until(lambda: t.is_rollback_only)
            add_one(t, bank)
        t.spawn(deeper, depth - 1).result()

    running = in_thread(bank.db.run, deeper, DEEP)
    until(lambda: leaves)
    tops[0].cancel("enough")
    with pytest.raises(TransactionCancelled, match="enough"):
        running.result(PATIENCE_S)
    node: Transaction | None = leaves[0]
    while node is not None:
        assert node.state is State.ABORTED
        node = node.parent
    assert bank.committed() == {1: 0}


@pytest.mark.long
def test_rollback_only_mark_that_races_with_the_begin_of_children_misses_none(where: Place) -> None:
    """A child of a rollback-only superior is rollback-only, however the threads interleave."""
    bank = big_bank(where, 4)
    for _ in range(30):
        tops: list[Transaction] = []
        begun: list[Transaction] = []

        def spread(t: Transaction, tops: list[Any] = tops, begun: list[Any] = begun) -> None:
            begun.append(t)
            if t.parent is None:
                tops.append(t)
            while True:  # only the mark ends it
                with t.subtransaction() as s:
                    begun.append(s)
                    s.spawn(lambda r: begun.append(r))
                if len(begun) < 12:
                    t.spawn(spread)

        running = in_thread(bank.db.run, spread)

        def is_spread(begun: list[Any] = begun) -> bool:
            return len(begun) > 20

        until(is_spread)
        tops[0].cancel()
        with pytest.raises(TransactionCancelled):
            running.result(PATIENCE_S)
        assert {node.state for node in begun} <= {State.ABORTED, State.COMMITTED}
        assert not bank.db._forest.locks.snapshot().transactions


def test_begin_write_and_commit_cost_the_same_at_every_depth(where: Place) -> None:
    """One function alone walks up the line: rule 1 of the locks, for a row that it retains."""
    bank = big_bank(where, 1)

    def one_child(t: Transaction) -> None:
        with t.subtransaction() as s:
            s.update(bank.accounts, 1, balance=5)

    with contextlib.ExitStack() as blocks:
        t = blocks.enter_context(bank.db.transaction())
        one_child(t)
        shallow = calls_of(lambda: one_child(t), of_c=False)
        for _ in range(DEEP):
            t = blocks.enter_context(t.subtransaction())
        one_child(t)
        assert calls_of(lambda: one_child(t), of_c=False) <= shallow + 2


def test_pool_of_two_runs_two_children_at_once_however_many_wait(where: Place) -> None:
    """Besides those there is the caller's own thread, which helps while it waits."""
    bank = big_bank(where, 2)
    latch = threading.Lock()
    running = [0, 0]

    def tree(t: Transaction, depth: int) -> None:
        if depth:
            for child in [t.spawn(tree, depth - 1) for _ in range(3)]:
                child.result()
            return
        with latch:
            running[0] += 1
            running[1] = max(running)
        t.get(bank.accounts, 1)
        with latch:
            running[0] -= 1

    in_thread(bank.db.run, tree, 5).result(PATIENCE_S)
    assert running[1] <= 2 + 1


def test_deep_abort_of_a_middle_transaction_undoes_what_is_below_it_alone(where: Place) -> None:
    bank = big_bank(where, 4)

    def deeper(t: Transaction, depth: int) -> None:
        add_one(t, bank)
        if depth == 0:
            return
        child = t.spawn(deeper, depth - 1)
        if depth == 500:
            child.result()
            t.abort("the middle")
        elif depth == 501:
            with pytest.raises(TransactionAborted, match="the middle"):
                child.result()
        else:
            child.result()

    in_thread(bank.db.run, deeper, 1_000).result(PATIENCE_S)
    assert bank.committed() == {1: 500}
