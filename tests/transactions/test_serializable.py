"""The policy that leaves conflicts between hierarchies to the server's SERIALIZABLE."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    Integer,
    String,
    Table,
    create_engine,
    func,
    insert,
    select,
    text,
    update,
)

import activedb as adb
from activedb.errors import (
    ConfigurationError,
    ConnectionLost,
    DefinitionError,
    LockNotAvailable,
    RowExists,
    SerializationConflict,
    TableOwned,
    UniqueViolation,
)
from lockmgr import Mode
from tests.databases import PATIENCE_S, in_thread, lock_waits, until
from tests.nodes import node_of
from tests.transactions.bank import Bank, open_bank

if TYPE_CHECKING:
    from concurrent.futures import Future

    from activedb import Transaction
    from tests.databases import Place


@pytest.fixture
def bank(there: Place) -> Bank:
    """Accounts 1 and 2 with balances 10 and 20, in a database with this policy."""
    return open_bank(there.open(isolation="serializable"), {1: 10, 2: 20})


def balance(bank: Bank, t: Transaction, key: int, *, for_update: bool = False) -> int:
    row = t.get(bank.accounts, key, for_update=for_update)
    assert row is not None
    return int(row["balance"])


class Meeting:
    """Two transactions, each of which goes on to its second half when both have done the first.

    One that is refused tries again when the other has ended: the server refuses it before it lets
    others see the commit of the other, and until then it would refuse the next try, too.
    """

    def __init__(self, bank: Bank):
        self.bank = bank
        self.tries = [0, 0]
        self._both = threading.Barrier(2, timeout=PATIENCE_S)
        self._has_ended = [False, False]

    def run(self, first: Any, second: Any) -> list[Future[Any]]:
        """Run ``first(t, n)`` and then ``second(t, n, found)`` in transactions 0 and 1."""

        def run_one(n: int) -> Any:
            try:
                return self.bank.db.run(work, n)
            finally:
                self._has_ended[n] = True

        def work(t: Transaction, n: int) -> Any:
            self.tries[n] += 1
            if self.tries[n] > 1:
                until(lambda: self._has_ended[1 - n] or self.tries[1 - n] > 1)
            found = first(t, n)
            if self.tries[n] == 1:
                self._both.wait()
            return second(t, n, found)

        both = [in_thread(run_one, n) for n in range(2)]
        for each in both:
            each.exception(PATIENCE_S)
        return both


# -- between hierarchies -----------------------------------------------------------------------


def test_reader_sees_its_snapshot_and_never_waits(bank: Bank) -> None:
    with bank.db.transaction() as reader:
        assert balance(bank, reader, 1) == 10
        bank.db.run(lambda t: t.update(bank.accounts, 1, balance=11))
        assert balance(bank, reader, 1) == 10
        assert reader.query(select(func.sum(bank.accounts.c.balance))) == [(30,)]
    assert lock_waits(bank.db) == 0
    assert bank.committed()[1] == 11


def test_write_skew_is_refused_and_tried_again(bank: Bank) -> None:
    def look(t: Transaction, n: int) -> int:
        return balance(bank, t, 1) + balance(bank, t, 2)

    def take(t: Transaction, n: int, total: int) -> None:
        if total >= 30:
            t.update(bank.accounts, n + 1, balance=balance(bank, t, n + 1) - 30)

    meeting = Meeting(bank)
    for each in meeting.run(look, take):
        each.result()
    assert sorted(meeting.tries) == [1, 2]
    assert sum(v or 0 for v in bank.committed().values()) == 0, "one of them has taken nothing"
    assert bank.db.admin.counters()["retries_after_serialization_conflicts"] == 1


@pytest.mark.parametrize("form", ["predicate", "table", "text", "absent"])
def test_phantom_is_refused_and_tried_again(bank: Bank, form: str) -> None:
    notes = bank.notes.c

    def count(t: Transaction, n: int) -> int:
        if form == "absent":
            return int(t.get(bank.notes, n + 1) is not None or t.get(bank.notes, 2 - n) is not None)
        if form == "text":
            return int(t.query(text("SELECT count(*) FROM notes WHERE text = 'guard'"))[0][0])
        wanted = select(func.count()).select_from(bank.notes)
        if form == "predicate":
            wanted = wanted.where(notes.text == "guard")
        return int(t.query(wanted)[0][0])

    def add(t: Transaction, n: int, count: int) -> None:
        if count == 0:
            t.insert(bank.notes, {"id": n + 1, "text": "guard"})

    for each in Meeting(bank).run(count, add):
        each.result()
    assert bank.committed_notes() == ["guard"]


def test_two_that_insert_one_key_do_not_both_take_it_for_absent(bank: Bank) -> None:
    def insert_one(t: Transaction, n: int, found: None) -> str:
        try:
            t.insert(bank.notes, {"id": 1, "text": f"of {n}"})
        except RowExists:
            return "exists"
        return "inserted"

    both = Meeting(bank).run(lambda t, n: t.get(bank.notes, 1), insert_one)
    assert sorted(each.result() for each in both) == ["exists", "inserted"]


def test_what_a_reader_has_seen_counts_although_it_writes_nothing(bank: Bank) -> None:
    """The anomaly of a transaction that only reads (Fekete, O'Neil, O'Neil 2004)."""
    skewed = bank.db.transaction()
    with pytest.raises(SerializationConflict), skewed as t:
        assert balance(bank, t, 2) == 20
        bank.db.run(lambda deposit: deposit.update(bank.accounts, 2, balance=40))
        with bank.db.transaction() as reader:
            assert balance(bank, reader, 1) == 10
            assert balance(bank, reader, 2) == 40
        t.update(bank.accounts, 1, balance=-1)
    assert bank.committed() == {1: 10, 2: 40}


def test_reader_whose_commit_was_lost_has_not_committed(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server forgets what was read with the connection, though nothing was written."""
    db = bank.db
    backends: list[int | None] = []

    def cut(point: str) -> None:
        if point == "before commit" and backends:
            with db.connection() as c:
                c.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": backends.pop()})
                c.commit()

    monkeypatch.setattr(db._store, "trigger", cut)
    with pytest.raises(ConnectionLost) as caught, db.transaction() as t:
        balance(bank, t, 1)
        backends.append(node_of(t).hierarchy.session.backend)
    assert caught.value.committed is False
    tries = []

    def look(t: Transaction) -> int:
        found = balance(bank, t, 1)
        tries.append(found)
        if len(tries) == 1:
            backends.append(node_of(t).hierarchy.session.backend)
        return found

    assert db.run(look) == 10
    assert len(tries) == 2


