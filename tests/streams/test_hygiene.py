"""Queries that read what rules on queries write: examples 1 to 3 of the paper, and figure 1."""

from __future__ import annotations

import itertools
import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.drawing import drawn
from tests.streams.hygiene import KINDS, behave, expected, open_ward

if TYPE_CHECKING:
    from activedb import Database, Occurrence
    from tests.databases import Place

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


def paper_stream() -> list[Occurrence]:
    """{exit², enter¹⁰, exit¹⁵}, with the masks that make Q2 look at both exits."""
    return [
        behave("MASK", 1),
        behave("EXIT", 2, location="a"),
        behave("ENTER", 10, location="b"),
        behave("MASK", 12),
        behave("EXIT", 15, location="b"),
    ]


def check_paper_stream(db: Database, events: list[Occurrence]) -> None:
    ward = open_ward(db)
    ward.stream.feed(events)
    assert ward.read == [("Q2", 2, "safe"), ("Q1", 10, "safe"), ("Q2", 15, "warning")]
    assert ward.history() == [(10, 1, "warning"), (15, 1, "safe")]
    assert ward.statuses() == {1: "safe", 2: "safe"}


def test_example_1_query_sees_what_the_rule_on_an_earlier_event_has_written(db: Database) -> None:
    check_paper_stream(db, paper_stream())


def test_example_2_query_does_not_read_too_late_when_its_event_arrives_late(db: Database) -> None:
    events = paper_stream()
    check_paper_stream(db, [events[2], events[0], events[1], events[3], events[4]])


def test_example_3_rule_does_not_write_too_late_when_its_event_arrives_late(db: Database) -> None:
    events = paper_stream()
    check_paper_stream(db, [events[4], events[3], events[2], events[1], events[0]])


@pytest.mark.long
def test_every_order_of_arrival_gives_what_the_order_of_time_gives(where: Place) -> None:
    orders = list(itertools.permutations(paper_stream()))
    chosen = random.Random(7).sample(orders, 12 * SCALE if where.is_memory else 1)
    db = where.open()
    ward = open_ward(db)
    run = ward.stream.run
    for number, order in enumerate(chosen):
        base = 1_000 * number
        later = [
            behave(o.name, base + float(o.id or 0), location=o.params["location"]) for o in order
        ]
        ward.read.clear()
        run.feed(later, behave("EXIT", base + 100).us)
        assert [status for _, _, status in ward.read] == ["safe", "safe", "warning"]
        assert ward.statuses()[1] == "safe"
    assert len(ward.history()) == 2 * len(chosen)


def test_violation_follows_from_a_warning_until_the_worker_sanitises(db: Database) -> None:
    ward = open_ward(db)
    events = [
        behave("EXIT", 1, location="a"),
        behave("ENTER", 2, location="b"),
        behave("TOUCH", 3, location="b"),
        behave("EXIT", 1, worker=2, location="a"),
        behave("SANITIZE", 1.5, worker=2),
        behave("ENTER", 2, worker=2, location="b"),
        behave("TOUCH", 3, worker=2, location="b"),
    ]
    ward.stream.feed(reversed(events))
    assert ward.statuses() == {1: "violation", 2: "safe"}
    assert ward.history() == [(2, 1, "warning"), (3, 1, "violation")]
    ward.stream.feed([behave("SANITIZE", 20)])
    assert ward.statuses() == {1: "safe", 2: "safe"}


def test_reading_of_a_query_that_writes_becomes_a_dead_letter(db: Database) -> None:
    import activedb as adb

    ward = open_ward(db)

    def write(t: adb.Transaction, o: Occurrence) -> bool:
        t.update(ward.badges, 1, status="red")
        return True

    db.rule(on=adb.event("TOUCH", reading=write), name="writes")(lambda t, o: None)
    ward.stream.feed([behave("TOUCH", 1), behave("MASK", 2)])
    (letter,) = db.dead_letters.list("ward")
    assert letter.error == "ConditionWrites"
    assert ward.statuses()[1] == "safe"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4 * SCALE))
def test_disordered_stream_in_batches_gives_what_one_loop_gives(where: Place, seed: int) -> None:
    chosen = drawn("hygiene", where.is_memory, seed)
    count = 300 if where.is_memory else 80
    history: list[tuple[float, int, str]] = []
    while len(history) <= 3:  # so that this says something
        times = sorted(chosen.sample(range(1, 4 * count), count))
        events = [
            behave(chosen.choice(KINDS), s, chosen.choice((1, 2)), chosen.choice("ab"))
            for s in times
        ]
        status, history = expected(events)
    # No event is more than twenty places away from its own.
    arrived = sorted(events, key=lambda o: o.us + chosen.randrange(100_000_000))
    db = where.open(batch_events_max=chosen.choice((7, 50, 2_000)))
    ward = open_ward(db)
    run = ward.stream.run
    for start in range(0, count, 40):
        seen = arrived[: start + 40]
        left = arrived[start + 40 :]
        punctuation_us = min((o.us for o in left), default=max(o.us for o in seen) + 1)
        run.feed(arrived[start : start + 40], punctuation_us)
    run.finish()
    assert ward.history() == history
    assert ward.statuses() == status
    assert db.dead_letters.list() == []
    assert run.totals() == {"events": count, "late": 0, "dead": 0}
    assert run.punctuation_us is not None
    assert run.punctuation_us > behave("EXIT", times[-1]).us
