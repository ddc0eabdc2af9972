"""Threads that may use a transaction, and the errors that others get."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, update

from activedb import State
from activedb.errors import TransactionAborted, TransactionStateError, WrongThread
from activedb.store.server import until_s
from activedb.transactions import Transaction, current_transaction, run_child, run_in_parallel
from tests.databases import PATIENCE_S, in_thread, until
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.transactions.bank import Bank


USES: dict[str, Callable[[Transaction, Any], object]] = {
    "get": lambda t, table: t.get(table, 1),
    "get for update": lambda t, table: t.get(table, 1, for_update=True),
    "get_many": lambda t, table: t.get_many(table, [1, 2]),
    "insert": lambda t, table: t.insert(table, {"id": 9, "balance": 1}),
    "update": lambda t, table: t.update(table, 1, balance=2),
    "delete": lambda t, table: t.delete(table, 1),
    "query": lambda t, table: t.query(select(table)),
    "execute": lambda t, table: t.execute(update(table).values(balance=0)),
    "subtransaction": lambda t, table: t.subtransaction(),
    "spawn": lambda t, table: t.spawn(lambda s: None),
    "spawn with a limit": lambda t, table: t.with_timeout(5).spawn(lambda s: None),
    "offer": lambda t, table: node_of(t).offer(),
    "run_child": lambda t, table: run_child(node_of(t), lambda s: None, label="x"),
    "run_in_parallel": lambda t, table: run_in_parallel(node_of(t), []),
    "commit": lambda t, table: node_of(t).commit(),
    "abort": lambda t, table: t.abort("from elsewhere"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("touched", [False, True])
def test_transaction_used_by_another_thread_refuses_and_stays_as_it_was(
    bank: Bank, use: str, touched: bool
) -> None:
    with bank.db.transaction() as t:
        if touched:
            t.get_many(bank.accounts, [1, 2], for_update=True)
        refused = in_thread(USES[use], t, bank.accounts).exception(PATIENCE_S)
        assert type(refused) is WrongThread
        assert t.path in str(refused)
        assert threading.current_thread().name in str(refused)
        assert "spawn" in str(refused)
        assert t.state is State.ACTIVE
        t.update(bank.accounts, 1, balance=11)
    assert bank.committed() == {1: 11, 2: 20}


@pytest.mark.parametrize("use", sorted(USES))
def test_subtransaction_used_by_another_thread_refuses(bank: Bank, use: str) -> None:
    with bank.db.transaction() as t, t.subtransaction() as s:
        s.update(bank.accounts, 1, balance=11)
        with pytest.raises(WrongThread):
            in_thread(USES[use], s, bank.accounts).result(PATIENCE_S)
    assert bank.committed() == {1: 11, 2: 20}


@pytest.mark.parametrize("use", sorted(USES))
@pytest.mark.parametrize("ending", ["committed", "aborted", "failed"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_ended_transaction_refuses_every_use_on_every_thread(
    bank: Bank, use: str, ending: str, elsewhere: bool
) -> None:
    def run() -> Transaction:
        try:
            with bank.db.transaction() as t:
                if ending == "aborted":
                    t.abort()
                if ending == "failed":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        return t

    t = in_thread(run).result(PATIENCE_S) if elsewhere else run()
    kind = TransactionAborted if use == "abort" or ending == "aborted" else TransactionStateError
    with pytest.raises(kind, match=t.path) as caught:
        USES[use](t, bank.accounts)
    assert type(caught.value) is kind
    assert t.state is (State.COMMITTED if ending == "committed" else State.ABORTED)
    assert bank.committed() == {1: 10, 2: 20}


def test_top_level_transaction_belongs_to_the_thread_that_enters_it(bank: Bank) -> None:
    t = in_thread(bank.db.transaction).result(PATIENCE_S)
    with t:
        t.update(bank.accounts, 1, balance=11)
        assert current_transaction() is node_of(t)
        with pytest.raises(WrongThread):
            in_thread(t.get, bank.accounts, 1).result(PATIENCE_S)
    assert bank.committed()[1] == 11


def test_transaction_that_was_never_entered_belongs_to_the_thread_that_opened_it(
    bank: Bank,
) -> None:
    t = bank.db.transaction()
    t.update(bank.accounts, 1, balance=11)
    with pytest.raises(WrongThread):
        in_thread(node_of(t).commit).result(PATIENCE_S)
    node_of(t).commit()
    assert bank.committed()[1] == 11


def test_subtransaction_cannot_be_entered_on_another_thread(bank: Bank) -> None:
    def enter(s: Transaction) -> None:
        with s:
            pass

    with bank.db.transaction() as t:
        s = t.subtransaction()
        with pytest.raises(WrongThread):
            in_thread(enter, s).result(PATIENCE_S)
        with s:
            s.update(bank.accounts, 1, balance=11)
    assert bank.committed()[1] == 11


def test_block_of_a_transaction_is_entered_once(bank: Bank) -> None:
    with bank.db.transaction() as t:
        with pytest.raises(TransactionStateError, match="entered before"), t:
            pass
        assert t.state is State.ACTIVE
    with pytest.raises(TransactionStateError, match="is committed"), t:
        pass
    never_entered = bank.db.transaction()
    node_of(never_entered).commit()
    with pytest.raises(TransactionStateError, match="is committed"), never_entered:
        pass


def test_block_that_ends_on_another_thread_than_it_began_aborts(bank: Bank) -> None:
    """A generator that is resumed on another thread aborts, and leaves no locks."""

    def block() -> Iterator[Transaction]:
        with bank.db.transaction(timeout=3600) as t:
            t.update(bank.accounts, 1, balance=11)
            yield t

    blocks = block()
    t = next(blocks)
    with pytest.raises(WrongThread):
        in_thread(next, blocks, None).result(PATIENCE_S)
    assert t.state is State.ABORTED
    assert in_thread(bank.committed).result(PATIENCE_S) == {1: 10, 2: 20}
    assert current_transaction() is None, "the thread that began it is in no transaction"
    assert until_s() == math.inf, "and has no limit"
    bank.db.run(lambda t: t.update(bank.accounts, 1, balance=12))
    assert bank.committed() == {1: 12, 2: 20}


def test_subtransaction_that_ends_on_another_thread_leaves_its_parent_to_go_on(bank: Bank) -> None:
    def block(t: Transaction) -> Iterator[None]:
        with t.subtransaction() as s:
            s.update(bank.accounts, 1, balance=11)
            yield

    with bank.db.transaction() as t:
        blocks = block(t)
        next(blocks)
        with pytest.raises(WrongThread):
            in_thread(next, blocks, None).result(PATIENCE_S)
        assert current_transaction() is node_of(t)
        t.update(bank.accounts, 2, balance=22)
    assert bank.committed() == {1: 10, 2: 22}


def test_function_of_a_child_that_uses_the_parent_instead_is_told(bank: Bank) -> None:
    busy = threading.Event()

    def parent(t: Transaction) -> None:
        def child(s: Transaction) -> None:
            busy.set()
            t.update(bank.accounts, 1, balance=0)  # the mistake: t, not s

        spawned = t.spawn(child)
        assert busy.wait(PATIENCE_S)  # so a thread of the pool has it
        with pytest.raises(WrongThread, match="use the transaction that it is called with"):
            spawned.result()

    bank.db.run(parent)
    assert bank.committed() == {1: 10, 2: 20}


def test_result_of_a_child_is_for_its_parents_thread(bank: Bank) -> None:
    go = threading.Event()
    with bank.db.transaction() as t:
        child = t.spawn(lambda s: go.wait(PATIENCE_S))
        for ask in (child.result, child.wait):
            with pytest.raises(WrongThread):
                in_thread(ask).result(PATIENCE_S)
        go.set()
        assert child.result() is True


def test_rules_in_parallel_may_run_children_of_their_triggering_transaction(bank: Bank) -> None:
    """No other thread may, and the rules may do nothing else with it."""
    both = threading.Barrier(2, timeout=PATIENCE_S)
    threads = set()

    def parent(t: Transaction) -> None:
        home = threading.get_ident()

        def call() -> None:
            both.wait()
            threads.add(threading.get_ident())
            if threading.get_ident() != home:
                with pytest.raises(WrongThread):
                    t.get(bank.accounts, 2)
            run_child(node_of(t), lambda s: Transaction(s).get(bank.accounts, 1), label="r")

        t.update(bank.accounts, 1, balance=11)
        run_in_parallel(node_of(t), [call, call])
        assert not node_of(t).lent
        with pytest.raises(WrongThread):
            in_thread(lambda: run_child(node_of(t), lambda s: None, label="x")).result(PATIENCE_S)
        t.update(bank.accounts, 1, balance=12)

    bank.db.run(parent)
    assert len(threads) == 2
    assert bank.committed()[1] == 12


@pytest.mark.long
def test_transactions_of_one_hierarchy_run_on_many_threads_without_being_told(bank: Bank) -> None:
    """The check must not refuse what is right: helpers and substitutes use what they run."""
    seen = set()

    def tree(t: Transaction, depth: int, name: int) -> int:
        seen.add(threading.get_ident())
        if depth == 0:
            t.insert(bank.accounts, {"id": name + 10, "balance": 0})
            return 1
        children = [t.spawn(tree, depth - 1, name * 4 + branch) for branch in range(4)]
        return sum(child.result() for child in children)

    assert bank.db.run(tree, 4, 0) == 256
    assert len(bank.committed()) == 258
    until(lambda: bank.db._forest.pool._running == 0)
