"""Feeds that are cut off anywhere take the whole batch or nothing, and the next feed goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select

import activedb as adb
from activedb.errors import BatchFailed
from tests.databases import place
from tests.drawing import SCALE, drawn
from tests.ledger import at
from tests.scheduling.cutting import cut_before, lines_of
from tests.streams.columns.watch import Spec, Watch, open_watch
from tests.streams.programs.column_bank import QUIET, REFUSED, TELLING, occurrence_of, open_bank

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence
    from tests.databases import Opens, Place
    from tests.streams.programs.column_bank import OpenBank

_STEP_S = 4  # of event time between two feeds
_CUTS = 60 * SCALE

PAIR = adb.seq(adb.event("A"), adb.event("B")).within(3 * _STEP_S)
SPECS = [
    Spec(adb.event("B")),
    Spec(PAIR),
    Spec(PAIR.context("chronicle"), "deferred"),
]
PROGRAMS = [(QUIET, "serial"), (TELLING, "tpg"), (QUIET, "columns"), (TELLING, "columns")]
PROGRAM_IDS = [f"{given.program.name}-{scheduler}" for given, scheduler in PROGRAMS]


def deposits(number: int, amount: float = 1.0) -> list[Occurrence]:
    """Return two deposits of a feed, and one that waits; the first has no key of its neighbours."""
    second = _STEP_S * number
    return [
        occurrence_of(("DEPOSIT", second + after, None, key, 0, n))
        for after, key, n in ((1, 3 + number % 5, amount), (2, 1, 1.0), (6, 2, 1.0))
    ]


def letters(number: int) -> list[Occurrence]:
    """Return the events of a feed for rules; the last of them waits until the next."""
    second = _STEP_S * number
    return [
        adb.occurrence(kind, timestamp=at(second + after), n=number)
        for kind, after in (("B", 1), ("A", 2), ("A", 6))
    ]


def feed(opened: Any, events: list[Occurrence], number: int) -> None:
    opened.stream.feed(events, punctuation=at(_STEP_S * (number + 1)))


def balances(opened: OpenBank) -> Any:
    with opened.db.transaction() as t:
        return [list(t.query(select(table))) for table in opened.tables.values()]


def lines_in_log(watch: Watch) -> Any:
    with watch.db.transaction() as t:
        return list(t.query(select(func.count()).select_from(watch.log)))


def check(
    opens: Callable[[Opens], Any],
    events: Callable[[int], list[Occurrence]],
    look: Callable[[Any], Any],
) -> None:
    """Cut off feeds one after the other, each before another line; compare with whole ones."""
    random, hits = drawn("cut off"), 0
    with place(None) as here, place(None) as there:
        cut, whole = opens(here), opens(there)
        for number in range(3):
            feed(whole, events(number), number)
            with lines_of() as met:
                feed(cut, events(number), number)
        lines = [line for line in met if "/activedb/streams/" in line[0]]
        chosen = random.sample(lines, min(len(lines), _CUTS))
        for number, line in enumerate(chosen, 3):
            time, before = random.randint(1, met[line]), cut.stream.run.batches
            try:
                with cut_before(line, time):
                    feed(cut, events(number), number)
            except KeyboardInterrupt:
                hits += 1
            if cut.stream.run.batches == before:
                feed(cut, events(number), number)
            feed(whole, events(number), number)
            for opened in (cut, whole):  # a batch of several parts may have been cut in between
                feed(opened, [], number)
            assert look(cut) == look(whole), f"feed {number}, cut off at {line}, {time}"
        assert cut.everything() == whole.everything()
    assert hits > len(chosen) // 2


@pytest.mark.long
@pytest.mark.parametrize(("given", "scheduler"), PROGRAMS, ids=PROGRAM_IDS)
@pytest.mark.parametrize("amount", [1.0, REFUSED], ids=["accepted", "refused"])
def test_feed_of_a_program_that_is_cut_off_at_any_line_is_whole_or_not_at_all(
    given: Any, scheduler: str, amount: float
) -> None:
    check(
        lambda opens: open_bank(opens, given, scheduler),
        lambda number: deposits(number, amount),
        balances,
    )


@pytest.mark.long
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_feed_of_rules_that_is_cut_off_at_any_line_is_whole_or_not_at_all(columns: bool) -> None:
    check(lambda opens: open_watch(opens, SPECS, columns=columns), letters, lines_in_log)


@pytest.mark.parametrize("scheduler", ["serial", "columns"])
@pytest.mark.parametrize("settling", ["_time", "_programs"])
def test_feed_of_a_program_that_is_cut_off_behind_its_commit_has_taken_effect(
    where: Place, monkeypatch: pytest.MonkeyPatch, scheduler: str, settling: str
) -> None:
    opened = open_bank(where, QUIET, scheduler)
    if (scheduler, settling) == ("columns", "_time"):
        settling = "columns"  # its waiting events are settled there
    feed(opened, deposits(0), 0)
    cut_off_at = getattr(opened.stream.run._state, settling)
    with monkeypatch.context() as patch:
        method = "add" if settling == "columns" else "committed"
        patch.setattr(cut_off_at, method, interrupt)
        with pytest.raises(KeyboardInterrupt):
            feed(opened, deposits(1), 1)
    assert opened.stream.run.batches == 2
    feed(opened, deposits(2), 2)
    found = opened.everything()
    assert found["accounts"] == {1: 3.0, 2: 2.0, 3: 1.0, 4: 1.0, 5: 1.0}
    assert found["totals"]["events"] == 8


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_feed_of_rules_that_is_cut_off_behind_its_commit_has_taken_effect(
    where: Place, monkeypatch: pytest.MonkeyPatch, columns: bool
) -> None:
    watch = open_watch(where, SPECS, columns=columns)
    feed(watch, letters(0), 0)
    state: Any = watch.stream.run._state
    with monkeypatch.context() as patch:
        patch.setattr(state._programs if columns else state._time, "committed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            feed(watch, letters(1), 1)
    assert watch.stream.run.batches == 2
    feed(watch, letters(2), 2)
    with where.another() as elsewhere:
        whole = open_watch(elsewhere, SPECS, columns=columns)
        for number in range(3):
            feed(whole, letters(number), number)
        assert watch.everything() == whole.everything()


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("error", [KeyboardInterrupt, BatchFailed, ZeroDivisionError])
def test_part_in_columns_that_fails_while_it_goes_row_by_row_leaves_nothing_in_memory(
    where: Place, error: type[BaseException]
) -> None:
    opened = open_bank(where, TELLING)
    feed(opened, deposits(0), 0)
    program: Any = opened.stream.run._state._programs

    def fail(point: str) -> None:
        if point == "before commit" and program._is_by_rows:
            raise error("the part fails")

    opened.db._store.trigger = fail
    with pytest.raises(error, match="the part fails"):
        feed(opened, deposits(1, REFUSED), 1)
    opened.db._store.trigger = lambda point: None
    assert opened.everything()["accounts"] == {1: 1.0, 3: 1.0}
    feed(opened, deposits(2), 2)
    found = opened.everything()
    assert found["accounts"] == {1: 3.0, 2: 2.0, 3: 1.0, 5: 1.0}
    assert found["totals"]["events"] == 8
