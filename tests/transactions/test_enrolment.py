"""Enrolment in the lock manager at the first request has the same effects as at the begin."""

from __future__ import annotations

import gc
import weakref
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import activedb as adb
from activedb.errors import Deadlock, SelfDeadlock, TransactionAborted
from lockmgr import Mode
from lockmgr._modes import SUPREMUM
from tests.drawing import SCALE
from tests.nodes import node_of
from tests.transactions.bank import Bank, open_bank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Occurrence, Transaction
    from activedb.transactions import Forest, TransactionNode

KEYS = (1, 2, 3)
STEPS = st.one_of(
    st.tuples(
        st.sampled_from(["update", "get", "get for update", "signal"]), st.sampled_from(KEYS)
    ),
    st.tuples(st.sampled_from(["begin", "begin", "commit", "abort", "spawn"]), st.just(0)),
)


def forest_of(bank: Bank) -> Forest:
    return bank.db._forest


@contextmanager
def enrolled_at_begin(forest: Forest) -> Iterator[None]:
    """Let every subtransaction be prepared for a request when it begins."""
    begin = forest.begin

    def eagerly(node: TransactionNode) -> None:
        begin(node)
        if node.parent is not None:
            if node.parent.thread == node.thread:
                node.parent.offer()
            forest.enrol(node)

    with patch.object(forest, "begin", eagerly):
        yield


def opened_bank() -> Bank:
    """A bank with rules on signals: some touch no row, some read, some write, some fail."""
    bank = open_bank(adb.connect("memory://"), dict.fromkeys(KEYS, 10))

    @bank.db.rule(on=adb.event("TOUCHED"), priority=1)
    def nothing(t: Transaction, o: Occurrence) -> None:
        pass

    @bank.db.rule(on=adb.event("TOUCHED"), when=lambda t, o: o.params["n"] == 2, priority=2)
    def reading(t: Transaction, o: Occurrence) -> None:
        t.get(bank.accounts, 1)

    @bank.db.rule(on=adb.event("TOUCHED"), coupling="deferred")
    def later(t: Transaction, o: Occurrence) -> None:
        t.update(bank.accounts, 3, balance=o.params["n"])

    @bank.db.rule(on=adb.event("TOUCHED"), on_abort="rule", priority=3)
    def failing(t: Transaction, o: Occurrence) -> None:
        if o.params["n"] == 3:
            t.update(bank.accounts, 2, balance=99)
            raise ValueError("3")

    return bank


def locks_of(bank: Bank) -> dict[tuple[int, Any], Mode]:
    """The strongest mode of each live owner, whether held or retained, by depth and resource."""
    snapshot = forest_of(bank).locks.snapshot()
    parents = {view.tid: view.parent for view in snapshot.transactions}

    def depth(tid: int | None) -> int:
        return 0 if tid is None else 1 + depth(parents[tid])

    found: dict[tuple[int, Any], Mode] = {}
    for lock in snapshot.locks:
        place = (depth(lock.tid), lock.resource)
        found[place] = SUPREMUM[found.get(place, lock.mode)][lock.mode]
    return found


def outcomes(bank: Bank, steps: list[tuple[str, int]]) -> list[Any]:
    """Run the steps in blocks on one thread; return what each has shown."""
    seen: list[Any] = []

    def block(t: Transaction, left: Iterator[tuple[str, int]]) -> None:
        for what, n in left:
            match what:
                case "update":
                    seen.append(dict(t.update(bank.accounts, n, balance=len(seen))))
                case "get" | "get for update":
                    row = t.get(bank.accounts, n, for_update=what != "get")
                    seen.append(None if row is None else dict(row))
                case "signal":
                    bank.db.signal("TOUCHED", n=n)
                case "begin":
                    with t.subtransaction() as inner:
                        block(inner, left)
                case "spawn":
                    seen.append(
                        t.spawn(lambda s: dict(s.update(bank.accounts, 1, balance=7))).result()
                    )
                case "commit":
                    if t.parent is not None:
                        return
                case "abort":
                    if t.parent is not None:
                        t.abort()
            seen.append((what, t.path.count("/"), locks_of(bank)))

    try:
        with bank.db.transaction() as top:
            block(top, iter(steps))
    except Exception as error:
        seen.append(type(error).__name__)
    seen.append(bank.committed())
    return seen


