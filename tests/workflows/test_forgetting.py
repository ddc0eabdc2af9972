"""Old history: forgotten without changing what is to come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from activedb.batches import Program, isolated, merged, overlapping
from activedb.errors import (
    AlreadyCompensated,
    ConfigurationError,
    HistoryForgotten,
    ProgramFailed,
)
from activedb.store.system import batch_edges, batch_transactions, batches
from tests.workflows.marking import chain, marking, rows_of

if TYPE_CHECKING:
    from activedb import Database
    from tests.databases import Place

LATER = datetime.now(UTC) + timedelta(days=1)


def sizes(db: Database) -> list[int]:
    """Return how many batches, transactions and edges are recorded."""
    with db.connection() as connection:
        tables = (batches, batch_transactions, batch_edges)
        found = [connection.scalar(select(func.count()).select_from(t)) for t in tables]
        return [int(count or 0) for count in found]


def test_forget_keeps_the_last_and_goes_on_as_before(where: Place) -> None:
    programs = chain(isolated(), merged(2))
    of = marking(where.open(), programs)
    for number in range(5):
        of.run.feed("a", rows_of(str(number)))
    assert of.run.forget(datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert of.run.forget(LATER) == 9  # a#1 and a#2 with all of theirs
    assert of.run.forget(LATER) == 0
    assert list(of.states()) == ["a#3", "P1#3'", "a#4", "P1#4'", "P2#2'", "a#5", "P1#5'"]
    if not where.is_memory:
        of = marking(where.open(), programs)
    of.run.feed("a", rows_of("5"))
    assert of.written()[-3:] == ["P2(P1:0,P1:1)", "P2(P1:2,P1:3)", "P2(P1:4,P1:5)"]
    of.run.compensate("a#6", "independent cover")
    assert "P2(P1:4,P1:5)" not in of.written()


def test_forget_overlapping_batches_stay_few(db: Database) -> None:
    of = marking(db, chain(overlapping(3), overlapping(2)))
    had = []
    for number in range(15):
        of.run.feed("a", rows_of(str(number)))
        if number % 3 == 2:
            of.run.forget(LATER)
            had.append(sizes(db))
    assert had[2:] == [had[2]] * 3
    assert "P2(P1:11,P1:12,P1:13,P1:12,P1:13,P1:14)" in of.written()
    assert len([mark for mark in of.written() if mark.startswith("P2")]) == 12
    with pytest.raises(HistoryForgotten, match="too late"):
        of.run.compensate("a#12", allow_interference=True)
    records = of.run.whole_lineage().records()
    db.workflows._runs.clear()
    assert of.run.whole_lineage().records() == records
    with pytest.raises(HistoryForgotten):
        of.run.compensate("a#12", allow_interference=True)
    assert of.run.compensate("P1#13'", allow_interference=True).order == ("P2#12",)


@pytest.mark.parametrize("is_read_anew", [False, True])
def test_compensation_is_too_late_only_if_something_forgotten_stands(
    db: Database, *, is_read_anew: bool
) -> None:
    """P1#2 stands and is forgotten, P1#3 to P1#5 are compensated, P1#4 and P1#5 kept."""
    of = marking(db, chain(overlapping(3)))
    for number in range(1, 7):
        of.run.feed("a", rows_of(str(number)))
    of.run.compensate("a#5", allow_interference=True)
    of.run.feed("a", rows_of("7"))
    written = of.written()
    assert of.run.forget(LATER) > 0
    assert "P1(2,3,4)" in written
    if is_read_anew:
        db.workflows._runs.clear()
    assert of.written() == written
    with pytest.raises(HistoryForgotten, match="a#4 has triggered"):
        of.run.compensate("a#4", allow_interference=True)
    with pytest.raises(AlreadyCompensated):
        of.run.compensate("a#5", allow_interference=True)
    assert of.written() == written


def test_compensation_of_a_cover_is_too_late_if_what_goes_with_it_was_forgotten(
    db: Database,
) -> None:
    """P2#2 would stand behind P1#1; P3#1, which has used it and stands, is forgotten."""
    programs = [
        Program("P1", {"a": merged(2)}, relax=["completion"]),
        Program("P2", "a", after="P1", relax=["completion"]),
        Program("P3", {"P2": overlapping(2)}),
    ]
    of = marking(db, programs)
    of.failing = lambda mark: mark == "P2(1)"  # given up: no completion depends on it
    for number in range(1, 4):
        of.run.feed("a", rows_of(str(number)))
    plan = of.run.plan("a#1", "independent cover")
    assert (plan.given_up, plan.order) == (("a#1",), ("P3#2", "P3#1", "P2#2", "P1#1"))
    assert of.run.forget(LATER) == 2  # P3#1 and its output
    written = of.written()
    with pytest.raises(HistoryForgotten, match="directly behind P2#2'"):
        of.run.compensate("a#1", "independent cover", allow_interference=True)
    assert of.written() == written


def test_forget_keeps_what_has_failed_and_what_belongs_to_it(db: Database) -> None:
    of = marking(db, [*chain(isolated(), isolated()), Program("P3", "a")])
    of.run.feed("a", rows_of("v"))
    of.run.feed("a", rows_of("x"))
    of.failing = lambda mark: mark == "P2(P1:y)"
    with pytest.raises(ProgramFailed):
        of.run.feed("a", rows_of("y"))
    assert of.run.forget(LATER) > 0
    assert of.run.due() == ("P3#3", "P2#3")
    of.failing = lambda mark: False
    of.run.resume()
    of.run.compensate("a#3")
    assert of.written() == ["P1(v)", "P1(x)", "P2(P1:v)", "P2(P1:x)", "P3(v)", "P3(x)"]
    with pytest.raises(ConfigurationError, match="time zone"):
        of.run.forget(datetime(2020, 1, 1))
