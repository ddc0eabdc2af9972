"""Causally dependent rules: begun at the event, what triggered them in view, ended after it."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    CHAR,
    JSON,
    REAL,
    Column,
    Computed,
    Float,
    Integer,
    Numeric,
    String,
    Table,
    func,
    insert,
    select,
)
from sqlalchemy.exc import DBAPIError

import activedb as adb
from activedb.errors import Deadlock, SerializationConflict, TransactionAborted
from tests.databases import PATIENCE_S, in_thread, lock_waits, until, waits_at_the_server
from tests.drawing import drawn
from tests.ledger import declare, event, open_ledger
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from activedb import Occurrence, Transaction
    from tests.ledger import Ledger

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


class Steps:
    """Events that a rule's thread and the test's wait for."""

    def __init__(self) -> None:
        self._named: dict[str, threading.Event] = {}
        self._latch = threading.Lock()

    def _of(self, name: str) -> threading.Event:
        with self._latch:
            return self._named.setdefault(name, threading.Event())

    def reach(self, name: str) -> None:
        """Say that a step has been taken."""
        self._of(name).set()

    def wait(self, name: str) -> None:
        """Wait until it has been."""
        assert self._of(name).wait(PATIENCE_S), name

    def is_reached(self, name: str) -> bool:
        """Return whether the step has been reached."""
        return self._of(name).is_set()


def test_causal_rule_sees_the_versions_of_its_trigger_and_commits_after_it(ledger: Ledger) -> None:
    steps, a = Steps(), ledger.accounts
    seen: list[object] = []

    @ledger.db.rule(on=adb.updated(a), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        seen.append((t.parent, triggering.state, t.get(a, 1)))
        seen.append(t.query(select(func.sum(a.c.balance))))
        ledger.write(t, f"saw {o.new['balance']}")
        steps.reach("rule has run")

    with ledger.db.transaction() as triggering:
        triggering.update(a, 1, balance=0)
        steps.wait("rule has run")
        assert ledger.db.admin.row_counts()["log"] == 0
    ledger.db.wait_idle()
    assert seen == [(None, adb.State.ACTIVE, {"id": 1, "balance": 0}), [(20,)]]
    assert ledger.lines() == ["saw 0"]
    assert ledger.pending() == []


@pytest.mark.parametrize("asks", ["for update", "shared"])
def test_what_an_aborted_rule_has_read_through_a_causal_one_is_read_anew(
    ledger: Ledger, asks: str
) -> None:
    """Values read of a row that is no longer locked are forgotten, too."""
    steps, a = Steps(), ledger.accounts

    def add(t: Transaction, n: int) -> None:
        row = t.get(a, 1, for_update=True)
        assert row is not None
        t.update(a, 1, balance=row["balance"] + n)

    @ledger.db.rule(on=adb.event("FIRST"), coupling="causal")
    def first(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("SECOND")
        steps.wait("go on")
        assert t.get(a, 2) is not None  # on its own connection from now on
        steps.reach("has taken over")
        steps.wait("added")
        add(t, 1)

    @ledger.db.rule(on=adb.event("SECOND"), coupling="causal")
    def second(t: Transaction, o: Occurrence) -> None:
        if asks == "for update":
            add(t, 100)
        else:
            t.get(a, 1)
        raise ZeroDivisionError

    with ledger.db.transaction():
        ledger.db.signal("FIRST")
        until(lambda: ledger.db.admin.counters().get("transactions_aborted", 0) == 1)
    steps.reach("go on")
    steps.wait("has taken over")
    ledger.db.run(add, 10)
    steps.reach("added")
    ledger.db.wait_idle()
    with ledger.db.transaction() as t:
        assert t.get(a, 1) == {"id": 1, "balance": 21}


@pytest.mark.parametrize("asks", ["for update", "shared"])
def test_what_an_aborted_rule_has_read_is_not_taken_from_the_trigger_of_its_trigger(
    ledger: Ledger, asks: str
) -> None:
    """The rule between them has no lock on that row: its own end must not matter to who writes."""
    steps, a = Steps(), ledger.accounts

    @ledger.db.rule(on=adb.event("FIRST"), coupling="causal")
    def first(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("SECOND")
        steps.wait("written")
        raise ZeroDivisionError

    @ledger.db.rule(on=adb.event("SECOND"), coupling="causal")
    def second(t: Transaction, o: Occurrence) -> None:
        t.get(a, 1, for_update=asks == "for update")
        raise ZeroDivisionError

    with ledger.db.transaction() as t:
        ledger.db.signal("FIRST")
        until(lambda: ledger.db.admin.counters().get("transactions_aborted", 0) == 1)
        t.update(a, 1, balance=7)
        steps.reach("written")
        until(lambda: ledger.db.admin.counters().get("transactions_aborted", 0) == 2)
    assert ledger.balances()[1] == 7


def take_step(ledger: Ledger, t: Transaction, what: str, n: int) -> None:
    """Add to a row and log it, read a row, trigger a rule, or fail."""
    match what:
        case "add":
            row = t.get(ledger.accounts, n, for_update=True)
            assert row is not None
            t.update(ledger.accounts, n, balance=row["balance"] + 1)
            ledger.write(t, str(n))
        case "see":
            t.get(ledger.accounts, n)
        case "signal":
            ledger.db.signal("GO", number=n)
        case "fail":
            raise ZeroDivisionError


@pytest.mark.long
def test_no_addition_of_a_causal_rule_is_lost_in_any_order_of_steps(ledger: Ledger) -> None:
    """Rules and their triggers take their steps in turn, in an order that is drawn."""
    is_memory = type(ledger.db._store).__name__ == "MemoryStore"
    a, random = ledger.accounts, drawn("turns", is_memory)
    told: list[queue.SimpleQueue[tuple[str, int, threading.Event]]] = []

    def act(t: Transaction, number: int) -> None:
        while True:
            what, n, taken = told[number].get()
            if what == "end":
                told[number].put((what, n, taken))  # it may be tried again
                return taken.set()
            try:
                take_step(ledger, t, what, n)
            finally:
                taken.set()

    @ledger.db.rule(on=adb.event("GO"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        act(t, o.params["number"])

    with ledger.db.transaction() as top:
        for n in range(3, 7):
            top.insert(a, {"id": n, "balance": 10 * n})

    def run() -> None:
        with contextlib.suppress(ZeroDivisionError):
            ledger.db.run(act, 0)

    for _ in range((80 if is_memory else 15) * SCALE):
        told[:] = [queue.SimpleQueue()]
        done = in_thread(run)
        ready = {0: threading.Event()}
        ready[0].set()
        for _ in range(30):
            free = [number for number, taken in ready.items() if taken.is_set()]
            if not free:
                break
            number = random.choice(free)
            # The first one goes on to the end, mostly; rules that end only wait for it.
            ends = (
                ["fail", random.choice(["end", "see"])] if number or random.random() < 0.1 else []
            )
            what = random.choice(["add", "see", "signal", *ends])
            n = random.randint(1, 6)
            if what == "signal":
                n = len(told)
                told.append(queue.SimpleQueue())
            taken = ready[number] = threading.Event()
            told[number].put((what, n, taken))
            # It may have to wait for another one, which has its turns then.
            if taken.wait(0.02) and what == "signal":
                ready[n] = taken
            if what in ("end", "fail"):
                del ready[number]
        for each in reversed(told):
            each.put(("end", 0, threading.Event()))
        done.result(PATIENCE_S)
        ledger.db.wait_idle()
        lines = ledger.lines()
        added = {key: balance - 10 * key for key, balance in ledger.balances().items()}
        assert added == {n: lines.count(str(n)) for n in range(1, 7)}


@pytest.mark.long
def test_no_addition_of_a_causal_rule_is_lost(ledger: Ledger) -> None:
    """Rules trigger each other, add to rows, and fail: what is logged is what is there."""
    is_memory = type(ledger.db._store).__name__ == "MemoryStore"
    random = drawn("additions", is_memory)
    plans: dict[int, list[tuple[str, int]]] = {}

    def act(t: Transaction, number: int) -> None:
        for what, n in plans[number]:
            take_step(ledger, t, what, n)

    @ledger.db.rule(on=adb.event("GO"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        act(t, o.params["number"])

    def plan(depth: int) -> int:
        number = len(plans)
        plans[number] = steps = []
        for _ in range(random.randint(1, 4)):
            what = random.choice(["add", "add", "see", "signal", "signal"])
            if what != "signal":
                steps.append((what, random.choice([1, 2])))
            elif depth < 3:
                steps.append((what, plan(depth + 1)))
        if random.random() < 0.25:
            steps.append(("fail", 0))
        return number

    def run(number: int) -> None:
        with contextlib.suppress(ZeroDivisionError):
            ledger.db.run(act, number)

    for _ in range((60 if is_memory else 10) * SCALE):
        for done in [in_thread(run, plan(0)) for _ in range(3)]:
            done.result(PATIENCE_S)
        ledger.db.wait_idle()
        lines = ledger.lines()
        found = {key: balance - 10 * key for key, balance in ledger.balances().items()}
        assert found == {1: lines.count("1"), 2: lines.count("2")}


def test_causal_rule_may_change_the_row_that_triggered_it(ledger: Ledger) -> None:
    steps, a = Steps(), ledger.accounts

    @ledger.db.rule(on=adb.inserted(a), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        t.update(a, 3, balance=o.new["balance"] + 1)
        t.delete(a, 2)
        steps.reach("rule has run")

    with ledger.db.transaction() as t:
        t.insert(a, {"id": 3, "balance": 30})
        steps.wait("rule has run")
    ledger.db.wait_idle()
    assert ledger.balances() == {1: 10, 3: 31}


@pytest.mark.parametrize("when", ["the rule runs", "the rule waits", "before it begins"])
def test_causal_rule_aborts_with_its_trigger(ledger: Ledger, when: str) -> None:
    steps, a = Steps(), ledger.accounts
    ended: list[str] = []

    @ledger.db.rule(on=adb.updated(a), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "undone")
        steps.reach("written")
        if when == "the rule runs":
            steps.wait("go on")
            try:
                ledger.write(t, "never")
            except adb.TransactionAborted:
                ended.append("told")
                raise

    def busy(t: Transaction, o: Occurrence) -> None:
        steps.wait("threads")

    if when == "before it begins":
        ledger.db.rule(on=adb.event("BUSY"), coupling="detached", name="busy")(busy)
        for _ in range(ledger.db.settings.threads):
            ledger.db.signal("BUSY")
    with ledger.db.transaction() as t:
        t.update(a, 1, balance=0)
        if when != "before it begins":
            steps.wait("written")
        if when == "the rule runs":
            threading.Timer(0.05, steps.reach, ["go on"]).start()  # the abort waits for the rule
        t.abort()
    steps.reach("threads")
    ledger.db.wait_idle()
    assert ledger.lines() == []
    assert ledger.balances() == {1: 10, 2: 20}
    assert ledger.pending() == []
    assert ledger.letters() == []


def test_causal_rule_of_a_subtransaction_follows_its_whole_line(ledger: Ledger) -> None:
    ran = Steps()

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, o.params["n"])
        ran.reach(o.params["n"])

    with ledger.db.transaction() as t:
        with t.subtransaction() as s, s.subtransaction():
            ledger.db.signal("E", n="kept")
            ran.wait("kept")
        with t.subtransaction() as s:
            with s.subtransaction():
                ledger.db.signal("E", n="dropped")
                ran.wait("dropped")
            s.abort()
        assert ledger.db.admin.row_counts()["log"] == 0
    ledger.db.wait_idle()
    assert ledger.lines() == ["kept"]
    assert ledger.pending() == []


def test_causal_rule_that_raises_is_a_dead_letter_once_it_has_failed_after_the_commit(
    ledger: Ledger,
) -> None:
    steps = Steps()
    tries: list[int] = []

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "undone")
        tries.append(o.params["n"])
        steps.reach(f"ran {o.params['n']}")
        raise ValueError("no")

    for n, ending in enumerate(("abort", "commit")):
        with ledger.db.transaction() as t:
            ledger.db.signal("E", n=n)
            steps.wait(f"ran {n}")
            assert ledger.letters() == []
            if ending == "abort":
                t.abort()
        ledger.db.wait_idle()
        assert [letter["error"] for letter in ledger.letters()] == ["ValueError"] * n
    assert tries == [0, 1, 1]
    assert ledger.lines() == []
    assert ledger.pending() == []


@pytest.mark.parametrize("at", ["top", "subtransaction"])
@pytest.mark.parametrize("written", ["own", "by a child", "by a rule"])
def test_causal_rule_that_fails_on_a_value_that_is_never_committed_runs_on_the_committed_one(
    ledger: Ledger, written: str, at: str
) -> None:
    db, steps, a = ledger.db, Steps(), ledger.accounts

    @db.rule(on=adb.event("FIX"))
    def fix(t: Transaction, o: Occurrence) -> None:
        t.update(a, 1, balance=5)

    @db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        row = t.get(a, 1)
        assert row is not None
        db.signal("SAW", balance=row["balance"])
        steps.reach("has run")
        if row["balance"] < 0:
            raise ValueError("negative")

    for coupling in ("detached", "sequential", "exclusive"):
        db.rule(on=adb.event("SAW"), coupling=coupling, name=coupling)(
            lambda t, o, coupling=coupling: ledger.write(t, f"{coupling} {o.params['balance']}")
        )

    def work(t: Transaction) -> None:
        t.update(a, 1, balance=-1)
        db.signal("E")
        steps.wait("has run")
        until(lambda: db.admin.counters().get("transactions_aborted", 0) == 1)
        if written == "own":
            t.update(a, 1, balance=5)
        elif written == "by a child":
            t.spawn(lambda s: s.update(a, 1, balance=5)).result()
        else:
            db.signal("FIX")

    with db.transaction() as t:
        if at == "top":
            work(t)
        else:
            with t.subtransaction() as s:
                work(s)
    db.wait_idle()
    assert sorted(ledger.lines()) == ["detached -1", "detached 5", "sequential 5"]
    assert ledger.letters() == []
    assert ledger.pending() == []


def test_causal_rule_gives_way_to_its_trigger_and_runs_after_it(ledger: Ledger) -> None:
    steps, a = Steps(), ledger.accounts
    tries: list[int] = []

    @ledger.db.rule(on=adb.updated(a, "balance"), coupling="causal", when=lambda t, o: not t.rule)
    def never(t: Transaction, o: Occurrence) -> None:
        raise AssertionError

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        tries.append(1)
        current = t.get(a, 2, for_update=True)
        assert current is not None
        with ledger.db.rules.ignoring("never"):
            t.update(a, 2, balance=current["balance"] + 1)
        steps.reach("locked")

    with ledger.db.transaction() as t, ledger.db.rules.ignoring("never"):
        ledger.db.signal("E")
        steps.wait("locked")
        t.update(a, 2, balance=100)  # what the rule has locked: one of the two has to go
    ledger.db.wait_idle()
    assert ledger.balances() == {1: 10, 2: 101}
    assert len(tries) == 2
    assert ledger.pending() == []


def test_trigger_outlives_a_wait_for_a_causal_rule_that_sleeps_at_the_server(
    ledger: Ledger,
) -> None:
    """The rule sleeps, on the trigger's connection, for another program, which will end."""
    db, steps, a = ledger.db, Steps(), ledger.accounts
    if not db._store.is_shared:
        pytest.skip("only a server has other programs")
    tries: list[str] = []

    def hold() -> None:
        with db.connection() as connection:
            connection.execute(a.update().where(a.c.id == 1).values(balance=11))
            steps.reach("held")
            steps.wait("looked")
            connection.commit()

    @db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        tries.append("rule")
        t.get(a, 2)
        ledger.write(t, "ran")  # the server generates its key
        steps.reach("locked")
        t.get(a, 1)

    def work(t: Transaction) -> None:
        tries.append("trigger")
        db.signal("E")
        steps.wait("locked")
        until(lambda: waits_at_the_server(db))
        t.update(a, 2, balance=100)

    steps_of_others = [in_thread(hold)]
    steps.wait("held")
    steps_of_others.append(in_thread(db.run, work))
    until(lambda: lock_waits(db) and waits_at_the_server(db))
    crossing = db._forest.crossing
    for _ in range(3):
        crossing.look_once(list(crossing._tops.values()))
    steps.reach("looked")
    for one in steps_of_others:
        one.result(PATIENCE_S)
    db.wait_idle()
    assert ledger.balances() == {1: 11, 2: 100}
    assert ledger.lines() == ["ran"]
    assert tries == ["trigger", "rule", "rule"]


