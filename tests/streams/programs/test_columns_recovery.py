"""Programs in columns go on from the last part that has committed, whatever happens."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.errors import ConnectionLost, TableOwned
from activedb.store.system import kept_columns, stream_events
from tests.databases import PATIENCE_S, place
from tests.histories.processes import Server, Worker
from tests.ledger import at, read
from tests.streams.programs.column_bank import (
    QUIET,
    REFUSED,
    SIZE,
    TELLING,
    TYPES,
    occurrence_of,
    open_bank,
)
from tests.streams.programs.killed_columns import Alone, apply_all, batches

if TYPE_CHECKING:
    from pathlib import Path

    from tests.databases import Place
    from tests.streams.programs.column_bank import Row

pytestmark = pytest.mark.long

PLACES = (
    ("inside flush", 4),
    ("before commit", 4),
    ("after commit", 3),
)
DROP = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
DEPOSITS: list[Row] = [("DEPOSIT", second, None, 1, 0, 5.0) for second in (1, 3, 5)]


def uninterrupted(server_url: str | None) -> dict[str, Any]:
    """Return what all batches give without a crash, row by row."""
    with place(server_url) as where:
        opened = open_bank(where, TELLING, "serial")
        apply_all(opened)
        return opened.everything()


@pytest.mark.crash
@pytest.mark.parametrize(("point", "count"), PLACES)
def test_program_in_columns_killed_in_a_commit_goes_on_from_the_last_part(
    database_url: str, postgres_url: str, tmp_path: Path, point: str, count: int
) -> None:
    task = {"point": point, "count": count, "url": database_url}
    with Worker("tests.streams.programs.killed_columns", task, tmp_path / "log") as worker:
        worker.wait_ready()
        worker.go()
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
    Server(database_url).wait_idle()
    opened = open_bank(Alone(database_url), TELLING)
    with opened.db:
        assert 0 < opened.stream.run.batches < 5
        apply_all(opened)
        assert opened.everything() == uninterrupted(postgres_url)


def test_batches_handed_over_again_change_nothing(where: Place) -> None:
    opened = open_bank(where, TELLING)
    apply_all(opened)
    once = opened.everything()
    kept = read(opened.db, kept_columns)
    for number, (rows, second) in enumerate(batches()):
        opened.apply(number, rows, second)
    assert opened.everything() == once == uninterrupted(None if where.is_memory else where._url)
    assert read(opened.db, kept_columns) == kept


def test_program_in_columns_goes_on_when_the_server_drops_every_connection(where: Place) -> None:
    if where.is_memory:
        pytest.skip("there is no connection to lose")
    opened = open_bank(where, TELLING, reconnect_pause_ms=1)
    flushes = 0

    def drop(point: str) -> None:
        nonlocal flushes
        flushes += point == "inside flush"
        if point == "inside flush" and flushes in (2, 5):
            engine = create_engine(opened.db._store.engine.url)
            with engine.connect() as connection:
                connection.execute(DROP)
            engine.dispose()

    _ = opened.stream.run
    opened.db._store.trigger = drop
    apply_all(opened)
    assert flushes > 5
    opened.db._store.trigger = lambda point: None
    assert opened.everything() == uninterrupted(None if where.is_memory else where._url)


def test_part_in_columns_that_fails_leaves_nothing_in_memory(where: Place) -> None:
    opened = open_bank(where, TELLING)
    opened.apply(0, DEPOSITS[:1], 2)
    before = opened.everything()

    def fail(point: str) -> None:
        if point == "before commit":
            raise ZeroDivisionError

    opened.db._store.trigger = fail
    with pytest.raises(ZeroDivisionError):
        opened.apply(1, DEPOSITS[1:], 4)
    opened.db._store.trigger = lambda point: None
    assert opened.everything() == before
    opened.apply(1, DEPOSITS[1:], 4)
    assert opened.everything()["accounts"] == {1: 10.0}
    assert opened.everything()["waiting"] == 1


def test_events_wait_as_columns_and_versions_are_kept_so(where: Place) -> None:
    opened = open_bank(where, TELLING)
    opened.apply(0, DEPOSITS, 4)
    assert [row["name"] for row in read(opened.db, kept_columns)] == ["", "accounts"]
    assert read(opened.db, stream_events) == []
    opened.apply(1, [], 6)
    assert {row["name"] for row in read(opened.db, kept_columns)} == {"accounts"}
    opened.apply(2, [], 60)
    assert read(opened.db, kept_columns) == []
    assert opened.everything()["accounts"] == {1: 15.0}


def test_events_go_on_waiting_when_a_part_after_a_restart_goes_row_by_row(
    postgres_url: str,
) -> None:
    with place(postgres_url) as where:
        opened = open_bank(where, TELLING)
        opened.apply(0, DEPOSITS, 2)
        opened.db.close()
        opened = open_bank(where, TELLING)
        opened.apply(1, [("DEPOSIT", 3.5, None, 7, 0, REFUSED)], 4)
        opened.db.close()
        opened = open_bank(where, TELLING)
        opened.apply(2, [], 6)
        found = opened.everything()
    assert found["accounts"] == {1: 15.0}
    assert found["totals"] == {"events": 4, "late": 0, "dead": 0}


def test_rules_in_columns_know_nothing_of_what_a_program_has_processed(postgres_url: str) -> None:
    heard: list[int] = []
    deposit, mean, other = (
        occurrence_of((kind, second, None, 1, 0, 5.0))
        for kind, second in (("DEPOSIT", 3), ("MEAN", 5), ("OTHER", 1))
    )

    def feed_rules(where: Place, event: adb.Occurrence, until_s: int) -> None:
        with where.open(clock=SimulatedClock(at(3_600))) as db:
            types = {**dict.fromkeys(TYPES, ()), "MEAN": ("k",), "OTHER": ()}
            stream = db.stream("input", type="kind", timestamp="at", types=types, columns=True)

            @db.rule(on=adb.seq(adb.event("DEPOSIT"), adb.event("MEAN")).within(60))
            def hear(t: adb.Transaction, o: adb.Occurrence) -> None:
                heard.append(o.us)

            stream.feed([event], punctuation=at(until_s))

    with place(postgres_url) as where:
        feed_rules(where, other, 2)
        bank = open_bank(where)
        later = occurrence_of(("DEPOSIT", 40, None, 1, 0, 5.0))
        bank.stream.feed([deposit, later], punctuation=at(2))
        bank.stream.feed([], punctuation=at(4))  # what is kept of both stays for the other
        assert bank.everything()["accounts"] == {1: 5.0}
        bank.db.close()
        feed_rules(where, mean, 6)
    assert heard == []


def test_rows_are_read_as_each_part_leaves_them(where: Place) -> None:
    opened = open_bank(where, TELLING)
    accounts = opened.tables[TELLING.accounts]
    for number, row in enumerate(DEPOSITS):
        opened.apply(number, [row], (row[1] or 0) + 1)
        with opened.db.transaction() as t:
            assert t.get(accounts, 1) == {"id": 1, "balance": 5.0 * (number + 1)}
    with pytest.raises(TableOwned), opened.db.transaction() as t:
        t.update(accounts, 1, balance=1.0)
    if where.is_memory:
        return
    other = where.open()
    with pytest.raises(TableOwned), other.transaction() as t:
        t.execute(accounts.update().values(balance=0.0))


def test_rows_mended_by_hand_count_in_columns(where: Place) -> None:
    if where.is_memory:
        pytest.skip("nothing of a closed database is left")
    opened = open_bank(where, TELLING)
    more: Row = ("DEPOSIT", 4, None, 2, 0, 1.0)
    opened.apply(0, [*DEPOSITS, more], 6)
    opened.db.close()
    opened = open_bank(where, TELLING)
    with opened.db.transaction() as t:
        t.update(opened.tables[TELLING.accounts], 1, balance=100.0)
        t.delete(opened.tables[TELLING.accounts], 2)
        t.insert(opened.tables[TELLING.accounts], {"id": 3, "balance": 7.0})
    rows: list[Row] = [("MEAN", 7, None, k, 0, 0.0) for k in (1, 2, 3)]
    opened.apply(1, [*rows, ("DEPOSIT", 8, None, 1, 0, 1.0)], 9)
    found = opened.everything()
    assert found["accounts"] == {1: 101.0, 3: 7.0}
    assert found["book"] == {1: (10 + 100) / 2}


def test_row_that_the_table_cannot_have_is_refused_in_columns(where: Place) -> None:
    opened = open_bank(where, TELLING)
    accounts = opened.tables[TELLING.accounts]
    with opened.db.transaction() as t:
        t.insert(accounts, {"id": SIZE, "balance": 1.0})
    with pytest.raises(Exception, match="table accounts has a row that accounts cannot have: 8"):
        opened.apply(0, DEPOSITS, 9)
    with opened.db.transaction() as t:
        t.delete(accounts, SIZE)
    opened.apply(0, DEPOSITS, 9)
    assert opened.everything()["accounts"] == {1: 15.0}


def test_fed_events_wait_for_their_punctuation(where: Place) -> None:
    opened = open_bank(where, TELLING)
    import activedb as adb

    events = [adb.occurrence("DEPOSIT", timestamp=at(s), k=1, n=1.0) for s in (5, 1, 3)]
    opened.stream.feed(events, punctuation=at(4))
    assert opened.everything()["accounts"] == {1: 2.0}
    assert opened.everything()["waiting"] == 1
    opened.stream.feed([])
    opened.stream.run.finish()
    assert opened.everything()["accounts"] == {1: 3.0}


@pytest.mark.parametrize("scheduler", ["serial", "columns"])
@pytest.mark.parametrize(
    ("point", "reading"), [("before commit", "last"), ("after commit", "load")]
)
def test_reading_that_is_cut_off_after_a_failure_is_done_again(
    where: Place, monkeypatch: pytest.MonkeyPatch, scheduler: str, point: str, reading: str
) -> None:
    """The part fails, and so does the first look at where the stream stopped."""
    opened = open_bank(where, QUIET, scheduler)
    db, stream = opened.db, opened.stream
    stream.feed([deposit(1, 1), deposit(5, 2)], punctuation=at(2))
    state = stream.run._state
    reader = state._journal if reading == "last" else state._programs

    def fail(reached: str) -> None:
        if reached == point:
            raise ZeroDivisionError("the part fails")

    def lose(*given: object) -> None:
        raise ConnectionLost("gone")

    with monkeypatch.context() as patch:
        patch.setattr(db._store, "trigger", fail)
        patch.setattr(reader, reading, lose)
        with pytest.raises(ConnectionLost):
            stream.feed([deposit(3, 1)], punctuation=at(4))
    taken = stream.run.batches == 2
    assert taken == (point == "after commit")
    stream.feed([deposit(6, 1)], punctuation=at(8))
    found = opened.everything()
    assert found["accounts"] == {1: 3.0 if taken else 2.0, 2: 1.0}
    assert found["totals"]["events"] == (4 if taken else 3)


def deposit(second: float, key: int) -> Any:
    """One more in an account."""
    return occurrence_of(("DEPOSIT", second, None, key, 0, 1.0))
