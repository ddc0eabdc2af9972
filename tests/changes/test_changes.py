"""Changes by any program trigger rules: each once, and none that activedb itself has made."""

from __future__ import annotations

import contextlib
import enum
import json
import signal
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    Column,
    Date,
    DateTime,
    Enum,
    ForeignKey,
    Integer,
    Table,
    Text,
    create_engine,
    select,
    text,
    update,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import activedb as adb
from activedb.changes import _changes
from activedb.clock import SimulatedClock
from activedb.errors import (
    ConfigurationError,
    ConnectionLost,
    Deadlock,
    DefinitionError,
    RowExists,
    TransactionStateError,
    UniqueViolation,
)
from tests.changes.following import Somebody, hear, somebody, take, told
from tests.databases import PATIENCE_S, in_thread, until
from tests.histories.processes import Worker as Program
from tests.ledger import EPOCH, Ledger, open_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from activedb import Occurrence, Transaction
    from activedb.changes import FollowProgress


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    """Accounts 1 and 2 with balances 10 and 20."""
    with adb.connect(database_url) as db:
        yield open_ledger(db, {1: 10, 2: 20})


@pytest.fixture
def other(database_url: str) -> Iterator[Somebody]:
    """A program without activedb, on the same database."""
    with somebody(database_url) as program:
        yield program


# -- what is told ------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", ["detached", "sequential", "causal"])
def test_changes_by_a_plain_program_run_rules_after_the_commit(
    ledger: Ledger, other: Somebody, coupling: str
) -> None:
    hear(ledger, coupling)
    with ledger.db.changes.follower(whole_rows=True) as follower:
        other.run(
            "INSERT INTO accounts VALUES (3, 30)",
            "UPDATE accounts SET balance = 11 WHERE id = 1",
            "DELETE FROM accounts WHERE id = 2",
        )
        assert take(follower, ledger) == ["delete 2: 20", "insert 3: 30", "update 1: 10 to 11"]
        with pytest.raises(ZeroDivisionError), other.transaction() as connection:
            connection.execute(text("DELETE FROM accounts"))
            raise ZeroDivisionError
        assert len(take(follower, ledger)) == 3
        now = follower.progress
        assert (now.transactions, now.changes, now.firings) == (1, 3, 3)
        assert (now.lag_bytes, now.lag_s) == (0, 0.0)
    assert ledger.pending() == []


def test_occurrences_have_the_commit_time_and_ids_in_commit_order(
    ledger: Ledger, other: Somebody
) -> None:
    heard: list[Occurrence] = []
    latch = threading.Lock()

    @ledger.db.rule(on=adb.inserted(ledger.accounts), coupling="detached")
    def keep(t: Transaction, o: Occurrence) -> None:
        with latch:
            heard.append(o)

    with ledger.db.changes.follower() as follower:
        times = [datetime.now(UTC)]
        for n in range(12):
            key = 100 + 2 * n
            other.run(f"INSERT INTO accounts VALUES ({key}, 0), ({key + 1}, 0)")
            times.append(datetime.now(UTC))
        # The one that is open first commits last.
        with other.transaction() as late:
            late.execute(text("INSERT INTO accounts VALUES (3, 0)"))
            other.run("INSERT INTO accounts VALUES (4, 0)")
        take(follower, ledger)
    heard.sort(key=lambda o: o.id or "")
    assert [o.new["id"] for o in heard] == [*range(100, 124), 4, 3]
    for n in range(12):
        first, second = heard[2 * n], heard[2 * n + 1]
        assert first.timestamp == second.timestamp
        assert isinstance(first.timestamp, datetime)
        assert times[n] <= first.timestamp <= times[n + 1]
        assert first.id is not None
        assert first.id[:-1] + "2" == second.id


def test_rules_of_other_modes_are_not_run_for_changes_by_others(
    ledger: Ledger, other: Somebody
) -> None:
    for coupling in ("immediate", "deferred", "exclusive", "detached"):
        hear(ledger, coupling, name=coupling)
    with ledger.db.changes.follower() as follower:
        assert [r.name for r in follower.not_run()] == ["immediate", "deferred", "exclusive"]
        other.run("INSERT INTO accounts VALUES (3, 30)")
        assert take(follower, ledger) == ["insert 3: 30"]
    assert ledger.db.admin.counters()["rules_fired"] == 1


def test_conditions_and_failures_of_rules_are_those_of_detached_rules(
    ledger: Ledger, other: Somebody
) -> None:
    @ledger.db.rule(
        on=adb.inserted(ledger.accounts),
        when=lambda t, o: o.new["balance"] > 0,
        coupling="detached",
    )
    def rich(t: Transaction, o: Occurrence) -> None:
        if o.new["balance"] == 13:
            raise ValueError("bad luck")
        ledger.write(t, told(o))

    with ledger.db.changes.follower() as follower:
        other.run("INSERT INTO accounts VALUES (3, 30), (4, 0), (5, 13)")
        assert take(follower, ledger) == ["insert 3: 30"]
    (letter,) = ledger.letters()
    assert (letter["source"], letter["error"]) == ("rule rich", "ValueError")
    assert letter["identity"].startswith("follow/activedb/")