@pytest.mark.parametrize(
    "how", ["row", "rows", "query", "volatile", "insert", "statement", "default", "changed", "rule"]
)
def test_causal_rule_has_no_connection_of_its_own_while_its_trigger_lives(
    ledger: Ledger, how: str
) -> None:
    db, steps, a = ledger.db, Steps(), ledger.accounts
    stamped = Table(
        "stamped",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("at", Integer, default=func.length("four"), onupdate=func.length("three")),
    )
    db.create_all()
    db.run(lambda t: t.insert(stamped, {"id": 1, "at": 0}))
    ways: dict[str, Callable[[Transaction], object]] = {
        "row": lambda t: t.get(a, 1),
        "rows": lambda t: t.get_many(a, [1, 2, 3], for_update=True),
        "query": lambda t: t.query(select(func.sum(a.c.balance))),
        "volatile": lambda t: t.query(select(func.random())),
        "insert": lambda t: ledger.write(t, "inserted"),
        "statement": lambda t: t.execute(insert(ledger.log), [{"text": "a"}, {"text": "b"}]),
        "default": lambda t: t.insert(stamped, {"id": 2}),
        "changed": lambda t: t.update(stamped, 1),
        "rule": lambda t: db.rules.create(lambda t, o: None, on=adb.updated(a), name="new"),
    }
    backends: list[int | None] = []

    @db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        ways[how](t)
        backends.append(node_of(t).hierarchy.session.backend)
        steps.reach("has run")

    with db.transaction():
        db.signal("E")
        steps.wait("has run")
    db.wait_idle()
    assert backends == [None]
    assert ledger.letters() == []


