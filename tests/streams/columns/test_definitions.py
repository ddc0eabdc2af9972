"""Rules that cannot be in columns are refused when defined; the message says what to do."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import BadEvent, DefinitionError
from activedb.scheduling import Program, SharedTable
from tests.ledger import event
from tests.streams.columns.watch import Spec, open_watch

if TYPE_CHECKING:
    from activedb import Database

A, B = adb.event("A"), adb.event("B")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "late": ({"on": adb.late("input")}, "late events"),
    "mixed": ({"on": adb.any_of(A, adb.event("OTHER"))}, "event OTHER is not an event of it"),
    "clock": ({"on": adb.any_of(A, adb.every(60))}, "EVERY 60s"),
    "reading": ({"on": adb.event("A", reading=lambda t, o: True)}, "reads the shared store"),
    "timed": ({"on": adb.seq(A, ~B).within(5)}, "may end with a negation"),
    "strict": ({"on": adb.seq(A, B).within(5).selecting("strict")}, "selects strictly"),
    "conjunction": ({"on": adb.all_of(A, B)}, "is not a sequence"),
    "endless": ({"on": adb.seq(A, B)}, "has no window"),
    "bounded": ({"on": adb.seq(A, B).within(5), "partials_max": 9}, "partials_max"),
    "truncated": ({"on": adb.seq(A, B).within(5), "on_many": "truncate"}, "leave out on_many"),
}


def declare(db: Database, name: str = "input", **more: Any) -> adb.Stream:
    """A stream with events A and B."""
    types = dict.fromkeys(more.pop("types", "AB"), ())
    return db.stream(name, type="kind", timestamp="at", types=types, **{"columns": True, **more})


@pytest.fixture
def db() -> Any:
    with adb.connect("memory://") as opened:
        yield opened


@pytest.mark.parametrize(
    ("case", "stream_first"),
    [(case, first) for case in REFUSED for first in (True, False) if first or case != "late"],
)
def test_rule_that_columns_cannot_do_is_refused(
    db: Database, case: str, stream_first: bool
) -> None:
    fields, why = REFUSED[case]

    def rule() -> None:
        db.rule(**fields, name="r")(lambda t, o: None)

    steps = [lambda: declare(db), rule]
    if not stream_first:
        steps.reverse()
    steps[0]()
    with pytest.raises(DefinitionError, match=why) as refused:
        steps[1]()
    assert "leave out columns=True" in str(refused.value)


def test_rule_is_checked_when_it_is_created_or_changed(db: Database) -> None:
    declare(db)
    with pytest.raises(DefinitionError, match="no window"):
        db.rules.create(lambda t, o: None, on=adb.seq(A, B), name="r")
    db.rules.create(lambda t, o: None, on=adb.seq(A, B).within(4), name="r")
    with pytest.raises(DefinitionError, match="no window"):
        db.rules.change("r", on=adb.seq(A, B))
    db.rules.create(lambda t, o: None, on=adb.event("ELSE"), name="other")


@pytest.mark.parametrize(
    "more",
    [{"accuracy": timedelta(1)}, {"columns": 1}, {"membership": "weak", "timestamp": ""}],
)
def test_stream_that_cannot_be_in_columns_is_refused(db: Database, more: dict[str, Any]) -> None:
    given: dict[str, Any] = {"type": "kind", "timestamp": "at", "types": {"A": ()}, "columns": True}
    with pytest.raises(DefinitionError, match="columns"):
        db.stream("input", **(given | more))
    assert not list(db.streams)


@pytest.mark.parametrize("columns", [(True, False), (False, True), (True, True)])
def test_two_streams_with_one_type_are_refused_if_one_is_in_columns(
    db: Database, columns: tuple[bool, bool]
) -> None:
    declare(db, "one", columns=columns[0])
    with pytest.raises(DefinitionError, match="give them other types"):
        declare(db, "two", columns=columns[1])
    declare(db, "three", columns=columns[1], types="CD")


def test_program_that_takes_events_one_by_one_is_refused(db: Database) -> None:
    table = SharedTable("shared", initial=0)
    program = Program("one", [table])

    @program.on("A")
    def count(e: Any, access: Any) -> None:
        access.write(table[1], lambda n: n + 1)

    stream = declare(db)
    with pytest.raises(DefinitionError, match='scheduler="columns"'):
        stream.program(program, tables={}, scheduler="serial")


def test_signal_with_the_name_of_an_event_in_columns_is_refused(db: Database) -> None:
    declare(db)
    with pytest.raises(BadEvent, match=r"stream\.feed"):
        db.signal("A")
    db.signal("C")


def test_interval_is_refused_before_anything_is_taken(where: Any) -> None:
    watch = open_watch(where, [Spec(A)], columns=True)
    uncertain = adb.occurrence("A", timestamp=adb.AccuracyInterval(3_000_000, 2_000_000, 4_000_000))
    with pytest.raises(BadEvent, match="interval"):
        watch.feed([event("A", 1, n=1), uncertain], 9.0)
    assert watch.everything()["totals"] == {"events": 0, "late": 0, "dead": 0}
