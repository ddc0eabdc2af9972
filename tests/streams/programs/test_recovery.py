"""Programs go on from the last part that has committed: state, versions and outputs are exact."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import create_engine, text

import activedb as adb
from activedb.errors import ConnectionLost, StoreError, TableOwned
from activedb.scheduling import REMOVED
from activedb.store.sql import guard_number
from activedb.store.system import owned_tables
from activedb.store.system import versions as kept_versions
from tests.databases import PATIENCE_S, place
from tests.histories.processes import Server, Worker
from tests.ledger import at, event, read
from tests.streams.programs.bank import EVENTS, events_of, expected, open_bank
from tests.streams.programs.killed import PART_EVENTS, apply_all, events, feed_from

if TYPE_CHECKING:
    from pathlib import Path

    from tests.databases import Place
    from tests.streams.programs.bank import OpenBank

PLACES = (
    ("during a child's commit", 3, "serial", True),
    ("before flush", 2, "lwm", False),
    ("inside flush", 7, "tpg", True),
    ("before commit", 5, "s2pl", True),
    ("after commit", 4, "serial", False),
    ("after commit", 6, "tpg", True),
)
DROP = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


def in_memory(opened: OpenBank) -> dict[str, Any]:
    """The newest values as the running program has them."""
    run = opened.stream.run
    programs: Any = run._state._programs
    assert programs is not None
    return opened.bank.state(programs.state)


def check(opened: OpenBank, fed: list[adb.Occurrence]) -> None:
    wanted = expected(fed)
    assert opened.rows() == wanted.rows
    assert in_memory(opened) == wanted.rows
    assert opened.outputs() == wanted.outputs
    assert len(opened.reasons()) == wanted.aborted


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[adb.Occurrence], list[tuple[list[int], int]], int]:
    """Events in order of arrival, cut into batches with a punctuation each, and a size of parts."""
    drawn = draw(EVENTS)
    order = draw(st.permutations(range(len(drawn))))
    cuts = sorted(draw(st.lists(st.integers(0, len(drawn)), max_size=2)))
    plan = []
    for low, high in pairwise([0, *cuts, len(drawn)]):
        later = [drawn[n][1] for n in order[high:]]
        plan.append((list(order[low:high]), min([*later, 13])))  # so that none is late
    return events_of(drawn), plan, draw(st.sampled_from([1, 3, 2_000]))


@pytest.mark.long
@given(plans())
@settings(
    max_examples=4 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_program_reopened_after_each_batch_gives_the_serial_order(
    postgres_url: str, drawn: tuple[list[adb.Occurrence], list[tuple[list[int], int]], int]
) -> None:
    fed, plan, batch_events_max = drawn
    with place(postgres_url) as where:
        for numbers, second in plan:
            opened = open_bank(where.open(batch_events_max=batch_events_max))
            opened.stream.feed([fed[n] for n in numbers], punctuation=at(second))
            opened.db.close()
        opened = open_bank(where.open(batch_events_max=batch_events_max))
        opened.stream.feed([])
        check(opened, fed)


@pytest.mark.crash
@pytest.mark.parametrize(("point", "count", "scheduler", "of_query"), PLACES)
def test_program_killed_in_a_commit_goes_on_from_the_last_part(
    database_url: str, tmp_path: Path, point: str, count: int, scheduler: str, of_query: bool
) -> None:
    task = {"point": point, "count": count, "scheduler": scheduler, "of_query": of_query}
    task["url"] = database_url
    with Worker("tests.streams.programs.killed", task, tmp_path / "log") as worker:
        worker.wait_ready()
        worker.go()
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
    Server(database_url).wait_idle()
    with adb.connect(database_url, batch_events_max=PART_EVENTS) as db:
        opened = open_bank(db, scheduler)
        taken = opened.stream.run.batches
        assert 0 < taken < 5
        if of_query:
            apply_all(opened)
        else:
            feed_from(opened, taken)
        check(opened, events())
        run = opened.stream.run
        assert run.totals() == {"events": len(events()), "late": 0, "dead": 0}


def test_part_that_fails_leaves_nothing_in_memory(db: adb.Database) -> None:
    opened = open_bank(db)
    opened.stream.feed([event("DEPOSIT", 1, k=1, n=5)], punctuation=at(2))
    before = in_memory(opened)

    def fail(point: str) -> None:
        if point == "before flush":
            raise ZeroDivisionError

    db._store.trigger = fail
    more = [event("TRANSFER", 3, k=1, to=2, n=1), event("RECENT", 4, k=1)]
    with pytest.raises(ZeroDivisionError):
        opened.stream.feed(more, punctuation=at(5))
    db._store.trigger = lambda point: None
    assert in_memory(opened) == before
    opened.stream.feed(more, punctuation=at(5))
    assert opened.rows()["accounts"] == {1: 4, 2: 1}
    assert opened.outputs() == [["TRANSFER", 1, [4, 1]], ["RECENT", 1, [[5, 4]]]]


def test_program_goes_on_when_the_server_drops_every_connection(where: Place) -> None:
    if where.is_memory:
        pytest.skip("there is no connection to lose")
    opened = open_bank(where.open(batch_events_max=PART_EVENTS))
    flushes = 0

    def drop(point: str) -> None:
        nonlocal flushes
        flushes += point == "inside flush"
        if point == "inside flush" and flushes in (2, 5):
            engine = create_engine(opened.db._store.engine.url)
            with engine.connect() as connection:
                connection.execute(DROP)
            engine.dispose()

    opened.db._store.trigger = drop
    feed_from(opened, 0)
    assert flushes > 5
    check(opened, events())


@pytest.mark.parametrize("is_lasting", [False, True], ids=["for a while", "by another process"])
def test_tables_whose_lock_is_held_after_a_lost_connection_cost_no_event(
    where: Place, is_lasting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may find out later than the client, and until then the lost session has it."""
    if where.is_memory:
        pytest.skip("there is no connection to lose")
    opened = open_bank(where.open(batch_events_max=PART_EVENTS))
    store = opened.db._store
    engine = create_engine(store.engine.url, isolation_level="AUTOCOMMIT")
    ownership: Any = store.ownership
    name = ownership.name_of(opened.db._forest.tables.spec(opened.accounts))
    number = {"number": guard_number(f"owner of {name}")}
    refused = flushes = 0
    use = ownership._use

    def counted_use(connection: Any, spec: Any) -> None:
        nonlocal refused
        try:
            use(connection, spec)
        except StoreError:
            refused += 1
            if refused == 2 and not is_lasting:
                holder.execute(text("SELECT pg_advisory_unlock(:number)"), number)
            raise

    def drop(point: str) -> None:
        nonlocal flushes
        flushes += point == "inside flush"
        if point == "inside flush" and flushes == 2:
            holder.execute(DROP)
            holder.execute(text("SELECT pg_advisory_lock(:number)"), number)
            if is_lasting:
                schema = holder.execution_options(schema_translate_map={None: name.split(".")[0]})
                taken = owned_tables.update().where(owned_tables.c.name == name)
                schema.execute(taken.values(epoch=owned_tables.c.epoch + 1))

    monkeypatch.setattr(ownership, "_use", counted_use)
    store.trigger = drop
    with engine.connect() as holder:
        if is_lasting:
            with pytest.raises((TableOwned, ConnectionLost)):  # lost ones may be in the pool
                feed_from(opened, 0)
            with pytest.raises(TableOwned):
                feed_from(opened, 0)
            assert not [reason for _, reason in opened.reasons() if "TableOwned" in reason]
        else:
            feed_from(opened, 0)
            check(opened, events())
    engine.dispose()
    assert refused