def test_trigger_reads_again_what_a_causal_rule_that_gave_up_has_read_through_it(
    ledger: Ledger,
) -> None:
    steps, a = Steps(), ledger.accounts

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        t.get(a, 1, for_update=True)
        t.get(a, 3)
        steps.reach("has read")
        raise ValueError("no")

    def add(t: Transaction, amount: int) -> None:
        row = t.get(a, 1, for_update=True)
        assert row is not None
        t.update(a, 1, balance=row["balance"] + amount)

    def work(t: Transaction) -> None:
        ledger.db.signal("E")
        steps.wait("has read")
        until(lambda: len(ledger.db.admin.locks().transactions) == 1)  # the rule's is over
        others.append(in_thread(ledger.db.run, add, 100))
        if not ledger.db._store.is_shared:  # there the server keeps the lock for the trigger
            others[-1].result(PATIENCE_S)
        add(t, 1)

    others: list[Future[None]] = []
    ledger.db.run(work)
    ledger.db.wait_idle()
    for other in others:
        other.result(PATIENCE_S)
    assert ledger.balances() == {1: 111, 2: 20}


def reads(t: Transaction, ledger: Ledger) -> object:
    return t.get(ledger.accounts, 3)


def queries(t: Transaction, ledger: Ledger) -> object:
    a = ledger.accounts
    return next(iter(t.query(select(a).where(a.c.id == 3))), None)


