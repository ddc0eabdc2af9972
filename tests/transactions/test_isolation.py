"""Serializability: deadlocks, phantoms, lost updates, and what an aborted child leaves locked."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, get_args

import pytest
from sqlalchemy import delete, func, insert, select
from sqlalchemy import update as sql_update

from activedb.config import Settings
from activedb.errors import Deadlock, LockTimeout, SerializationConflict
from lockmgr import LockTable, LockUsageError
from tests.databases import PATIENCE_S, in_thread, lock_waits, until, waits_at_the_server
from tests.transactions.bank import open_bank

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    import activedb as adb
    from activedb import Transaction
    from tests.databases import Place
    from tests.transactions.bank import Bank

POLICIES = get_args(Settings.model_fields["victim_policy"].annotation)
STRESS_S = 1.5


def add(t: Transaction, bank: Bank, key: int, amount: int) -> None:
    row = t.get(bank.accounts, key, for_update=True)
    assert row is not None
    t.update(bank.accounts, key, balance=row["balance"] + amount)


def test_siblings_in_a_deadlock_are_both_done_after_a_retry(bank: Bank) -> None:
    tries = []
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def child(s: Transaction, first: int, second: int) -> None:
        tries.append(first)
        add(s, bank, first, 1)
        if len(tries) <= 2:
            both.wait()
        add(s, bank, second, 1)

    with bank.db.transaction() as t:
        t.spawn(child, 1, 2)
        t.spawn(child, 2, 1)
    assert bank.committed() == {1: 12, 2: 22}
    assert len(tries) == 3, "one victim, tried once more"


@pytest.mark.parametrize("policy", POLICIES)
def test_hierarchies_in_a_deadlock_are_both_done_after_a_retry(where: Place, policy: str) -> None:
    bank = open_bank(where.open(victim_policy=policy), {1: 10, 2: 20})
    both = threading.Barrier(2, timeout=PATIENCE_S)
    tries = []

    def work(t: Transaction, first: int, second: int) -> None:
        tries.append(first)
        with t.subtransaction() as s:
            add(s, bank, first, 1)
        if len(tries) <= 2:
            both.wait()
        with t.subtransaction() as s:
            add(s, bank, second, 1)

    workers = [in_thread(bank.db.run, work, 1, 2), in_thread(bank.db.run, work, 2, 1)]
    for worker in workers:
        worker.result(PATIENCE_S)
    assert bank.committed() == {1: 12, 2: 22}
    assert len(tries) >= 3


def test_deadlock_outside_of_run_names_the_victim_and_shows_the_cycle(bank: Bank) -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def work(first: int, second: int) -> None:
        with bank.db.transaction() as t:
            t.update(bank.accounts, first, balance=0)
            both.wait()
            t.update(bank.accounts, second, balance=0)

    workers = [in_thread(work, 1, 2), in_thread(work, 2, 1)]
    errors = [worker.exception(PATIENCE_S) for worker in workers]
    victims = [error for error in errors if error is not None]
    assert len(victims) == 1
    assert isinstance(victims[0], Deadlock)
    assert "accounts" in str(victims[0])
    assert bank.committed() == {1: 0, 2: 0}


def test_upgrades_of_a_shared_lock_deadlock_and_lose_no_update(bank: Bank) -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)
    tries: list[int] = []

    def work(t: Transaction) -> None:
        tries.append(1)
        row = t.get(bank.accounts, 1)
        assert row is not None
        if len(tries) <= 2:
            both.wait()
        t.update(bank.accounts, 1, balance=row["balance"] + 1)

    workers = [in_thread(bank.db.run, work) for _ in range(2)]
    for worker in workers:
        worker.result(PATIENCE_S)
    assert bank.committed()[1] == 12


def test_policies_of_the_settings_are_those_of_the_lock_manager() -> None:
    with pytest.raises(LockUsageError) as refused:
        LockTable("nobody")
    assert str(refused.value).endswith("choose from " + ", ".join(POLICIES))


def test_rows_past_the_number_set_are_locked_by_their_table_and_by_nobody_else(
    where: Place,
) -> None:
    bank = open_bank(where.open(lock_escalation=3), dict.fromkeys(range(6), 10))
    before = bank.db._forest.locks.counters.escalations

    def count(s: Transaction, keys: range) -> None:
        for key in keys:
            add(s, bank, key, 1)

    with bank.db.transaction() as t:
        t.spawn(count, range(2)).result()
        t.spawn(count, range(2, 4)).result()
        assert bank.db._forest.locks.counters.escalations > before
        t.spawn(count, range(6)).result()
        waiting = lock_waits(bank.db)
        other = in_thread(bank.db.run, lambda t: t.get(bank.accounts, 5))
        until(lambda: lock_waits(bank.db) > waiting)
        assert not other.done()
        count(t, range(1))
    assert other.result(PATIENCE_S)["balance"] == 11
    assert bank.committed() == {0: 13, **dict.fromkeys(range(1, 4), 12), 4: 11, 5: 11}


def test_insert_of_a_phantom_waits_for_the_scan(bank: Bank) -> None:
    scanned, go_on = threading.Event(), threading.Event()

    def scan() -> list[int]:
        counts = []
        with bank.db.transaction() as t:
            for _ in range(2):
                counts.append(t.query(select(func.count()).select_from(bank.accounts))[0][0])
                scanned.set()
                assert go_on.wait(PATIENCE_S)
        return counts

    scanner = in_thread(scan)
    assert scanned.wait(PATIENCE_S)
    waits = lock_waits(bank.db)
    inserter = in_thread(bank.db.run, lambda t: t.insert(bank.accounts, {"id": 3, "balance": 1}))
    until(lambda: lock_waits(bank.db) > waits)
    assert not inserter.done()
    go_on.set()
    assert scanner.result(PATIENCE_S) == [2, 2]
    inserter.result(PATIENCE_S)
    assert bank.committed() == {1: 10, 2: 20, 3: 1}


def test_scan_waits_for_an_uncommitted_write(bank: Bank) -> None:
    wrote, go_on = threading.Event(), threading.Event()

    def write() -> None:
        with bank.db.transaction() as t:
            t.insert(bank.accounts, {"id": 3, "balance": 1})
            wrote.set()
            assert go_on.wait(PATIENCE_S)

    writer = in_thread(write)
    assert wrote.wait(PATIENCE_S)
    waits = lock_waits(bank.db)
    scanner = in_thread(bank.committed)
    until(lambda: lock_waits(bank.db) > waits)
    go_on.set()
    writer.result(PATIENCE_S)
    assert scanner.result(PATIENCE_S) == {1: 10, 2: 20, 3: 1}


def test_absent_row_that_was_read_stays_absent(bank: Bank) -> None:
    """Reading that a key is not there is a read like any other."""
    looked, go_on = threading.Event(), threading.Event()

    def look() -> list[object]:
        with bank.db.transaction() as t:
            seen: list[object] = [t.get(bank.accounts, 3)]
            looked.set()
            assert go_on.wait(PATIENCE_S)
            seen.append(t.get(bank.accounts, 3))
            return seen

    looker = in_thread(look)
    assert looked.wait(PATIENCE_S)
    waits = lock_waits(bank.db)
    inserter = in_thread(bank.db.run, lambda t: t.insert(bank.accounts, {"id": 3, "balance": 1}))
    until(lambda: lock_waits(bank.db) > waits)
    go_on.set()
    assert looker.result(PATIENCE_S) == [None, None]
    inserter.result(PATIENCE_S)


def come_and_go(t: Transaction, bank: Bank) -> None:
    t.insert(bank.accounts, {"id": 3})
    t.delete(bank.accounts, 3)


def come_and_go_twice(t: Transaction, bank: Bank) -> None:
    come_and_go(t, bank)
    come_and_go(t, bank)


def come_and_go_by_statements(t: Transaction, bank: Bank) -> None:
    t.execute(insert(bank.accounts), [{"id": 3}])
    t.execute(delete(bank.accounts).where(bank.accounts.c.id == 3))


def come_and_go_by_children(t: Transaction, bank: Bank) -> None:
    t.spawn(lambda s: s.insert(bank.accounts, {"id": 3})).result()
    t.spawn(lambda s: s.delete(bank.accounts, 3)).result()


def come_in_a_child_that_aborts(t: Transaction, bank: Bank) -> None:
    with t.subtransaction() as s:
        s.insert(bank.accounts, {"id": 3})
        s.abort()


def stay_away(t: Transaction, bank: Bank) -> None:
    pass


@pytest.mark.parametrize(
    "act",
    [
        stay_away,
        come_and_go,
        come_and_go_twice,
        come_and_go_by_statements,
        come_and_go_by_children,
        come_in_a_child_that_aborts,
    ],
)
def test_key_that_plain_sql_inserts_after_it_was_read_as_absent_is_a_conflict(
    bank: Bank, act: Callable[[Transaction, Bank], None]
) -> None:
    with pytest.raises(SerializationConflict), bank.db.transaction() as t:
        assert t.get(bank.accounts, 3) is None
        act(t, bank)
        in_thread(insert_by_plain_sql, bank).result(PATIENCE_S)
        t.update(bank.accounts, 1, balance=7)
    assert bank.committed() == {1: 10, 2: 20, 3: 9}


def insert_by_plain_sql(bank: Bank) -> None:
    with bank.db.connection() as connection:
        connection.execute(insert(bank.accounts).values(id=3, balance=9))
        connection.commit()


def waits(db: adb.Database) -> bool:
    """Return whether a transaction waits for a lock at this moment, here or at the server."""
    return bool(db._forest.locks.snapshot().queue) or waits_at_the_server(db)


@pytest.mark.parametrize("scan", [False, True])
def test_read_of_an_aborted_child_does_not_go_stale_in_the_hierarchy(
    bank: Bank, scan: bool
) -> None:
    """An aborted child's locks are gone, so its reads must not be used any more (or be kept)."""

    def parent() -> None:
        with bank.db.transaction() as t:
            with t.subtransaction() as s:
                s.get(bank.accounts, 1, for_update=True)
                if scan:
                    s.query(select(bank.accounts))
                s.abort()
            other = in_thread(bank.db.run, lambda u: add(u, bank, 1, 1))
            others.append(other)
            until(lambda: other.done() or waits(bank.db))
            add(t, bank, 1, 1)

    others: list[Future[None]] = []
    in_thread(parent).result(PATIENCE_S)
    others[0].result(PATIENCE_S)
    assert bank.committed()[1] == 12, "an update was lost"


