"""Parallel children: results, errors, aborts, threads."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from activedb import State
from activedb.errors import Deadlock, LockTimeout, TransactionAborted
from tests.databases import PATIENCE_S, in_thread, lock_waits, set_when, until
from tests.transactions.bank import open_bank

if TYPE_CHECKING:
    from activedb import Child, Transaction
    from tests.databases import Place
    from tests.transactions.bank import Bank


def test_spawn_children_really_run_at_the_same_time(bank: Bank) -> None:
    meeting = threading.Barrier(3, timeout=PATIENCE_S)

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
        assert go.wait(PATIENCE_S)
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
    both = threading.Barrier(2, timeout=PATIENCE_S)
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
            assert release.wait(PATIENCE_S)

    holding = threading.Event()
    outsider = in_thread(other)
    assert holding.wait(PATIENCE_S)

    def child(s: Transaction) -> None:
        s.update(bank.accounts, 1, balance=0)
        s.update(bank.accounts, 2, balance=0)

    def parent() -> None:
        waits = lock_waits(bank.db)
        with bank.db.transaction() as t:
            t.spawn(child)
            until(lambda: lock_waits(bank.db) > waits)
            t.abort()

    in_thread(parent).result(PATIENCE_S)
    release.set()
    outsider.result(PATIENCE_S)
    assert bank.committed() == {1: 10, 2: 21}


@pytest.mark.long
def test_error_in_the_parent_takes_along_inferiors_at_every_depth(bank: Bank) -> None:
    started = threading.Event()
    states = []

    def grandchild(s: Transaction) -> None:
        s.insert(bank.accounts, {"id": 3, "balance": 1})
        started.set()
        until(lambda: s.is_rollback_only)
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
            assert started.wait(PATIENCE_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_thread(parent).result(PATIENCE_S)
    assert states == ["refused"]
    assert bank.committed() == {1: 10, 2: 20}


def test_parent_waits_for_a_row_that_its_child_holds(bank: Bank) -> None:
    wrote = threading.Event()
    go_on = threading.Event()

    def child(s: Transaction) -> None:
        s.update(bank.accounts, 1, balance=50)
        wrote.set()
        assert go_on.wait(PATIENCE_S)

    def let_go(waits: int) -> None:
        until(lambda: lock_waits(bank.db) > waits)
        go_on.set()

    def parent() -> None:
        waits = lock_waits(bank.db)
        with bank.db.transaction() as t:
            t.spawn(child)
            assert wrote.wait(PATIENCE_S)
            helper = in_thread(let_go, waits)
            row = t.get(bank.accounts, 1)
            helper.result(PATIENCE_S)
            assert row is not None
            assert row["balance"] == 50

    in_thread(parent).result(PATIENCE_S)


def test_child_may_use_what_its_parent_touched_again_after_the_spawn(bank: Bank) -> None:
    touched = threading.Event()

    def child(s: Transaction) -> None:
        assert touched.wait(PATIENCE_S)
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

    assert in_thread(lambda: bank.db.run(deeper, 50)).result(PATIENCE_S) == 50
    assert bank.committed() == {1: 50}


def test_one_thread_is_enough_for_a_wide_tree_that_is_joined_by_commits(where: Place) -> None:
    bank = open_bank(where.open(threads=1))

    def tree(t: Transaction, depth: int, name: int) -> None:
        if depth == 0:
            t.insert(bank.accounts, {"id": name, "balance": 0})
            return
        for branch in range(3):
            t.spawn(tree, depth - 1, name * 3 + branch)

    in_thread(lambda: bank.db.run(tree, 3, 0)).result(PATIENCE_S)
    assert sorted(bank.committed()) == list(range(27))


# -- what the parent holds while it works --------------------------------------------------


def test_child_waits_for_what_its_working_parent_holds_until_that_joins(bank: Bank) -> None:
    """No lost update between the two, and no deadlock: the parent offers when it joins."""
    touched = threading.Event()
    tries = []

    def child(s: Transaction) -> None:
        tries.append(s)
        assert touched.wait(PATIENCE_S)
        row = s.get(bank.accounts, 1, for_update=True)
        assert row is not None
        s.update(bank.accounts, 1, balance=row["balance"] + 1)

    with bank.db.transaction() as t:
        spawned = t.spawn(child)
        row = t.get(bank.accounts, 1, for_update=True)
        assert row is not None
        touched.set()
        until(lambda: bank.db._forest.offers._awaited)
        t.update(bank.accounts, 1, balance=row["balance"] + 1)
        assert bank.db._forest.offers._awaited
        spawned.result()
    assert len(tries) == 1
    assert bank.committed()[1] == 12
    assert not bank.db._forest.offers._awaited


def test_child_that_begins_late_takes_nothing_from_its_working_parent(where: Place) -> None:
    """The parent holds the row between its read and its write, even if a child begins meanwhile."""
    bank = open_bank(where.open(threads=1), {1: 10})
    go = threading.Event()

    def add_one(s: Transaction) -> None:
        row = s.get(bank.accounts, 1, for_update=True)
        assert row is not None
        s.update(bank.accounts, 1, balance=row["balance"] + 1)

    with bank.db.transaction() as t:
        busy = t.spawn(lambda s: go.wait(PATIENCE_S))
        until(lambda: busy._task.claimed)
        queued = t.spawn(add_one)
        row = t.get(bank.accounts, 1, for_update=True)
        assert row is not None
        go.set()
        until(lambda: bank.db._forest.offers._awaited)
        t.update(bank.accounts, 1, balance=row["balance"] + 1)
        queued.result()
    assert bank.committed() == {1: 12}


def test_grandchild_waits_for_what_its_working_grandparent_holds(bank: Bank) -> None:
    touched = threading.Event()

    def grandchild(s: Transaction) -> None:
        assert touched.wait(PATIENCE_S)
        s.update(bank.accounts, 1, balance=50)

    def child(s: Transaction) -> None:
        s.spawn(grandchild).result()

    with bank.db.transaction() as t:
        t.spawn(child)
        t.update(bank.accounts, 1, balance=11)
        touched.set()
        until(lambda: bank.db._forest.offers._awaited)
    assert bank.committed()[1] == 50


def test_child_and_parent_that_want_what_the_other_holds_are_a_deadlock(bank: Bank) -> None:
    """The child waits for an offer, and the parent, instead of offering, for the child."""
    both = threading.Barrier(2, timeout=PATIENCE_S)
    tries = []

    def child(s: Transaction) -> None:
        tries.append(s)
        s.update(bank.accounts, 2, balance=2)
        if len(tries) == 1:
            both.wait()
        s.update(bank.accounts, 1, balance=1)

    def parent() -> None:
        with bank.db.transaction() as t:
            spawned = t.spawn(child)
            t.get(bank.accounts, 1, for_update=True)
            both.wait()
            until(lambda: bank.db._forest.offers._awaited)
            t.update(bank.accounts, 2, balance=3)
            spawned.result()

    in_thread(parent).result(PATIENCE_S)
    assert len(tries) == 2
    assert bank.committed() == {1: 1, 2: 2}


def test_two_children_that_each_wait_for_an_offer_the_other_keeps_from_being_made(
    bank: Bank,
) -> None:
    """Two parents side by side; each wants what the other's child holds, who wants an offer."""
    ready = threading.Barrier(4, timeout=PATIENCE_S)
    deadlocks: list[str] = []
    have_met: set[str] = set()

    def meet(who: str) -> None:
        if who not in have_met:  # a victim that is tried again meets no other transaction
            have_met.add(who)
            ready.wait()

    def child(s: Transaction, own: int, above: int, name: str) -> None:
        s.update(bank.accounts, own, balance=own)
        meet(f"child of {name}")
        s.update(bank.accounts, above, balance=0)

    def parent(s: Transaction, name: str, holds: int, child_holds: int, wants: int) -> None:
        child_of = s.spawn(child, child_holds, holds, name)
        s.get(bank.accounts, holds, for_update=True)
        meet(name)
        until(lambda: len(bank.db._forest.offers._awaited) == 2 or deadlocks)
        try:
            s.update(bank.accounts, wants, balance=wants)
            child_of.result()
        except Deadlock:
            deadlocks.append(name)
            raise

    def run() -> None:
        with bank.db.transaction() as t:
            for key in (3, 4):
                t.insert(bank.accounts, {"id": key, "balance": key})
            handles = [t.spawn(parent, "a", 1, 3, 4), t.spawn(parent, "b", 2, 4, 3)]
            for handle in handles:
                handle.wait()
            t.abort()

    in_thread(run).result(PATIENCE_S)  # and not after lock_timeout_ms