def reads_in_a_child(t: Transaction, ledger: Ledger) -> object:
    return t.spawn(lambda s: s.get(ledger.accounts, 3)).result()


def reads_nothing(t: Transaction, ledger: Ledger) -> object:
    return None


def reads_in_another_rule(t: Transaction, ledger: Ledger) -> object:
    ledger.db.signal("F")
    return None


@pytest.mark.parametrize(
    "read", [reads, queries, reads_in_a_child, reads_in_another_rule, reads_nothing]
)
def test_key_that_a_failed_causal_rule_has_read_as_absent_is_confirmed_for_others_that_have(
    ledger: Ledger, read: Callable[[Transaction, Ledger], object]
) -> None:
    """Without others, an insert of the key is no conflict, but for plain SQL in memory."""
    steps, a = Steps(), ledger.accounts
    others: list[object] = []

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        assert t.get(a, 3) is None
        steps.reach("rule has read")
        steps.wait("others have read")
        raise ValueError("no")

    @ledger.db.rule(on=adb.event("F"), coupling="causal")
    def other(t: Transaction, o: Occurrence) -> None:
        others.append(t.get(a, 3))
        steps.reach("others have read")
        steps.wait("inserted")
        others.append(t.get(a, 3))
        ledger.write(t, f"saw {others[-1]}")

    def insert_by_plain_sql() -> None:
        with ledger.db.connection() as connection:
            connection.execute(insert(a).values(id=3, balance=9))
            connection.commit()

    is_conflict = not ledger.db._store.is_shared or read not in (
        reads_nothing,
        reads_in_another_rule,
    )
    expected = pytest.raises(SerializationConflict) if is_conflict else contextlib.nullcontext()
    with expected, ledger.db.transaction() as t:
        ledger.db.signal("E")
        steps.wait("rule has read")
        assert read(t, ledger) is None
        if read is not reads_in_another_rule:
            steps.reach("others have read")
        steps.wait("others have read")
        until(lambda: ledger.db.admin.counters().get("transactions_aborted", 0) == 1)
        in_thread(insert_by_plain_sql).result(PATIENCE_S)
        steps.reach("inserted")
        t.update(a, 1, balance=7)
    ledger.db.wait_idle()
    if read is reads_in_another_rule and not is_conflict:
        assert others[0] is None
        assert others[-2] == others[-1] == {"id": 3, "balance": 9}
        assert ledger.lines() == [f"saw {others[-1]}"]


