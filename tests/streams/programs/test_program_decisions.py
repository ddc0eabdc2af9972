"""Choices that rules of programs leave open: rows that are listed, counted, decided and made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, String, Table

import activedb as adb
from activedb.errors import ConfigurationError, DecisionClosed
from activedb.events import AccuracyInterval
from activedb.scheduling import Program, SharedTable
from tests.ledger import at, declare

if TYPE_CHECKING:
    from activedb import Occurrence, Stream
    from tests.databases import Place

AB = adb.seq(adb.event("A"), adb.event("B"))


def about(name: str, second: float, n: int = 0, give: float = 0.5) -> Occurrence:
    """An event whose clock is not exact."""
    us = round(at(second).timestamp() * 1e6)
    give_us = round(give * 1e6)
    stamp = AccuracyInterval(us, us - give_us, us + give_us, node=f"{name}{n}")
    return adb.occurrence(name, timestamp=stamp, id=f"{name}{n}")


def noting(
    db: adb.Database, on: Any = AB, history: float = 0.0, **given: Any
) -> tuple[Stream, Program, Table]:
    """A program whose rule notes what matches."""
    notes = SharedTable("notes", key=str, initial="", history=history)
    program = Program("noting", [notes])

    @program.rule(on, writes=lambda o: [notes["log"]], **given)
    def note(t: Any, o: Occurrence) -> None:
        found = "-".join(part.id or "" for part in o.constituents)
        t.write(notes["log"], f"{t.read(notes['log'])}{found} ")

    @program.post_process
    def tell(type_: str, params: Any, outcome: Any) -> Any:
        return type_

    kept = Table(
        "notes", db.metadata, Column("name", String(9), primary_key=True), Column("text", String)
    )
    db.create_all()
    stream = declare(db)
    stream.program(program, tables={notes: kept})
    return stream, program, kept


def read_log(db: adb.Database, kept: Table) -> str:
    with db.transaction() as t:
        row = t.get(kept, "log")
    return "" if row is None else str(row["text"])


def feed(db: adb.Database, stream: Stream, events: list[Occurrence], until: float) -> None:
    stream.feed(events, punctuation=at(until))


OVERLAPPING = [about("A", 1, 1), about("B", 1.2, 1)]


def test_open_choice_of_a_program_is_a_row_and_counted(where: Place) -> None:
    db = where.open()
    stream, _, kept = noting(db)
    feed(db, stream, OVERLAPPING, 5)
    (decision,) = db.decisions.list(open=True)
    assert (decision.rule, decision.stream) == ("noting.note", stream.name)
    assert [o.id for o in decision.candidates[0].values()] == ["A1", "B1"]
    assert db.admin.counters()["matches_undecided"] == 1
    assert db._triggering.figures.of_rules()["noting.note"].undecided == 1
    assert db.decisions.open_by_rule() == {"noting.note": 1}
    assert read_log(db, kept) == ""
    feed(db, stream, [], 6)
    assert len(db.decisions.list()) == db.admin.counters()["matches_undecided"] == 1


def test_choice_is_written_with_the_commit_of_its_part(db: adb.Database) -> None:
    stream, _, _ = noting(db)

    def fail(point: str) -> None:
        if point == "before flush":
            raise ZeroDivisionError

    _ = stream.run
    db._store.trigger = fail
    with pytest.raises(ZeroDivisionError):
        feed(db, stream, OVERLAPPING, 5)
    db._store.trigger = lambda point: None
    assert db.decisions.list() == []
    assert db.admin.counters().get("matches_undecided", 0) == 0
    feed(db, stream, OVERLAPPING, 5)
    assert len(db.decisions.list()) == db.admin.counters()["matches_undecided"] == 1


@pytest.mark.parametrize("history", [0.0, 60.0])
def test_what_is_chosen_is_made_once_with_the_next_part(where: Place, history: float) -> None:
    db = where.open()
    stream, program, kept = noting(db, history=history)
    feed(db, stream, OVERLAPPING, 5)
    (decision,) = db.decisions
    chosen = db.decisions.resolve(decision.id, [0], by="the doctor")
    assert (chosen.status, chosen.by, chosen.chosen) == ("chosen", "the doctor", (0,))
    assert read_log(db, kept) == ""
    with pytest.raises(DecisionClosed, match="was decided by the doctor"):
        db.decisions.resolve(decision.id, [])
    for _ in range(2):
        stream.feed([])
    assert read_log(db, kept) == "A1-B1 "
    (done,) = db.decisions.list()
    assert (done.status, done.chosen, done.by) == ("resolved", (0,), "the doctor")
    assert [o.type for o in stream.outputs(program)] == ["decision"]
    feed(db, stream, [about("A", 7, 2), about("B", 9, 2)], 12)
    assert read_log(db, kept) == "A1-B1 A1-B2 A2-B2 "


def test_nothing_chosen_makes_nothing(where: Place) -> None:
    db = where.open()
    stream, _, kept = noting(db)
    feed(db, stream, OVERLAPPING, 5)
    (decision,) = db.decisions
    db.decisions.resolve(decision.id, [])
    stream.feed([])
    assert read_log(db, kept) == ""
    assert [each.status for each in db.decisions.list()] == ["resolved"]


def test_decision_outlives_the_process_that_found_it(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory ends with its process")
    db = where.open()
    stream, _, _ = noting(db)
    feed(db, stream, OVERLAPPING, 5)
    db.close()
    with where.open() as other:  # one that does not know the program
        (decision,) = other.decisions
        other.decisions.resolve(decision.id, [0])
    db = where.open()
    stream, _, kept = noting(db)
    stream.feed([])
    assert read_log(db, kept) == "A1-B1 "
    assert len(db.decisions.list()) == 1
    assert list(db.decisions) == []


def test_part_that_fails_leaves_the_decision_to_the_next(db: adb.Database) -> None:
    stream, _, kept = noting(db)
    feed(db, stream, OVERLAPPING, 5)
    (decision,) = db.decisions
    db.decisions.resolve(decision.id, [0])

    def fail(point: str) -> None:
        if point == "before flush":
            raise ZeroDivisionError

    db._store.trigger = fail
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            feed(db, stream, [], 6)
    db._store.trigger = lambda point: None
    assert db.decisions.get(decision.id).status == "chosen"
    feed(db, stream, [], 6)
    assert read_log(db, kept) == "A1-B1 "
    assert db.decisions.get(decision.id).status == "resolved"


def test_decision_waits_until_all_events_of_its_time_are_processed(db: adb.Database) -> None:
    """Rows written for the decision come after all others, so no event may follow at that time."""
    stream, _, kept = noting(db)
    feed(db, stream, OVERLAPPING, 5)
    (decision,) = db.decisions
    db.decisions.resolve(decision.id, [0])
    late = about("A", 8, 3, give=4)
    feed(db, stream, [about("A", 4.9, 2, give=0), late], 7)
    feed(db, stream, [], 20)
    assert read_log(db, kept) == "A1-B1 "
    assert db.decisions.get(decision.id).status == "resolved"


def test_what_the_detector_has_decided_meanwhile_is_not_made_again(where: Place) -> None:
    db = where.open()
    stream, _, kept = noting(db)
    feed(db, stream, OVERLAPPING, 5)
    (decision,) = db.decisions
    db.decisions.resolve(decision.id, [0], by="the doctor")
    programs = stream.run._by_rows._programs
    assert programs is not None
    (detection,) = programs._detections.values()
    (choice,) = detection.undecided
    (detector,) = [detector for _, detector in detection._detectors]
    detector.resolve(choice.undecided.identity, [])  # as later events may do
    stream.feed([])
    assert read_log(db, kept) == ""
    done = db.decisions.get(decision.id)
    assert (done.status, done.chosen, done.by) == ("resolved", (), "events")
    assert db.dead_letters.list() == []


def test_two_chosen_that_exclude_each_other_are_told_and_open_again(db: adb.Database) -> None:
    chronicle = adb.all_of(adb.event("A"), adb.event("B")).context("chronicle")
    stream, _, kept = noting(db, chronicle)
    feed(db, stream, [about("B", 1, 1), about("B", 1.2, 2), about("A", 3, 0, 0.1)], 5)
    both = next(each for each in db.decisions if len(each.candidates) == 2)
    db.decisions.resolve(both.id, [0, 1])
    stream.feed([])
    assert read_log(db, kept) == ""
    again = db.decisions.get(both.id)
    assert (again.status, again.chosen, again.by) == ("open", None, None)
    (letter,) = db.dead_letters.list()
    assert (letter.source, letter.error) == ("rule noting.note", "BadEvent")
    db.decisions.resolve(both.id, [0])
    stream.feed([])
    assert len(read_log(db, kept).split()) == 1


def test_what_is_no_candidate_is_refused(db: adb.Database) -> None:
    stream, _, _ = noting(db)
    feed(db, stream, OVERLAPPING, 5)
    (decision,) = db.decisions
    with pytest.raises(ConfigurationError, match="is not a candidate"):
        db.decisions.resolve(decision.id, [1])
    assert decision.id == next(iter(db.decisions)).id


def test_rule_of_the_database_by_the_same_name_is_another_one(db: adb.Database) -> None:
    heard: list[Any] = []
    db.rule(on=AB, name="noting.note")(lambda t, o: heard.append(o))
    stream, _, kept = noting(db)
    feed(db, stream, OVERLAPPING, 5)
    assert [each.rule for each in db.decisions] == ["noting.note"] * 2
    for each in list(db.decisions):
        db.decisions.resolve(each.id, [0])
    stream.feed([])
    assert (len(heard), read_log(db, kept)) == (1, "A1-B1 ")


@pytest.mark.parametrize("policy", ["possible", lambda error: error.candidates])
def test_policy_of_a_rule_decides_at_once(db: adb.Database, policy: Any) -> None:
    stream, _, kept = noting(db, on_uncertain=policy)
    feed(db, stream, OVERLAPPING, 5)
    assert read_log(db, kept) == "A1-B1 "
    assert db.decisions.list() == []