def test_sequences_see_changes_by_others_together_with_other_events(
    ledger: Ledger, other: Somebody
) -> None:
    accounts = ledger.accounts
    pattern = adb.seq(
        adb.inserted(accounts, alias="opened"),
        ~adb.deleted(accounts),
        adb.event("AUDIT"),
    )
    pattern = pattern.same("id").within(600)

    @ledger.db.rule(on=pattern, coupling="detached")
    def audited(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"audited {o.params['id']} with {o.params['balance']}")

    @ledger.db.rule(
        on=adb.seq(adb.inserted(accounts, alias="a"), adb.deleted(accounts, alias="d")).same("id"),
        coupling="sequential",
    )
    def short(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"short {o.params['id']}")

    with ledger.db.changes.follower(whole_rows=True) as follower:
        other.run("INSERT INTO accounts VALUES (3, 30), (4, 40)")
        take(follower, ledger)
        other.run("DELETE FROM accounts WHERE id = 3")
        assert take(follower, ledger) == ["short 3"]
        ledger.db.signal("AUDIT", id=3)
        ledger.db.signal("AUDIT", id=4)
        assert take(follower, ledger) == ["audited 4 with 40", "short 3"]


@pytest.mark.parametrize("context", [None, "chronicle"])
def test_sequences_of_changes_by_others_go_on_after_a_restart(
    database_url: str, other: Somebody, context: str | None
) -> None:
    def define(db: adb.Database) -> Ledger:
        ledger = open_ledger(db)
        begin, end = (
            adb.inserted(ledger.accounts, alias="a"),
            adb.deleted(ledger.accounts, alias="d"),
        )
        pattern = adb.seq(begin, end).same("id").within(600)

        @db.rule(on=pattern.context(context) if context else pattern, coupling="detached")
        def short(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"short {o.params['id']}")

        return ledger

    with adb.connect(database_url) as db:
        ledger = define(db)
        with db.changes.follower(whole_rows=True) as follower:
            other.run("INSERT INTO accounts VALUES (3, 30), (4, 40)")
            take(follower, ledger)
    with adb.connect(database_url) as db:
        ledger = define(db)
        other.run("DELETE FROM accounts WHERE id = 3")
        with db.changes.follower(whole_rows=True) as follower:
            assert take(follower, ledger) == ["short 3"]
    with adb.connect(database_url) as db:
        assert take_again(define(db)) == ["short 3"]


def test_predicate_that_raises_makes_a_letter_and_nothing_else_is_lost(
    ledger: Ledger, other: Somebody
) -> None:
    hear(ledger)

    @ledger.db.rule(
        on=adb.inserted(ledger.accounts, where=lambda o: 1 / o.new["balance"]),
        coupling="detached",
    )
    def picky(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"picky {o.new['id']}")

    with ledger.db.changes.follower() as follower:
        other.run("INSERT INTO accounts VALUES (3, 0), (4, 2)")
        assert take(follower, ledger) == ["insert 3: 0", "insert 4: 2", "picky 4"]
        (letter,) = ledger.letters()
        assert (letter["source"], letter["error"]) == ("rule picky", "ZeroDivisionError")


def test_row_that_cannot_be_kept_makes_a_letter(ledger: Ledger, other: Somebody) -> None:
    colour = enum.Enum("colour", ["RED", "BLUE"])  # no module has it
    paints = Table(
        "paints",
        ledger.db.metadata,
        Column("id", Integer, primary_key=True),
        Column("c", Enum(colour)),
    )
    ledger.db.create_all()

    @ledger.db.rule(on=adb.inserted(paints), coupling="detached")
    def paint(t: Transaction, o: Occurrence) -> None:
        raise AssertionError("it cannot be recorded")

    with ledger.db.changes.follower() as follower:
        other.run("INSERT INTO paints VALUES (1, 'RED')")
        assert take(follower, ledger) == []
    (letter,) = ledger.letters()
    assert letter["source"] == "rule paint"
    assert "column 'c'" in letter["reason"]


def test_truncate_triggers_nothing_and_is_counted(ledger: Ledger, other: Somebody) -> None:
    hear(ledger)
    with ledger.db.changes.follower() as follower:
        other.run("TRUNCATE accounts")
        assert take(follower, ledger) == []
        assert follower.progress.truncated == 1


# -- what activedb has raised itself -----------------------------------------------------------


def test_own_transactions_do_not_trigger_rules_twice(ledger: Ledger, other: Somebody) -> None:
    hear(ledger)
    hear(ledger, "sequential", name="after")
    with ledger.db.changes.follower(whole_rows=True) as follower:
        with ledger.db.transaction() as t:
            t.insert(ledger.accounts, {"id": 3, "balance": 30})
            t.update(ledger.accounts, 1, balance=11)
        with ledger.db.transaction() as t:
            for n in range(100, 200):  # by COPY
                t.insert(ledger.accounts, {"id": n, "balance": 0})
        with ledger.db.transaction() as t:
            t.execute(update(ledger.accounts).where(ledger.accounts.c.id >= 100).values(balance=1))
        other.run("DELETE FROM accounts WHERE id = 2")
        lines = take(follower, ledger)
        assert follower.progress.changes == 203
        assert follower.progress.firings == 2
    assert len(lines) == 2 * 203
    assert {line: lines.count(line) for line in lines} == dict.fromkeys(lines, 2)