def test_row_refused_because_of_the_snapshot_is_tried_again(there: Place) -> None:
    """Two look for a value and insert it: the second finds it in its next try.

    The table is large and analysed, so that the server looks by the index of the constraint, and
    sees no conflict other than the duplicate.
    """
    db = there.open(isolation="serializable")
    users = Table(
        "users",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("email", String(20), unique=True),
    )
    db.create_all()
    fill(db, users, [{"id": n, "email": f"u{n}"} for n in range(5_000)])
    looked, inserted = threading.Event(), threading.Event()
    tries = []

    def register(t: Transaction) -> bool:
        found = t.query(select(users.c.id).where(users.c.email == "new"))
        tries.append(found)
        if len(tries) == 1:
            looked.set()
            assert inserted.wait(PATIENCE_S)
        if not found:
            t.insert(users, {"id": 9_000, "email": "new"})
        return not found

    registering = in_thread(db.run, register)
    assert looked.wait(PATIENCE_S)
    db.run(lambda t: t.insert(users, {"id": 9_999, "email": "new"}))
    inserted.set()
    assert registering.result(PATIENCE_S) is False
    assert tries == [[], [(9_999,)]]
    for refused in (
        lambda: db.run(lambda t: t.insert(users, {"id": 9_001, "email": "new"})),
        lambda: insert_in_block(db, users),
    ):
        with pytest.raises(UniqueViolation, match="new"):
            refused()


