"""A child that is forked begins anew, and the parent notices nothing."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import threading
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

import activedb as adb
from activedb.errors import WrongProcess
from activedb.store.server import until_s
from activedb.transactions import current_transaction
from tests.databases import Place, in_thread, place, until
from tests.nodes import node_of
from tests.patience import PATIENCE_S
from tests.transactions.bank import Bank, open_bank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from activedb import Transaction

pytestmark = pytest.mark.filterwarnings(  # from Python 3.12 on, about what is tested here
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


def in_child(work: Callable[[], object]) -> str:
    """Return what `work` returns in a forked child, as text; raise its error here."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"!the child said nothing"
        try:
            os.close(reads)
            said = f" {work()}".encode()
        except BaseException:
            said = f"!{traceback.format_exc()}".encode()
        finally:
            os.write(writes, said)
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = in_thread(pipe.read).result(PATIENCE_S)
    assert os.waitpid(child, 0)[1] == 0
    assert said[:1] == b" ", said.decode()
    return said[1:].decode()


@pytest.fixture
def server(postgres_url: str) -> Iterator[Place]:
    with place(postgres_url) as where:
        yield where


@pytest.fixture
def shared(server: Place) -> Bank:
    return open_bank(server.open(), {1: 10, 2: 20})


def add(t: Transaction, bank: Bank, key: int = 1, amount: int = 1) -> None:
    row = t.get(bank.accounts, key, for_update=True)
    assert row is not None
    t.update(bank.accounts, key, balance=row["balance"] + amount)


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def test_child_uses_the_database_object_and_so_does_the_parent(shared: Bank) -> None:
    for _ in range(3):
        said = in_child(lambda: (shared.db.run(add, shared), shared.committed()[1])[1])
        shared.db.run(add, shared, 2)
        assert shared.committed()[1] == int(said)
    assert shared.committed() == {1: 13, 2: 23}


@pytest.mark.long
def test_child_that_only_ends_leaves_the_parents_sessions_alone(shared: Bank) -> None:
    with shared.db.transaction() as t:
        add(t, shared)
        in_child(lambda: gc.collect())
        in_child(lambda: shared.db.close())
        add(t, shared)
    assert shared.committed()[1] == 12


@pytest.mark.parametrize("how", ["sys.exit", "multiprocessing"])
def test_child_that_ends_like_a_program_leaves_the_parents_sessions_alone(
    shared: Bank, how: str
) -> None:
    with shared.db.transaction() as t:
        add(t, shared)
        if how == "sys.exit":
            child = os.fork()
            if child == 0:
                import atexit

                try:
                    shared.db.run(add, shared, 2)
                    atexit._run_exitfuncs()
                finally:
                    os._exit(0 if shared.db._closed else 1)
            assert os.waitpid(child, 0)[1] == 0
        else:
            process = multiprocessing.get_context("fork").Process(
                target=shared.db.run, args=(add, shared, 2)
            )
            process.start()
            process.join(PATIENCE_S)
            assert process.exitcode == 0
        add(t, shared)
    assert shared.committed() == {1: 12, 2: 21}


def test_open_transaction_refuses_in_the_child_and_goes_on_in_the_parent(shared: Bank) -> None:
    def use(t: Transaction) -> str:
        calls: list[Callable[[], object]] = [
            lambda: t.get(shared.accounts, 1),
            lambda: t.update(shared.accounts, 1, balance=0),
            lambda: t.query(select(shared.accounts)),
            t.subtransaction,
            node_of(t).commit,
            lambda: t.spawn(print),
        ]
        said = [error_of(call) for call in calls]
        assert all("WrongProcess: " in each for each in said), said
        assert current_transaction() is None
        shared.db.run(add, shared, 2)
        return "refused"

    with shared.db.transaction() as t, t.subtransaction() as s:
        add(s, shared)
        assert in_child(lambda: use(s)) == "refused"
        assert in_child(lambda: use(t)) == "refused"
        add(s, shared)
    assert shared.committed() == {1: 12, 2: 22}


def test_time_limit_of_the_parents_work_does_not_hold_in_the_child(shared: Bank) -> None:
    with shared.db.transaction(timeout=3600):
        assert until_s() < math.inf
        assert in_child(until_s) == "inf"
    assert shared.db.with_timeout(3600).run(lambda t: in_child(until_s)) == "inf"


def test_block_that_a_child_leaves_raises_there_and_commits_in_the_parent(shared: Bank) -> None:
    reads, writes = os.pipe()
    child = -1
    try:
        with shared.db.transaction() as t:
            add(t, shared)
            child = os.fork()
    except WrongProcess:
        assert child == 0
        os.write(writes, b"refused")
        os._exit(0)
    assert child != 0
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        assert in_thread(pipe.read).result(PATIENCE_S) == b"refused"
    os.waitpid(child, 0)
    assert shared.committed()[1] == 11


def test_child_has_the_rules_streams_and_queries_of_the_parent(shared: Bank) -> None:
    db = shared.db
    stream = db.stream("taps", types={"TAP": ()}, type="t", timestamp="ts")

    @db.rule(on=adb.updated(shared.accounts), name="note")
    def note(t: Transaction, o: Any) -> None:
        t.insert(shared.notes, {"id": os.getpid(), "text": "a rule ran"})

    @db.rule(on=adb.event("TAP"), name="tapped")
    def tapped(t: Transaction, o: Any) -> None:
        t.insert(shared.notes, {"id": os.getpid() + 1_000_000, "text": f"tap {o.params['key']}"})

    db.rules.disable("note")
    db.rules.enable("note")

    def work() -> None:
        db.run(add, shared)
        stream.feed([adb.Occurrence("TAP", 1.0, {"key": 5})])
        assert [entry.name for entry in db.rules] == ["note", "tapped"]

    in_child(work)
    assert shared.committed_notes() == ["a rule ran", "tap 5"]