def test_other_processes_spare_the_rules_that_they_have_and_no_others(
    ledger: Ledger, other: Somebody, database_url: str
) -> None:
    hear(ledger, name="known")
    hear(ledger, name="unknown")
    with adb.connect(database_url) as elsewhere, ledger.db.changes.follower() as follower:
        theirs = Ledger(elsewhere, ledger.accounts, ledger.log, ledger.facts)

        def pay(key: int) -> None:
            with elsewhere.transaction() as t:
                t.insert(ledger.accounts, {"id": key, "balance": 1})

        pay(3)  # without any rule: a plain program
        assert take(follower, ledger) == ["insert 3: 1"] * 2
        hear(theirs, name="known")
        pay(4)
        elsewhere.wait_idle()
        assert take(follower, ledger).count("insert 4: 1") == 2
        assert follower.progress.firings == 3
        theirs.db.rules.delete("known")
        pay(5)
        assert take(follower, ledger).count("insert 5: 1") == 2
        assert follower.progress.firings == 5


def test_rule_defined_while_a_transaction_runs_hears_what_that_one_raised_before_once_at_most(
    ledger: Ledger,
) -> None:
    with ledger.db.changes.follower(ledger.accounts) as follower:
        with ledger.db.transaction() as t:
            t.insert(ledger.accounts, {"id": 3, "balance": 30})
            in_thread(hear, ledger).result(PATIENCE_S)
            t.insert(ledger.accounts, {"id": 4, "balance": 40})
        assert take(follower, ledger) == ["insert 4: 40"]


def test_databases_of_other_schemas_are_other_programs(
    ledger: Ledger, other: Somebody, database_url: str
) -> None:
    hear(ledger)
    with adb.connect(database_url, db_schema="elsewhere") as elsewhere:
        theirs = open_ledger(elsewhere)
        public = Table(
            "accounts",
            elsewhere.metadata,
            Column("id", Integer, primary_key=True),
            Column("balance", Integer),
            schema="public",
        )

        @elsewhere.rule(on=adb.inserted(public), coupling="immediate", name="hear")
        def namesake(t: Transaction, o: Occurrence) -> None:
            theirs.write(t, "theirs")

        with (
            elsewhere.changes.follower(public, slot="theirs"),
            ledger.db.changes.follower() as follower,
        ):
            with elsewhere.transaction() as t:
                t.insert(public, {"id": 3, "balance": 30})
            assert take(follower, ledger) == ["insert 3: 30"]
            assert theirs.lines() == ["theirs"]
            assert ledger.db.changes.unfollow("other") is False
        assert elsewhere.changes.unfollow("theirs")
        # The marks of the other schema are still there.
        with ledger.db.changes.follower() as follower, ledger.db.transaction() as t:
            t.insert(ledger.accounts, {"id": 4, "balance": 40})
        assert len(take_again(ledger)) == 2


def take_again(ledger: Ledger) -> list[str]:
    """Return what the rules have written after another follower has taken all changes."""
    with ledger.db.changes.follower(whole_rows=True) as follower:
        return take(follower, ledger)


def test_sql_of_the_caller_is_followed_and_the_block_inside_is_not(
    ledger: Ledger, other: Somebody, database_url: str
) -> None:
    hear(ledger)
    own = create_engine(database_url)
    with ledger.db.changes.follower(whole_rows=True) as follower:
        for engine_connection in (ledger.db.connection(), own.connect()):
            with engine_connection as c:
                c.execute(text("INSERT INTO accounts VALUES (3, 1)"))
                with ledger.db.transaction(connection=c) as t:
                    t.insert(ledger.accounts, {"id": 4, "balance": 2})
                c.execute(text("UPDATE accounts SET balance = 5 WHERE id = 4"))
                c.execute(text("SAVEPOINT s"))
                with ledger.db.transaction(connection=c) as t:
                    t.insert(ledger.accounts, {"id": 5, "balance": 0})
                c.execute(text("ROLLBACK TO SAVEPOINT s"))
                c.execute(text("INSERT INTO accounts VALUES (6, 3)"))
                with pytest.raises(RowExists), ledger.db.transaction(connection=c) as t:
                    t.insert(ledger.accounts, {"id": 6, "balance": 5})
                c.execute(text("INSERT INTO accounts VALUES (7, 4)"))
                with ledger.db.transaction(connection=c) as t:
                    t.delete(ledger.accounts, 7)
                c.commit()
            until(lambda: not ledger.db._forest.joined._waiting)
            # Detached rules hear of what is undone, too, where they are raised.
            expected = ["delete 7: 4", "insert 3: 1", "insert 4: 2", "insert 6: 3", "insert 7: 4"]
            lines = take(follower, ledger)
            assert [x for x in lines if x not in ("insert 5: 0", "insert 6: 5")] == [
                *expected,
                "update 4: 2 to 5",
            ]
            with ledger.db.transaction() as t:
                for row in t.query(select(ledger.log)):
                    t.delete(ledger.log, row.id)
            other.run("DELETE FROM accounts WHERE id > 2")
            take(follower, ledger)
            with ledger.db.transaction() as t:
                for row in t.query(select(ledger.log)):
                    t.delete(ledger.log, row.id)
    own.dispose()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_sql_after_a_block_that_the_server_refuses_is_followed(ledger: Ledger, count: int) -> None:
    """The server undoes with the block the mark that its rows are reported already."""
    hear(ledger)
    with ledger.db.changes.follower(whole_rows=True) as follower:
        with ledger.db.connection() as c:
            with pytest.raises(UniqueViolation), ledger.db.transaction(connection=c) as t:
                for n in range(count):
                    t.insert(ledger.facts, {"name": f"f{n}", "value": n})
                t.insert(ledger.facts, {"name": "again", "value": 0})
            c.execute(text("INSERT INTO accounts VALUES (3, 1)"))
            c.commit()
        assert take(follower, ledger) == ["insert 3: 1"]


