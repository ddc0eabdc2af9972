"""Timestamps from the future: refused, and nothing is dragged along by them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import BadEvent, BatchFailed, SerializationConflict
from activedb.events import AccuracyInterval, Occurrence
from activedb.streams import AtomicBatch
from tests.ledger import EPOCH, Rows, at, declare, event, open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import SimulatedClock, Stream, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

YEAR_3000 = datetime(3000, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> SimulatedClock:
    return adb.SimulatedClock(EPOCH)


@pytest.fixture
def opened(where: Place, clock: SimulatedClock) -> Callable[..., Ledger]:
    """Opens a database whose rule writes down each A."""

    def open_with(**settings: Any) -> Ledger:
        ledger = open_ledger(where.open(clock=clock, **settings))

        @ledger.db.rule(on=adb.event("A"))
        def each(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"A{o.params['n']}")

        return ledger

    return open_with


def far(n: int = 3000) -> Occurrence:
    """An event from the year 3000."""
    return adb.occurrence("A", timestamp=YEAR_3000, n=n)


def stamp(second: float, error: float = 0.0, node: str | None = None) -> AccuracyInterval:
    """A timestamp of a clock that knows its error."""
    us = round(at(second).timestamp() * 1_000_000)
    error_us = round(error * 1_000_000)
    return AccuracyInterval(us, us - error_us, us + error_us, node=node)


def test_event_from_the_future_becomes_a_letter_and_makes_nothing_late(
    opened: Callable[..., Ledger], clock: SimulatedClock
) -> None:
    ledger = opened()
    stream = declare(ledger.db)
    events = [event("A", 1, n=1), far(), event("A", 60, n=60), event("A", 60.000001, n=61)]
    stream.feed(events)
    run = stream.run
    assert ledger.lines() == ["A1", "A60"]
    assert run.punctuation_us == event("A", 60.000001).us
    assert run.totals() == {"events": 2, "late": 0, "dead": 2}
    letters = ledger.letters()
    assert [(x["source"], x["kind"], x["error"]) for x in letters] == [
        ("input", "event", "BadEvent")
    ] * 2
    reason = letters[0]["reason"]
    assert "event 'A' is of 3000-01-01T00:00:00+00:00" in reason
    assert "it is 2024-01-01T00:00:00+00:00 here" in reason
    assert "at most 60 s ahead" in reason
    assert "future_max_s" in reason
    assert letters[0]["payload"]["n"] == 3000
    clock.advance(30)
    stream.feed([event("A", 90, n=90)])
    assert ledger.lines() == ["A1", "A60", "A90"]


def batch_of(stream: Stream, number: int, *events: Occurrence, until: float) -> AtomicBatch:
    """Return the batch that a feed hands over."""
    return AtomicBatch(stream.name, "q", number, Rows(events), event("A", until).us)


def test_row_from_the_future_is_refused_in_batches_too_and_replays_agree(
    opened: Callable[..., Ledger], clock: SimulatedClock
) -> None:
    ledger = opened()
    stream = declare(ledger.db)
    run = stream.run
    first = batch_of(stream, 0, event("A", 1, n=1), event("A", 500, n=500), until=10)
    run.apply(first)
    clock.advance(1_000)
    run.apply(first)
    run.apply(batch_of(stream, 1, event("A", 600, n=600), until=1_000))
    assert ledger.lines() == ["A1", "A600"]
    (letter,) = ledger.letters()
    assert letter["identity"] == "0.1"
    assert letter["payload"] == {"type": "A", "timestamp": str(at(500)), "n": 500}
    assert run.totals() == {"events": 2, "late": 0, "dead": 1}


def test_batch_that_is_ended_after_a_failure_does_not_judge_again(
    opened: Callable[..., Ledger], clock: SimulatedClock
) -> None:
    ledger = opened(batch_events_max=1, retries_max=0)
    fails = True

    @ledger.db.rule(on=adb.event("B"))
    def stumble(t: Transaction, o: Occurrence) -> None:
        if fails:
            raise SerializationConflict("on purpose")

    stream = declare(ledger.db)
    run = stream.run
    rows = [event("A", 1, n=1), event("B", 2), event("A", 500, n=500), event("A", 3, n=3)]
    first = batch_of(stream, 0, *rows, until=1_000)
    with pytest.raises(SerializationConflict):
        run.apply(first)
    assert ledger.lines() == ["A1"], "its first part has been done"
    fails = False
    clock.advance(1_000)
    run.apply(first)
    assert ledger.lines() == ["A1", "A3"]
    assert len(ledger.letters()) == 1
    assert run.totals() == {"events": 3, "late": 0, "dead": 1}


def test_clock_error_of_a_stamp_counts(opened: Callable[..., Ledger]) -> None:
    ledger = opened(future_max_s=5)
    stream = declare(ledger.db)
    events = [
        Occurrence("A", stamp(20, 15), {"n": 1}),
        Occurrence("A", stamp(20, 14.999999), {"n": 2}),
    ]
    stream.feed(events)
    assert ledger.lines() == ["A1"]
    (letter,) = ledger.letters()
    assert "at most 5 s ahead" in letter["reason"]


def test_events_from_the_future_are_taken_if_that_is_wanted(opened: Callable[..., Ledger]) -> None:
    ledger = opened(future_max_s=math.inf)
    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1), far()])
    ledger.db.signal("A", timestamp=YEAR_3000, n=2)
    assert ledger.lines() == ["A1", "A3000", "A2"]
    assert ledger.letters() == []


def test_fail_fast_stops_at_an_event_from_the_future(opened: Callable[..., Ledger]) -> None:
    ledger = opened()
    stream = declare(ledger.db)
    stream.run.fail_fast = True
    with pytest.raises(BatchFailed, match="is of 3000-01-01"):
        stream.feed([event("A", 1, n=1), far()])
    assert ledger.lines() == []


@pytest.mark.parametrize("membership", ["atomic", "weak"])
def test_sync_points_are_not_moved_by_the_future(
    opened: Callable[..., Ledger], membership: Any
) -> None:
    ledger = opened()
    stream = ledger.db.stream("sensors", types={"A": ()}, membership=membership)
    producers = stream.producers
    producers.register("P")
    us = round(YEAR_3000.timestamp() * 1_000_000)
    late = AccuracyInterval(us, us - 1, us + 1, node="P")
    stream.feed([Occurrence("A", late, {"n": 0})])
    with pytest.raises(BadEvent, match="a heartbeat is of 2999-12-31"):
        producers.heartbeat(late)
    stranger = AccuracyInterval(us, us, us, node="Q")
    with pytest.raises(BadEvent, match=r"heartbeat"):
        producers.heartbeat(stranger)
    stream.feed([Occurrence("A", stranger, {"n": 0})])
    assert list(producers) == ["P"], "nobody is discovered by the future"
    assert producers.stable_us is None
    stream.feed([Occurrence("A", stamp(n, 0.1, "P"), {"n": n}) for n in (1, 2)])
    assert (ledger.lines(), producers.waiting) == (["A1"], 1)
    assert ledger.late() == []
    reasons = [letter["reason"] for letter in ledger.letters()]
    assert [r.split(" at the earliest")[0] for r in reasons] == [
        "event 'A' is of 2999-12-31T23:59:59.999999+00:00",
        "event 'A' is of 3000-01-01T00:00:00+00:00",
    ]


def test_signal_from_the_future_is_refused_and_its_transaction_goes_on(
    opened: Callable[..., Ledger], clock: SimulatedClock
) -> None:
    ledger = opened()
    with pytest.raises(BadEvent, match="may be at most 60 s ahead"):
        ledger.db.signal("A", timestamp=YEAR_3000, n=1)
    with ledger.db.transaction() as t:
        with pytest.raises(BadEvent, match="future_max_s"):
            ledger.db.signal("A", timestamp=at(61), n=2)
        ledger.write(t, "goes on")
        ledger.db.signal("A", timestamp=at(60), n=3)
        ledger.db.signal("A", timestamp=stamp(70, 10), n=4)
        ledger.db.signal("A", n=5)
    assert ledger.lines() == ["goes on", "A3", "A4", "A5"]
    clock.advance(1)
    ledger.db.signal("A", timestamp=at(61), n=6)
    assert ledger.lines()[4:] == ["A6"]
