"""Numbers of guards: one for all keys that a database takes for equal."""

from __future__ import annotations

import datetime
import decimal
import enum
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, Table

from activedb.store.flush import Change
from activedb.store.sql import TableSpec
from activedb.store.sql._key_locks import guard_number
from tests.databases import PATIENCE_S, in_thread, until

if TYPE_CHECKING:
    from typing import Any

    from activedb.store.session import Store
    from tests.databases import Place


class Colour(enum.Enum):
    RED = 1


NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Decimal("1.10"), Decimal("1.1")),
        (Decimal("100"), Decimal("1E+2")),
        (Decimal("-0.00"), Decimal(0)),
        (-0.0, 0.0),
        (1.5, Decimal("1.50")),
        (NOON, NOON.astimezone(datetime.timezone(datetime.timedelta(hours=9)))),
        (Colour.RED, "RED"),
        (memoryview(b"ab"), b"ab"),
    ],
)
def test_guard_of_keys_equal_to_a_database_is_the_same(one: Any, other: Any) -> None:
    assert guard_number("s.t", (one,)) == guard_number("s.t", (other,))


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a/b", "c"), ("a", "b/c")), ((1,), (2,)), (("1", "0"), ("10",)), ((Decimal(10),), (1,))],
)
def test_guard_of_different_keys_differs(one: Any, other: Any) -> None:
    assert guard_number("s.t", one) != guard_number("s.t", other)


def test_guard_of_a_long_number_does_not_depend_on_the_threads_precision() -> None:
    long = Decimal("1234567890.123456789012345678901234567890")
    numbers = set()
    for precision in (5, 28, 60):
        with decimal.localcontext(prec=precision):
            numbers |= {guard_number("s.t", (Decimal(f"{long}{zeros}"),)) for zeros in ("", "00")}
    assert len(numbers) == 1


def test_guard_holds_between_a_schema_named_and_one_found_on_the_path(
    there: Place, postgres_url: str
) -> None:
    import activedb as adb

    db = there.open()
    table = Table("rows", db.metadata, Column("id", Integer, primary_key=True))
    db.create_all()
    assert there._schema is not None
    with adb.connect(postgres_url) as other:
        theirs = table.to_metadata(other.metadata, schema=there._schema)
        with db.transaction() as t:
            assert t.get(table, 1) is None
            inserting = in_thread(lambda: other.run(lambda u: u.insert(theirs, {"id": 1})))
            with db._store.short() as plain:
                waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                until(lambda: plain.exec_driver_sql(waiting).scalar())
            assert t.get(table, 1) is None
        inserting.result(PATIENCE_S)


@pytest.mark.parametrize("exclusive", [True, False])
def test_key_guarded_in_the_message_of_its_read_is_read_after_the_wait(
    server: Store, exclusive: bool
) -> None:
    spec = TableSpec(Table("guarded", server.metadata, Column("id", Integer, primary_key=True)))
    server.create_all()
    session, other = server.session(), server.session()
    try:
        found = session.lock_rows(spec, [(1,)], exclusive=True, guarding=True)
        assert found == {(1,): None}
        reading = in_thread(
            lambda: other.lock_rows(spec, [(1,)], exclusive=exclusive, guarding=True)
        )
        with server.short() as connection:
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            until(lambda: connection.exec_driver_sql(waiting).scalar())
        row = spec.complete({"id": 1})
        session.commit([Change(spec, (1,), None, row)], [(spec, {(1,): row})])
        assert reading.result(PATIENCE_S) == {(1,): row}
    finally:
        session.close()
        other.close()


def test_key_guarded_to_insert_tells_the_number_of_the_transaction(server: Store) -> None:
    spec = TableSpec(Table("guarded", server.metadata, Column("id", Integer, primary_key=True)))
    server.create_all()
    session = server.session()
    try:
        session.lock_rows(spec, [(1,)], exclusive=True, guarding=True)
        assert session._number is not None
        assert session._connection is not None
        assert server.number_of(session._connection) == session._number
    finally:
        session.close()