class Base(DeclarativeBase):
    """Mapped classes of these tests."""


class Account(Base):
    """An account as a mapped class."""

    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


def test_flushes_of_watched_sessions_are_not_told_again_and_bulk_statements_are(
    database_url: str, other: Somebody
) -> None:
    with adb.connect(database_url) as db:
        ledger = open_ledger(db, {1: 10, 2: 20})

        @db.rule(
            on=adb.any_of(adb.inserted(Account), adb.updated(Account), adb.deleted(Account)),
            coupling="detached",
        )
        def hear_all(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, told(o))

        engine = create_engine(database_url)
        with db.changes.follower(Account, whole_rows=True) as follower, Session(engine) as session:
            db.watch(session)
            session.add(Account(id=3, balance=30))
            session.flush()
            session.execute(update(Account).where(Account.id == 3).values(balance=31))
            one = session.get_one(Account, 1)
            one.balance = 11
            session.commit()
            expected = ["insert 3: 30", "update 1: 10 to 11", "update 3: 30 to 31"]
            until(lambda: not db._forest.joined._waiting)
            assert take(follower, ledger) == expected
            assert follower.progress.firings == 1
        engine.dispose()


def test_what_the_server_writes_by_itself_is_told(ledger: Ledger, other: Somebody) -> None:
    cards = Table(
        "cards",
        ledger.db.metadata,
        Column("id", Integer, primary_key=True),
        Column("account", ForeignKey("accounts.id", ondelete="CASCADE")),
        Column("note", Text),
    )
    ledger.db.create_all()
    other.run(
        "INSERT INTO cards VALUES (7, 1, 'x'), (8, 2, 'y')",
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "UPDATE accounts SET balance = balance + 1 WHERE id = 2; RETURN NULL; END $$",
        "CREATE TRIGGER a AFTER DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION touch()",
    )
    hear(ledger)

    @ledger.db.rule(on=adb.deleted(cards), coupling="detached")
    def lost(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"card {o.old['id']} lost")

    with ledger.db.changes.follower(whole_rows=True) as follower:
        with ledger.db.transaction() as t:
            t.delete(ledger.accounts, 1)
            t.insert(ledger.accounts, {"id": 3, "balance": 1})
        assert take(follower, ledger) == [
            "card 7 lost",
            "delete 1: 10",
            "insert 3: 1",
            "update 2: 20 to 21",
        ]


def test_tables_that_are_followed_can_be_owned(ledger: Ledger, other: Somebody) -> None:
    hear(ledger)
    with ledger.db.changes.follower() as follower:
        ledger.db.admin.own(ledger.accounts)
        with ledger.db.transaction() as t:
            t.insert(ledger.accounts, {"id": 3, "balance": 30})
        assert take(follower, ledger) == ["insert 3: 30"]
    other.run(
        "CREATE TRIGGER mine AFTER INSERT ON facts FOR EACH STATEMENT EXECUTE FUNCTION "
        "activedb_mark('x')"
    )
    with pytest.raises(DefinitionError, match="triggers"):
        ledger.db.admin.own(ledger.facts)


# -- once --------------------------------------------------------------------------------------

POINTS = ("after peek", "after recording", "after advance")


class Fault(ConnectionLost):
    """Error that a test raises in the middle of a step."""


@pytest.mark.parametrize("point", POINTS)
def test_step_that_fails_at_a_point_is_made_good_by_the_next(
    ledger: Ledger, other: Somebody, point: str
) -> None:
    hear(ledger)
    are_left = [point, point]

    def fail(at: str) -> None:
        if are_left and at == are_left[-1]:
            are_left.pop()
            raise Fault(at)

    with ledger.db.changes.follower(whole_rows=True) as follower:
        ledger.db._store.trigger = fail
        for n in range(3, 9, 3):
            for key in range(n, n + 3):
                other.run(f"INSERT INTO accounts VALUES ({key}, {key})")
            with pytest.raises(Fault):
                follower.step()
            follower.close()
            follower.open()
        ledger.db.recover()  # of those that were recorded and not started
        assert take(follower, ledger) == [f"insert {n}: {n}" for n in range(3, 9)]