def test_causal_rule_is_tried_again_after_the_commit_if_another_process_interfered(
    ledger: Ledger,
) -> None:
    steps, a = Steps(), ledger.accounts
    seen: list[int] = []

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        row = t.get(a, 2)
        assert row is not None
        seen.append(row["balance"])
        ledger.write(t, f"saw {row['balance']}")
        steps.reach("rule has run")

    if not ledger.db._store.is_shared:
        pytest.skip("only a server has other processes")

    def meddle(point: str) -> None:
        if point == "after commit" and not steps.is_reached("meddled"):
            steps.reach("meddled")
            with ledger.db.connection() as connection:
                connection.execute(a.update().where(a.c.id == 2).values(balance=21))
                connection.commit()

    with ledger.db.transaction() as t:
        t.update(a, 1, balance=0)
        ledger.db.signal("E")
        steps.wait("rule has run")
        ledger.db._store.trigger = meddle
    ledger.db.wait_idle()
    assert seen == [20, 21]
    assert ledger.lines() == ["saw 21"]


NAN = float("nan")
STORED: dict[str, tuple[Any, Any]] = {
    "computed": (Integer(), 5),
    "CHAR": (CHAR(4), "ab"),
    "REAL": (REAL(), 0.123456789),
    "NUMERIC": (Numeric(8, 2), Decimal("2.345")),
    "NaN": (Float(), NAN),
    "decimal NaN": (Numeric(), Decimal("NaN")),
    "JSON": (JSON(), {"b": [1, 0.1], "a": None}),
    "text": (String(9), "ab"),
}
ASKED: dict[str, Callable[[Transaction, Table], object]] = {
    "get": lambda t, table: t.get(table, 1),
    "query by key": lambda t, table: t.query(select(table.c.value).where(table.c.id == 1)),
    "query": lambda t, table: t.query(select(table).order_by(table.c.id)),
}


