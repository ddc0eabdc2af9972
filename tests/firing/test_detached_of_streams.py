"""Detached rules of a stream's events: once, however the batches are done again."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

import activedb as adb
from activedb.clock import SimulatedClock, in_microseconds
from activedb.errors import BatchFailed, SerializationConflict
from activedb.firing import _launcher
from activedb.store.journals import Journal
from activedb.store.system import pending_firings
from tests.databases import PATIENCE_S, until, waits_at_the_server
from tests.drawing import drawn
from tests.ledger import EPOCH, at, declare, event, open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from activedb import Occurrence, Transaction
    from activedb.streams import StreamRun
    from activedb.transactions import Run
    from tests.databases import Place
    from tests.ledger import Ledger

LINES = ["detached 1", "detached 2", "detached 3"]


class Crash(BaseException):
    """Error that ends a run at once, as far as the database can see."""


def define(ledger: Ledger, *, crashes: bool) -> None:
    @ledger.db.rule(on=adb.event("A"), coupling="detached")
    def detached(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"detached {o.params['n']}")

    @ledger.db.rule(on=adb.event("A"))
    def stop(t: Transaction, o: Occurrence) -> None:
        if crashes and o.params["n"] == 3:
            until(lambda: ledger.db.admin.row_counts()["log"] == 3)
            raise Crash


@pytest.mark.parametrize("events_max", [1, 2, 3, 100])
def test_firing_of_a_batch_that_is_parted_differently_after_a_crash_is_not_repeated(
    where: Place, events_max: int
) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    events = [event("A", n, n=n) for n in (1, 2, 3)]
    before = open_ledger(where.open(batch_events_max=3))
    define(before, crashes=True)
    with pytest.raises(Crash):
        declare(before.db).feed(events)
    assert sorted(before.lines()) == LINES
    before.db.close()
    after = open_ledger(where.open(batch_events_max=events_max))
    define(after, crashes=False)
    stream = declare(after.db)
    assert stream.run.batches == 0
    stream.feed(events)
    assert sorted(after.lines()) == LINES
    assert after.letters() == []
    assert after.pending() == []


@pytest.mark.parametrize("by", ["who was there", "the next one"])
def test_end_between_a_batch_that_fails_and_its_next_try_makes_nothing_twice(
    where: Place, by: str
) -> None:
    if where.is_memory and by == "the next one":
        pytest.skip("memory keeps nothing")

    def opened(*, fails: bool) -> tuple[Ledger, StreamRun]:
        ledger = open_ledger(where.open())

        @ledger.db.rule(on=adb.event("A"), coupling="detached")
        def detached(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"detached {o.params['n']}")

        @ledger.db.rule(on=adb.event("A"), priority=-1)
        def stop(t: Transaction, o: Occurrence) -> None:
            until(lambda: not ledger.db._launcher.running)
            if o.params["n"] == 3 and failing:
                raise ValueError("no good")

        failing = [True] if fails else []
        run = declare(ledger.db).run
        run.fail_fast = True
        if fails:
            run.feed([event("A", 1, n=1)], in_microseconds(at(2)))
            with pytest.raises(BatchFailed):
                run.feed(again, in_microseconds(at(4)))
            failing.clear()
            run.finish()
        return ledger, run

    again = [event("A", n, n=n) for n in (2, 3)]
    ledger, run = opened(fails=True)
    if by == "the next one":
        ledger.db.close()
        ledger, run = opened(fails=False)
        run.finish()
    run.feed(again, in_microseconds(at(4)))
    run.finish()
    assert sorted(ledger.lines()) == LINES
    with ledger.db.connection() as connection:  # and nothing is left of them
        assert connection.execute(select(pending_firings)).all() == []


def test_streams_fed_from_python_do_not_disturb_each_other(ledger: Ledger) -> None:
    define(ledger, crashes=False)
    for name in ("one", "two"):
        declare(ledger.db, name).feed([event("A", n, n=n) for n in (1, 2)])
    assert sorted(ledger.lines()) == ["detached 1", "detached 1", "detached 2", "detached 2"]
    assert ledger.pending() == []


def noting(asked: list[str], name: str) -> Callable[..., Any]:
    """A method of the journal that notes its calls."""
    method = getattr(Journal, name)

    def noted(*arguments: Any, **named: Any) -> Any:
        asked.append(name)
        return method(*arguments, **named)

    return noted


def test_feed_asks_for_firings_only_if_there_may_be_some(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Property: whichever feeds fire, nothing is left after each, and the others ask nothing."""
    chance = drawn("feeds that ask")
    define(ledger, crashes=False)
    monkeypatch.setattr(_launcher, "_RECOVERS_S", math.inf)
    asked: list[str] = []
    for name in ("claim", "held", "prune"):
        monkeypatch.setattr(Journal, name, noting(asked, name))
    streams = [declare(ledger.db, name) for name in ("one", "two")]
    for stream in streams:
        stream.feed([event("B", 0, n=0)])  # the first feed of a process may ask
    count = 0
    for number in range(1, 12):
        asked.clear()
        fires = chance.random() < 0.5
        chance.choice(streams).feed([event("A" if fires else "B", number, n=number)])
        count += fires
        assert len(ledger.lines()) == count
        assert ("prune" in asked) == fires
        assert fires or not asked
        with ledger.db.connection() as connection:
            assert connection.execute(select(pending_firings)).all() == []