def test_absence_read_by_an_aborted_child_does_not_go_stale(bank: Bank) -> None:
    """Either the other insert waits for us, or we see it."""
    others: list[Future[object]] = []

    def parent(t: Transaction) -> None:
        with t.subtransaction() as s:
            assert s.get(bank.accounts, 3) is None
            s.abort()
        others.append(
            in_thread(bank.db.run, lambda u: u.insert(bank.accounts, {"id": 3, "balance": 5}))
        )
        until(lambda: others[0].done() or waits(bank.db))
        came_first = others[0].done()
        row = t.get(bank.accounts, 3)
        assert (row is not None) == came_first

    with bank.db.transaction() as t:
        parent(t)
    others[0].result(PATIENCE_S)
    assert bank.committed() == {1: 10, 2: 20, 3: 5}


def test_lock_wait_ends_in_a_timeout_as_set(where: Place) -> None:
    """`lock_timeout_ms` is how long a lock request waits before it fails."""
    bank = open_bank(where.open(lock_timeout_ms=200, retries_max=0), {1: 10})
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with bank.db.transaction() as t:
            t.update(bank.accounts, 1, balance=11)
            holding.set()
            assert release.wait(PATIENCE_S)

    holder = in_thread(hold)
    assert holding.wait(PATIENCE_S)
    waiter = in_thread(bank.db.run, lambda t: t.get(bank.accounts, 1))
    try:
        with pytest.raises(LockTimeout):
            waiter.result(PATIENCE_S)
    finally:
        release.set()
        holder.result(PATIENCE_S)
    assert bank.committed() == {1: 11}


