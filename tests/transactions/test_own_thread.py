"""Hopeless waits, which only the waiting thread could end, are refused at once; others are not."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update
from sqlalchemy.orm import Session as ORMSession

import activedb as adb
from activedb.errors import Deadlock, RuleFailed, SelfDeadlock
from activedb.store.session import UserConnection
from activedb.store.session._memory import MemoryStore
from activedb.transactions._threads import is_anybody_stalled
from tests.databases import in_thread, lock_waits, place, set_when, until
from tests.patience import PATIENCE_S
from tests.transactions.bank import Bank, open_bank

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection

    from activedb import Transaction
    from activedb.errors import ActiveDBError

# The limit of waits is twice PATIENCE_S in these tests: whoever waits for ever is found out.


def put(t: Transaction, bank: Bank, key: int = 1, balance: int = 5) -> None:
    t.update(bank.accounts, key, balance=balance)


def nested_run(bank: Bank) -> None:
    with bank.db.transaction() as t:
        put(t, bank)
        bank.db.run(put, bank)


def nested_read(bank: Bank) -> None:
    with bank.db.transaction() as t:
        put(t, bank)
        bank.db.run(lambda s: s.get(bank.accounts, 1))


def nested_query(bank: Bank) -> None:
    with bank.db.transaction() as t:
        put(t, bank)
        bank.db.run(lambda s: s.query(select(bank.accounts)))


def write_beneath_a_query(bank: Bank) -> None:
    with bank.db.transaction() as t:
        t.query(select(bank.accounts))
        bank.db.run(put, bank)


def nested_transaction(bank: Bank) -> None:
    with bank.db.transaction() as t, bank.db.transaction() as s:
        put(t, bank)
        put(s, bank)


def outer_used_inside(bank: Bank) -> None:
    with bank.db.transaction() as t, bank.db.transaction() as s:
        put(s, bank)
        put(t, bank)


def run_in_run(bank: Bank) -> None:
    def outer(t: Transaction) -> None:
        put(t, bank)
        bank.db.run(put, bank)

    bank.db.run(outer)


def through_one_between(bank: Bank) -> None:
    with bank.db.transaction() as t:
        put(t, bank, 1)
        with bank.db.transaction() as s:
            put(s, bank, 2)
            bank.db.run(put, bank, 1)


def siblings(bank: Bank) -> None:
    with bank.db.transaction() as t, t.subtransaction() as a:
        put(a, bank)
        with t.subtransaction() as b:
            put(b, bank)


def in_a_child(bank: Bank) -> None:
    with bank.db.transaction() as t:
        put(t, bank)
        with t.subtransaction():
            bank.db.run(put, bank)


def in_spawned_children(bank: Bank) -> None:
    def child(s: Transaction) -> None:
        bank.db.run(put, bank)

    with bank.db.transaction() as t:
        put(t, bank)
        for _ in range(3):
            t.spawn(child)


def of_a_child_elsewhere(bank: Bank) -> None:
    """The lock is that of a child which runs on another thread, and would go to the parent."""
    done, has_it = threading.Event(), threading.Event()

    def child(s: Transaction) -> None:
        put(s, bank)
        has_it.set()
        assert done.wait(PATIENCE_S)

    with bank.db.transaction() as t:
        t.spawn(child)
        assert has_it.wait(PATIENCE_S)
        try:
            bank.db.run(put, bank)
        finally:
            done.set()


def run_that_spawns(bank: Bank) -> None:
    def spawning(t: Transaction) -> None:
        t.spawn(put, bank)
        t.spawn(put, bank, 2)

    with bank.db.transaction() as t:
        put(t, bank)
        bank.db.run(spawning)


def run_that_waits_for_what_sleeps_already(bank: Bank) -> None:
    def spawning(t: Transaction) -> None:
        waits = lock_waits(bank.db)
        child = t.spawn(put, bank)
        until(lambda: lock_waits(bank.db) > waits)
        child.result()

    with bank.db.transaction() as t:
        put(t, bank)
        bank.db.run(spawning)


def run_that_spawns_deep(bank: Bank) -> None:
    def deep(t: Transaction) -> None:
        child = t.spawn(lambda s: s.spawn(put, bank).result())
        t.spawn(put, bank, 2)
        child.result()

    with bank.db.transaction() as t:
        put(t, bank)
        bank.db.run(deep)


def two_coroutines(bank: Bank) -> None:
    async def work() -> None:
        with bank.db.transaction() as t:
            put(t, bank)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(work(), work())

    asyncio.run(both())


def two_generators(bank: Bank) -> None:
    def work() -> Generator[None]:
        with bank.db.transaction() as t:
            put(t, bank)
            yield

    first, second = work(), work()
    next(first)
    try:
        next(second)
    finally:
        first.close()


def looks_of(crossing: Any) -> list[bool]:
    """Begin to note each look at the waits that cross processes."""
    looks: list[bool] = []
    look_once = crossing.look_once

    def look(tops: Any) -> Any:
        looks.append(True)
        return look_once(tops)

    crossing.look_once = look
    return looks


OWN: dict[str, Callable[[Bank], None]] = {
    call.__name__: call
    for call in (
        nested_run,
        nested_read,
        nested_query,
        write_beneath_a_query,
        nested_transaction,
        outer_used_inside,
        run_in_run,
        through_one_between,
        siblings,
        in_a_child,
        in_spawned_children,
        run_that_spawns,
        run_that_waits_for_what_sleeps_already,
        run_that_spawns_deep,
        of_a_child_elsewhere,
        two_coroutines,
        two_generators,
    )
}


@pytest.mark.parametrize("call", OWN)
def test_wait_that_only_its_own_thread_could_end_is_refused(bank: Bank, call: str) -> None:
    refused = in_thread(OWN[call], bank).exception(PATIENCE_S)
    assert type(refused) is SelfDeadlock, refused
    assert "end that one first" in str(refused)
    first_commits = call == "two_coroutines"
    assert bank.committed() == {1: 5 if first_commits else 10, 2: 20}
    assert bank.db.admin.counters()["waits_for_own_thread"] >= 1
    assert bank.db.admin.counters().get("retries_after_deadlocks", 0) == 0


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
@pytest.mark.parametrize("rules", [1, 3])
def test_rule_that_calls_run_on_what_its_transaction_holds_fails_at_once(
    bank: Bank, coupling: str, rules: int
) -> None:
    for number in range(rules):  # several of them run on the pool's threads

        @bank.db.rule(on=adb.updated(bank.accounts), coupling=coupling, name=f"r{number}")
        def action(t: Transaction, o: Any) -> None:
            bank.db.run(put, bank, 1, 7)

    failed = in_thread(bank.db.run, put, bank).exception(PATIENCE_S)
    assert type(failed) is RuleFailed
    assert type(failed.__cause__) is SelfDeadlock
    assert bank.committed() == {1: 10, 2: 20}


def test_detached_rule_that_waits_for_itself_becomes_a_letter(bank: Bank) -> None:
    @bank.db.rule(on=adb.event("GO"), coupling="detached")
    def action(t: Transaction, o: Any) -> None:
        put(t, bank)
        bank.db.run(put, bank)

    bank.db.signal("GO")
    in_thread(bank.db.wait_idle).result(PATIENCE_S)
    (letter,) = bank.db.dead_letters.list(kind="rule")
    assert "would never end" in letter.reason


@pytest.mark.parametrize("first", ["rule", "join"])
def test_join_inside_the_transaction_that_a_detached_rule_waits_for_is_refused(
    bank: Bank, first: str
) -> None:
    let_go = threading.Event()

    @bank.db.rule(on=adb.event("GO"), coupling="detached")
    def action(t: Transaction, o: Any) -> None:
        assert let_go.wait(PATIENCE_S)
        put(t, bank, 1, 7)

    def work() -> None:
        with bank.db.transaction() as t:
            put(t, bank)
            bank.db.signal("GO")
            if first == "rule":
                waits = lock_waits(bank.db)
                let_go.set()
                until(lambda: lock_waits(bank.db) > waits)
                bank.db.wait_idle()
            else:
                idle: Any = bank.db._launcher._idle
                in_thread(set_when, lambda: idle._waiters, let_go)
                bank.db.wait_idle()

    refused = in_thread(work).exception(PATIENCE_S)
    assert type(refused) is SelfDeadlock
    in_thread(bank.db.wait_idle).result(PATIENCE_S)  # the rule was not harmed
    assert bank.committed()[1] == 7
    assert bank.db.dead_letters.list() == []


# -- waits that others can end -----------------------------------------------------------------


def test_wait_for_a_transaction_of_another_thread_is_never_refused(bank: Bank) -> None:
    has_it, let_go = threading.Event(), threading.Event()

    def other() -> None:
        with bank.db.transaction() as t:
            put(t, bank, 2, 7)
            has_it.set()
            assert let_go.wait(PATIENCE_S)

    def nested() -> None:
        with bank.db.transaction() as t:
            put(t, bank, 1)
            bank.db.run(put, bank, 2, 8)

    theirs = in_thread(other)
    assert has_it.wait(PATIENCE_S)
    waits = lock_waits(bank.db)
    ours = in_thread(nested)
    until(lambda: lock_waits(bank.db) > waits)
    assert not ours.done()
    let_go.set()
    ours.result(PATIENCE_S)
    theirs.result(PATIENCE_S)
    assert bank.committed() == {1: 5, 2: 8}


def test_wait_for_a_transaction_that_was_opened_here_and_entered_elsewhere_is_not_refused(
    bank: Bank,
) -> None:
    has_it, let_go = threading.Event(), threading.Event()
    handed = bank.db.transaction()  # on this thread

    def other() -> None:
        with handed as t:
            put(t, bank, 1, 7)
            has_it.set()
            assert let_go.wait(PATIENCE_S)

    theirs = in_thread(other)
    assert has_it.wait(PATIENCE_S)
    waits = lock_waits(bank.db)
    in_thread(set_when, lambda: lock_waits(bank.db) > waits, let_go)
    bank.db.run(put, bank, 1, 8)
    theirs.result(PATIENCE_S)
    assert bank.committed()[1] == 8


def test_child_on_another_thread_that_waits_for_its_sibling_is_not_refused(bank: Bank) -> None:
    has_it, let_go = threading.Event(), threading.Event()

    def holds(s: Transaction) -> None:
        put(s, bank, 1, 6)
        has_it.set()
        assert let_go.wait(PATIENCE_S)

    def wants(s: Transaction) -> None:
        assert has_it.wait(PATIENCE_S)
        put(s, bank, 1, 7)

    def nested(t: Transaction) -> None:
        first = t.spawn(holds)
        assert has_it.wait(PATIENCE_S)
        waits = lock_waits(bank.db)
        second = t.spawn(wants)
        until(lambda: lock_waits(bank.db) > waits)
        with bank.db.transaction() as beside:  # open on the parent's thread, blocking none
            put(beside, bank, 2)
        let_go.set()
        first.result()
        second.result()

    in_thread(bank.db.run, nested).result(PATIENCE_S)
    assert bank.committed() == {1: 7, 2: 5}


def test_reader_inside_a_reader_passes_a_writer_that_waits_for_it(bank: Bank) -> None:
    def nested() -> int:
        with bank.db.transaction() as t:
            t.get(bank.accounts, 1)
            waits = lock_waits(bank.db)
            writing.append(in_thread(bank.db.run, put, bank))
            until(lambda: lock_waits(bank.db) > waits)
            row = bank.db.run(lambda s: s.get(bank.accounts, 1))
            assert row is not None
            return int(row["balance"])

    writing: list[Any] = []
    assert in_thread(nested).result(PATIENCE_S) == 10
    writing[0].result(PATIENCE_S)
    assert bank.committed()[1] == 5


def test_deadlock_of_two_threads_with_nested_runs_is_tried_again_from_the_outer_ones(
    bank: Bank,
) -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)
    met = itertools.count()

    def outer(t: Transaction, mine: int, other: int) -> None:
        put(t, bank, mine, mine)
        if next(met) < 2:
            both.wait()
        bank.db.run(put, bank, other, other * 10)

    calls = [in_thread(bank.db.run, outer, 1, 2), in_thread(bank.db.run, outer, 2, 1)]
    errors = [call.exception(PATIENCE_S) for call in calls]
    assert errors == [None, None]
    assert bank.db.admin.counters()["retries_after_deadlocks"] >= 1
    assert set(bank.committed().values()) <= {1, 2, 10, 20}


# -- one thread, any nesting, against a model ---------------------------------------------------

ROWS = (1, 2, 3)
LINES_MAX = 12  # each may need one of the 18 connections
MODES = ("read", "write")
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["begin", "connect"]), st.just(0), st.just("")),
        st.tuples(st.just("child"), st.integers(0, 5), st.just("")),
        st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from(["commit", "abort"])),
        st.tuples(st.sampled_from(MODES), st.integers(0, 5), st.sampled_from(["1", "2", "3"])),
        st.tuples(st.sampled_from(MODES), st.integers(0, 5), st.sampled_from(["1", "2", "3"])),
    ),
    min_size=3,
    max_size=25,
)


class Line:
    """A top-level transaction and its open descendants, of which the innermost is used."""

    def __init__(self, bank: Bank):
        self._open = [bank.db.transaction().__enter__()]

    def begin_child(self) -> None:
        self._open.append(self._open[-1].subtransaction().__enter__())

    def innermost(self) -> AbstractContextManager[Transaction]:
        return nullcontext(self._open[-1])

    def end(self, how: str) -> bool:
        """End the innermost one; returns whether it was the last."""
        _end(self._open.pop(), how)
        return not self._open


class ConnectionLine(Line):
    """Blocks over a connection, each of which has ended when the next step comes."""

    def __init__(self, bank: Bank):
        self._bank = bank
        self._block = bank.db.connection()
        self._connection = self._block.__enter__()

    def begin_child(self) -> None:
        pass

    def innermost(self) -> AbstractContextManager[Transaction]:
        return self._bank.db.transaction(connection=self._connection)

    def end(self, how: str) -> bool:
        if how == "commit":
            self._connection.commit()
        self._block.__exit__(None, None, None)
        return True


class Model:
    """Lines of nested transactions, all on one thread, and who has read or written which row.

    Only the innermost transaction of a line is used, so none is in the way inside a line.
    """

    def __init__(self) -> None:
        self.lines: list[dict[int, str]] = []

    def conflicts(self, line: int, what: str, row: int) -> bool:
        return any(
            number != line and row in locks and "write" in (what, locks[row])
            for number, locks in enumerate(self.lines)
        )


@contextmanager
def database(server_url: str | None) -> Iterator[Bank]:
    with place(server_url) as where:
        yield open_bank(where.open(), {1: 1, 2: 2, 3: 3})


def play(bank: Bank, program: list[tuple[str, int, str]]) -> None:
    model = Model()
    lines: dict[int, Line] = {}
    is_memory = isinstance(
        bank.db._store, MemoryStore
    )  # where a connection keeps all others waiting

    def end_all() -> None:
        while lines:
            place_, line = lines.popitem()
            if not line.end("abort"):
                lines[place_] = line

    with ExitStack() as left_open:
        left_open.callback(end_all)
        for what, number, more in program:
            if what in ("begin", "connect"):
                if len(lines) == LINES_MAX:
                    continue
                kind = ConnectionLine if what == "connect" and not is_memory else Line
                lines[len(model.lines)] = kind(bank)
                model.lines.append({})
                continue
            if not lines:
                continue
            place_ = sorted(lines)[number % len(lines)]
            line = lines[place_]
            if what == "child":
                line.begin_child()
            elif what == "end":
                if line.end(more):
                    del lines[place_]
                    model.lines[place_] = {}
            else:
                row = int(more)
                expected = model.conflicts(place_, what, row)
                try:
                    with line.innermost() as t:
                        if what == "read":
                            t.get(bank.accounts, row)
                        else:
                            t.update(bank.accounts, row, balance=row)
                    refused = False
                except SelfDeadlock:
                    refused = True
                assert refused == expected, (what, place_, row, model.lines)
                if not refused and model.lines[place_].get(row) != "write":
                    model.lines[place_][row] = what


def _end(t: Transaction, how: str) -> None:
    if how == "commit":
        t.__exit__(None, None, None)
    else:
        error = RuntimeError("abort")
        t.__exit__(RuntimeError, error, None)


@given(program=steps)
@settings(max_examples=60)
def test_one_thread_with_any_nesting_is_refused_exactly_where_its_own_locks_are(
    program: list[tuple[str, int, str]], shared_bank: Bank
) -> None:
    in_thread(play, shared_bank, program).result(2 * PATIENCE_S)


def test_blocks_that_end_out_of_order_leave_the_thread_with_what_is_open(bank: Bank) -> None:
    heard: list[str] = []
    bank.db.rule(on=adb.event("E"), name="hears")(lambda t, o: heard.append(t.parent.path))

    def work() -> None:
        outer = bank.db.transaction().__enter__()
        child = outer.subtransaction().__enter__()
        beside = bank.db.transaction().__enter__()
        _end(child, "commit")
        _end(beside, "commit")
        put(outer, bank)
        bank.db.signal("E")
        assert heard == [outer.path]
        last = bank.db.transaction().__enter__()
        _end(outer, "commit")
        _end(last, "abort")
        bank.db.signal("E")  # in a transaction of its own

    in_thread(work).result(PATIENCE_S)
    assert len(heard) == 2
    assert bank.committed()[1] == 5


@pytest.fixture(scope="module", params=["memory", "postgres"])
def shared_bank(request: pytest.FixtureRequest) -> Iterator[Bank]:
    """Accounts for many small programs, which all abort or write what is there."""
    url = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    with database(url) as bank:
        yield bank


def test_deadlock_error_is_still_what_two_plain_threads_get(bank: Bank) -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def work(first: int, second: int) -> None:
        with bank.db.transaction() as t:
            put(t, bank, first)
            both.wait()
            put(t, bank, second)

    calls = [in_thread(work, 1, 2), in_thread(work, 2, 1)]
    errors = [call.exception(PATIENCE_S) for call in calls]
    assert sorted(type(e).__name__ for e in errors) == ["Deadlock", "NoneType"]
    assert any(type(e) is Deadlock for e in errors)


def test_deadlock_with_a_child_that_awaits_an_offer_names_the_lock_it_wants(bank: Bank) -> None:
    has_it, touched = threading.Event(), threading.Event()

    def child(s: Transaction) -> None:
        put(s, bank, 2)
        has_it.set()
        assert touched.wait(PATIENCE_S)
        put(s, bank, 1)

    def parent(s: Transaction) -> None:
        s.spawn(child)  # at which it offers its locks
        assert has_it.wait(PATIENCE_S)
        put(s, bank, 1)
        touched.set()
        until(lambda: bank.db._forest.offers._awaited)
        bank.db.run(put, bank, 2)

    def work() -> None:
        with bank.db.transaction() as t:
            t.spawn(parent).result()

    refused = in_thread(work).exception(PATIENCE_S)
    if isinstance(refused, SelfDeadlock):  # the child did not sleep yet
        assert "is open on this same thread" in str(refused)
        return
    assert type(refused) is Deadlock, refused
    wanted = r"wants X on accounts/\(1,\), waits for \d+, which holds it in X"
    assert re.search(wanted, str(refused))
    assert "on the thread of its superior" not in str(refused)


# -- where the server keeps the locks ------------------------------------------------------------


def test_wait_at_the_server_for_another_database_object_on_this_thread_is_refused(
    postgres_url: str,
) -> None:
    with place(postgres_url) as where:
        bank = open_bank(where.open(), {1: 10, 2: 20})
        beside = where.open()
        other = Bank(beside, bank.accounts, bank.notes)

        def nested() -> None:
            with bank.db.transaction() as t:
                put(t, bank)
                other.db.run(put, other)

        refused = in_thread(nested).exception(PATIENCE_S)
        assert type(refused) is SelfDeadlock, refused
        assert "at the server" in str(refused)
        assert bank.committed()[1] == 10


@pytest.mark.long
def test_wait_at_the_server_for_another_thread_is_not_refused(postgres_url: str) -> None:
    with place(postgres_url) as where:
        bank = open_bank(where.open(), {1: 10, 2: 20})
        other = Bank(where.open(), bank.accounts, bank.notes)
        has_it, let_go = threading.Event(), threading.Event()

        def holds() -> None:
            with bank.db.transaction() as t:
                put(t, bank)
                has_it.set()
                assert let_go.wait(PATIENCE_S)

        def nested() -> None:
            with bank.db.transaction() as t:  # open on this thread, but not what is waited for
                put(t, bank, 2)
                other.db.run(put, other, 1, 8)

        theirs = in_thread(holds)
        assert has_it.wait(PATIENCE_S)
        ours = in_thread(nested)
        looks = looks_of(other.db._forest.crossing)
        until(lambda: len(looks) > 4)
        assert not ours.done()
        let_go.set()
        ours.result(PATIENCE_S)
        theirs.result(PATIENCE_S)
        assert bank.committed() == {1: 8, 2: 5}


# -- SQL of the users' own -----------------------------------------------------------------------


def plain_write(bank: Bank, connection: Connection, key: int = 1, balance: int = 7) -> None:
    accounts = bank.accounts
    connection.execute(update(accounts).where(accounts.c.id == key).values(balance=balance))


def plain_lock(bank: Bank, connection: Connection) -> None:
    connection.execute(select(bank.accounts).with_for_update()).all()


def plain_session(bank: Bank, connection: Connection) -> None:
    with ORMSession(connection) as session:
        session.execute(update(bank.accounts).values(balance=7))


@pytest.mark.parametrize("statement", [plain_write, plain_lock, plain_session])
@pytest.mark.parametrize("how", ["inside", "in a child", "with an outer block"])
def test_plain_statement_that_waits_for_a_transaction_of_its_thread_is_refused(
    postgres_url: str, statement: Callable[[Bank, Connection], None], how: str
) -> None:
    with place(postgres_url) as where:
        bank = open_bank(where.open(), {1: 10, 2: 20})

        def nested() -> None:
            with ExitStack() as blocks:
                if how == "with an outer block":
                    connection = blocks.enter_context(bank.db.connection())
                t = blocks.enter_context(bank.db.transaction())
                put(t, bank)
                if how == "in a child":
                    put(blocks.enter_context(t.subtransaction()), bank, 2)
                if how != "with an outer block":
                    connection = blocks.enter_context(bank.db.connection())
                statement(bank, connection)

        refused = in_thread(nested).exception(PATIENCE_S)
        assert type(refused) is SelfDeadlock, refused
        assert "SQL on db.connection()" in str(refused)
        assert bank.committed() == {1: 10, 2: 20}


def nested_in_plain(bank: Bank, connection: Connection) -> None:
    with bank.db.transaction() as t:
        put(t, bank)


def run_in_plain(bank: Bank, connection: Connection) -> None:
    bank.db.run(put, bank)


def query_in_plain(bank: Bank, connection: Connection) -> None:
    bank.db.run(lambda t: t.query(select(bank.accounts).with_for_update()))


def signal_in_plain(bank: Bank, connection: Connection) -> None:
    bank.db.rule(on=adb.event("GO"), name="go")(lambda t, o: put(t, bank))
    bank.db.signal("GO")


def block_write(bank: Bank, connection: Connection) -> None:
    with bank.db.transaction(connection=connection) as t:
        put(t, bank, balance=7)


@pytest.mark.parametrize("write", [plain_write, block_write])
@pytest.mark.parametrize("call", [nested_in_plain, run_in_plain, query_in_plain, signal_in_plain])
def test_transaction_that_waits_for_a_connection_of_its_thread_is_refused(
    bank: Bank,
    call: Callable[[Bank, Connection], None],
    write: Callable[[Bank, Connection], None],
) -> None:
    def nested() -> None:
        with bank.db.connection() as connection:
            write(bank, connection)
            call(bank, connection)

    refused = in_thread(nested).exception(PATIENCE_S)
    if call is signal_in_plain and isinstance(refused, RuleFailed):
        refused = refused.__cause__
    assert type(refused) is SelfDeadlock, refused
    assert re.search(r"db\.connection\(\)|transaction of the connection", str(refused))
    assert bank.committed() == {1: 10, 2: 20}
    bank.db.run(put, bank)  # nothing was left
    assert bank.committed()[1] == 5


@pytest.mark.parametrize("first", ["rule", "join"])
@pytest.mark.parametrize("waits", ["itself", "for another"])
def test_join_beside_plain_sql_that_a_detached_rule_waits_for_is_refused(
    bank: Bank, first: str, waits: str
) -> None:
    has_it, let_go = threading.Event(), threading.Event()

    def other() -> None:
        def work(t: Transaction) -> None:
            put(t, bank, 2, 9)
            has_it.set()
            put(t, bank, 1, 6)

        bank.db.run(work)

    @bank.db.rule(on=adb.event("GO"), coupling="detached")
    def action(t: Transaction, o: Any) -> None:
        assert let_go.wait(PATIENCE_S)
        if waits == "itself":
            put(t, bank, 1, 7)
        else:
            put(t, bank, 2, 7)  # which another thread has, that waits for the plain SQL

    def work() -> None:
        bank.db.signal("GO")
        with bank.db.connection() as connection:
            plain_write(bank, connection, 1, 8)
            if waits == "for another" and not is_in_memory(bank):
                in_thread(other)
                assert has_it.wait(PATIENCE_S)
            if first == "rule":
                let_go.set()
                if not is_in_memory(bank):
                    until(lambda: any(calls_are_long(bank)))
            else:
                idle: Any = bank.db._launcher._idle
                in_thread(set_when, lambda: idle._waiters, let_go)
            try:
                bank.db.wait_idle()
            finally:
                let_go.set()

    refused = in_thread(work).exception(PATIENCE_S)
    assert type(refused) is SelfDeadlock, refused
    assert "db.connection()" in str(refused)
    in_thread(bank.db.wait_idle).result(PATIENCE_S)  # the rule was not harmed
    assert bank.committed()[1 if waits == "itself" else 2] == 7
    assert bank.db.dead_letters.list() == []


def test_rule_is_not_refused_while_a_join_has_yet_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Semaphore(0)
    hopeless_wait_error = UserConnection.hopeless_wait_error

    def counted(use: UserConnection, thread: int) -> ActiveDBError | None:
        found = hopeless_wait_error(use, thread)
        asked.release()
        return found

    monkeypatch.setattr(UserConnection, "hopeless_wait_error", counted)
    bank = open_bank(adb.connect("memory://"), {1: 10, 2: 20})
    let_go = threading.Event()

    @bank.db.rule(on=adb.event("GO"), coupling="detached")
    def action(t: Transaction, o: Any) -> None:
        assert let_go.wait(PATIENCE_S)
        put(t, bank, 2, 7)

    def work() -> None:
        bank.db.signal("GO")
        with bank.db.connection() as connection:
            plain_write(bank, connection, 1, 8)
            let_go.set()
            assert asked.acquire(timeout=PATIENCE_S)
            with bank.db._launcher._sleeping():  # as join does, which looks a moment later
                while asked.acquire(blocking=False):
                    pass
                for _ in range(2):
                    assert asked.acquire(timeout=PATIENCE_S)

    in_thread(work).result(PATIENCE_S)
    in_thread(bank.db.wait_idle).result(PATIENCE_S)
    assert bank.committed()[2] == 7
    assert bank.db.dead_letters.list() == []
    bank.db.close()


def is_in_memory(bank: Bank) -> bool:
    return isinstance(bank.db._forest.store, MemoryStore)


def calls_are_long(bank: Bank) -> list[bool]:
    """Return for each top-level transaction whether its present statement takes long."""
    tops = list(bank.db._forest.crossing._tops.values())
    return [top.hierarchy.session.called_s > 0.05 for top in tops]


def test_join_beside_plain_sql_that_no_rule_waits_for_waits(postgres_url: str) -> None:
    with place(postgres_url) as where:
        bank = open_bank(where.open(), {1: 10, 2: 20})
        let_go = threading.Event()

        @bank.db.rule(on=adb.event("GO"), coupling="detached")
        def action(t: Transaction, o: Any) -> None:
            assert let_go.wait(PATIENCE_S)
            put(t, bank, 2, 7)

        def work() -> None:
            bank.db.signal("GO")
            with bank.db.connection() as connection:
                plain_write(bank, connection, 1, 8)
                idle: Any = bank.db._launcher._idle
                in_thread(set_when, lambda: idle._waiters, let_go)
                bank.db.wait_idle()
                connection.commit()

        in_thread(work).result(PATIENCE_S)
        assert bank.committed() == {1: 8, 2: 7}


@pytest.mark.parametrize("children", ["spawned", "rules"])
@pytest.mark.parametrize("first", ["child", "wait"])
def test_children_on_other_threads_that_wait_for_plain_sql_of_this_one_are_refused(
    bank: Bank, children: str, first: str
) -> None:
    here: Any = None

    def put_then(t: Transaction, number: int) -> None:
        if first == "wait" and threading.current_thread() is not here:
            until(is_anybody_stalled)
        put(t, bank, number)

    for number in (1, 2):  # of several one runs on another thread, or all do
        bank.db.rule(on=adb.event("GO"), name=f"r{number}")(
            lambda t, o, number=number: put_then(t, number)
        )

    def spawning(t: Transaction) -> None:
        t.spawn(put_then, 1)

    def work() -> None:
        nonlocal here
        here = threading.current_thread()
        with bank.db.connection() as connection:
            plain_write(bank, connection, 1, 8)
            plain_write(bank, connection, 2, 8)
            if children == "spawned":
                bank.db.run(spawning)
            else:
                bank.db.signal("GO")

    refused = in_thread(work).exception(PATIENCE_S)
    while isinstance(refused, RuleFailed):
        refused = refused.__cause__
    assert type(refused) is SelfDeadlock, refused
    assert "db.connection()" in str(refused)
    assert bank.committed() == {1: 10, 2: 20}


def test_transaction_in_memory_that_waits_for_plain_sql_that_waits_for_it_is_a_victim() -> None:
    with place(None) as where:
        bank = open_bank(where.open(), {1: 10, 2: 20})
        has_it = threading.Event()

        def theirs() -> None:
            with bank.db.transaction() as t:
                t.get(bank.accounts, 1, for_update=True)
                has_it.set()
                until(is_anybody_stalled)
                put(t, bank, 2)

        def ours() -> None:
            with bank.db.connection() as connection:
                other = in_thread(theirs)
                assert has_it.wait(PATIENCE_S)
                plain_write(bank, connection, 2, 8)
                with pytest.raises(SelfDeadlock), bank.db.transaction() as t:
                    t.get(bank.accounts, 1, for_update=True)  # as soon as the other one has ended
            assert type(other.exception(PATIENCE_S)) is Deadlock

        in_thread(ours).result(PATIENCE_S)
        assert bank.committed() == {1: 10, 2: 20}


def test_plain_sql_in_memory_that_is_refused_leaves_the_work_of_the_outer_block() -> None:
    with place(None) as where:
        bank = open_bank(where.open(), {1: 10, 2: 20})

        def nested() -> None:
            with bank.db.connection() as outer:
                plain_write(bank, outer, 1, 8)
                with pytest.raises(SelfDeadlock), bank.db.connection() as inner:
                    plain_write(bank, inner, 2, 8)
                outer.commit()

        in_thread(nested).result(PATIENCE_S)
        assert bank.committed() == {1: 8, 2: 20}


def test_connection_is_of_use_after_its_statement_was_refused(postgres_url: str) -> None:
    with place(postgres_url) as where:
        bank = open_bank(where.open(), {1: 10, 2: 20})

        def nested() -> None:
            with bank.db.connection() as connection:
                with bank.db.transaction() as t:
                    put(t, bank)
                    with pytest.raises(SelfDeadlock):
                        plain_write(bank, connection)
                    connection.rollback()
                plain_write(bank, connection, 1, 8)
                connection.commit()

        in_thread(nested).result(PATIENCE_S)
        assert bank.committed()[1] == 8


@pytest.mark.long
@pytest.mark.parametrize("waits", ["statement", "transaction"])
def test_wait_between_plain_sql_and_another_thread_is_not_refused(
    postgres_url: str, waits: str
) -> None:
    with place(postgres_url) as where:
        bank = open_bank(where.open(), {1: 10, 2: 20})
        has_it, let_go = threading.Event(), threading.Event()

        def transaction() -> None:
            with bank.db.transaction() as t:
                put(t, bank)
                held()

        def statement() -> None:
            with bank.db.connection() as connection:
                plain_write(bank, connection)
                held()
                connection.commit()

        def held() -> None:
            if not has_it.is_set():
                has_it.set()
                assert let_go.wait(PATIENCE_S)

        first, second = transaction, statement
        if waits == "transaction":
            first, second = second, first
        theirs = in_thread(first)
        assert has_it.wait(PATIENCE_S)

        def beside() -> None:  # something is open on the thread, but not what is waited for
            with bank.db.transaction() as t, bank.db.connection() as connection:
                put(t, bank, 2)
                connection.execute(select(bank.accounts)).all()
                second()

        ours = in_thread(beside)
        looks = looks_of(bank.db._forest.crossing)
        until(lambda: len(looks) > 4 or ours.done())
        assert not ours.done()
        let_go.set()
        ours.result(PATIENCE_S)
        theirs.result(PATIENCE_S)
        assert bank.committed() == {1: 7 if waits == "statement" else 5, 2: 5}


@pytest.mark.long
def test_wait_for_plain_sql_that_another_thread_has_used_is_not_refused(
    postgres_url: str,
) -> None:
    with place(postgres_url) as where:
        bank = open_bank(where.open(), {1: 10, 2: 20})
        looks = looks_of(bank.db._forest.crossing)

        def nested() -> None:
            with bank.db.connection() as connection:
                in_thread(plain_write, bank, connection).result(PATIENCE_S)

                def end() -> None:
                    until(lambda: len(looks) > 4)
                    connection.commit()

                ending = in_thread(end)
                bank.db.run(put, bank)
                ending.result(PATIENCE_S)

        in_thread(nested).result(PATIENCE_S)
        assert bank.committed()[1] == 5
