"""Late, dead and undecided events of a stream, each by itself wherever a stream is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import activedb as adb
from activedb.events import AccuracyInterval
from activedb.monitor import collector
from tests.databases import until
from tests.ledger import at, declare
from tests.monitor.scraping import scrape
from tests.monitor.test_top import shown

if TYPE_CHECKING:
    from tests.monitor.conftest import Watched


def about(name: str, second: float, node: str) -> adb.Occurrence:
    """An event whose clock is half a second off at most."""
    us = round(at(second).timestamp() * 1e6)
    stamp = AccuracyInterval(us, us - 500_000, us + 500_000, node=node)
    return adb.occurrence(name, timestamp=stamp, id=f"{name}{second}")


def one_of_each(db: adb.Database) -> adb.Stream:
    """Feed a stream one event that is late, two dead ones, and three undecided ones."""
    stream = declare(db)
    db.rule(on=adb.seq(adb.event("A"), adb.event("B")), name="open")(lambda t, o: None)

    @db.rule(on=adb.event("C"))
    def refuse(t: adb.Transaction, o: adb.Occurrence) -> None:
        raise ValueError("no")

    events = [about("A", 1, "p")]
    events += [about("B", 1 + n / 10, f"q{n}") for n in range(3)]
    events += [adb.occurrence("C", timestamp=at(2 + n), id=str(n)) for n in range(2)]
    stream.feed(events, at(10))
    stream.feed([adb.occurrence("A", timestamp=at(1), id="late")], at(11))
    return stream


EXPECTED = {"events": 6, "late": 1, "dead": 2, "undecided": 3}


def test_state_and_top_tell_them_apart(watched: Watched) -> None:
    one_of_each(watched.db)

    def totals(state: dict[str, Any]) -> dict[str, int]:
        (stream,) = state["streams"]
        return {name: stream[name] for name in EXPECTED}

    until(lambda: totals(watched.state()) == EXPECTED)  # a state does not wait for the database
    state = watched.state()
    (stream,) = state["streams"]
    assert totals(state) == EXPECTED
    lines = shown(state).splitlines()
    head = next(line.split() for line in lines if "undecided" in line)
    row = next(line.split() for line in lines if line.startswith(stream["name"]))
    told = dict(zip(head, row, strict=False))
    assert {name: int(told[name]) for name in EXPECTED} == EXPECTED


def test_metrics_tell_them_apart(db: adb.Database) -> None:
    found = collector(db)
    stream = one_of_each(db)
    told = scrape(found)
    outcomes = {"events": "processed", "late": "late", "dead": "dead"}
    for name, outcome in outcomes.items():
        value = told("stream_events_total", stream=stream.name, outcome=outcome)
        assert value == EXPECTED[name]
    assert told("stream_undecided", stream=stream.name) == EXPECTED["undecided"]
    assert told("matches_undecided_total") == EXPECTED["undecided"]
    db.decisions.resolve(next(iter(db.decisions)).id, [])
    assert scrape(found)("stream_undecided", stream=stream.name) == 2