def test_lock_timeouts_do_not_multiply_with_the_depth(where: Place) -> None:
    """The last resort must end: tries at every level would make it 6 to the power of the depth."""
    bank = open_bank(where.open(lock_timeout_ms=100), {1: 10})
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with bank.db.transaction() as t:
            t.update(bank.accounts, 1, balance=11)
            holding.set()
            assert release.wait(PATIENCE_S)

    def deeper(s: Transaction, depth: int) -> None:
        if depth:
            s.spawn(deeper, depth - 1).result()
        else:
            s.get(bank.accounts, 1)

    holder = in_thread(hold)
    assert holding.wait(PATIENCE_S)

    def work() -> None:
        with bank.db.transaction() as t:
            deeper(t, 3)

    worker = in_thread(work)
    try:
        with pytest.raises(LockTimeout):
            worker.result(PATIENCE_S)
    finally:
        release.set()
        holder.result(PATIENCE_S)
    assert bank.db._forest.locks.counters.timeouts == 1


def test_two_readers_of_absent_rows_and_scans_do_not_disturb_each_other(bank: Bank) -> None:
    """Both only read, so both must commit at the first try, without waiting."""
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def look() -> None:
        with bank.db.transaction() as t:
            t.query(select(bank.accounts))
            assert t.get(bank.accounts, 77) is None
            both.wait()

    before = lock_waits(bank.db)
    readers = [in_thread(look) for _ in range(2)]
    for reader in readers:
        reader.result(PATIENCE_S)
    assert lock_waits(bank.db) == before, "readers waited for each other"