def stored_of(ledger: Ledger, kind: str, value: Any) -> tuple[Table, Any]:
    """Return a table with a row that has a value of a type, and another value of it."""
    of_type, other = STORED[kind]
    computed = [Column("more", Integer, Computed("value + 1"))] if kind == "computed" else []
    table = Table(
        "stored",
        ledger.db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("value", of_type),
        *computed,
    )
    ledger.db.create_all()
    with ledger.db.transaction() as t:
        t.insert(table, {"id": 1, "value": value})
    return table, other


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("kind", STORED)
def test_causal_rule_is_not_tried_again_for_values_that_the_server_shows_otherwise(
    ledger: Ledger, kind: str, is_written: bool, asked: str
) -> None:
    if "NaN" in kind and not ledger.db._store.is_shared:
        pytest.skip("SQLite has no NaN")
    table, value = stored_of(ledger, kind, None if is_written else STORED[kind][1])
    steps = Steps()
    seen: list[object] = []

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        seen.append(ASKED[asked](t, table))
        ledger.write(t, "saw it")
        steps.reach("rule has run")

    with ledger.db.transaction() as t:
        if is_written:
            t.update(table, 1, value=value)
        ledger.db.signal("E")
        steps.wait("rule has run")
    ledger.db.wait_idle()
    assert ledger.lines() == ["saw it"]
    assert len(seen) == 1
    if asked != "get":  # which shows what was written
        assert repr(seen[0]) == repr(ledger.db.run(lambda t: ASKED[asked](t, table)))


UNORDERED: dict[str, Callable[[Table], Any]] = {
    "rows": lambda a: select(a),
    "where": lambda a: select(a.c.balance).where(a.c.balance > 0),
    "union": lambda a: select(a.c.id).union_all(select(a.c.balance)),
}


@pytest.mark.parametrize("form", UNORDERED)
def test_causal_rule_is_not_tried_again_for_rows_in_another_order_that_it_left_open(
    ledger: Ledger, form: str
) -> None:
    steps, a = Steps(), ledger.accounts
    seen: list[object] = []

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        seen.append(t.query(UNORDERED[form](a)))
        ledger.write(t, "saw them")
        steps.reach("rule has run")

    with ledger.db.transaction() as t:
        t.update(a, 1, balance=7)
        t.insert(a, {"id": 9, "balance": 9})
        t.insert(a, {"id": 5, "balance": 5})
        ledger.db.signal("E")
        steps.wait("rule has run")
    ledger.db.wait_idle()
    assert ledger.lines() == ["saw them"]
    assert len(seen) == 1


MEDDLED: dict[str, tuple[Callable[[Table], Any], Callable[[Table], Any], int]] = {
    "rows in an order": (
        lambda a: select(a.c.id).order_by(a.c.balance),
        lambda a: a.update().values(balance=30 - a.c.balance),
        2,
    ),
    "rows in any order": (
        lambda a: select(a.c.balance),
        lambda a: a.update().values(balance=30 - a.c.balance),
        1,
    ),
    "other rows": (
        lambda a: select(a.c.balance),
        lambda a: a.update().values(balance=a.c.balance + 1),
        2,
    ),
}


