"""Time limits hold while the server is stopped and while the network swallows what is said.

Each verdict is that the work has ended although the server is silent still; how long that took is
bounded only by how long a test waits at all.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest
from sqlalchemy import Column, Integer, Table, create_engine, select

import activedb as adb
from activedb.errors import ConnectionLost, TransactionCancelled, TransactionTimeout
from tests.databases import in_thread, until
from tests.mortal import Mortal
from tests.nodes import node_of
from tests.patience import PATIENCE_S
from tests.servers import fresh_database, temporary_folder
from tests.store.server_users import server_processes
from tests.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from activedb import Database, Transaction

pytestmark = pytest.mark.crash
LIMIT_S = 0.5
HOURS: dict[str, Any] = {"lock_timeout_ms": 3_600_000}


class Silence:
    """A server that can fall silent."""

    def __init__(self, url: str, set_silent: Callable[[bool], object]):
        self.url = url
        self._set_silent = set_silent
        self.is_silent = False

    def begin(self) -> None:
        self.is_silent = True
        self._set_silent(True)

    def end(self) -> None:
        self._set_silent(False)
        self.is_silent = False


@pytest.fixture(scope="module")
def mortal() -> Iterator[Mortal]:
    with temporary_folder() as folder:
        server = Mortal(folder)
        yield server
        server.close()


@pytest.fixture(params=["stopped", "swallowed"])
def silence(request: pytest.FixtureRequest) -> Iterator[Silence]:
    with contextlib.ExitStack() as stack:
        if request.param == "stopped":
            server: Mortal = request.getfixturevalue("mortal")

            def stop(is_silent: bool) -> None:
                for process in server_processes(server._uses[0].home):
                    with contextlib.suppress(psutil.NoSuchProcess):  # one that ends by itself
                        process.send_signal(signal.SIGSTOP if is_silent else signal.SIGCONT)

            quiet = Silence(server.database(), stop)
        else:
            plain = request.getfixturevalue("plain_postgres_url")
            wire = Wire(stack.enter_context(fresh_database(plain)))
            stack.callback(wire.close)
            quiet = Silence(wire.url, lambda is_silent: setattr(wire, "swallows", is_silent))
        stack.callback(quiet.end)
        yield quiet


@pytest.fixture
def db(silence: Silence) -> Iterator[Database]:
    with adb.connect(silence.url, **HOURS) as opened:
        Table(
            "rows",
            opened.metadata,
            Column("id", Integer, primary_key=True),
            Column("n", Integer, nullable=False),
        )
        opened.create_all()
        opened.run(lambda t: [t.insert(rows_of(opened), {"id": key, "n": 0}) for key in range(3)])
        yield opened
        silence.end()


def rows_of(db: Database) -> Table:
    return db.metadata.tables["rows"]


def up(t: Transaction, db: Database, key: int) -> None:
    row = t.get(rows_of(db), key, for_update=True)
    assert row is not None
    t.update(rows_of(db), key, n=row["n"] + 1)


def ends(
    silence: Silence, work: Callable[[float], Any], wanted: type[BaseException] = TransactionTimeout
) -> BaseException:
    """Return how `work`, given its limit, ends while the server is silent.

    The limit is raised if it was over before the work reached what is tested.
    """
    limit_s = LIMIT_S
    while True:
        error = in_thread(work, limit_s).exception(PATIENCE_S)
        too_soon = not silence.is_silent or wanted is not TransactionTimeout
        if not (too_soon and isinstance(error, TransactionTimeout)):
            assert silence.is_silent
            assert isinstance(error, wanted), repr(error)
            return error
        silence.end()
        limit_s *= 4
        assert limit_s < PATIENCE_S, repr(error)


def check_goes_on(silence: Silence, db: Database, n: int = 0) -> None:
    """Check that all is as it should be once the server answers again."""
    silence.end()
    assert in_thread(db.run, lambda t: t.get(rows_of(db), 0)["n"]).result(PATIENCE_S) == n
    in_thread(db.run, lambda t: up(t, db, 0)).result(PATIENCE_S)


@pytest.mark.parametrize("moment", ["before the first statement", "in between", "new connection"])
def test_limit_holds_in_a_statement_of_a_silent_server(
    silence: Silence, db: Database, moment: str
) -> None:
    if moment == "new connection":
        db._store.suspect()

    def work(t: Transaction) -> None:
        if moment == "in between":
            up(t, db, 1)
        silence.begin()
        up(t, db, 0)

    ends(silence, lambda limit_s: db.with_timeout(limit_s).run(work))
    check_goes_on(silence, db)


@pytest.mark.parametrize("changes", [1, 60])
def test_limit_holds_in_a_commit_and_the_outcome_is_unknown(
    silence: Silence, db: Database, changes: int
) -> None:
    db._store.trigger = lambda point: silence.begin() if point == "before commit" else None

    def work(t: Transaction) -> None:
        for key in range(10, 10 + changes):
            t.insert(rows_of(db), {"id": key, "n": 0})

    error = ends(silence, lambda limit_s: db.with_timeout(limit_s).run(work), ConnectionLost)
    assert isinstance(error, ConnectionLost)
    assert error.committed is None
    db._store.trigger = lambda point: None
    check_goes_on(silence, db)


def test_limit_holds_in_the_body_and_nothing_waits_for_the_undoing(
    silence: Silence, db: Database
) -> None:
    is_over = threading.Event()

    def work(t: Transaction) -> None:
        up(t, db, 0)
        silence.begin()
        until(lambda: t.is_rollback_only)
        is_over.set()

    ends(silence, lambda limit_s: db.with_timeout(limit_s).run(work))
    assert is_over.is_set()
    check_goes_on(silence, db)


def test_limit_of_a_block_holds(silence: Silence, db: Database) -> None:
    def work(limit_s: float) -> None:
        with db.transaction(timeout=limit_s) as t:
            up(t, db, 1)
            silence.begin()
            t.query(select(rows_of(db)))

    ends(silence, work)
    check_goes_on(silence, db)


def test_limit_of_a_transaction_holds_for_its_children(silence: Silence, db: Database) -> None:
    def work(t: Transaction) -> None:
        silence.begin()
        children = [t.spawn(up, db, key) for key in range(3)]
        for child in children:
            child.result()

    ends(silence, lambda limit_s: db.with_timeout(limit_s).run(work))
    check_goes_on(silence, db)


def test_limit_of_a_child_holds_while_its_sibling_waits_for_the_server(
    silence: Silence, db: Database
) -> None:
    """The sibling has no limit, and the connection that the child wants."""
    ended: list[BaseException | None] = []

    def work(t: Transaction) -> None:
        up(t, db, 2)
        waits = node_of(t).hierarchy.session._calls
        silence.begin()
        sibling = t.spawn(up, db, 0)
        until(lambda: waits)
        limited = t.with_timeout(LIMIT_S).spawn(up, db, 1)
        try:
            limited.result()
        except TransactionTimeout as error:
            ended.append(error)
        assert silence.is_silent
        t.cancel()  # which ends the sibling, too
        sibling.result()

    ends(silence, lambda _: db.run(work), TransactionCancelled)
    assert len(ended) == 1
    check_goes_on(silence, db)


def test_limit_holds_while_all_connections_are_taken(silence: Silence) -> None:
    with adb.connect(silence.url, **HOURS, threads=1) as db:
        table = Table("rows", db.metadata, Column("id", Integer, primary_key=True))
        db.create_all()
        release = threading.Event()
        many = 12  # as many as there are for one thread of the pool
        taken = threading.Semaphore(0)

        def keep(key: int) -> None:
            with db.transaction() as t:
                t.get(table, key)
                taken.release()
                release.wait(4 * PATIENCE_S)

        keepers = [in_thread(keep, key) for key in range(many)]
        for _ in keepers:
            assert taken.acquire(timeout=PATIENCE_S)
        try:
            work = db.with_timeout(LIMIT_S).run
            error = in_thread(work, lambda t: t.get(table, 99)).exception(PATIENCE_S)
            assert isinstance(error, TransactionTimeout), repr(error)
        finally:
            release.set()
        for keeper in keepers:
            keeper.result(PATIENCE_S)


def test_limit_holds_where_a_detached_rule_is_recorded(silence: Silence, db: Database) -> None:
    @db.rule(on=adb.updated(rows_of(db)), coupling="detached")
    def nothing(t: Transaction, o: adb.Occurrence) -> None:
        pass

    def work(t: Transaction) -> None:
        t.get(rows_of(db), 1, for_update=True)
        silence.begin()
        t.update(rows_of(db), 1, n=5)

    ends(silence, lambda limit_s: db.with_timeout(limit_s).run(work))
    check_goes_on(silence, db)


def test_limit_holds_on_a_callers_connection(silence: Silence, db: Database) -> None:
    engine = create_engine(silence.url)

    def work(limit_s: float) -> None:
        with engine.connect() as connection:
            try:
                with db.transaction(connection=connection, timeout=limit_s) as t:
                    up(t, db, 1)
                    silence.begin()
                    t.query(select(rows_of(db)))
            finally:
                connection.invalidate()  # whatever the caller's own undoing would wait for

    ends(silence, work)
    check_goes_on(silence, db)
    engine.dispose()


def test_cancelling_holds_while_the_server_is_silent(silence: Silence, db: Database) -> None:
    begun: list[Transaction] = []

    def work(t: Transaction) -> None:
        up(t, db, 1)
        silence.begin()
        begun.append(t)
        up(t, db, 0)

    working = in_thread(db.run, work)
    until(lambda: begun)
    begun[0].cancel()
    error = working.exception(PATIENCE_S)
    assert silence.is_silent
    assert isinstance(error, TransactionCancelled), repr(error)
    check_goes_on(silence, db)


def test_connections_have_keepalives_unless_the_url_says_otherwise(
    plain_postgres_url: str,
) -> None:
    with fresh_database(plain_postgres_url) as url:
        for more, expected in (("", "1"), ("?keepalives=0&tcp_user_timeout=5000", "0")):
            with adb.connect(url + more) as db, db._store.short() as connection:
                driver: Any = connection.connection.driver_connection
                parameters = driver.info.get_parameters()
                assert parameters.get("keepalives", "1") == expected
                assert parameters["tcp_user_timeout"] == ("5000" if more else "40000")