def test_reader_of_an_absent_row_commits_beside_an_open_scan(bank: Bank) -> None:
    scanned, go_on = threading.Event(), threading.Event()

    def scan() -> None:
        with bank.db.transaction() as t:
            t.query(select(bank.accounts))
            scanned.set()
            assert go_on.wait(PATIENCE_S)

    scanner = in_thread(scan)
    assert scanned.wait(PATIENCE_S)
    reader = in_thread(bank.db.run, lambda t: t.get(bank.accounts, 77))
    try:
        assert reader.result(PATIENCE_S) is None
    finally:
        go_on.set()
        scanner.result(PATIENCE_S)


@pytest.mark.long
def test_threads_that_move_money_keep_the_sum_and_lose_no_update(where: Place, scale: int) -> None:
    bank = open_bank(where.open(threads=4), {**dict.fromkeys(range(5), 100), 99: 0})
    accounts = bank.accounts
    stop = time.monotonic() + STRESS_S * scale
    moved = [0] * 4
    sums: list[int] = []

    def transfer(t: Transaction, chance: random.Random) -> None:
        source, target = chance.sample(range(5), 2)
        amount = chance.randint(1, 9)
        style = chance.randrange(4)
        if style == 0:
            left = t.spawn(add, bank, source, -amount)
            t.spawn(add, bank, target, amount)
            left.result()
        elif style == 1:
            with t.subtransaction() as s:
                add(s, bank, source, -amount)
                with s.subtransaction() as r:
                    add(r, bank, target, amount)
            with t.subtransaction() as s:
                add(s, bank, source, 1000)
                s.abort()
        elif style == 2:
            t.execute(
                sql_update(accounts)
                .where(accounts.c.id == source)
                .values(balance=accounts.c.balance - amount)
            )
            add(t, bank, target, amount)
        else:
            row = t.get(accounts, source)
            assert row is not None
            t.update(accounts, source, balance=row["balance"] - amount)
            add(t, bank, target, amount)
        add(t, bank, 99, 1)

    def mover(number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < stop or not moved[number]:
            try:
                bank.db.run(transfer, chance)
            except (Deadlock, SerializationConflict):
                continue  # tried often enough; nothing has happened
            moved[number] += 1

    def auditor() -> None:
        total = select(func.sum(accounts.c.balance)).where(accounts.c.id < 99)
        while time.monotonic() < stop or not sums:
            with contextlib.suppress(Deadlock, SerializationConflict):
                sums.append(bank.db.run(lambda t: t.query(total)[0][0]))

    workers = [in_thread(mover, number) for number in range(len(moved))] + [in_thread(auditor)]
    for worker in workers:
        worker.result(STRESS_S * scale + PATIENCE_S)
    balances = bank.committed()
    assert balances.pop(99) == sum(moved) > 0
    assert sum(b for b in balances.values() if b is not None) == 500
    assert set(sums) == {500}