@pytest.mark.long
@settings(max_examples=12)
@given(
    transactions=st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.tuples(st.sampled_from("iud"), st.integers(1, 6)), min_size=1, max_size=5),
        ),
        min_size=1,
        max_size=8,
    ),
    faults=st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 4)), max_size=3),
)
def test_random_transactions_and_failures_fire_each_change_once(
    shared_ledger: tuple[Ledger, Somebody],
    transactions: list[tuple[bool, list[tuple[str, int]]]],
    faults: list[tuple[str, int]],
) -> None:
    ledger, other = shared_ledger
    expected: list[str] = []
    rows: dict[int, int] = {}
    waiting = list(faults)

    def fail(at: str) -> None:
        if waiting and waiting[0][0] == at:
            point, count = waiting.pop(0)
            if count > 1:
                waiting.insert(0, (point, count - 1))
            else:
                raise Fault(point)

    ledger.db._store.trigger = lambda point: None
    other.run("DELETE FROM accounts")
    take_all(ledger)
    other.run("DELETE FROM log")
    with ledger.db.changes.follower(slot="shared", whole_rows=True) as follower:
        ledger.db._store.trigger = fail
        for number, (commits, steps) in enumerate(transactions):
            new, said = dict(rows), []
            with contextlib.suppress(Fault), other.transaction() as connection:
                for kind, key in steps:
                    said += do(connection, new, kind, key, 10 * number)
                if not commits:
                    raise Fault("no")
                rows, expected = new, [*expected, *said]
            with contextlib.suppress(Fault):
                follower.step()
                continue
            follower.close()
            follower.open()
    ledger.db._store.trigger = lambda point: None
    ledger.db.recover()
    assert take_all(ledger) == sorted(expected)


def take_all(ledger: Ledger) -> list[str]:
    """Return what the rules have written after all changes are taken."""
    with ledger.db.changes.follower(slot="shared", whole_rows=True) as follower:
        return take(follower, ledger)


def do(connection: Any, rows: dict[int, int], kind: str, key: int, value: int) -> list[str]:
    """Make one change in `rows` and at the server; return what a rule is to say of it."""
    given = {"key": key, "value": value}
    if kind == "i" and key not in rows:
        connection.execute(text("INSERT INTO accounts VALUES (:key, :value)"), given)
        rows[key] = value
        return [f"insert {key}: {value}"]
    if kind == "u" and key in rows:
        statement = text("UPDATE accounts SET balance = :value WHERE id = :key")
        connection.execute(statement, given)
        before, rows[key] = rows[key], value
        return [f"update {key}: {before} to {value}"]
    if kind == "d" and key in rows:
        connection.execute(text("DELETE FROM accounts WHERE id = :key"), given)
        return [f"delete {key}: {rows.pop(key)}"]
    return []


@pytest.fixture(scope="module")
def shared_ledger(postgres_url: str) -> Iterator[tuple[Ledger, Somebody]]:
    """A ledger that several examples share."""
    from tests.servers import fresh_database

    with (
        fresh_database(postgres_url) as url,
        adb.connect(url) as db,
        somebody(url) as program,
    ):
        ledger = open_ledger(db)
        hear(ledger)
        with db.changes.follower(slot="shared", whole_rows=True):
            pass
        yield ledger, program


def test_a_failed_step_takes_back_what_the_detectors_saw(ledger: Ledger, other: Somebody) -> None:
    accounts = ledger.accounts

    @ledger.db.rule(
        on=adb.seq(adb.inserted(accounts, alias="a"), adb.deleted(accounts, alias="d")).same("id"),
        coupling="detached",
    )
    def short(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"short {o.params['id']}")

    with ledger.db.changes.follower(whole_rows=True) as follower:
        other.run("INSERT INTO accounts VALUES (3, 30)")
        take(follower, ledger)
        record = follower._slot.record
        follower._slot.record = lambda *given: (_ for _ in ()).throw(Fault("no"))  # type: ignore[method-assign]
        other.run("DELETE FROM accounts WHERE id = 3")
        with pytest.raises(Fault):
            follower.step()
        follower._slot.record = record  # type: ignore[method-assign]
        assert take(follower, ledger) == ["short 3"]


