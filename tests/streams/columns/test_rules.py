"""Rules on a stream in columns do what they do event by event: all of it the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import activedb as adb
from activedb.errors import SerializationConflict
from tests.databases import place
from tests.ledger import at
from tests.streams.columns.watch import Spec, open_watch, specs, streams

if TYPE_CHECKING:
    from activedb import Occurrence

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
QUICK = settings(
    max_examples=12 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SLOW = settings(QUICK, max_examples=3 * SCALE)

Batches = list[tuple[list["Occurrence"], float | None]]


def event_by_event(rules: list[Spec], batches: Batches, *, as_tables: bool) -> dict[str, Any]:
    """Return the expected result, found event by event."""
    with place(None) as where:
        watch = open_watch(where, rules, columns=False)
        for number, (events, second) in enumerate(batches):
            if as_tables:
                watch.apply(number, events, second)
            else:
                watch.feed(events, second)
        return watch.everything()


@pytest.mark.long
def test_event_that_completes_too_many_matches_is_a_dead_letter_as_event_by_event() -> None:
    names = enumerate("AABCC")
    batch = [adb.occurrence(name, timestamp=at(second), n=second) for second, name in names]
    on = adb.seq(adb.event("A"), adb.event("B")).within(20)
    rules = [Spec(on, matches_max=1), Spec(adb.event("C"))]
    with place(None) as where:
        watch = open_watch(where, rules, columns=True)
        watch.feed(batch, 30)
        told = watch.everything()
    assert told == event_by_event(rules, [(batch, 30)], as_tables=False)
    ((*_, error, _, _),) = told["letters"]
    assert error == "MatchesExceeded"
    assert len(told["log"]) == 2  # of the two C


@pytest.mark.long
@given(specs(), streams(odd=False), st.sampled_from([1, 3, 2_000]), st.sets(st.integers(1, 5)))
@QUICK
def test_tables_in_columns_do_what_event_by_event_does(
    rules: list[Spec], batches: Batches, size: int, failing: set[int]
) -> None:
    with place(None) as where:
        watch = open_watch(where, rules, columns=True, batch_events_max=size)
        _ = watch.stream.run
        flushes = 0

        def fail(point: str) -> None:
            nonlocal flushes
            flushes += point == "before flush"
            if point == "before flush" and flushes in failing:
                raise SerializationConflict("once more")

        watch.db._store.trigger = fail
        for number, (events, second) in enumerate(batches):
            watch.apply(number, events, second)
        assert watch.everything() == event_by_event(rules, batches, as_tables=True)


@pytest.mark.long
@given(specs(), streams(odd=True), st.sampled_from([1, 3, 2_000]))
@QUICK
def test_odd_events_from_python_do_what_event_by_event_does(
    rules: list[Spec], batches: Batches, size: int
) -> None:
    with place(None) as where:
        watch = open_watch(where, rules, columns=True, batch_events_max=size)
        for events, second in batches:
            watch.feed(events, second)
        assert watch.everything() == event_by_event(rules, batches, as_tables=False)


@pytest.mark.long
@given(specs(), streams(odd=False), st.lists(st.booleans(), min_size=24, max_size=24))
@SLOW
def test_rules_reopened_anywhere_go_on_where_they_were(
    postgres_url: str, rules: list[Spec], batches: Batches, closes: list[bool]
) -> None:
    with place(postgres_url) as where:
        watch = open_watch(where, rules, columns=True, batch_events_max=3)
        for number, (events, second) in enumerate(batches):
            watch.apply(number, events, second)
            if closes[number]:
                watch.db.wait_idle()
                watch.db.close()
                watch = open_watch(where, rules, columns=True, batch_events_max=3)
        assert watch.everything() == event_by_event(rules, batches, as_tables=True)