@pytest.mark.long
@settings(max_examples=60 * SCALE, deadline=None)
@given(steps=st.lists(STEPS, max_size=14))
def test_first_request_is_early_enough_for_every_program(steps: list[tuple[str, int]]) -> None:
    found = []
    for eager in (False, True):
        bank = opened_bank()
        with closing(bank.db), enrolled_at_begin(forest_of(bank)) if eager else nullcontext():
            found.append(outcomes(bank, steps))
    assert found[0] == found[1]


def test_rule_that_requests_no_lock_costs_the_lock_manager_nothing() -> None:
    bank = opened_bank()
    with closing(bank.db), bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=1)
        known: list[int] = []

        @bank.db.rule(on=adb.event("SEEN"))
        def seen(s: Transaction, o: Occurrence) -> None:
            known.append(len(forest_of(bank).locks.snapshot().transactions))
            assert forest_of(bank).live() == (1, 1)

        bank.db.signal("SEEN")
        assert known == [1]


def test_wait_for_a_hierarchy_whose_child_without_locks_is_open_on_the_thread_is_refused(
    bank: Bank,
) -> None:
    """The top can end only after its child, whose thread sleeps."""

    def child(s: Transaction) -> None:
        with bank.db.transaction() as other:
            other.update(bank.accounts, 1, balance=3)

    with pytest.raises((SelfDeadlock, Deadlock)), bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=2)
        t.spawn(child)
    assert bank.committed()[1] == 10


def test_rollback_only_mark_just_before_the_first_request_is_not_lost(bank: Bank) -> None:
    forest = forest_of(bank)
    got: list[object] = []
    with bank.db.transaction() as t:
        s = t.subtransaction()
        enrol = forest.enrol

        def marked_first(node: TransactionNode) -> None:
            if node is node_of(s):
                node.mark_rollback_only(TransactionAborted("from elsewhere", transaction=0))
            enrol(node)

        with (
            patch.object(forest, "enrol", marked_first),
            pytest.raises(TransactionAborted, match="from elsewhere"),
            s,
        ):
            got.append(s.get(bank.accounts, 1))
        assert not got
        assert t.get(bank.accounts, 1) is not None


def test_dependent_of_a_transaction_without_locks_waits_for_its_end(bank: Bank) -> None:
    """A causal rule of a rule that has touched nothing commits only after the top has."""

    @bank.db.rule(on=adb.event("FIRST"))
    def first(t: Transaction, o: Occurrence) -> None:
        bank.db.signal("SECOND")

    @bank.db.rule(on=adb.event("SECOND"), coupling="causal")
    def second(t: Transaction, o: Occurrence) -> None:
        t.update(bank.accounts, 2, balance=5)

    with bank.db.transaction() as t:
        bank.db.signal("FIRST")
        t.update(bank.accounts, 1, balance=4)
    bank.db.wait_idle()
    assert bank.committed() == {1: 4, 2: 5}
    with pytest.raises(ValueError, match="stop"), bank.db.transaction():
        bank.db.signal("FIRST")
        raise ValueError("stop")
    bank.db.wait_idle()
    assert bank.committed() == {1: 4, 2: 5}


def test_transactions_of_rules_are_freed_without_the_garbage_collector() -> None:
    bank = opened_bank()
    ended: list[weakref.ref[TransactionNode]] = []

    @bank.db.rule(on=adb.event("TOUCHED"), priority=9)
    def noted(t: Transaction, o: Occurrence) -> None:
        ended.append(weakref.ref(node_of(t)))

    gc.collect()
    gc.disable()
    try:
        with closing(bank.db):
            for n in (1, 2):
                bank.db.signal("TOUCHED", n=n)
            assert [node() for node in ended] == [None, None]
    finally:
        gc.enable()