def test_child_runs_detached_rules_and_spawned_children_on_threads_of_its_own(
    shared: Bank,
) -> None:
    @shared.db.rule(on=adb.event("GO"), coupling="detached", name="go")
    def go(t: Transaction, o: Any) -> None:
        add(t, shared)

    def work() -> None:
        shared.db.signal("GO")
        shared.db.wait_idle()

        def parent(t: Transaction) -> None:
            for key in (1, 2):
                t.spawn(add, shared, key)

        shared.db.run(parent)
        shared.db.close()

    shared.db.signal("GO")
    shared.db.wait_idle()
    in_child(work)
    assert shared.committed() == {1: 13, 2: 21}


def test_child_watches_the_sessions_that_the_parent_watched(shared: Bank) -> None:
    class Base(DeclarativeBase):
        metadata = shared.db.metadata

    class Mark(Base):
        __tablename__ = "marks"
        id: Mapped[int] = mapped_column(primary_key=True)

    shared.db.create_all()
    schema = shared.db.settings.db_schema
    url = shared.db.settings.url
    assert url is not None
    engine = create_engine(
        url,
        poolclass=NullPool,
        connect_args={"options": f"-c search_path={schema} -c timezone=UTC"},
    )
    sessions: sessionmaker[Session] = sessionmaker(engine)
    shared.db.watch(sessions)

    @shared.db.rule(on=adb.inserted(Mark), name="marked")
    def marked(t: Transaction, o: Any) -> None:
        t.insert(shared.notes, {"id": o.new["id"], "text": f"mark {o.new['id']}"})

    def flush(number: int) -> None:
        with sessions.begin() as session:
            session.add(Mark(id=number))

    flush(1)
    in_child(lambda: flush(2))
    flush(3)
    assert shared.committed_notes() == ["mark 1", "mark 2", "mark 3"]


def test_what_hung_on_the_database_object_refuses_in_the_child(shared: Bank) -> None:
    rules, stream = (
        shared.db.rules,
        shared.db.stream("taps", types={"TAP": ()}, type="t", timestamp="ts"),
    )
    run = stream.run
    begun = shared.db.transaction()  # not entered

    def work() -> None:
        for call in (
            lambda: rules.disable("x"),
            lambda: run.feed([]),
            run.finish,
            lambda: begun.__enter__(),
            lambda: begun.update(shared.accounts, 1, balance=0),
        ):
            said = error_of(call)
            assert "WrongProcess" in said, said

    in_child(work)


def test_database_in_memory_refuses_in_the_child() -> None:
    with place(None) as where:
        bank = open_bank(where.open(), {1: 10})
        said = in_child(lambda: error_of(lambda: bank.db.run(add, bank)))
        assert said.startswith("WrongProcess: ")
        assert "memory://" in said
        assert in_child(lambda: error_of(bank.db.close)) == "none"

        with bank.db.transaction() as t:
            add(t, bank)
            said = in_child(lambda: error_of(lambda: add(t, bank)))
            assert said.startswith("WrongProcess: ")
        assert bank.committed() == {1: 11}


def test_child_of_a_child_uses_the_database_object(shared: Bank) -> None:
    def child() -> str:
        shared.db.run(add, shared)
        return in_child(lambda: (shared.db.run(add, shared), shared.committed()[1])[1])

    assert in_child(child) == "12"
    assert in_child(lambda: in_child(lambda: shared.committed()[1])) == "12"


def test_sockets_of_the_parent_are_not_open_in_the_child(shared: Bank) -> None:
    """The server notices at once when the parent is killed, as the child holds no socket of it."""
    shared.committed()

    def links() -> set[str]:
        found = set()
        for number in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                continue
        return found

    with shared.db._store.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        mine = os.readlink(f"/proc/self/fd/{driver.fileno()}")
        assert mine in links()
        assert in_child(lambda: mine in links()) == "False"
        assert connection.execute(text("SELECT 1")).scalar_one() == 1


@pytest.mark.long
@pytest.mark.parametrize("server_kind", ["memory", "postgres"])
def test_forks_while_other_threads_are_in_transactions_break_nobody(
    server_kind: str, postgres_url: str
) -> None:
    url = None if server_kind == "memory" else postgres_url
    with place(url) as where:
        bank = open_bank(where.open(), dict.fromkeys(range(8), 0))
        stop = threading.Event()

        def work(key: int) -> int:
            number = 0
            while not stop.is_set() or number < 20:
                bank.db.run(add, bank, key)
                number += 1
            return number

        workers = [in_thread(work, key) for key in range(4)]
        children = 0
        for _ in range(12):
            if server_kind == "memory":
                said = in_child(lambda: error_of(lambda: bank.db.run(add, bank, 7)))
                assert said.startswith("WrongProcess")
            else:
                in_child(lambda: [bank.db.run(add, bank, 7) for _ in range(2)])
                children += 2
        stop.set()
        done = [worker.result(PATIENCE_S) for worker in workers]
        assert bank.committed() == {
            **dict(enumerate(done)),
            **dict.fromkeys(range(4, 7), 0),
            7: children,
        }


def test_plain_statements_of_the_child_are_its_own(shared: Bank) -> None:
    def work() -> int:
        with shared.db.connection() as connection:
            connection.execute(insert(shared.notes).values(id=1, text="from the child"))
            connection.commit()
            return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())

    with shared.db.connection() as connection:
        mine = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        assert int(in_child(work)) != mine
        assert connection.execute(text("SELECT pg_backend_pid()")).scalar_one() == mine
    until(lambda: shared.committed_notes() == ["from the child"])
