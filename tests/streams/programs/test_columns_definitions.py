"""Programs that cannot run in columns are refused when defined; the message says what to do."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import BigInteger, Column, Double, Integer, String, Table

import activedb as adb
from activedb.errors import BadEvent, DefinitionError
from activedb.scheduling import Program, SharedTable
from tests.databases import place
from tests.ledger import EPOCH, at, declare
from tests.streams.programs.column_bank import TELLING, open_bank

if TYPE_CHECKING:
    from collections.abc import Callable


def counting(name: str, table: SharedTable, *, rules: bool = False) -> Program:
    """A program that counts events."""
    program = Program(name, [table])

    @program.on("A")
    def count(e: Any, access: Any) -> None:
        access.write(table[1], lambda n: n + 1)

    if rules:
        program.rule(adb.event("B"))(lambda t, o: None)
    return program


def rows_of(db: adb.Database, name: str = "kept", key: Any = Integer) -> Table:
    """A table with one key."""
    return Table(
        name,
        db.metadata,
        Column("id", key, primary_key=True, autoincrement=False),
        Column("value", Double, nullable=False),
    )


def sized(name: str = "sized") -> SharedTable:
    """A shared table that can be in columns."""
    return SharedTable(name, initial=0, size=4)


def without_a_size(db: adb.Database) -> None:
    shared = SharedTable("shared", key=int, initial=0)
    declare(db).program(
        counting("one", shared),
        tables={shared: rows_of(db)},
        scheduler="columns",
    )


def with_rules(db: adb.Database) -> None:
    shared = sized()
    program = counting("one", shared, rules=True)
    declare(db).program(program, tables={shared: rows_of(db)}, scheduler="columns")


def with_pre_processing(db: adb.Database) -> None:
    shared = sized()
    program = counting("one", shared)
    program.pre_process(lambda type_, params: params)
    declare(db).program(program, tables={shared: rows_of(db)}, scheduler="columns")


def with_texts_as_keys(db: adb.Database) -> None:
    shared = sized()
    kept = rows_of(db, key=String(9))
    declare(db).program(counting("one", shared), tables={shared: kept}, scheduler="columns")


def beside_another(db: adb.Database) -> None:
    first, second = sized(), sized("other")
    stream = declare(db)
    stream.program(counting("one", first), tables={first: rows_of(db)}, scheduler="columns")
    stream.program(counting("two", second), tables={second: rows_of(db, "more")})


def on_a_stream_of_producers(db: adb.Database) -> None:
    shared = sized()
    stream = db.stream("input", types={"A": ()}, membership="weak")
    stream.program(counting("one", shared), tables={shared: rows_of(db)}, scheduler="columns")


def beside_a_rule(db: adb.Database) -> None:
    stream, shared = declare(db), sized()
    db.rule(on=adb.event("B"), name="listens")(lambda t, o: None)
    stream.program(counting("one", shared), tables={shared: rows_of(db)}, scheduler="columns")


WRONG: list[tuple[Callable[[adb.Database], None], str]] = [
    (without_a_size, "table shared has no size; give it another scheduler"),
    (with_rules, "it has rules; give it another scheduler"),
    (with_pre_processing, "it pre-processes events one by one"),
    (with_texts_as_keys, "the key of table kept is not one column of type Integer"),
    (beside_another, "has another program, and in columns there is one"),
    (on_a_stream_of_producers, "stream input has producers"),
    (beside_a_rule, "rule listens: events B of stream input are processed in columns"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_what_cannot_be_in_columns_is_refused(
    wrong: Callable[[adb.Database], None], message: str
) -> None:
    with place(None) as where, pytest.raises(DefinitionError, match=message):
        wrong(where.open())


def test_rules_on_what_runs_in_columns_are_refused() -> None:
    with place(None) as where:
        opened = open_bank(where, TELLING)
        accounts = opened.tables[TELLING.accounts]
        heard: list[tuple[Any, str]] = [
            (adb.event("DEPOSIT"), "events DEPOSIT of stream input"),
            (adb.late(opened.stream.name), "late events of stream input"),
            (adb.updated(accounts), "changes of table accounts by the program"),
        ]
        for event, message in heard:
            with pytest.raises(DefinitionError, match=f"{message}.*leave the rule out"):
                opened.db.rule(on=event, name="listens")(lambda t, o: None)


def test_events_with_intervals_are_refused_and_nothing_is_taken() -> None:
    with place(None) as where:
        opened = open_bank(where, TELLING)
        us = round(EPOCH.timestamp()) * 1_000_000
        uncertain = adb.occurrence(
            "DEPOSIT", timestamp=adb.AccuracyInterval(us, us - 5, us + 5), k=1, n=1.0
        )
        certain = adb.occurrence("DEPOSIT", timestamp=at(1), k=1, n=1.0)
        with pytest.raises(BadEvent, match=r"is an interval.*another scheduler"):
            opened.stream.feed([certain, uncertain])
        assert opened.everything()["totals"]["events"] == 0
        opened.stream.feed([certain])
        assert opened.everything()["accounts"] == {1: 1.0}


def test_any_column_of_whole_numbers_can_be_the_key() -> None:
    with place(None) as where:
        db, shared = where.open(), sized()
        kept = rows_of(db, key=BigInteger)
        db.create_all()
        stream = db.stream("input", type="k", timestamp="t", types={"A": ()}, delay=timedelta(1))
        program = counting("one", shared)
        stream.program(program, tables={shared: kept}, scheduler="columns")
        stream.feed([adb.occurrence("A", timestamp=at(1))])
        with db.transaction() as t:
            assert t.get(kept, 1) == {"id": 1, "value": 1.0}
