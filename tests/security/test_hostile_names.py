"""Values and names that look like SQL are values and names, in memory and on Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table, Text, bindparam, func, select, text, update

import activedb as adb
from tests.ledger import declare, event

if TYPE_CHECKING:
    from activedb import Database, Occurrence, Transaction
    from tests.databases import Place

HOSTILE = (
    "'; DROP TABLE victims; --",
    '"; DROP TABLE victims; --',
    "\\'; DROP TABLE victims; --",
    "%s %(id)s {} :id $1 ? %%",
    "$$; DROP TABLE victims; $$",
    "/* */ -- \n\t",
    "\u2019 OR \uff071\uff07=\uff071",
    "{1,2,NULL}",
    '{"a": null}',
)


def _victims(db: Database) -> Table:
    return Table("victims", db.metadata, Column("id", Integer, primary_key=True))


@pytest.fixture
def notes(db: Database) -> Table:
    """A table that keeps texts under texts, and one that must be there in the end."""
    _victims(db)
    table = Table(
        "notes", db.metadata, Column("key", Text, primary_key=True), Column("value", Text)
    )
    db.create_all()
    with db.transaction() as t:
        t.insert(db.metadata.tables["victims"], {"id": 1})
    return table


def _all_there(db: Database) -> None:
    with db.transaction() as t:
        assert t.query(select(func.count()).select_from(db.metadata.tables["victims"])) == [(1,)]


@pytest.mark.long
def test_hostile_values_come_back_as_they_were(db: Database, notes: Table) -> None:
    def keep(t: Transaction) -> None:
        for value in HOSTILE:
            t.insert(notes, {"key": value, "value": value})
        c = notes.c
        for value in HOSTILE:  # over rows that are not flushed yet, and then by key
            found = t.query(select(c.value).where(c.key == value))
            assert found == [(value,)]
            plain = text("SELECT value FROM notes WHERE key = :key").bindparams(key=value)
            assert t.query(plain) == [(value,)]
            t.execute(update(notes).where(c.key == value).values(value=c.value + value))

    db.run(keep)
    with db.transaction() as t:
        rows = {row.key: row.value for row in t.query(select(notes))}
        missing = text("SELECT key FROM notes WHERE key IN :keys").bindparams(
            bindparam("keys", expanding=True, value=list(HOSTILE))
        )
        assert len(t.query(missing)) == len(HOSTILE)
    assert rows == {value: value + value for value in HOSTILE}
    _all_there(db)


def test_hostile_events_and_rules_do_nothing_but_what_they_say(db: Database, notes: Table) -> None:
    for number, name in enumerate(HOSTILE):

        @db.rule(on=adb.event("E"), coupling="detached", name=f"rule {name}", priority=number)
        def note(t: Transaction, o: Occurrence, name: str = name) -> None:
            t.insert(notes, {"key": f"{name} {o.params['n']}", "value": o.params["n"]})

    with db.transaction():
        for value in HOSTILE:
            db.signal("E", n=value)
    db.wait_idle()
    with db.transaction() as t:
        found = {(row.key, row.value) for row in t.query(select(notes))}
    assert found == {(f"{name} {value}", value) for name in HOSTILE for value in HOSTILE}
    assert db.admin.pending_firings() == []
    _all_there(db)


def test_hostile_stream_events_become_letters_or_rows(db: Database, notes: Table) -> None:
    @db.rule(on=adb.seq(adb.event("A"), adb.event("B")).same("n"))
    def note(t: Transaction, o: Occurrence) -> None:
        if o.params["n"] == HOSTILE[0]:
            raise ValueError(HOSTILE[0])
        t.insert(notes, {"key": o.params["n"], "value": str(o.parts["A"].id)})

    stream = declare(db, A=("n",), B=("n",))
    feed: list[Any] = []
    for second, value in enumerate(HOSTILE):
        feed += [event("A", second, id=value, n=value), event("B", second + 0.5, n=value)]
    stream.feed(feed)
    with db.transaction() as t:
        assert {row.key: row.value for row in t.query(select(notes))} == {
            value: value for value in HOSTILE[1:]
        }
    (letter,) = db.dead_letters.list()
    assert HOSTILE[0] in letter.reason
    _all_there(db)


@pytest.mark.parametrize("name", ['v"; DROP TABLE victims; --', "v%s:x", "v'v", "SELECT", "v.w x"])
def test_hostile_names_of_tables_and_columns_are_names(where: Place, name: str) -> None:
    db = where.open()
    _victims(db)
    table = Table(
        f"table {name}",
        db.metadata,
        Column(f"key {name}", Integer, primary_key=True, autoincrement=False),
        Column(f"value {name}", Text),
    )
    heard: list[Any] = []
    key, value = f"key {name}", f"value {name}"
    db.create_all()

    @db.rule(on=adb.inserted(table))
    def hear(t: Transaction, o: Occurrence) -> None:
        heard.append(o.new[value])

    with db.transaction() as t:
        t.insert(db.metadata.tables["victims"], {"id": 1})
        for n in range(3):
            t.insert(table, {key: n, value: f"{n} {name}"})
        t.execute(update(table).where(table.c[key] == 1).values({value: "changed"}))
        assert t.query(select(table.c[value]).where(table.c[key] == 1)) == [("changed",)]
    with db.transaction() as t:
        t.update(table, 2, **{value: "again"})
        t.delete(table, 0)
        assert sorted(t.query(select(table.c[value]))) == [("again",), ("changed",)]
    assert heard == [f"{n} {name}" for n in range(3)]
    _all_there(db)
