"""Streams, tables and schedulers that a program cannot be given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import CHAR, REAL, Column, Float, Integer, Numeric, String, Table

from activedb.errors import DefinitionError, TableOwned
from activedb.scheduling import Program, SerialOrder, SharedTable
from tests.ledger import declare, event
from tests.streams.programs.bank import open_bank

if TYPE_CHECKING:
    from collections.abc import Callable

    import activedb as adb
    from tests.databases import Place


def counting(name: str, table: SharedTable, type_: str = "A") -> Program:
    """A program that counts events."""
    program = Program(name, [table])

    @program.on(type_)
    def count(e: Any, access: Any) -> None:
        access.write(table[1], lambda n: n + 1)

    return program


def kept_in(db: adb.Database, name: str, *columns: Column[Any]) -> Table:
    """A table with an integer key."""
    return Table(name, db.metadata, Column("id", Integer, primary_key=True), *columns)


def another_stream(db: Any, stream: Any, shared: Any, kept: Any) -> None:
    other = declare(db, "other")
    stream.program(counting("first", shared), tables={shared: kept})
    more = kept_in(db, "more", Column("v", Integer))
    other.program(counting("second", shared), tables={shared: more})


def same_rows(db: Any, stream: Any, shared: Any, kept: Any) -> None:
    stream.program(counting("first", shared), tables={shared: kept})
    again = SharedTable("again", initial=0)
    stream.program(counting("second", again), tables={again: kept})


def same_name(db: Any, stream: Any, shared: Any, kept: Any) -> None:
    stream.program(counting("one", shared), tables={shared: kept})
    again = SharedTable("again", initial=0)
    stream.program(counting("one", again), tables={again: kept_in(db, "more")})


def same_table_name(db: Any, stream: Any, shared: Any, kept: Any) -> None:
    stream.program(counting("one", shared), tables={shared: kept})
    again = SharedTable(shared.name, initial=0)
    more = kept_in(db, "more", Column("v", Integer))
    stream.program(counting("two", again), tables={again: more})


def other_scheduler(db: Any, stream: Any, shared: Any, kept: Any) -> None:
    stream.program(counting("one", shared), tables={shared: kept})
    stream.program(counting("two", shared), tables={}, scheduler=SerialOrder())


def running(db: Any, stream: Any, shared: Any, kept: Any) -> None:
    stream.feed([])
    stream.program(counting("one", shared), tables={shared: kept})


def with_column(kind: Any) -> Callable[..., object]:
    def define(db: Any, stream: Any, shared: Any, kept: Any) -> None:
        more = kept_in(db, "more", Column("v", kind))
        stream.program(counting("one", shared), tables={shared: more})

    return define


def sized(db: Any, stream: Any, shared: Any, kept: Any) -> None:
    table = SharedTable("sized", initial=0, size=4)
    stream.program(counting("one", table), tables={table: kept})


def define(**given: Any) -> Callable[..., object]:
    def call(db: Any, stream: Any, shared: Any, kept: Any) -> None:
        chosen = {"program": counting("one", shared), "tables": {shared: kept}}
        stream.program(**{**chosen, **{k: v(shared, kept) for k, v in given.items()}})

    return call


WRONG: list[tuple[Callable[..., object], str]] = [
    (define(program=lambda s, k: 3), "3 is not a program"),
    (define(program=lambda s, k: counting("x" * 201, s)), "at most 200 characters"),
    (define(program=lambda s, k: Program("empty", [s])), "takes no events yet"),
    (define(program=lambda s, k: counting("one", s, "Z")), "does not have; there are 'A', 'B'"),
    (define(tables=lambda s, k: {}), "say where the rows of shared are kept"),
    (define(tables=lambda s, k: {s: k, SharedTable("x"): k}), "not one of its tables"),
    (define(scheduler=lambda s, k: "seriel"), "did you mean 'serial'"),
    (define(scheduler=lambda s, k: 3), "3 is not a scheduler"),
    (define(outputs=lambda s, k: k), "a table of their own"),
    (another_stream, "two streams have no common order"),
    (same_rows, "the rows of two shared tables"),
    (same_name, "a program named 'one' already"),
    (same_table_name, "two shared tables are called shared"),
    (other_scheduler, "leave scheduler out"),
    (running, "before it is fed"),
    (with_column(REAL), "may return another value"),
    (with_column(Float(24)), "may return another value"),
    (with_column(Numeric(asdecimal=False)), "may return another value"),
    (with_column(CHAR(3)), "may return another value"),
    (sized, "its values are floats"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_definition_without_meaning_is_refused(wrong: Any, message: str) -> None:
    from tests.databases import place

    with place(None) as where:
        db = where.open()
        shared = SharedTable("shared", key=int, initial=0)
        kept = kept_in(db, "kept", Column("value", Integer))
        db.create_all()
        stream = declare(db)
        with pytest.raises(DefinitionError, match=message):
            wrong(db, stream, shared, kept)


def test_row_that_is_none_of_the_shared_table_is_refused_and_can_be_mended(
    db: adb.Database,
) -> None:
    shared = SharedTable("shared", key=int, initial=0, size=3)
    kept = kept_in(db, "kept", Column("value", Float))
    db.create_all()
    with db.transaction() as t:
        t.insert(kept, {"id": 7, "value": 1.0})
    stream = declare(db)
    stream.program(counting("one", shared), tables={shared: kept})
    with pytest.raises(DefinitionError, match="table kept has a row that shared cannot have: 7"):
        stream.feed([event("A", 1)])
    with db.transaction() as t:
        t.delete(kept, 7)
    stream.feed([event("A", 1)])
    with db.transaction() as t:
        assert t.get(kept, 1) == {"id": 1, "value": 1.0}


def test_table_without_a_value_is_refused(db: adb.Database) -> None:
    shared = SharedTable("shared", key=str)
    kept = Table("kept", db.metadata, Column("name", String(9), primary_key=True))
    with pytest.raises(DefinitionError, match="nothing but its key"):
        declare(db).program(counting("one", shared), tables={shared: kept})


def test_second_process_with_the_program_is_refused(where: Place) -> None:
    if where.is_memory:
        pytest.skip("there is one process in memory")
    first, second = open_bank(where.open()), open_bank(where.open())
    first.stream.feed([event("DEPOSIT", 1, k=1, n=5)])
    with pytest.raises(TableOwned):
        second.stream.feed([event("DEPOSIT", 2, k=1, n=5)])
    with pytest.raises(TableOwned):
        second.rows()
    first.db.close()
    second.stream.feed([event("DEPOSIT", 2, k=1, n=5)])
    assert second.rows()["accounts"] == {1: 10}


def test_outputs_of_an_unknown_program_are_refused(db: adb.Database) -> None:
    shared = SharedTable("shared", key=int, initial=0)
    kept = kept_in(db, "kept", Column("value", Integer))
    stream = declare(db)
    with pytest.raises(DefinitionError, match="there is no program 'bnk'"):
        stream.outputs("bnk")
    stream.program(counting("one", shared), tables={shared: kept})
    other = db.stream("other", type="k", timestamp="t", types={"Z": ()})
    with pytest.raises(DefinitionError, match="program 'one' is on the stream"):
        other.outputs("one")