def test_transaction_larger_than_all_bounds_is_taken_in_portions(
    ledger: Ledger,
    other: Somebody,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in (("_PORTION", 7), ("_KEPT_MAX", 20), ("_HUGE", 50), ("_RUNNING_MAX", 5)):
        monkeypatch.setattr(_changes, name, value)
    hear(ledger)
    with ledger.db.changes.follower() as follower:
        other.run("INSERT INTO accounts SELECT n, n FROM generate_series(100, 199) n")
        lines = take(follower, ledger)
        assert follower.progress.firings == 100
    assert lines == sorted(f"insert {n}: {n}" for n in range(100, 200))
    assert "more than 50 changes" in caplog.text


def test_many_transactions_are_taken_in_several_steps(
    ledger: Ledger, other: Somebody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_changes, "_MESSAGES_MAX", 10)
    hear(ledger)
    with ledger.db.changes.follower() as follower:
        for n in range(3, 15):
            other.run(f"INSERT INTO accounts VALUES ({n}, 0)")
        assert follower.step()
        behind = follower.progress
        assert 0 < behind.transactions < 12
        assert behind.lag_bytes > 0
        assert behind.lag_s > 0
        assert len(take(follower, ledger)) == 12
        assert follower.progress.lag_bytes == 0


def test_queued_firings_are_left_to_workers(database_url: str, other: Somebody) -> None:
    from tests.firing.working import working

    with adb.connect(database_url, firings="queue") as db:
        ledger = open_ledger(db, {1: 10})
        hear(ledger)
        with db.changes.follower() as follower:
            other.run("INSERT INTO accounts VALUES (3, 30)")
            assert take(follower, ledger) == []
        assert len(ledger.pending()) == 1
        with working(db):
            until(lambda: ledger.lines() == ["insert 3: 30"])


@pytest.mark.crash
@pytest.mark.parametrize(
    ("point", "count"),
    [("after peek", 3), ("after recording", 1), ("after recording", 4), ("after advance", 2)],
)
def test_follower_killed_at_a_point_of_a_step_fires_each_change_once(
    database_url: str, other: Somebody, tmp_path: Path, point: str, count: int
) -> None:
    program, log = "tests.changes.follow_program", tmp_path / "log"
    with adb.connect(database_url) as db:
        ledger = open_ledger(db)
        hear(ledger)
        with db.changes.follower(whole_rows=True):
            pass
        with Program(program, {"url": database_url, "point": point, "count": count}, log) as killed:
            killed.wait_ready()
            killed.go()
            for n in range(10):
                other.run(f"INSERT INTO accounts VALUES ({n}, 0), ({n + 100}, 0)")
                other.run(f"UPDATE accounts SET balance = 1 WHERE id = {n}")
                if point == "after advance":  # which is once in a step
                    done = 3 * (n + 1)
                    until(lambda d=done: killed.process.poll() or len(ledger.lines()) >= d)  # type: ignore[misc]
            assert killed.process.wait(PATIENCE_S) == -signal.SIGKILL
        with Program(program, {"url": database_url}, log) as follower:
            follower.wait_ready()
            follower.go()
            expected = sorted(
                line
                for n in range(10)
                for line in (f"insert {n}: 0", f"insert {n + 100}: 0", f"update {n}: 0 to 1")
            )
            until(lambda: len(ledger.lines()) >= len(expected) and not ledger.pending())
            follower.process.send_signal(signal.SIGTERM)
            follower.finish()
        assert sorted(ledger.lines()) == expected
        assert ledger.letters() == []
        assert take_again(ledger) == expected


# -- for ever ----------------------------------------------------------------------------------


@contextlib.contextmanager
def following(ledger: Ledger, seen: list[FollowProgress], **options: Any) -> Iterator[Any]:
    """Follow in a thread while the block runs."""
    stop = threading.Event()
    end = in_thread(
        lambda: ledger.db.changes.follow(
            stop=stop, poll_s=0.02, whole_rows=True, on_progress=seen.append, **options
        )
    )
    try:
        yield end
    finally:
        stop.set()
        end.result(PATIENCE_S)


def test_follow_goes_on_until_told_to_stop_and_over_lost_connections(
    ledger: Ledger, other: Somebody
) -> None:
    hear(ledger)
    seen: list[FollowProgress] = []
    with following(ledger, seen) as end:
        until(lambda: seen)
        other.run("INSERT INTO accounts VALUES (3, 30)")
        until(lambda: ledger.lines() == ["insert 3: 30"])
        other.run(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND "
            "((classid::bigint << 32) | objid::bigint) = :number",
            number=ledger.db._store.slot("activedb")._number,
        )
        other.run("UPDATE accounts SET balance = 31 WHERE id = 3")
        until(lambda: sorted(ledger.lines()) == ["insert 3: 30", "update 3: 30 to 31"])
        assert not end.done()
    assert end.result() == seen[-1]
    assert seen[-1].changes == 2


def test_second_follower_of_a_slot_is_told(
    ledger: Ledger, other: Somebody, database_url: str
) -> None:
    hear(ledger)
    with adb.connect(database_url) as db:
        theirs = open_ledger(db)
        hear(theirs)
        with ledger.db.changes.follower():
            with pytest.raises(ConfigurationError, match="being followed already"):
                db.changes.follow()
            with pytest.raises(ConfigurationError, match="being followed already"):
                db.changes.unfollow()
        with db.changes.follower() as follower:
            other.run("INSERT INTO accounts VALUES (3, 30)")
            assert take(follower, theirs) == ["insert 3: 30"]


def test_changes_while_nobody_follows_are_told_later_and_after_unfollow_never(
    ledger: Ledger, other: Somebody
) -> None:
    hear(ledger)
    with ledger.db.changes.follower() as follower:
        pass
    other.run("INSERT INTO accounts VALUES (3, 30)")
    with ledger.db.transaction() as t:
        t.insert(ledger.accounts, {"id": 4, "balance": 40})
    with ledger.db.changes.follower() as follower:
        assert take(follower, ledger) == ["insert 3: 30", "insert 4: 40"]
    assert ledger.db.changes.unfollow()
    assert not ledger.db.changes.unfollow()
    assert (
        other.value("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
        == 0
    )
    assert other.value("SELECT count(*) FROM pg_publication") == 0
    assert other.value("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'activedb%'") == 0
    other.run("INSERT INTO accounts VALUES (5, 50)")
    with ledger.db.changes.follower() as follower:
        assert len(take(follower, ledger)) == 2


# -- refused -----------------------------------------------------------------------------------


def test_rule_that_needs_old_values_is_refused_until_whole_rows_are_sent(
    ledger: Ledger, other: Somebody
) -> None:
    @ledger.db.rule(on=adb.updated(ledger.accounts, "balance"), coupling="detached")
    def changed(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, told(o))

    with pytest.raises(ConfigurationError, match="REPLICA IDENTITY FULL") as refused:
        ledger.db.changes.follow()
    assert "rule changed is on updates of balance of table accounts" in str(refused.value)
    statement = str(refused.value).split(": run ")[1].split(", or")[0]
    other.run(statement)
    with ledger.db.changes.follower() as follower:
        other.run("UPDATE accounts SET balance = 11 WHERE id = 1")
        other.run("UPDATE accounts SET id = 5 WHERE id = 2")
        assert take(follower, ledger) == ["update 1: 10 to 11"]


def test_old_rows_have_the_key_alone_unless_whole_ones_are_sent(
    ledger: Ledger, other: Somebody
) -> None:
    hear(ledger)
    with ledger.db.changes.follower() as follower:
        other.run(
            "UPDATE accounts SET balance = 11 WHERE id = 1", "DELETE FROM accounts WHERE id = 2"
        )
        assert take(follower, ledger) == ["delete 2: ?", "update 1: ? to 11"]


def test_follow_in_memory_says_why_not() -> None:
    with adb.connect("memory://") as db:
        ledger = open_ledger(db)
        hear(ledger)
        for call in (db.changes.follow, db.changes.follower, db.changes.unfollow):
            with pytest.raises(ConfigurationError, match="no other program can change its rows"):
                call()


def test_follow_is_refused_where_it_makes_no_sense(ledger: Ledger) -> None:
    db = ledger.db
    with pytest.raises(ConfigurationError, match="there is nothing to follow"):
        db.changes.follow()
    hear(ledger, "immediate")
    with pytest.raises(ConfigurationError, match="there is nothing to follow"):
        db.changes.follow()
    with pytest.raises(ConfigurationError, match="poll_s takes a positive number"):
        db.changes.follow(ledger.accounts, poll_s=0)
    with db.transaction(), pytest.raises(TransactionStateError, match="cannot follow changes"):
        db.changes.follow(ledger.accounts)


def test_mark_of_another_program_with_our_prefix_is_refused(
    ledger: Ledger, other: Somebody
) -> None:
    from activedb.errors import StoreError

    hear(ledger)
    with ledger.db.changes.follower() as follower:
        other.run(
            "SELECT pg_logical_emit_message(true, 'activedb public', 'nonsense')",
        )
        with pytest.raises(StoreError, match="a mark in the server's log is damaged"):
            follower.step()
        assert json.dumps([])  # the step has changed nothing


# -- what others write into the log, and rows that cannot be read -------------------------------


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("prefix", ["heartbeat", "activedb public"])
def test_messages_of_other_programs_are_passed_over(
    ledger: Ledger, other: Somebody, prefix: str, is_transactional: bool
) -> None:
    content = '{"schema": "public", "rules": []}' if is_transactional else "x"
    emit = f"SELECT pg_logical_emit_message({is_transactional}, '{prefix}', '{content}')"
    hear(ledger)
    with ledger.db.changes.follower() as follower:
        other.run(emit)
        other.run(
            "INSERT INTO accounts VALUES (3, 30)", emit, "INSERT INTO accounts VALUES (4, 40)"
        )
        other.run(emit)
        assert take(follower, ledger) == ["insert 3: 30", "insert 4: 40"]
        other.run("INSERT INTO accounts VALUES (5, 50)")
    with ledger.db.changes.follower() as follower:
        assert take(follower, ledger)[2:] == ["insert 5: 50"]


class Colour(enum.Enum):
    """Values of a column."""

    RED = 1
    BLUE = 2


UNREADABLE = {
    "an infinite time": ("at", "infinity"),
    "a time before Christ": ("at", "0044-03-15 12:00:00+00 BC"),
    "a time too late": ("at", "20000-01-01 00:00:00+00"),
    "an infinite date": ("day", "-infinity"),
    "no member": ("colour", "GRAY"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_row_that_cannot_be_read_is_a_letter_of_each_rule_and_the_others_go_on(
    ledger: Ledger, other: Somebody, case: str
) -> None:
    db, (column, value) = ledger.db, UNREADABLE[case]
    visits = Table(
        "visits",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("at", DateTime(timezone=True)),
        Column("day", Date),
        Column("colour", Enum(Colour, native_enum=False, create_constraint=False)),
    )
    db.create_all()
    for name in ("first", "second"):

        @db.rule(on=adb.inserted(visits), coupling="detached", name=name)
        def visit(t: Transaction, o: Occurrence, name: str = name) -> None:
            ledger.write(t, f"{name} {o.new['id']}")

    @db.rule(on=adb.deleted(visits), coupling="detached")
    def gone(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"gone {o.old['id']}")

    with db.changes.follower() as follower:
        other.run(
            "INSERT INTO visits (id) VALUES (1)",
            f"INSERT INTO visits (id, {column}) VALUES (2, '{value}')",
            "INSERT INTO visits (id) VALUES (3)",
            "DELETE FROM visits WHERE id = 2",
        )
        other.run("INSERT INTO visits (id) VALUES (4)")
        expected = [f"{name} {n}" for name in ("first", "second") for n in (1, 3, 4)]
        assert take(follower, ledger) == sorted([*expected, "gone 2"])
        assert not follower.step()
    letters = sorted(ledger.letters(), key=lambda letter: str(letter["source"]))
    assert [letter["source"] for letter in letters] == ["rule first", "rule second"]
    for letter in letters:
        assert letter["error"] == "InvalidRow"
        assert f"visits.{column} is b'{value[:5]}" in letter["reason"]
        assert letter["payload"]["name"] == "visits"
        assert value[:5] in letter["payload"]["params"]
    assert len({letter["identity"] for letter in letters}) == 2


@pytest.fixture
def parted(ledger: Ledger, other: Somebody) -> Table:
    """A partitioned table, whose partitions send the keys of old rows alone."""
    other.run(
        "CREATE TABLE parted (id integer PRIMARY KEY, n integer) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        'CREATE TABLE "Parted" PARTITION OF parted FOR VALUES FROM (10) TO (20)',
    )
    return Table(
        "parted",
        ledger.db.metadata,
        Column("id", Integer, primary_key=True),
        Column("n", Integer),
    )


def test_whole_rows_of_partitioned_tables_are_those_of_the_partitions(
    ledger: Ledger, other: Somebody, parted: Table
) -> None:
    db = ledger.db

    @db.rule(on=adb.updated(parted, "n"), coupling="detached")
    def changed(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{o.old['id']}: {o.old['n']} to {o.new['n']}")

    @db.rule(on=adb.deleted(parted, where=lambda o: o.old["n"] == 2), coupling="detached")
    def gone(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"gone {o.old['id']}")

    statements = ["INSERT INTO parted VALUES (1, 1), (11, 1)", "UPDATE parted SET n = 2"]
    statements.append("DELETE FROM parted")
    with db.changes.follower(parted, whole_rows=True) as follower:
        other.run(*statements)
        assert take(follower, ledger) == ["11: 1 to 2", "1: 1 to 2", "gone 1", "gone 11"]
        other.run("CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (20) TO (30)")
        other.run("INSERT INTO parted VALUES (21, 1)", "UPDATE parted SET n = 2")
        assert len(take(follower, ledger)) == 4
    (letter,) = ledger.letters()
    assert (letter["source"], letter["error"]) == ("rule changed", "InvalidRow")
    with pytest.raises(ConfigurationError, match="its partition parted_high does not: ALTER TABLE"):
        db.changes.follow(parted)


def test_follow_that_is_refused_leaves_nothing_at_the_server(
    ledger: Ledger, other: Somebody
) -> None:
    @ledger.db.rule(on=adb.updated(ledger.accounts, "balance"), coupling="detached")
    def changed(t: Transaction, o: Occurrence) -> None:
        raise AssertionError("it is not followed")

    with pytest.raises(ConfigurationError, match="does not send their old values"):
        ledger.db.changes.follow(ledger.accounts, slot="refused")
    for kept in (
        "pg_replication_slots WHERE slot_name = 'refused'",
        "pg_publication WHERE pubname = 'refused'",
        "activedb_followers WHERE slot = 'refused'",
        "pg_trigger WHERE tgrelid = 'accounts'::regclass AND tgname LIKE 'activedb_mark%'",
    ):
        assert other.value(f"SELECT count(*) FROM {kept}") == 0, kept


def test_table_that_is_dropped_is_told_of_after_its_last_changes(
    ledger: Ledger, other: Somebody
) -> None:
    hear(ledger)
    with ledger.db.changes.follower(ledger.accounts) as follower:
        other.run(
            "INSERT INTO accounts VALUES (3, 30)",
            "DROP TABLE accounts",
            "CREATE TABLE accounts (id integer PRIMARY KEY, balance integer)",
        )
        with pytest.raises(ConfigurationError, match="changes of accounts are not reported"):
            follower.step()
        ledger.db.wait_idle()
        assert ledger.lines() == ["insert 3: 30"]
    with ledger.db.changes.follower(ledger.accounts) as follower:
        other.run("INSERT INTO accounts VALUES (4, 40)")
        assert take(follower, ledger) == ["insert 3: 30", "insert 4: 40"]


def test_following_leaves_a_firing_that_was_given_up_for_now_to_its_restart(
    database_url: str,
) -> None:
    clock = SimulatedClock(EPOCH)
    with adb.connect(database_url, clock=clock, retries_max=0) as db:
        ledger = open_ledger(db, {1: 10})
        hear(ledger)
        failures = [Deadlock("as told")]

        @db.rule(on=adb.event("E"), coupling="detached")
        def rule(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, "done")
            if failures:
                raise failures.pop()

        db.signal("E")
        until(lambda: db._launcher.running == 0)
        for _ in range(3):
            stop = threading.Event()

            def look_once(progress: object, stop: threading.Event = stop) -> None:
                stop.set()

            db.changes.follow(stop=stop, on_progress=look_once)
        assert ledger.lines() == []
        clock.advance(60)
        db.wait_idle()
        assert ledger.lines() == ["done"]


def test_table_that_another_slot_follows_is_warned_of_and_each_slot_runs_its_rules(
    ledger: Ledger, other: Somebody, caplog: pytest.LogCaptureFixture
) -> None:
    hear(ledger)
    changes = ledger.db.changes
    with changes.follower(ledger.accounts, slot="one") as one:
        assert caplog.messages == []
        with changes.follower(ledger.facts, ledger.accounts, slot="two") as two:
            (told_of,) = caplog.messages
            assert "slot one follows table" in told_of
            assert '"accounts", too' in told_of
            other.run("INSERT INTO accounts VALUES (3, 30)")
            assert take(one, ledger) == ["insert 3: 30"]
            assert take(two, ledger) == ["insert 3: 30"] * 2
    with changes.follower(ledger.facts, ledger.accounts, slot="two"):
        assert len(caplog.messages) == 1
