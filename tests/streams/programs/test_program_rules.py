"""Rules of programs, triggered by patterns over several parts, restarts and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, String, Table

import activedb as adb
from activedb.events import AccuracyInterval
from activedb.scheduling import MOMENT, Program, SharedTable
from tests.databases import place
from tests.drawing import Worlds
from tests.ledger import at, declare, event

if TYPE_CHECKING:
    from activedb import Occurrence, Stream
    from tests.databases import Place


def watching(db: adb.Database) -> tuple[Stream, Program, Table]:
    """A program that notes the A that a B follows, and the A that no C follows in time."""
    notes = SharedTable("notes", key=str, initial="")
    program = Program("watching", [notes])
    followed = adb.seq(adb.event("A"), adb.event("B")).within(4)
    alone = adb.seq(adb.event("A"), ~adb.event("C")).within(3)

    @program.on("A")
    def enter(e: Any, access: Any) -> None:
        access.write(notes["log"], lambda has: f"{has}A{e['n']} ")

    @program.rule(followed, writes=lambda o: [notes["log"]])
    def follow(t: Any, o: Occurrence) -> None:
        t.write(notes["log"], f"{t.read(notes['log'])}{o.parts['A'].params['n']}-B ")

    @program.rule(alone, writes=lambda o: [notes["log"]])
    def miss(t: Any, o: Occurrence) -> None:
        t.write(notes["log"], f"{t.read(notes['log'])}{o.parts['A'].params['n']}! ")

    @program.post_process
    def tell(type_: str, params: Any, outcome: Any) -> Any:
        return None if type_ == "A" else type_

    kept = Table(
        "notes", db.metadata, Column("name", String(9), primary_key=True), Column("text", String)
    )
    db.create_all()
    stream = declare(db)
    stream.program(program, tables={notes: kept})
    return stream, program, kept


EVENTS = [
    event("A", 1, n=1),
    event("B", 2),
    event("A", 4, n=2),
    event("C", 5),
    event("B", 6),
    event("A", 9, n=3),
    event("B", 14),
    event("C", 15, n=0),
]
LOG = "A1 1-B A2 1! 2-B A3 3! "  # a moment comes after the events of its time


def read_log(db: adb.Database, kept: Table) -> str:
    with db.transaction() as t:
        row = t.get(kept, "log")
    assert row is not None
    text: str = row["text"]
    return text


def test_program_rules_run_at_their_events_and_moments(where: Place) -> None:
    for size in (1, 3, 2_000):
        db = where.open(batch_events_max=size)
        stream, program, kept = watching(db)
        if where.is_memory or size == 1:
            stream.feed(EVENTS[::-1])
        assert read_log(db, kept) == LOG
        assert [o.type for o in stream.outputs(program)] == ["B", MOMENT, "B", MOMENT]
        db.close()


def test_program_rules_go_on_after_a_restart(where: Place) -> None:
    db = where.open()
    stream, program, kept = watching(db)
    for n, o in enumerate(EVENTS):
        stream.feed([o], punctuation=o.us / 1_000_000)
        if n % 2 and not where.is_memory:
            db.close()
            db = where.open()
            stream, program, kept = watching(db)
    stream.feed([])
    assert read_log(db, kept) == LOG
    assert [o.us for o in stream.outputs(program) if o.type == MOMENT] == [
        event("A", 4).us,
        event("A", 12).us,
    ]


def test_part_that_fails_leaves_nothing_in_the_detectors(db: adb.Database) -> None:
    stream, _, kept = watching(db)
    stream.feed(EVENTS[:1], punctuation=at(1.5))

    def fail(point: str) -> None:
        if point == "before flush":
            raise ZeroDivisionError

    db._store.trigger = fail
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            stream.feed(EVENTS[1:2], punctuation=at(3))
    db._store.trigger = lambda point: None
    stream.feed(EVENTS[1:], punctuation=at(20))
    assert read_log(db, kept) == LOG


_S = 1_000_000

PATTERNS = {
    "negated": adb.seq(adb.event("A"), ~adb.event("C"), adb.event("B")).within(20),
    "plain": adb.seq(adb.event("A"), adb.event("B")).within(20),
    "chronicle": adb.seq(adb.event("A"), adb.event("B")).within(20).context("chronicle"),
}


def after_parts(events: list[Occurrence], pattern: str, punctuations: list[int]) -> dict[str, Any]:
    """Return what a program's rule gives of events up to some punctuations, and their end."""
    found = SharedTable("found", key=str, initial="")
    program = Program("found", [found])

    @program.pre_process
    def check(type_: str, params: Any) -> Any:
        if params["n"] == 0:
            raise ValueError("it has no number")
        return None if params["n"] == 1 else params

    @program.rule(PATTERNS[pattern], writes=lambda o: [found["log"]])
    def match(t: Any, o: Occurrence) -> None:
        t.write(found["log"], f"{t.read(found['log'])} {o.parts['A'].id}-{o.parts['B'].id}")

    with place(None) as where:
        db = where.open()
        kept = Table(
            "found", db.metadata, Column("n", String(9), primary_key=True), Column("v", String)
        )
        db.create_all()
        stream = declare(db)
        stream.program(program, tables={found: kept})
        stream.run.feed(events, 0)
        for second in punctuations:
            stream.run.feed([], second * _S)
        with db.transaction() as t:
            return {
                "log": t.get(kept, "log"),
                "open": db.decisions.open_by_rule(),
                "totals": stream.run.totals(),
            }


@pytest.mark.long
@pytest.mark.parametrize("pattern", PATTERNS)
def test_rules_of_a_program_do_not_depend_on_where_a_part_ends(pattern: str) -> None:
    worlds = Worlds(25, "ends of parts", pattern, found=5, left_open=1)
    for random in worlds:
        events = []
        for number in range(random.randint(3, 9)):
            us = random.randrange(30) * _S
            stamp = AccuracyInterval(us, us, us + random.choice([0, 1, 5, 15]) * _S)
            name, n = random.choice("AABBC"), random.choice([0, 1, 1, 2, 2, 2])
            events.append(adb.occurrence(name, timestamp=stamp, id=f"{number}", n=n))
        cuts = sorted(random.sample(range(1, 60), 4))
        whole = after_parts(events, pattern, [60])
        assert after_parts(events, pattern, [*cuts, 60]) == whole, (events, cuts)
        worlds.met["found"] += whole["log"] is not None
        worlds.met["left_open"] += bool(whole["open"])


def test_event_behind_a_part_that_preprocessing_drops_leaves_no_decision_open() -> None:
    events = [
        adb.occurrence(
            name, timestamp=AccuracyInterval(low * _S, low * _S, high * _S), id=name, n=n
        )
        for name, low, high, n in (("A", 0, 1, 2), ("B", 5, 15, 2), ("C", 6, 30, 1))
    ]
    whole = after_parts(events, "negated", [40])
    assert whole["log"] == {"n": "log", "v": " A-B"}
    assert whole["open"] == {}
    assert after_parts(events, "negated", [20, 40]) == whole
