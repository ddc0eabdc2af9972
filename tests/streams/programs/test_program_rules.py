"""Rules of programs, triggered by patterns over several parts, restarts and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, String, Table

import activedb as adb
from activedb.scheduling import MOMENT, Program, SharedTable
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
