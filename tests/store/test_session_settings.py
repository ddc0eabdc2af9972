"""Values are written and read alike whatever settings a database gives its sessions."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    Column,
    Date,
    DateTime,
    Double,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
    Time,
    create_engine,
    make_url,
    select,
    text,
)
from sqlalchemy.pool import NullPool

import activedb as adb
from activedb.store.server import literal
from tests.drawing import drawn
from tests.patience import PATIENCE_S

SETTINGS = {
    "array_nulls": ["off"],
    "backslash_quote": ["off", "on"],
    "bytea_output": ["escape"],
    "client_encoding": ["LATIN1", "WIN1252"],
    "datestyle": ["SQL, DMY", "German", "Postgres, MDY", "ISO, YMD"],
    "escape_string_warning": ["off"],
    "extra_float_digits": ["0", "-15", "3"],
    "intervalstyle": ["iso_8601", "sql_standard", "postgres_verbose"],
    "quote_all_identifiers": ["on"],
    "standard_conforming_strings": ["off"],
    "timezone": ["Asia/Kathmandu", "America/New_York"],
    "transform_null_equals": ["on"],
    "xmlbinary": ["hex"],
}
ROWS = (1, 100)
"""Rows written at a time: one after the other, and in bulk."""


def _row(table: Table, number: int, random: Any) -> dict[str, Any]:
    texts = ["é\\'\"", "\\x00", "NULL", "", "{a,b}", "00\\\\"]
    moment = datetime(2024, random.randint(1, 12), random.randint(1, 28), 3, 4, 5, 678_901)
    values: dict[str, Any] = {
        "text": random.choice(texts),
        "größe": random.choice(texts),
        "bytes": random.choice([b"\x00\\", b"\\134", b"", b"'\xff"]),
        "double": random.choice([0.1 + 0.2, 1e-300, -2.5, 1 / 3]),
        "numeric": Decimal(random.choice(["1.50", "-0.001", "12345678901234567890"])),
        "date": moment.date(),
        "time": moment.time(),
        "naive": moment,
        "aware": moment.replace(tzinfo=UTC),
        "interval": timedelta(
            random.choice([-400, 0, 3]), random.randint(0, 86_399), random.choice([0, 1, 999_999])
        ),
        "numbers": random.choice([[1, None, 2], [None], []]),
        "texts": random.choice([["NULL", None, "a\\b"], ["é", "", "{}"], []]),
    }
    return {
        "id": number,
        **{name: None if random.random() < 0.1 else value for name, value in values.items()},
    }


def _table(metadata: MetaData) -> Table:
    return Table(
        "Ärger",
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("text", Text),
        Column("größe", Text),
        Column("bytes", LargeBinary),
        Column("double", Double),
        Column("numeric", Numeric),
        Column("date", Date),
        Column("time", Time),
        Column("naive", DateTime),
        Column("aware", DateTime(timezone=True)),
        Column("interval", Interval),
        Column("numbers", ARRAY(Integer)),
        Column("texts", ARRAY(Text)),
    )


@pytest.mark.parametrize(
    "chosen",
    [
        "drawn",
        *(
            pytest.param({name: value}, marks=pytest.mark.long)
            for name, values in SETTINGS.items()
            for value in values
        ),
    ],
    ids=str,
)
def test_values_are_written_and_read_alike(
    postgres_url: str, database_url: str, chosen: dict[str, str] | str
) -> None:
    random = drawn("session settings", str(chosen))
    if isinstance(chosen, str):
        chosen = {name: random.choice(values) for name, values in SETTINGS.items()}
    name = make_url(database_url).database
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        for setting, value in chosen.items():
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET {setting} = {literal(value)}")
    with adb.connect(database_url) as db:
        table = _table(db.metadata)
        db.create_all()
        rows: dict[int, dict[str, Any]] = {}
        for count in ROWS:
            numbers = range(len(rows), len(rows) + count)
            for change in (False, True):
                with db.transaction() as t:
                    for number in numbers:
                        row = rows[number] = _row(table, number, random)
                        if change:
                            t.update(table, number, **row)
                        else:
                            t.insert(table, row)
                for number in random.sample(numbers, min(5, count)):
                    with db.transaction() as t:
                        assert t.get(table, number) == rows[number], chosen
        with db.transaction() as t:
            queried = t.query(select(table).order_by(table.c.id))
            assert [dict(row._mapping) for row in queried] == list(rows.values()), chosen
            for column in ("text", "bytes", "numeric", "date", "time", "naive", "aware"):
                value = rows[random.choice(list(rows))][column]
                by_value = t.query(select(table.c.id).where(table.c[column] == value))
                assert {row.id for row in by_value} == {
                    number for number, row in rows.items() if row[column] == value
                }, (chosen, column, value)
        assert db._store.backends() is not None
    with create_engine(database_url, poolclass=NullPool).connect() as connection:
        for setting in ("array_nulls", "datestyle", "standard_conforming_strings"):
            connection.execute(text(f"SET {setting} = DEFAULT"))
        plain = connection.execute(text('SELECT id, bytes FROM "Ärger" ORDER BY id'))
        assert [(n, bytes(b) if b else b) for n, b in plain] == [
            (number, row["bytes"]) for number, row in rows.items()
        ], chosen


def test_a_rule_in_a_transaction_of_its_own_reads_such_values(
    postgres_url: str, database_url: str
) -> None:
    """The journals of firings and the look for deadlocks read moments, too."""
    name = make_url(database_url).database
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET datestyle = 'German'")
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET intervalstyle = 'iso_8601'")
    with adb.connect(database_url) as db:
        table = _table(db.metadata)
        db.create_all()
        seen = []

        @db.rule(on=adb.inserted(table), coupling="detached")
        def see(t: adb.Transaction, o: adb.Occurrence) -> None:
            seen.append((o.new["aware"], o.new["interval"], o.new["date"], o.new["time"]))

        values = datetime(2024, 5, 6, 7, tzinfo=UTC), timedelta(3), date(2024, 5, 6), time(1, 2)
        with db.transaction() as t:
            columns = dict(zip(("aware", "interval", "date", "time"), values, strict=True))
            t.insert(table, {"id": 1, **columns})
        db.wait_idle(PATIENCE_S)
        assert seen == [values]
        assert db.dead_letters.list() == []