@pytest.mark.parametrize("way", MEDDLED)
def test_causal_rule_is_tried_again_if_another_process_changes_an_answer(
    ledger: Ledger, way: str
) -> None:
    if not ledger.db._store.is_shared:
        pytest.skip("only a server has other processes")
    steps, a = Steps(), ledger.accounts
    question, meddling, tries = MEDDLED[way]
    seen: list[object] = []

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        seen.append(t.query(question(a)))
        ledger.write(t, "saw them")
        steps.reach("rule has run")

    def meddle(point: str) -> None:
        if point == "after commit" and not steps.is_reached("meddled"):
            steps.reach("meddled")
            with ledger.db.connection() as connection:
                connection.execute(meddling(a))
                connection.commit()

    with ledger.db.transaction() as t:
        ledger.write(t, "triggered")
        ledger.db.signal("E")
        steps.wait("rule has run")
        ledger.db._store.trigger = meddle
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == ["saw them", "triggered"]
    assert len(seen) == tries


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", STORED)
def test_causal_rule_is_tried_again_if_another_process_changes_what_the_trigger_wrote(
    ledger: Ledger, kind: str, asked: str
) -> None:
    if not ledger.db._store.is_shared:
        pytest.skip("only a server has other processes")
    table, value = stored_of(ledger, kind, None)
    steps = Steps()
    seen: list[object] = []

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        seen.append(ASKED[asked](t, table))
        ledger.write(t, "saw it")
        steps.reach("rule has run")

    def meddle(point: str) -> None:
        if point == "after commit" and not steps.is_reached("meddled"):
            steps.reach("meddled")
            with ledger.db.connection() as connection:
                connection.execute(table.update().values(value=None))
                connection.commit()

    with ledger.db.transaction() as t:
        t.update(table, 1, value=value)
        ledger.db.signal("E")
        steps.wait("rule has run")
        ledger.db._store.trigger = meddle
    ledger.db.wait_idle()
    assert ledger.lines() == ["saw it"]
    assert len(seen) == 2
    assert seen[1] == ledger.db.run(lambda t: ASKED[asked](t, table))


@pytest.mark.parametrize("coupling", ["immediate", "deferred", "detached", "sequential", "causal"])
def test_causal_rule_of_a_rule_ends_after_it(ledger: Ledger, coupling: str) -> None:
    @ledger.db.rule(on=adb.event("F"), coupling="causal")
    def second(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "second")

    @ledger.db.rule(on=adb.event("E"), coupling=coupling)
    def first(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("F")
        ledger.write(t, "first")

    ledger.db.signal("E")
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == ["first", "second"]
    assert ledger.pending() == []


def test_causal_rule_fires_once_when_its_trigger_is_retried(ledger: Ledger) -> None:
    tries: list[int] = []

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "rule")

    def work(t: Transaction) -> None:
        tries.append(1)
        ledger.db.signal("E")
        if len(tries) < 3:
            raise SerializationConflict("once more")

    ledger.db.run(work)
    ledger.db.wait_idle()
    assert (len(tries), ledger.lines()) == (3, ["rule"])
    assert ledger.pending() == []


def test_causal_rules_run_their_own_rules_as_children(ledger: Ledger) -> None:
    steps, a = Steps(), ledger.accounts
    ledger.db.rule(on=adb.inserted(ledger.log), name="count")(
        lambda t, o: t.update(a, 2, balance=t.get(a, 2)["balance"] + 1)
    )

    @ledger.db.rule(on=adb.updated(a, "balance"), coupling="causal", when=lambda t, o: not t.rule)
    def unused(t: Transaction, o: Occurrence) -> None:
        raise AssertionError

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        with ledger.db.rules.ignoring("unused"):
            ledger.write(t, "one")
            t.spawn(lambda s: ledger.write(s, "two")).result()
        steps.reach("rule has run")

    with ledger.db.transaction() as t, ledger.db.rules.ignoring("unused"):
        t.update(a, 2, balance=100)
        ledger.db.signal("E")
        steps.wait("rule has run")
    ledger.db.wait_idle()
    assert ledger.lines() == ["one", "two"]
    assert ledger.balances()[2] == 102