def test_versions_are_kept_as_long_as_windows_reach(where: Place) -> None:
    if where.is_memory:
        pytest.skip("nothing of a closed database is left")
    opened = open_bank(where.open(batch_events_max=1))
    fed = [event("DEPOSIT", s, k=1, n=s) for s in (1, 3, 5)] + [event("CLOSE", 6, k=1)]
    opened.stream.feed(fed, punctuation=at(8))
    kept = read(opened.db, kept_versions)
    assert [(row["us"], row["removed"]) for row in kept] == [
        (event("A", 5).us, False),
        (event("A", 6).us, True),
    ]
    opened.db.close()
    opened = open_bank(where.open())
    run = opened.stream.run
    programs: Any = run._state._programs
    assert programs is not None
    found = programs.state.of(opened.bank.accounts).all()
    assert [(at_.us, value) for at_, value in found[1]] == [
        (event("A", 5).us, 9),
        (event("A", 6).us, REMOVED),
    ]


def test_row_that_was_mended_by_hand_counts(where: Place) -> None:
    if where.is_memory:
        pytest.skip("nothing of a closed database is left")
    opened = open_bank(where.open())
    fed = [event("DEPOSIT", s, k=k, n=s) for s, k in ((1, 1), (3, 1), (4, 2))]
    opened.stream.feed(fed)
    opened.db.close()
    opened = open_bank(where.open())
    with opened.db.transaction() as t:
        t.update(opened.accounts, 1, balance=100)
        t.delete(opened.accounts, 2)
    more = [event("RECENT", 5, k=1), event("RECENT", 5, k=2), event("DEPOSIT", 6, k=1, n=1)]
    opened.stream.feed(more)
    assert opened.rows()["accounts"] == {1: 101}
    assert opened.outputs() == [["RECENT", 1, [[1, 100]]], ["RECENT", 2, [[]]]]
