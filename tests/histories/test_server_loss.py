"""The server is killed, or the way to it is cut: work is done once, or not at all."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, Table, create_engine, select, text
from sqlalchemy.exc import DBAPIError

import activedb as adb
from activedb.errors import ConnectionLost
from activedb.store.session._store import TRIGGER_POINTS
from activedb.store.system import pending_firings
from tests.databases import in_thread, until
from tests.histories import teller
from tests.histories.processes import Server
from tests.histories.shop import open_shop, orders_found
from tests.histories.test_bank import found, judge, seed_of
from tests.mortal import Mortal
from tests.patience import PATIENCE_S
from tests.servers import temporary_folder
from tests.store.server_users import server_processes, wait_until
from tests.wire import When, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from activedb import Transaction

pytestmark = pytest.mark.crash
AFTER = "after commit"
COMMIT_POINTS = [point for point in TRIGGER_POINTS if "child" not in point]


@pytest.fixture(scope="module")
def _mortal() -> Iterator[Mortal]:
    with temporary_folder() as folder:
        server = Mortal(folder)
        yield server
        server.close()


@pytest.fixture
def mortal(_mortal: Mortal) -> Mortal:
    """A running server; tests share it, to save time."""
    if not server_processes(_mortal.folder):
        _mortal.start()
    return _mortal


@pytest.fixture
def url(mortal: Mortal) -> str:
    """An empty database on it, which goes when the server does."""
    return mortal.database()


def once(call: Callable[[], object]) -> Callable[[], None]:
    """`call` for the first time, nothing from then on."""
    left = [call]

    def call_once() -> None:
        if left:
            left.pop()()

    return call_once


def test_server_killed_between_transactions_is_found_again(mortal: Mortal, url: str) -> None:
    with adb.connect(url) as db:
        shop = open_shop(db)
        shop.buy(1)
        mortal.restart()
        assert Server(url).look(orders_found) == [1]
        shop.buy(2)
        assert Server(url).look(orders_found) == [2]


@pytest.mark.parametrize("moment", ["begun", "half", "written"])
def test_server_killed_within_a_transaction_has_it_tried_again(
    mortal: Mortal, url: str, moment: str
) -> None:
    with adb.connect(url) as db:
        shop = open_shop(db)
        shop.buy(1)
        reached = []
        restart = once(mortal.restart)

        def between(where: str) -> None:
            reached.append(where)
            if where == moment:
                restart()

        shop.buy(2, between)
        assert reached.count("begun") == 2
        assert Server(url).look(orders_found) == [2]


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_server_killed_at_a_point_of_a_commit_leaves_the_work_done_once(
    mortal: Mortal, url: str, point: str
) -> None:
    with adb.connect(url) as db:
        shop = open_shop(db)
        shop.buy(1)
        restart = once(mortal.restart)
        db._store.trigger = lambda reached: restart() if reached == point else None
        begun: list[str] = []
        shop.buy(2, lambda where: begun.append(where) if where == "begun" else None)
        assert len(begun) == (1 if point == AFTER else 2)
        assert Server(url).look(orders_found) == [2]


def test_server_that_stays_away_is_reported_and_nothing_is_there(mortal: Mortal, url: str) -> None:
    with adb.connect(url, lock_timeout_ms=1_000, retries_max=1) as db:
        shop = open_shop(db)
        shop.buy(1)
        kill = once(mortal.kill)
        with pytest.raises(ConnectionLost) as lost:
            shop.buy(2, lambda where: kill() if where == "half" else None)
        assert lost.value.committed is False
        with pytest.raises(ConnectionLost) as lost:
            shop.buy(2)
        assert lost.value.committed is False
        mortal.start()
        assert Server(url).look(orders_found) == [1]
        shop.buy(2)
        assert Server(url).look(orders_found) == [2]


def test_sessions_ended_by_the_server_have_their_transaction_tried_again(
    mortal: Mortal, url: str
) -> None:
    end = text(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with adb.connect(url) as db:
        shop = open_shop(db)
        shop.buy(1)
        end_all = once(lambda: Server(url).look(lambda connection: connection.execute(end).all()))
        shop.buy(2, lambda where: end_all() if where == "half" else None)
        assert Server(url).look(orders_found) == [2]


def test_server_killed_while_children_work_ends_all_of_them_and_the_work_is_done_once(
    mortal: Mortal, url: str
) -> None:
    restart = once(mortal.restart)
    with adb.connect(url, threads=4) as db:
        shop = open_shop(db)
        shop.buy(1)
        together = threading.Barrier(3)
        begun: list[int] = []

        def child(t: Transaction, number: int) -> int:
            begun.append(number)
            if len(begun) <= 3:
                together.wait(PATIENCE_S)
                if number == 0:
                    restart()
            return len(t.query(select(shop.lines).where(shop.lines.c.goods == number)))

        def work(t: Transaction) -> list[int]:
            t.update(shop.stock, 0, last_order=1)
            children = [t.spawn(child, number) for number in range(3)]
            return [c.result() for c in children]

        counts = in_thread(db.run, work).result(PATIENCE_S)
        assert sum(counts) == len(db.run(lambda t: t.query(select(shop.lines))))
        assert Server(url).look(orders_found) == [1]


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    """The way to the server."""
    with contextlib.closing(Wire(url)) as opened:
        yield opened


def cut_commit(db: adb.Database, wire: Wire, when: When) -> None:
    """Have the next commit of a top-level transaction cut off."""
    cut = once(lambda: wire.cut_commit(when))
    db._store.trigger = lambda point: cut() if point == "before commit" else None


@pytest.mark.parametrize("when", ["before", "after"])
def test_connection_cut_at_the_commit_leaves_the_work_done_once(
    url: str, wire: Wire, when: When
) -> None:
    begun: list[str] = []
    with adb.connect(wire.url) as db:
        shop = open_shop(db)
        shop.buy(1)
        cut_commit(db, wire, when)
        shop.buy(2, lambda where: begun.append(where) if where == "begun" else None)
        assert wire.cuts == 1
        assert len(begun) == (2 if when == "before" else 1)
        assert Server(url).look(orders_found) == [2]
        shop.buy(3)
    assert Server(url).look(orders_found) == [3]


@pytest.mark.parametrize("when", ["before", "after"])
def test_connection_cut_at_the_commit_for_good_is_reported_as_unknown(
    url: str, wire: Wire, when: When
) -> None:
    begun: list[str] = []
    with adb.connect(wire.url, lock_timeout_ms=500) as db:
        shop = open_shop(db)
        shop.buy(1)
        wire.on_cut = wire.take_down
        cut_commit(db, wire, when)
        with pytest.raises(ConnectionLost) as lost:
            shop.buy(2, lambda where: begun.append(where) if where == "begun" else None)
        assert lost.value.committed is None
        assert len(begun) == 1, "tried again though it may have been done"
        wire.is_down = False
        expected = 1 if when == "before" else 2
        until(lambda: Server(url).look(orders_found) == [expected])
        shop.buy(expected + 1)
    assert Server(url).look(orders_found) == [expected + 1]


@pytest.fixture
def lazy_disk(url: str) -> Iterator[None]:
    """Delay for up to ten seconds the writing of what does not wait for the disk."""
    server = Server(url)
    server.run("ALTER SYSTEM SET wal_writer_delay = '10s'")
    server.run("SELECT pg_reload_conf()")
    yield
    server.run("ALTER SYSTEM RESET wal_writer_delay")
    server.run("SELECT pg_reload_conf()")


@pytest.mark.usefixtures("lazy_disk")
@pytest.mark.parametrize("dies", ["backend", "postmaster"])
@pytest.mark.parametrize("then", ["committed", "open", "checkpoint"])
def test_commit_that_a_crash_undid_is_not_mistaken_for_another_with_its_number(
    mortal: Mortal, url: str, wire: Wire, dies: str, then: str
) -> None:
    """A server counts again after a crash, also one whose backend is killed.

    Numbers of transactions that had not reached the disk are given out once more, so a question
    about one that was lost is answered for another one, which has committed or is at work. The
    server knows what had reached the disk until its next checkpoint.
    """
    server = Server(url)
    backend = text("SELECT pg_backend_pid()")
    checkpointer = text("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
    at_work = text(
        "SELECT backend_xid::text::bigint FROM pg_stat_activity "
        "WHERE datname = current_database() AND backend_xid IS NOT NULL "
        "AND backend_type = 'client backend'"
    )

    def crash_and_count_on() -> None:
        lost = server.look(lambda connection: connection.scalars(at_work).one())
        before = server.look(lambda connection: connection.scalar(checkpointer))
        if dies == "postmaster":
            mortal.restart()
        else:
            with contextlib.suppress(DBAPIError):
                server.look(lambda connection: mortal.kill_backend(connection.scalar(backend)))
            wait_until(lambda: is_back(before))
        first = stack.enter_context(open_transaction(url))
        # Not if the number had reached the disk, or others before it had not.
        given_again.append(first == lost)
        if then != "open":
            stack.close()
        if then == "checkpoint":
            server.run("CHECKPOINT")

    def is_back(before: int) -> bool:
        """Return whether the server has begun another life: it may not know yet who has died."""
        with contextlib.suppress(DBAPIError):  # while it recovers
            now = server.look(lambda connection: connection.scalar(checkpointer))
            return now not in (None, before)
        return False

    given_again: list[bool] = []
    with contextlib.ExitStack() as stack, adb.connect(wire.url, lock_timeout_ms=2_000) as db:
        shop = open_shop(db)
        shop.buy(1)
        wire.on_cut = crash_and_count_on
        cut_commit(db, wire, "before")
        told: bool | None = True
        try:
            shop.buy(2)
        except ConnectionLost as lost:
            told = lost.committed
        assert wire.cuts == 1
        # Tried again and done, or reported as unknown; but never as done when it is not.
        is_unknown = then == "checkpoint" and given_again == [True]
        assert told is (None if is_unknown else True)
        assert server.look(orders_found) == ([1] if is_unknown else [2])


@pytest.mark.parametrize("then", ["statistics reset", "checkpoint", "restarted"])
def test_commit_that_is_there_is_not_mistaken_for_one_that_a_crash_undid(
    mortal: Mortal, url: str, wire: Wire, then: str
) -> None:
    """Reset statistics look like a crash, but for what the log says."""
    server = Server(url)

    def begin_another_life() -> None:
        if then == "restarted":
            mortal.restart()
        else:
            server.run("SELECT pg_stat_reset_shared('bgwriter')")

    with adb.connect(wire.url) as db:
        shop = open_shop(db)
        shop.buy(1)
        if then == "checkpoint":
            server.run("CHECKPOINT")
        wire.on_cut = begin_another_life
        cut_commit(db, wire, "after")
        with pytest.raises(ConnectionLost) as lost:
            shop.buy(2)
        assert lost.value.committed is None
        assert server.look(orders_found) == [2]


@contextlib.contextmanager
def open_transaction(url: str) -> Iterator[int]:
    """A transaction at work, and then committed: its number."""
    engine = create_engine(url)
    with engine.begin() as connection:
        number: int = connection.scalar(text("SELECT pg_current_xact_id()::text::bigint"))
        yield number
    engine.dispose()


@pytest.mark.usefixtures("lazy_disk")
@pytest.mark.parametrize("moment", ["a rule", "before flush", "before commit"])
def test_server_killed_before_a_batch_commits_has_done_once_what_the_batch_has_triggered(
    mortal: Mortal, url: str, moment: str
) -> None:
    server = Server(url)
    with adb.connect(url) as db:
        notes = Table("notes", db.metadata, Column("number", Integer, primary_key=True))
        db.create_all()
        ticks = db.stream("ticks", type="'TICK'", timestamp="at", types={"TICK": ("number",)})

        @db.rule(on=adb.event("TICK"), coupling="detached")
        def note(t: Transaction, o: adb.Occurrence) -> None:
            t.insert(notes, {"number": o.params["number"]})

        @db.rule(on=adb.event("TICK"), priority=-1)
        def wait(t: Transaction, o: adb.Occurrence) -> None:
            until(lambda: not db._launcher.running)  # what has been triggered has ended
            if moment == "a rule":
                crash_once()

        crash_once = once(mortal.restart)
        main = threading.current_thread()

        def at(point: str) -> None:
            if point == moment and threading.current_thread() is main:
                crash_once()

        db._store.trigger = at
        for number in (1, 2):
            occurred = adb.occurrence("TICK", number=number, timestamp=number)
            ticks.feed([occurred], punctuation=number + 1)
        db.wait_idle()
        found = server.look(lambda c: sorted(c.scalars(select(notes.c.number))))
        assert found == [1, 2]
        assert not server.look(
            lambda c: c.execute(select(pending_firings).where(~pending_firings.c.done)).all()
        )


def test_bank_whose_server_is_killed_again_and_again_is_never_off_by_a_cent(
    mortal: Mortal, url: str, scale: int
) -> None:
    seed = seed_of("server")
    lines: list[str] = []
    with adb.connect(url, lock_timeout_ms=5_000) as db:
        bank = teller.opened(db)
        worker = in_thread(teller.work, bank, lines.append, "p", seed, 40 * scale)
        for _ in range(2 * scale):
            goal = len(lines) + 30
            wait_until(lambda g=goal: len(lines) >= g or worker.done())  # type: ignore[misc]
            mortal.restart()
        worker.result(PATIENCE_S)
        judge(lines, Server(url).look(found), seed)