def test_causal_rules_of_a_stream_begin_when_its_part_has_committed(ledger: Ledger) -> None:
    causes: list[tuple[int, ...]] = []

    @ledger.db.rule(on=adb.event("A"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        causes.append(node_of(t).hierarchy.causes)
        ledger.write(t, f"{o.params['n']}")

    declare(ledger.db, A=("n",)).feed([event("A", n, n=n) for n in range(5)])
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == [str(n) for n in range(5)]
    assert causes == [()] * 5


def test_causal_rule_in_the_callers_transaction_waits_for_the_callers_commit(
    ledger: Ledger,
) -> None:
    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, o.params["n"])

    for ending in ("rollback", "commit"):
        with ledger.db.connection() as connection:
            with ledger.db.transaction(connection=connection):
                ledger.db.signal("E", n=ending)
            getattr(connection, ending)()
    until(lambda: ledger.lines() == ["commit"])  # the commit is noticed beside


def test_causal_rules_that_wait_leave_the_pool_to_others(ledger: Ledger) -> None:
    db, latch = ledger.db, threading.Lock()
    waiting: list[int] = []
    meeting = threading.Barrier(2, timeout=PATIENCE_S)

    @db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        with latch:
            waiting.append(o.params["n"])

    with db.transaction() as t:
        for n in range(2 * db.settings.threads):
            db.signal("E", n=n)
        until(lambda: len(waiting) == 2 * db.settings.threads)
        for child in [t.spawn(lambda s: meeting.wait()) for _ in range(2)]:
            child.result()  # so one of them has got a thread of the pool
    db.wait_idle()
    assert ledger.pending() == []


def test_database_can_be_closed_while_a_causal_rule_waits() -> None:
    ledger = open_ledger(adb.connect("memory://"))
    steps = Steps()

    @ledger.db.rule(on=adb.event("E"), coupling="causal")
    def rule(t: Transaction, o: Occurrence) -> None:
        steps.reach("has run")

    t = ledger.db.transaction()
    t.__enter__()
    ledger.db.signal("E")
    steps.wait("has run")
    in_thread(ledger.db.close).result(PATIENCE_S)
    with pytest.raises(adb.errors.ActiveDBError):
        t.__exit__(None, None, None)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2 * SCALE))
def test_causal_rules_of_parallel_transfers_see_what_is_committed_in_the_end(
    ledger: Ledger, seed: int
) -> None:
    """Each transfer raises its event between its two updates, when the sum is wrong.

    A rule that has seen that has locked what it saw, so it is rolled back; one that commits saw
    the right sum. A second program that takes no part moves money between other accounts.
    """
    db, a, rng = ledger.db, ledger.accounts, drawn("causal", seed)
    with db.transaction() as t:
        for key in range(3, 9):
            t.insert(a, {"id": key, "balance": 100})
    total = sum(ledger.balances().values())

    @db.rule(on=adb.event("MOVED"), coupling="causal")
    def check(t: Transaction, o: Occurrence) -> None:
        if o.params["by"] == "query":
            ((found,),) = t.query(select(func.sum(a.c.balance)))
        else:
            rows = t.get_many(a, range(1, 9)).values()
            found = sum(row["balance"] for row in rows if row)
        ledger.write(t, f"{o.params['n']} {found}")

    def transfer(t: Transaction, n: int, source: int, target: int, by: str, fails: bool) -> None:
        t.update(a, source, balance=t.get(a, source)["balance"] - 1)  # type: ignore[index]
        db.signal("MOVED", n=n, by=by)
        t.update(a, target, balance=t.get(a, target)["balance"] + 1)  # type: ignore[index]
        if fails:
            t.abort()

    planned = [
        (n, *rng.sample(range(1, 9), 2), rng.choice(("query", "rows")), rng.random() < 0.2)
        for n in range(12)
    ]

    def work(mine: list[tuple[int, int, int, str, bool]]) -> None:
        for one in mine:
            is_done = False
            while not is_done:  # beside the other program `retries_max` may not be enough
                with contextlib.suppress(Deadlock):
                    try:
                        db.run(transfer, *one)
                    except TransactionAborted:
                        assert one[-1]
                    is_done = True

    threads = [threading.Thread(target=work, args=(planned[i::3],)) for i in range(3)]
    for thread in threads:
        thread.start()
    if db._store.is_shared:
        for _ in range(5):
            source, target = rng.sample(range(1, 9), 2)
            # The server may choose this program as the victim of a deadlock.
            with contextlib.suppress(DBAPIError), db.connection() as connection:
                for key, amount in sorted([(source, -1), (target, 1)]):
                    changed = a.c.balance + amount
                    connection.execute(a.update().where(a.c.id == key).values(balance=changed))
                connection.commit()
    for thread in threads:
        thread.join()
    db.wait_idle()
    db.recover()  # what was left pending, because it could not get its turn
    db.wait_idle()
    expected = sorted(f"{n} {total}" for n, *_, fails in planned if not fails)
    assert sorted(ledger.lines()) == expected
    assert ledger.pending() == []
    assert ledger.letters() == []