def test_child_that_is_never_offered_what_it_wants_gives_up_in_time(where: Place) -> None:
    bank = open_bank(where.open(lock_timeout_ms=100), {1: 10, 2: 20})
    touched = threading.Event()
    tries = []

    def child(s: Transaction) -> None:
        tries.append(s)
        assert touched.wait(PATIENCE_S)
        s.update(bank.accounts, 1, balance=1)

    with bank.db.transaction() as t:
        spawned = t.spawn(child)
        t.update(bank.accounts, 1, balance=11)
        touched.set()
        until(lambda: spawned.is_done)
        with pytest.raises(LockTimeout, match="lock_timeout_ms"):
            spawned.result()
    assert len(tries) == 1
    assert bank.committed() == {1: 11, 2: 20}


def test_child_on_the_thread_of_a_superior_that_holds_the_row_is_a_deadlock(bank: Bank) -> None:
    """The waiting thread is the only one that could offer the row."""

    def misuse() -> None:
        with bank.db.transaction() as t:
            s = t.subtransaction()
            s.update(bank.accounts, 1, balance=1)  # all that t holds is offered now
            t.update(bank.accounts, 2, balance=2)
            s.update(bank.accounts, 2, balance=3)

    with pytest.raises(Deadlock):
        in_thread(misuse).result(PATIENCE_S)
    assert bank.committed() == {1: 10, 2: 20}