def fill(db: adb.Database, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows as another program, and let the server know how many there are."""
    with db.connection() as c:
        c.execute(insert(table), rows)
        c.execute(text(f"ANALYZE {table.name}"))
        c.commit()


def insert_in_block(db: adb.Database, users: Table) -> None:
    with db.transaction() as t:
        t.insert(users, {"id": 9_002, "email": "new"})


def test_inserts_of_neighbouring_keys_do_not_conflict(bank: Bank) -> None:
    """A read of an absent key would conflict with every insert beside it in the index."""
    db = bank.db
    fill(db, bank.accounts, [{"id": n, "balance": 0} for n in range(100, 5_000)])
    both = threading.Barrier(2, timeout=PATIENCE_S)
    tries = []

    def add(t: Transaction, key: int) -> None:
        tries.append(key)
        t.insert(bank.accounts, {"id": key, "balance": key})
        if len(tries) <= 2:
            both.wait()
        t.insert(bank.notes, {"text": str(key)})

    for each in [in_thread(db.run, add, key) for key in (5_000, 5_001)]:
        each.result(PATIENCE_S)
    assert sorted(tries) == [5_000, 5_001]
    with pytest.raises(RowExists):
        db.run(add, 5_000)


def test_locked_row_is_waited_for_here_before_the_snapshot_is_taken(bank: Bank) -> None:
    db, accounts = bank.db, bank.accounts

    def add(t: Transaction) -> None:
        t.update(accounts, 1, balance=balance(bank, t, 1, for_update=True) + 1)

    threads = [in_thread(lambda: [db.run(add) for _ in range(25)]) for _ in range(4)]
    for each in threads:
        each.result(PATIENCE_S)
    assert bank.committed()[1] == 110
    assert "transactions_retried" not in db.admin.counters()


def test_function_that_met_a_conflict_locks_for_writing_what_it_reads(bank: Bank) -> None:
    modes: list[Mode] = []

    def look(t: Transaction, n: int) -> int:
        found = balance(bank, t, 1)
        node = node_of(t)
        modes.append(node.held[f"accounts{node.hierarchy.space}", (1,)])
        return found

    def add(t: Transaction, n: int, found: int) -> None:
        t.update(bank.accounts, 1, balance=found + 1)

    for each in Meeting(bank).run(look, add):
        each.result()
    assert modes == [Mode.S, Mode.S, Mode.X]
    assert bank.committed()[1] == 12


def test_claimed_rows_are_left_out_by_others(bank: Bank) -> None:
    first = select(bank.accounts.c.id).order_by(bank.accounts.c.id).limit(1)
    claim = first.with_for_update(skip_locked=True)
    with bank.db.transaction() as t:
        assert t.query(claim) == [(1,)]
        assert in_thread(bank.db.run, lambda u: u.query(claim)).result(PATIENCE_S) == [(2,)]
        look = in_thread(
            bank.db.run, lambda u: u.get(bank.accounts, 1, for_update=True, nowait=True)
        )
        with pytest.raises(LockNotAvailable):
            look.result(PATIENCE_S)


def test_rows_claimed_in_another_process_are_left_out(there: Place) -> None:
    banks = [open_bank(there.open(isolation="serializable"), {1: 10, 2: 20})]
    banks.append(open_bank(there.open(isolation="serializable")))
    found = []
    with ExitStack() as stack:
        for bank in banks:
            claim = select(bank.accounts.c.id).order_by(bank.accounts.c.id).limit(1)
            t = stack.enter_context(bank.db.transaction())
            found += t.query(claim.with_for_update(skip_locked=True))
    assert found == [(1,), (2,)]


def test_row_that_cannot_be_claimed_stays_open_to_other_hierarchies(bank: Bank) -> None:
    """A sibling has read it: the claim leaves it out, and other hierarchies may write it."""
    claim = select(bank.accounts.c.id).order_by(bank.accounts.c.id).limit(1)
    read, claimed = threading.Event(), threading.Event()

    def reads(t: Transaction) -> None:
        balance(bank, t, 1)
        read.set()
        assert claimed.wait(PATIENCE_S)

    with bank.db.transaction() as t:
        reading = t.spawn(reads)
        assert read.wait(PATIENCE_S)
        with t.subtransaction() as child:
            assert child.query(claim.with_for_update(skip_locked=True)) == [(2,)]
        in_thread(bank.db.run, lambda u: u.update(bank.accounts, 1, balance=11)).result(PATIENCE_S)
        claimed.set()
        reading.result()


# -- within one hierarchy ----------------------------------------------------------------------


def test_children_of_one_transaction_are_kept_apart_by_locks(bank: Bank) -> None:
    def add(t: Transaction) -> None:
        t.update(bank.accounts, 1, balance=balance(bank, t, 1) + 1)

    def adds(t: Transaction) -> None:
        for _ in range(8):
            t.spawn(add)

    bank.db.run(adds)
    assert bank.committed()[1] == 18


def test_phantoms_among_children_are_prevented(bank: Bank) -> None:
    guards = select(func.count()).where(bank.notes.c.text == "guard")
    both = threading.Barrier(2, timeout=PATIENCE_S)
    first = [True, True]

    def guard(t: Transaction) -> None:
        count = t.query(guards)[0][0]
        if first:
            first.pop()
            both.wait()
        if count == 0:
            t.execute(insert(bank.notes).values(text="guard"))

    def work(t: Transaction) -> None:
        t.spawn(guard)
        t.spawn(guard)

    bank.db.run(work)
    assert bank.committed_notes() == ["guard"]


def test_child_sees_its_parents_writes_and_its_abort_undoes_its_own(bank: Bank) -> None:
    def work(t: Transaction) -> None:
        t.update(bank.accounts, 1, balance=50)
        with suppress(KeyError), t.subtransaction() as child:
            child.execute(update(bank.accounts).values(balance=bank.accounts.c.balance + 1))
            assert child.query(select(func.sum(bank.accounts.c.balance))) == [(72,)]
            raise KeyError
        assert t.query(select(func.sum(bank.accounts.c.balance))) == [(70,)]

    bank.db.run(work)
    assert bank.committed() == {1: 50, 2: 20}


# -- per transaction, and what is refused ------------------------------------------------------


def test_policy_is_chosen_by_transaction(there: Place) -> None:
    bank = open_bank(there.open(), {1: 10, 2: 20})
    level = text("SELECT current_setting('transaction_isolation')")
    with bank.db.transaction() as t:
        assert t.query(level) == [("read committed",)]
    with bank.db.transaction(isolation="serializable") as t:
        assert t.query(level) == [("serializable",)]
    runs = bank.db.with_isolation("serializable")
    assert runs.run(lambda t: t.query(level)) == [("serializable",)]
    assert runs.with_timeout(PATIENCE_S).run(lambda t: t.query(level)) == [("serializable",)]
    back = bank.db.with_timeout(PATIENCE_S).with_isolation("locks")
    assert back.run(lambda t: t.query(level)) == [("read committed",)]


def test_writer_beside_it_waits_for_what_a_transaction_has_locked(there: Place) -> None:
    """Transactions that lock are protected from those that do not; the reverse is not promised."""
    bank = open_bank(there.open(), {1: 10, 2: 20})
    with bank.db.transaction() as t:
        assert balance(bank, t, 1) == 10
        writer = in_thread(
            bank.db.with_isolation("serializable").run,
            lambda u: u.update(bank.accounts, 1, balance=11),
        )
        t.update(bank.accounts, 2, balance=balance(bank, t, 1) + 1)
    writer.result(PATIENCE_S)
    assert bank.committed() == {1: 11, 2: 11}


@pytest.mark.parametrize("isolation", ["serialisable", "SERIALIZABLE", "", 1])
def test_unknown_policy_is_refused(db: adb.Database, isolation: Any) -> None:
    with pytest.raises(ConfigurationError, match="'locks' or 'serializable'"):
        db.transaction(isolation=isolation)
    with pytest.raises(ConfigurationError, match="'locks' or 'serializable'"):
        db.with_isolation(isolation)
    with pytest.raises(ConfigurationError, match="isolation"):
        adb.connect("memory://", isolation=isolation)


def test_in_memory_locks_keep_the_promise(where: Place) -> None:
    bank = open_bank(where.open(isolation="serializable"), {1: 10, 2: 20})

    def add(t: Transaction) -> None:
        t.update(bank.accounts, 1, balance=balance(bank, t, 1) + 1)

    threads = [in_thread(lambda: [bank.db.run(add) for _ in range(10)]) for _ in range(3)]
    for each in threads:
        each.result(PATIENCE_S)
    assert bank.committed()[1] == 40


def test_table_in_this_process_memory_is_refused(bank: Bank) -> None:
    bank.db.admin.own(bank.accounts)
    for use in (
        lambda t: t.get(bank.accounts, 1),
        lambda t: t.update(bank.accounts, 1, balance=1),
        lambda t: t.query(select(bank.accounts)),
    ):
        with pytest.raises(TableOwned, match="isolation='locks'"):
            bank.db.run(use)
    bank.db.with_isolation("locks").run(lambda t: t.update(bank.accounts, 1, balance=1))


def test_recording_is_refused(there: Place) -> None:
    with pytest.raises(ConfigurationError, match="recording='off'"):
        there.open(recording="full", isolation="serializable")
    bank = open_bank(there.open(recording="full"), {1: 10, 2: 20})
    with pytest.raises(ConfigurationError, match="recording='off'"):
        bank.db.with_isolation("serializable").run(lambda t: t.get(bank.accounts, 1))
    bank.db.run(lambda t: t.update(bank.accounts, 1, balance=1))


# -- in the caller's own transaction -----------------------------------------------------------


@pytest.mark.parametrize("isolation", [None, "serializable"])
def test_caller_with_the_servers_serializable_is_welcome(
    there: Place, postgres_url: str, isolation: Any
) -> None:
    settings = {} if isolation else {"isolation": "serializable"}
    bank = open_bank(there.open(**settings), {1: 10, 2: 20})
    path = f"-c search_path={bank.db._store.schema}"
    engine = create_engine(
        postgres_url, isolation_level="SERIALIZABLE", connect_args={"options": path}
    )
    with engine.connect() as mine, engine.connect() as other:
        with bank.db.transaction(connection=mine, isolation=isolation) as t:
            total = balance(bank, t, 1) + t.query(select(bank.accounts.c.balance))[1][0]
            t.update(bank.accounts, 1, balance=total)
        assert other.scalar(select(func.sum(bank.accounts.c.balance))) == 30
        other.execute(update(bank.accounts).where(bank.accounts.c.id == 2).values(balance=0))
        other.commit()
        with pytest.raises(Exception, match="serializ"):
            mine.commit()
    engine.dispose()
    assert bank.committed() == {1: 10, 2: 0}


@pytest.mark.parametrize(
    ("level", "isolation"),
    [
        ("READ COMMITTED", "serializable"),
        ("REPEATABLE READ", "serializable"),
        ("REPEATABLE READ", "locks"),
        ("SERIALIZABLE", "locks"),
    ],
)
def test_caller_with_another_level_is_told_what_to_do(
    there: Place, postgres_url: str, level: str, isolation: Any
) -> None:
    db = there.open()
    path = f"-c search_path={db._store.schema}"
    engine = create_engine(postgres_url, isolation_level=level, connect_args={"options": path})
    with (
        engine.connect() as mine,
        pytest.raises(ConfigurationError, match=f"{level}.*isolation"),
    ):
        db.transaction(connection=mine, isolation=isolation)
    engine.dispose()


# -- detectors, which are in memory ------------------------------------------------------------


def test_detector_that_was_fed_after_the_snapshot_is_a_conflict(bank: Bank) -> None:
    db = bank.db
    seen: list[int] = []

    @db.rule(on=adb.seq(adb.event("FIRST"), adb.event("SECOND")).context("chronicle"))
    def notice(t: Transaction, e: adb.Occurrence) -> None:
        seen.append(balance(bank, t, 1))

    tries = []

    def late(t: Transaction) -> None:
        tries.append(balance(bank, t, 2))  # the snapshot
        if len(tries) == 1:

            def first(u: Transaction) -> None:
                u.update(bank.accounts, 1, balance=11)
                db.signal("FIRST")

            in_thread(db.run, first).result(PATIENCE_S)
        db.signal("SECOND")

    db.run(late)
    assert len(tries) == 2
    assert seen == [11], "what follows FIRST sees what was written with it"


def test_detector_is_locked_before_rules_at_the_begin_read(bank: Bank) -> None:
    db = bank.db

    @db.rule(on=adb.began())
    def look(t: Transaction, e: adb.Occurrence) -> None:
        balance(bank, t, 2)  # the snapshot

    @db.rule(on=adb.seq(adb.event("FIRST"), adb.event("SECOND")).context("chronicle"))
    def notice(t: Transaction, e: adb.Occurrence) -> None:
        t.insert(bank.notes, {"text": "both"})

    both = threading.Barrier(2, timeout=PATIENCE_S)
    tries = []

    def signals(t: Transaction, name: str) -> None:
        tries.append(name)
        if len(tries) <= 2:
            both.wait()
        db.signal(name)

    for each in [in_thread(db.run, signals, name) for name in ("FIRST", "FIRST")]:
        each.result(PATIENCE_S)
    assert len(tries) == 3, "the one that came second has locked the detector first"


def test_conflict_of_a_detector_that_is_caught_ends_the_transaction_all_the_same(
    bank: Bank,
) -> None:
    db = bank.db

    @db.rule(on=adb.seq(adb.event("FIRST"), adb.event("SECOND")).context("chronicle"))
    def notice(t: Transaction, e: adb.Occurrence) -> None:
        t.insert(bank.notes, {"text": "both"})

    tries = []

    def late(t: Transaction) -> None:
        tries.append(balance(bank, t, 2))  # the snapshot
        if len(tries) == 1:
            in_thread(db.run, lambda u: db.signal("FIRST")).result(PATIENCE_S)
        with suppress(SerializationConflict), t.subtransaction():
            db.signal("SECOND")
        t.update(bank.accounts, 1, balance=99)

    db.run(late)
    assert len(tries) == 2
    assert bank.committed_notes() == ["both"]


# -- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["immediate", "deferred", "detached", "sequential", "causal"])
def test_rule_of_any_mode_runs_once_with_what_triggered_it(bank: Bank, mode: Any) -> None:
    db = bank.db
    levels: list[str] = []
    level = text("SELECT current_setting('transaction_isolation')")

    @db.rule(on=adb.updated(bank.accounts), coupling=mode)
    def note(t: Transaction, e: adb.Occurrence) -> None:
        levels.append(t.query(level)[0][0])
        t.insert(bank.notes, {"text": f"{e.old['balance']}"})

    for _ in range(3):
        db.run(lambda t: t.update(bank.accounts, 1, balance=balance(bank, t, 1) + 1))
    db.wait_idle()
    assert bank.committed_notes() == ["10", "11", "12"]
    assert db.admin.pending_firings() == []
    assert set(levels) == {"serializable"}


def test_detached_rules_of_a_detached_rule_leave_no_records(bank: Bank) -> None:
    db = bank.db

    @db.rule(on=adb.event("GO"), coupling="detached")
    def first(t: Transaction, e: adb.Occurrence) -> None:
        balance(bank, t, 1)  # the snapshot
        db.signal("ON")
        assert ran.wait(PATIENCE_S)

    ran = threading.Event()

    @db.rule(on=adb.event("ON"), coupling="detached")
    def second(t: Transaction, e: adb.Occurrence) -> None:
        t.insert(bank.notes, {"text": "second"})
        ran.set()

    db.signal("GO")
    db.wait_idle()
    assert bank.committed_notes() == ["second"]
    with db._store.short() as connection:
        assert connection.scalar(text("SELECT count(*) FROM activedb_pending_firings")) == 0


def test_exclusive_rule_is_refused_with_what_to_do(there: Place) -> None:
    with pytest.raises(DefinitionError, match="isolation='locks'"):
        there.open(isolation="serializable").rule(
            on=adb.event("E"), coupling="exclusive", name="compensate"
        )(lambda t, e: None)
    db = there.open()
    db.rule(on=adb.event("E"), coupling="exclusive", name="compensate")(lambda t, e: None)
    with pytest.raises(ConfigurationError, match="isolation='locks'"):
        db.with_isolation("serializable").run(lambda t: db.signal("E"))
    db.run(lambda t: db.signal("E"))
