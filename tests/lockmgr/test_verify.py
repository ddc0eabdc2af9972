"""The verifying table notices each kind of damage, so that silence in the other tests counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockmgr import InvariantViolated, LockTable, Mode, VerifyingLockTable
from lockmgr._modes import UNIT
from lockmgr._structures import EndWait, Request

A, B = ("a",), ("b",)


@pytest.fixture
def table() -> VerifyingLockTable:
    """1 retains X on a, which its child 2 holds and 9 waits for; 2 and 9 hold S on b."""
    table = VerifyingLockTable()
    table.begin(1)
    table.begin(2, 1)
    table.begin(9)
    table.request(1, A, Mode.X)
    table.offer(1)
    table.request(2, A, Mode.X)
    table.request(2, B, Mode.S)
    table.request(9, B, Mode.S)
    table.request(9, A, Mode.S)
    return table


def _second_holder(table: LockTable) -> None:
    table._entries[B].hold(table._transactions[1], Mode.X)


def _holder_outside_the_retainers_sphere(table: LockTable) -> None:
    entry = table._entries[A]
    entry.drop(table._transactions[2].held.pop(entry))
    entry.hold(table._transactions[9], Mode.S)


def _unrelated_retainers(table: LockTable) -> None:
    table._entries[A].retain(table._transactions[9], Mode.IS)


def _lost_wake_up(table: LockTable) -> None:
    entry = table._entries[B]
    entry.enqueue(Request(table._transactions[1], entry, Mode.S, False))


def _cycle(table: LockTable) -> None:
    entry = table._entries[B]
    entry.enqueue(Request(table._transactions[2], entry, Mode.X, True))


def _idle_entry(table: LockTable) -> None:
    entry = table._entries[B]
    for lock in entry.owners():
        entry.drop(lock)


def _ended_owner(table: LockTable) -> None:
    table._entries[B].hold(table._transactions.pop(1), Mode.S)


def _one_sided_held_lock(table: LockTable) -> None:
    table._transactions[2].held.popitem()


def _one_sided_retained_lock(table: LockTable) -> None:
    table._transactions[1].retained.clear()


def _one_sided_ownership(table: LockTable) -> None:
    entry = table._entries[B]
    table._transactions[1].held[entry] = table._transactions[2].held[entry]


def _one_sided_retention(table: LockTable) -> None:
    entry = table._entries[B]
    table._transactions[1].retained[entry] = table._transactions[2].held[entry]


def _broken_list(table: LockTable) -> None:
    entry = table._entries[B]
    assert entry.locks is not None
    entry.locks.previous = entry.locks


def _wrong_tally_of_requests(table: LockTable) -> None:
    table._entries[A].waiting_tally += UNIT[Mode.S]


def _cause_of_nobody(table: LockTable) -> None:
    table._transactions[1].dependents = {9: table._transactions[9]}


def _effect_of_nothing(table: LockTable) -> None:
    table._transactions[9].causes = {1: table._transactions[1]}


def _one_sided_wait_for_an_end(table: LockTable) -> None:
    table._transactions[1].waiting = EndWait(table._transactions[1], table._transactions[9])


def _unasked_wait_for_an_end(table: LockTable) -> None:
    table._transactions[1].awaited_by = {9: table._transactions[9]}


def _wrong_tally_of_held_locks(table: LockTable) -> None:
    table._entries[B].held_tally += UNIT[Mode.S]


def _wrong_tally_of_retained_locks(table: LockTable) -> None:
    table._entries[B].retained_tally += UNIT[Mode.S]


def _request_without_a_place(table: LockTable) -> None:
    table._entries[A].queue.clear()


def _place_without_a_request(table: LockTable) -> None:
    table._transactions[9].waiting = None


def _child_of_nobody(table: LockTable) -> None:
    table._transactions[1].children = None


def _strange_child(table: LockTable) -> None:
    table._transactions[1].children = {2: table._transactions[2], 9: table._transactions[9]}


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (_second_holder, "I1 holders agree"),
        (_holder_outside_the_retainers_sphere, "I6 retainers guard"),
        (_unrelated_retainers, "I6 retainers guard"),
        (_lost_wake_up, "I2 waiters are blocked"),
        (_cycle, "I3 no deadlock"),
        (_idle_entry, "I5 nothing is left behind"),
        (_ended_owner, "I5 nothing is left behind"),
        (_one_sided_held_lock, "I4 views agree"),
        (_one_sided_retained_lock, "I4 views agree"),
        (_one_sided_ownership, "I4 views agree"),
        (_one_sided_retention, "I4 views agree"),
        (_broken_list, "I4 views agree"),
        (_wrong_tally_of_requests, "I4 views agree"),
        (_wrong_tally_of_held_locks, "I4 views agree"),
        (_wrong_tally_of_retained_locks, "I4 views agree"),
        (_request_without_a_place, "I4 views agree"),
        (_place_without_a_request, "I4 views agree"),
        (_child_of_nobody, "I7 parents outlive children"),
        (_strange_child, "I7 parents outlive children"),
        (_cause_of_nobody, "I8 ties agree"),
        (_effect_of_nothing, "I8 ties agree"),
        (_one_sided_wait_for_an_end, "I8 ties agree"),
        (_unasked_wait_for_an_end, "I8 ties agree"),
    ],
)
def test_verify_damaged_table_names_the_broken_invariant(
    table: VerifyingLockTable, damage: Callable[[LockTable], None], invariant: str
) -> None:
    table.verify()
    damage(table)
    with pytest.raises(InvariantViolated, match=f"^{invariant}"):
        table.verify()


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.begin(10),
        lambda table: table.request(2, A, Mode.S),
        lambda table: table.cancel(1),
        lambda table: table.downgrade(2, A, Mode.S),
        lambda table: table.offer(2),
        lambda table: table.commit(2),
        lambda table: table.abort(2),
    ],
    ids=["begin", "request", "cancel", "downgrade", "offer", "commit", "abort"],
)
def test_verify_every_call_that_changes_the_table_checks_it(
    table: VerifyingLockTable, call: Callable[[VerifyingLockTable], object]
) -> None:
    _wrong_tally_of_retained_locks(table)
    with pytest.raises(InvariantViolated):
        call(table)