def test_begin_of_a_child_takes_nothing_from_a_parent_that_waits_for_a_lock(bank: Bank) -> None:
    holding, release = threading.Event(), threading.Event()

    def outsider() -> None:
        with bank.db.transaction() as t:
            t.update(bank.accounts, 2, balance=21)
            holding.set()
            assert release.wait(PATIENCE_S)

    other = in_thread(outsider)
    assert holding.wait(PATIENCE_S)
    waits = lock_waits(bank.db)
    begun = threading.Event()

    def parent(t: Transaction) -> None:
        go = threading.Event()
        t.spawn(lambda s: (go.wait(PATIENCE_S), s.spawn(lambda r: begun.set()).result()))
        in_thread(set_when, lambda: lock_waits(bank.db) > waits, go)
        in_thread(set_when, begun.is_set, release)
        t.update(bank.accounts, 2, balance=22)

    in_thread(bank.db.run, parent).result(PATIENCE_S)
    other.result(PATIENCE_S)
    assert bank.committed()[2] == 22


# -- errors --------------------------------------------------------------------------------


def test_spawn_further_errors_are_notes_of_the_first(bank: Bank) -> None:
    def child(s: Transaction, name: str) -> None:
        error = LookupError(name)
        error.add_note(f"note of {name}")
        raise error

    with pytest.raises(LookupError, match="a") as caught, bank.db.transaction() as t:
        for name in ("a", "b", "c"):
            t.spawn(child, name)
    notes = caught.value.__notes__
    assert notes == [
        "note of a",
        f"child {t.path}/2 failed too: LookupError: b",
        "  note of b",
        f"child {t.path}/3 failed too: LookupError: c",
        "  note of c",
    ]


def test_error_of_the_parent_carries_what_its_children_had_raised(bank: Bank) -> None:
    def fails(s: Transaction) -> None:
        raise LookupError("before")

    def lasts(s: Transaction) -> None:
        until(lambda: s.is_rollback_only)
        s.get(bank.accounts, 1)

    with pytest.raises(ZeroDivisionError) as caught, bank.db.transaction() as t:
        failed = t.spawn(fails)
        t.spawn(lasts)
        seen = t.spawn(fails)
        with pytest.raises(LookupError):
            seen.result()
        failed.wait()
        raise ZeroDivisionError
    # Neither what was seen nor what the abort itself did is news.
    assert caught.value.__notes__ == [f"child {t.path}/1 failed too: LookupError: before"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_child_that_ends_the_program_aborts_all_and_lets_it_end(
    bank: Bank, kind: type[BaseException]
) -> None:
    def child(s: Transaction) -> None:
        s.update(bank.accounts, 1, balance=0)
        raise kind("out")

    def never(s: Transaction) -> None:
        until(lambda: s.is_rollback_only)
        s.get(bank.accounts, 1)

    def parent() -> None:
        with bank.db.transaction() as t:
            t.spawn(child)
            t.spawn(never)

    with pytest.raises(kind, match="out"):
        in_thread(parent).result(PATIENCE_S)
    assert bank.committed() == {1: 10, 2: 20}


@pytest.mark.long
def test_interrupt_while_the_parent_waits_ends_the_children_first(bank: Bank) -> None:
    """The waiting parent is interrupted, as on Ctrl-C, and no child outlives it."""
    started = threading.Event()
    ended = []
    waiting = threading.get_ident()

    def child(s: Transaction) -> None:
        started.set()
        try:
            until(lambda: s.is_rollback_only)
            s.get(bank.accounts, 1)
        finally:
            ended.append(s)

    def interrupt(handle: Child[None]) -> None:
        until(lambda: handle._task.sleepers)
        signal.pthread_kill(waiting, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), bank.db.transaction() as t:
        handle = t.spawn(child)
        assert started.wait(PATIENCE_S)
        helper = in_thread(interrupt, handle)
        handle.result()
    helper.result(PATIENCE_S)
    assert len(ended) == 1
    assert t.state is State.ABORTED
    assert ended[0].state is State.ABORTED
    assert not bank.db._forest.locks.snapshot().transactions


def test_result_of_an_ended_parents_child_is_still_there(bank: Bank) -> None:
    with bank.db.transaction() as t:
        handle = t.spawn(lambda s: 7)
    assert handle.result() == 7
    assert in_thread(handle.result).result(PATIENCE_S) == 7
