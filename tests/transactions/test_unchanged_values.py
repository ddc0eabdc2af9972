"""Values that Python cannot hold: a row that is written keeps those of its other columns."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    ARRAY,
    JSON,
    Column,
    Computed,
    Double,
    Integer,
    Interval,
    Numeric,
    String,
    Table,
    TypeDecorator,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import INTERVAL, JSONB

if TYPE_CHECKING:
    import activedb as adb
    from tests.databases import Place


class Shortened(TypeDecorator[str]):
    """A text of which a program sees the beginning."""

    impl = String
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value[:2]


VALUES: dict[str, tuple[Any, str, Any]] = {
    "months": (Interval, "'1 month'", timedelta(days=3)),
    "years": (INTERVAL, "'1 year 2 mons 3 days'", timedelta(days=3)),
    "digits": (JSONB(none_as_null=True), """'{"a": 0.12345678901234567890}'""", {"a": 1}),
    "spelling": (JSON(none_as_null=True), """'{"b": 1,   "a": 1.00}'""", {"b": 2}),
    "no_decimal": (Numeric(asdecimal=False), "12345678901234567.125", 1.5),
    "decimal": (Double(asdecimal=True), "0.12345678901234567", 0.5),
    "list": (ARRAY(Interval), "'{1 month,NULL,2 years}'", [timedelta(days=3)]),
    "own": (Shortened, "'abcdef'", "xy"),
}
"""Type of a column, a value of it that comes back as another, and one to write."""


def declared(db: adb.Database, *names: str) -> Table:
    """Declare a table with two keys, and with columns of these types; insert three rows."""
    table = Table(
        "kept",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("part", String(2), primary_key=True),
        Column("n", Integer),
        Column("twice", Integer, Computed("n * 2")),
        *(Column(name, VALUES[name][0]) for name in names),
    )
    db.create_all()
    values = ", ".join(VALUES[name][1] for name in names)
    with db.connection() as connection:
        for key in (1, 2, 3):
            connection.execute(
                text(
                    f"INSERT INTO kept (id, part, n, {', '.join(names)}) "
                    f"VALUES ({key}, 'a', 0, {values})".replace(":", "\\:")
                )
            )
        connection.commit()
    return table


def shown(t: adb.Transaction, names: tuple[str, ...], where: str = "true") -> list[Any]:
    """Return the values as the server has them, with the keys."""
    texts = ", ".join(f"{name}::text" for name in names)
    chosen = f"SELECT id, n, twice, {texts} FROM kept WHERE {where} ORDER BY id".replace(":", "\\:")
    return [tuple(row) for row in t.query(text(chosen))]


@pytest.mark.parametrize(
    "names", [*((name,) for name in VALUES), tuple(VALUES)[:-2], tuple(VALUES)]
)
def test_row_that_is_written_keeps_what_python_cannot_hold(
    there: Place, names: tuple[str, ...]
) -> None:
    db = there.open()
    table = declared(db, *names)
    with db.transaction() as t:
        clean = shown(t, names)
        value = clean[0][3:]
        t.update(table, (1, "a"), n=1)
        with t.subtransaction() as s:
            s.execute(update(table).where(table.c.id == 2).values(n=5))
            assert shown(s, names, "id = 2") == [(2, 5, 10, *value)]
        t.insert(table, {"id": 4, "part": "b", "n": 4})
        t.delete(table, (3, "a"))
        written = [(1, 1, 2, *value), (2, 5, 10, *value), (4, 4, 8, *[None] * len(names))]
        assert shown(t, names) == written
        assert shown(t, names, "id = 1 AND part = 'a'") == written[:1]
    with db.transaction() as t:
        assert shown(t, names) == written


@pytest.mark.parametrize("name", VALUES)
def test_value_that_is_written_is_seen_beside_those_that_are_kept(there: Place, name: str) -> None:
    db = there.open()
    table = declared(db, *VALUES)
    names = tuple(VALUES)
    with db.transaction() as t:
        before = shown(t, names)
        t.update(table, (1, "a"), **{name: VALUES[name][2]})
        t.update(table, (2, "a"), **{name: None})
        changed = shown(t, names)
        place = 3 + names.index(name)
        assert changed[0][place] != before[0][place]
        assert changed[1][place] is None
        for was, now in zip(before, changed, strict=True):
            assert now[:place] + now[place + 1 :] == was[:place] + was[place + 1 :]
        assert t.query(select(table.c[name]).where(table.c.id == 1)) == [(VALUES[name][2],)]
    with db.transaction() as t:
        assert shown(t, names) == changed


def test_row_that_is_deleted_and_inserted_again_has_only_what_is_given(there: Place) -> None:
    db = there.open()
    table = declared(db, *VALUES)
    with db.transaction() as t:
        row = t.get(table, (1, "a"))
        assert row is not None
        t.delete(table, (1, "a"))
        t.insert(table, {"id": 1, "part": "a", "n": 7, "months": timedelta(days=3)})
        t.execute(insert(table), [{"id": 9, "part": "a", "n": 7}])
        seen = shown(t, ("months", "digits"), "n = 7")
        assert seen == [(1, 7, 14, "3 days", None), (9, 7, 14, None, None)]
    with db.transaction() as t:
        assert shown(t, ("months", "digits"), "n = 7") == seen


def test_row_that_blocks_over_ones_own_connection_write_keeps_what_python_cannot_hold(
    there: Place,
) -> None:
    db = there.open()
    names = tuple(VALUES)
    table = declared(db, *names)
    with db.connection() as connection:
        for n in (1, 2):
            with db.transaction(connection=connection) as t:
                clean = shown(t, names)
                t.update(table, (1, "a"), n=n)
                assert shown(t, names)[0] == (1, n, 2 * n, *clean[0][3:])
        connection.commit()
    with db.transaction() as t:
        assert shown(t, names)[0] == (1, 2, 4, *clean[1][3:])