def test_firing_that_ends_while_its_batch_commits_runs_once(there: Place) -> None:
    ledger = open_ledger(there.open())
    firings = ledger.db._launcher.batch_firings
    settle, end_of = firings.settle, firings.end_of
    has_settled, runs = threading.Event(), []

    def slowly(connection: Any, run: Run) -> None:
        settle(connection, run)
        has_settled.set()
        until(lambda: waits_at_the_server(ledger.db))  # the firing, for the row of its record

    def refuse() -> None:
        raise SerializationConflict("the row is not new: the batch has recorded it")

    firings.settle = slowly  # type: ignore[method-assign]
    firings.end_of = lambda firing: (end_of(firing)[0], refuse)  # type: ignore[method-assign]

    @ledger.db.rule(on=adb.event("A"), coupling="detached")
    def detached(t: Transaction, o: Occurrence) -> None:
        runs.append(o.params["n"])
        ledger.write(t, f"detached {o.params['n']}")
        assert has_settled.wait(PATIENCE_S)

    declare(ledger.db).feed([event("A", 1, n=1)])
    ledger.db.wait_idle()
    assert (runs, ledger.lines()) == ([1], ["detached 1"])


def test_firing_whose_recording_fails_once_is_recorded_at_the_next_try(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(ledger, crashes=False)
    record, failures = Journal.record, iter([True])

    def sometimes(
        journal: Journal, firings: Iterable[Mapping[str, Any]], **how: Any
    ) -> set[str] | None:
        if next(failures, False):
            raise SerializationConflict("once")
        return record(journal, firings, **how)

    monkeypatch.setattr(Journal, "record", sometimes)
    ledger.db.run(lambda t: ledger.db.signal("A", n=1))
    ledger.db.wait_idle()
    assert ledger.lines() == ["detached 1"]


def test_other_streams_forget_nothing_that_an_unfinished_batch_needs(there: Place) -> None:
    def opened(*, crashes: bool) -> Ledger:
        limits = {"retries_max": 0, "restarts_max": 1_000, "clock": SimulatedClock(EPOCH)}
        ledger = open_ledger(there.open(**limits))

        @ledger.db.rule(on=adb.event("A"), coupling="detached")
        def first(t: Transaction, o: Occurrence) -> None:
            ledger.db.signal("NEXT")
            until(lambda: "second" in ledger.lines())
            if crashes:
                raise SerializationConflict("in the way")
            ledger.write(t, "first")

        @ledger.db.rule(on=adb.event("NEXT"), coupling="detached")
        def second(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, "second")

        @ledger.db.rule(on=adb.event("B"))
        def stop(t: Transaction, o: Occurrence) -> None:
            until(lambda: not ledger.db._launcher.running)
            if crashes:
                raise Crash

        @ledger.db.rule(on=adb.event("C"), coupling="detached")
        def other(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, "other")

        return ledger

    events = [event("A", 1), event("B", 2)]
    before = opened(crashes=True)
    with pytest.raises(Crash):
        declare(before.db, "one").feed(events)
    before.db.close()
    after = opened(crashes=False)
    one, two = declare(after.db, "one"), declare(after.db, "two")
    two.feed([event("C", 1)])
    one.feed(events)
    after.db.wait_idle()
    assert sorted(after.lines()) == ["first", "other", "second"]
    assert after.pending() == []
