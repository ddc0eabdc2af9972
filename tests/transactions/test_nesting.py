"""Visibility, delegation and undoing along one line of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select, update

from activedb import State
from activedb.errors import (
    DefinitionError,
    InvalidRow,
    RowExists,
    RowNotFound,
    TransactionAborted,
    TransactionStateError,
)
from tests.databases import PATIENCE_S, in_thread
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Transaction
    from tests.transactions.bank import Bank


def test_transaction_sees_its_own_writes_before_anybody_else(bank: Bank) -> None:
    with bank.db.transaction() as t:
        assert t.get(bank.accounts, 1) == {"id": 1, "balance": 10, "owner": None}
        assert t.update(bank.accounts, 1, balance=11) == {"id": 1, "balance": 11, "owner": None}
        assert t.get(bank.accounts, 1) == {"id": 1, "balance": 11, "owner": None}
        t.insert(bank.accounts, {"id": 3, "balance": 30})
        t.delete(bank.accounts, 2)
        assert t.get_many(bank.accounts, [3, 2, 9]) == {
            3: {"id": 3, "balance": 30, "owner": None},
            2: None,
            9: None,
        }
        assert bank.db.admin.row_counts()["accounts"] == 2
    assert bank.committed() == {1: 11, 3: 30}


def test_node_keeps_its_attributes_in_slots(bank: Bank) -> None:
    """CPython takes longer for objects with more than 30 attributes in dictionaries."""
    with bank.db.transaction() as t, t.subtransaction() as child:
        for node in (node_of(t), node_of(child)):
            assert not hasattr(node, "__dict__")
    with bank.db.connection() as connection, bank.db.transaction(connection=connection) as t:
        assert not hasattr(node_of(t), "__dict__")


def test_transaction_that_raises_aborts_and_the_error_reaches_the_caller(bank: Bank) -> None:
    with pytest.raises(ZeroDivisionError), bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=99)
        t.insert(bank.accounts, {"id": 7, "balance": 1})
        t.delete(bank.accounts, 2)
        raise ZeroDivisionError
    assert t.state is State.ABORTED
    assert bank.committed() == {1: 10, 2: 20}


def test_abort_ends_the_block_silently_and_undoes_it(bank: Bank) -> None:
    reached = False
    with bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=99)
        t.abort("changed my mind")
        reached = True
    assert not reached
    assert t.state is State.ABORTED
    assert bank.committed() == {1: 10, 2: 20}


def test_run_with_abort_raises_the_reason(bank: Bank) -> None:
    with pytest.raises(TransactionAborted, match="not today"):
        bank.db.run(lambda t: t.abort("not today"))


def test_run_passes_arguments_and_returns_the_result(bank: Bank) -> None:
    def work(t: Transaction, key: int, *, by: int) -> int:
        row = t.get(bank.accounts, key, for_update=True)
        assert row is not None
        t.update(bank.accounts, key, balance=row["balance"] + by)
        return int(row["balance"])

    assert bank.db.run(work, 2, by=5) == 20
    assert bank.committed()[2] == 25


def test_subtransaction_sees_its_superiors_writes(bank: Bank) -> None:
    with bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=11)
        with t.subtransaction() as s:
            s.delete(bank.accounts, 2)
            with s.subtransaction() as r:
                assert r.get(bank.accounts, 1) == {"id": 1, "balance": 11, "owner": None}
                assert r.get(bank.accounts, 2) is None
                assert r.query(select(func.sum(bank.accounts.c.balance))) == [(11,)]


def test_subtransaction_commit_delegates_to_the_parent_only(bank: Bank) -> None:
    with bank.db.transaction() as t:
        with t.subtransaction() as s:
            s.update(bank.accounts, 1, balance=12)
        assert s.state is State.COMMITTED
        assert t.get(bank.accounts, 1) == {"id": 1, "balance": 12, "owner": None}
        t.abort()
    assert bank.committed()[1] == 10


def test_abort_undoes_what_committed_inferiors_delegated_and_nothing_else(bank: Bank) -> None:
    with bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=11)
        with t.subtransaction() as s:
            s.update(bank.accounts, 1, balance=12)
            with s.subtransaction() as r:
                r.update(bank.accounts, 1, balance=13)
                r.insert(bank.accounts, {"id": 3, "balance": 30})
            with s.subtransaction() as r:
                r.delete(bank.accounts, 2)
            s.abort()
        assert t.get_many(bank.accounts, [1, 2, 3]) == {
            1: {"id": 1, "balance": 11, "owner": None},
            2: {"id": 2, "balance": 20, "owner": None},
            3: None,
        }
        assert sorted(t.query(select(bank.accounts.c.id, bank.accounts.c.balance))) == [
            (1, 11),
            (2, 20),
        ]
    assert bank.committed() == {1: 11, 2: 20}


def test_abort_of_a_superior_from_inside_ends_all_blocks_below_it(bank: Bank) -> None:
    after: list[str] = []
    with bank.db.transaction() as t:
        with t.subtransaction() as s:
            s.update(bank.accounts, 1, balance=12)
            with s.subtransaction() as r:
                r.update(bank.accounts, 2, balance=1)
                s.abort("the middle one")
            after.append("inside s")
        after.append("after s")
        assert (r.state, s.state, t.state) == (State.ABORTED, State.ABORTED, State.ACTIVE)
        t.update(bank.accounts, 1, balance=15)
    assert after == ["after s"]
    assert bank.committed() == {1: 15, 2: 20}


def test_error_in_a_subtransaction_aborts_it_and_can_be_caught_by_the_parent(bank: Bank) -> None:
    with bank.db.transaction() as t:
        with pytest.raises(KeyError), t.subtransaction() as s:
            s.update(bank.accounts, 1, balance=12)
            raise KeyError("x")
        assert s.state is State.ABORTED
        t.update(bank.accounts, 2, balance=21)
    assert bank.committed() == {1: 10, 2: 21}


def test_tombstone_of_a_subtransaction_can_be_replaced_by_the_parent(bank: Bank) -> None:
    with bank.db.transaction() as t:
        with t.subtransaction() as s:
            s.delete(bank.accounts, 1)
        with pytest.raises(RowNotFound):
            t.update(bank.accounts, 1, balance=1)
        t.insert(bank.accounts, {"id": 1, "balance": 100})
        with t.subtransaction() as s:
            with pytest.raises(RowExists):
                s.insert(bank.accounts, {"id": 1, "balance": 5})
            s.delete(bank.accounts, 1)
            s.insert(bank.accounts, {"id": 1, "balance": 101})
    assert bank.committed() == {1: 101, 2: 20}


def test_row_that_was_only_ever_uncommitted_leaves_nothing(bank: Bank) -> None:
    with bank.db.transaction() as t:
        t.insert(bank.accounts, {"id": 5, "balance": 1})
        with t.subtransaction() as s:
            s.delete(bank.accounts, 5)
        assert t.get(bank.accounts, 5) is None
    assert bank.committed() == {1: 10, 2: 20}


USES: dict[str, Callable[[Transaction, Any], object]] = {
    "get": lambda t, table: t.get(table, 1),
    "get_many": lambda t, table: t.get_many(table, [1, 2]),
    "insert": lambda t, table: t.insert(table, {"id": 9, "balance": 1}),
    "update": lambda t, table: t.update(table, 1, balance=2),
    "delete": lambda t, table: t.delete(table, 1),
    "query": lambda t, table: t.query(select(table)),
    "execute": lambda t, table: t.execute(update(table).values(balance=0)),
    "subtransaction": lambda t, table: t.subtransaction(),
    "spawn": lambda t, table: t.spawn(lambda s: None),
    "commit": lambda t, table: node_of(t).commit(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("ending", ["committed", "aborted"])
def test_transaction_that_has_ended_refuses_every_use(bank: Bank, use: str, ending: str) -> None:
    with bank.db.transaction() as t:
        if ending == "aborted":
            t.abort()
    assert t.state == ending
    with pytest.raises(TransactionStateError if ending == "committed" else TransactionAborted):
        USES[use](t, bank.accounts)
    assert bank.committed() == {1: 10, 2: 20}


@pytest.mark.parametrize("use", sorted(USES.keys() - {"subtransaction", "spawn"}))
@pytest.mark.parametrize("touched", [False, True])
def test_parent_used_while_a_subtransaction_is_open_on_the_thread_raises(
    bank: Bank, use: str, touched: bool
) -> None:
    """A wait for oneself would never end, so it raises; the misuse must leave no trace."""

    def misuse() -> None:
        with bank.db.transaction() as t:
            if touched:
                t.get_many(bank.accounts, [1, 2], for_update=True)
            with t.subtransaction() as s:
                s.update(bank.accounts, 2, balance=21)
                USES[use](t, bank.accounts)

    with pytest.raises(TransactionStateError, match="subtransaction"):
        in_thread(misuse).result(PATIENCE_S)
    assert bank.committed() == {1: 10, 2: 20}


def test_commit_of_a_child_twice_raises(bank: Bank) -> None:
    with pytest.raises(TransactionStateError), bank.db.transaction() as t:
        with t.subtransaction() as s:
            s.update(bank.accounts, 1, balance=0)
        node_of(s).commit()
    assert bank.committed() == {1: 10, 2: 20}


def test_error_of_a_row_leaves_the_transaction_usable(bank: Bank) -> None:
    with bank.db.transaction() as t:
        with pytest.raises(RowExists, match=r"table accounts: a row with key \(1,\) exists"):
            t.insert(bank.accounts, {"id": 1})
        with pytest.raises(RowNotFound, match=r"table accounts: no row has the key \(7,\)"):
            t.update(bank.accounts, 7, balance=1)
        with pytest.raises(RowNotFound, match=r"\(8,\)"):
            t.delete(bank.accounts, 8)
        with pytest.raises(InvalidRow, match="no column 'colour'"):
            t.update(bank.accounts, 1, colour="red")
        t.update(bank.accounts, 1, balance=11)
    assert bank.committed() == {1: 11, 2: 20}


def test_rows_are_read_only(bank: Bank) -> None:
    with bank.db.transaction() as t:
        row = t.get(bank.accounts, 1)
        with pytest.raises(TypeError):
            row["balance"] = 0  # type: ignore[index]  # misuse on purpose
        assert t.get(bank.accounts, 1) == {"id": 1, "balance": 10, "owner": None}


def test_get_of_what_is_no_table_raises_and_aborts(bank: Bank) -> None:
    with (
        pytest.raises(DefinitionError, match="neither a SQLAlchemy Table"),
        bank.db.transaction() as t,
    ):
        t.get("accounts", 1)
    assert t.state is State.ABORTED


def test_commit_with_an_open_subtransaction_keeps_nothing(bank: Bank) -> None:
    def misuse() -> None:
        with bank.db.transaction() as t:
            t.update(bank.accounts, 1, balance=11)
            with t.subtransaction():
                node_of(t).commit()

    with pytest.raises(TransactionStateError, match="subtransaction"):
        in_thread(misuse).result(PATIENCE_S)
    assert bank.committed() == {1: 10, 2: 20}


def test_commit_with_a_subtransaction_that_was_never_entered_keeps_nothing(bank: Bank) -> None:
    with pytest.raises(TransactionStateError, match="subtransaction"), bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=11)
        t.subtransaction()
    assert bank.committed() == {1: 10, 2: 20}


def test_nesting_twenty_deep_delegates_all_the_way_up(bank: Bank) -> None:
    """Nesting works with the lock table verified at each step; `test_deep` goes deeper without."""

    def deeper(t: Transaction, depth: int) -> None:
        row = t.get(bank.accounts, 1, for_update=True)
        assert row is not None
        t.update(bank.accounts, 1, balance=row["balance"] + 1)
        if depth:
            with t.subtransaction() as s:
                deeper(s, depth - 1)

    bank.db.run(deeper, 19)
    assert bank.committed()[1] == 30
