"""Errors of a violated constraint.

They name the table, the constraint, and the key with values of its types.
"""

from __future__ import annotations

import datetime
import enum
import uuid
from contextlib import closing
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Enum,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Table,
    Time,
    UniqueConstraint,
    Uuid,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import INT4RANGE, ExcludeConstraint, Range

from activedb.errors import (
    ConnectionLost,
    ConstraintViolation,
    ForeignKeyViolation,
    StatementCancelled,
    UniqueViolation,
)
from activedb.store.server._driver_errors import translate_errors
from activedb.store.session import Store
from activedb.store.sql import Tables
from tests.databases import PATIENCE_S, in_thread, until
from tests.store.flushing import WriteSet, insert_rows, is_asleep, rows_of

MANY = 200
FEW = 7


def known(error: ConstraintViolation) -> tuple[str, str, dict[str, Any]]:
    """Return what the error says, in one line and with the driver's error attached."""
    assert "\n" not in str(error)
    assert error.table in str(error)
    assert error.constraint in str(error)
    assert error.__cause__ is not None
    return error.table, error.constraint, error.key


def users(store: Store, *more: Any) -> Table:
    table = Table(
        "users",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("email", String(50)),
        Column("country", String(50)),
        Column("number", Integer),
        *more,
    )
    store.create_all()
    return table


# -- unique values -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, FEW, MANY])
def test_unique_value_that_is_there_is_named(store: Store, count: int) -> None:
    table = users(store, UniqueConstraint("email", name="one_user_per_email"))
    insert_rows(store, table, [{"id": -1, "email": "m0, (x)=(y)\n"}])
    rows = [{"id": n, "email": f"m{n}, (x)=(y)\n"} for n in range(count)]
    with pytest.raises(UniqueViolation) as caught:
        insert_rows(store, table, reversed(rows))
    assert known(caught.value) == ("users", "one_user_per_email", {"email": "m0, (x)=(y)\n"})
    assert len(rows_of(store, table)) == 1


@pytest.mark.parametrize("count", [1, MANY])
def test_unique_value_that_an_update_makes_double_is_named(store: Store, count: int) -> None:
    table = users(store, UniqueConstraint("country", "number"))
    rows: list[dict[str, Any]] = [
        {"id": n, "email": None, "country": "x", "number": n} for n in range(count + 1)
    ]
    insert_rows(store, table, rows)
    steps = WriteSet(store)
    for row in rows[:-1]:
        steps.update(table, row, number=row["number"] + (5000 if row["id"] else count))
    with pytest.raises(UniqueViolation) as caught:
        steps.commit()
    assert known(caught.value) == (
        "users",
        "users_country_number_key",
        {"country": "x", "number": count},
    )
    assert rows_of(store, table) == rows


def test_unique_index_that_is_violated_is_named(store: Store) -> None:
    table = users(store, Index("of_country", "country", "number", unique=True))
    with pytest.raises(UniqueViolation) as caught:
        insert_rows(store, table, ({"id": n, "country": "a, b", "number": 3} for n in range(2)))
    assert known(caught.value) == ("users", "of_country", {"country": "a, b", "number": 3})


def test_unique_index_over_an_expression_that_is_violated_is_named(store: Store) -> None:
    table = users(store, Index("any_case", text("lower(email)"), unique=True))
    with pytest.raises(UniqueViolation) as caught:
        insert_rows(store, table, [{"id": 1, "email": "A"}, {"id": 2, "email": "a"}])
    assert (caught.value.table, caught.value.constraint) == ("users", "any_case")


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


def zone(hours: float) -> datetime.timezone:
    return datetime.timezone(datetime.timedelta(hours=hours))


def instants(tz: datetime.tzinfo) -> list[Any]:
    return [datetime.datetime(2024, 1, 2, 3, 4, 5, 600_000 * n, tz) for n in (1, 0)]


TYPED: dict[str, tuple[Any, list[Any]]] = {
    "numeric": (Numeric(9, 2), [Decimal("1.50"), Decimal("2.00")]),
    "numeric with an exponent": (Numeric, [Decimal("1E+2"), Decimal(2)]),
    "instant": (DateTime(timezone=True), instants(datetime.UTC)),
    "instant in the west": (DateTime(timezone=True), instants(zone(-5))),
    "instant in the east": (DateTime(timezone=True), instants(zone(5.5))),
    "datetime": (DateTime, [datetime.datetime(2024, 1, n, 3, 4, 10) for n in (2, 3)]),
    "date": (Date, [datetime.date(2024, 1, 2), datetime.date(2024, 1, 3)]),
    "time": (Time, [datetime.time(3, 4, 5, 600_000), datetime.time(3)]),
    "time in the west": (Time(timezone=True), [datetime.time(n, tzinfo=zone(-5)) for n in (3, 4)]),
    "time in the east": (Time(timezone=True), [datetime.time(n, tzinfo=zone(5.5)) for n in (3, 4)]),
    "uuid": (Uuid, [uuid.UUID(int=5), uuid.UUID(int=6)]),
    "boolean": (Boolean, [True, False]),
    "bytes": (LargeBinary, [b"\x00\xff", b""]),
    "enum": (Enum(Size, name="size"), [Size.SMALL, Size.LARGE]),
}


@pytest.mark.parametrize("kind", TYPED)
def test_key_of_a_violation_has_values_of_the_columns_types(store: Store, kind: str) -> None:
    check_typed(store, kind)


@pytest.mark.parametrize("kind", TYPED)
def test_key_of_a_violation_at_the_commit_has_values_of_the_columns_types(
    server: Store, kind: str
) -> None:
    check_typed(server, kind, deferrable=True, initially="DEFERRED")


def check_typed(store: Store, kind: str, **options: Any) -> None:
    sql_type, values = TYPED[kind]
    table = Table(
        "typed",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("v", sql_type),
        Column("w", Integer),
        UniqueConstraint("v", **options),
    )
    store.create_all()
    insert_rows(store, table, [{"id": 0, "v": values[0]}])
    with pytest.raises(UniqueViolation) as caught:
        insert_rows(store, table, [{"id": n, "v": v} for n, v in enumerate(reversed(values), 1)])
    assert caught.value.key == {"v": values[0]}
    assert type(caught.value.key["v"]) is type(values[0])


# -- foreign keys --------------------------------------------------------------------------------


def family(store: Store, **options: Any) -> tuple[Table, Table]:
    parents = Table(
        "z_parents",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("name", String(20), primary_key=True),
    )
    children = Table(
        "a_children",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("of", Integer),
        Column("called", String(20)),
        ForeignKeyConstraint(["of", "called"], ["z_parents.id", "z_parents.name"], **options),
    )
    store.create_all()
    return parents, children


OPTIONS: list[dict[str, Any]] = [{}, {"deferrable": True, "initially": "DEFERRED"}]


@pytest.mark.parametrize("options", OPTIONS, ids=["immediate", "deferred"])
@pytest.mark.parametrize("count", [1, FEW, MANY])
def test_row_that_refers_to_nothing_is_named(
    store: Store, count: int, options: dict[str, Any]
) -> None:
    parents, children = family(store, **options)
    insert_rows(store, parents, ({"id": n, "name": "a, b"} for n in range(count)))
    steps = WriteSet(store)
    for n in range(count):
        steps.insert(children, {"id": n, "of": n, "called": "c" if n == count - 1 else "a, b"})
    with pytest.raises(ForeignKeyViolation, match="z_parents") as caught:
        steps.commit()
    assert known(caught.value) == (
        "a_children",
        "a_children_of_called_fkey",
        {"of": count - 1, "called": "c"},
    )
    assert rows_of(store, children) == []


@pytest.mark.parametrize("options", OPTIONS, ids=["immediate", "deferred"])
@pytest.mark.parametrize("count", [1, MANY])
def test_row_that_is_still_referred_to_is_named(
    store: Store, count: int, options: dict[str, Any]
) -> None:
    parents, children = family(store, name="ours", **options)
    rows = [{"id": n, "name": "x"} for n in range(count)]
    insert_rows(store, parents, rows)
    insert_rows(store, children, [{"id": 1, "of": count - 1, "called": "x"}])
    steps = WriteSet(store)
    for row in rows:
        steps.delete(parents, row)
    with pytest.raises(ForeignKeyViolation, match="a_children") as caught:
        steps.commit()
    assert known(caught.value) == ("z_parents", "ours", {"id": count - 1, "name": "x"})
    assert rows_of(store, parents) == rows


@pytest.mark.parametrize("count", [1, FEW, MANY])
def test_reference_to_a_table_that_is_not_declared_is_named(store: Store, count: int) -> None:
    with store.short() as connection:
        connection.execute(text("CREATE TABLE owners (id INTEGER PRIMARY KEY)"))
        connection.execute(text("INSERT INTO owners VALUES (1)"))
        # The database adds the constraint, because the declared one has no target.
        connection.execute(
            text(
                "CREATE TABLE pets (id INTEGER PRIMARY KEY, "
                "owner INTEGER CONSTRAINT pets_owner_fkey REFERENCES owners (id))"
            )
        )
    pets = Table(
        "pets",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("owner", Integer, ForeignKey("owners.id")),
    )
    toys = Table(
        "toys",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("pet", ForeignKey("pets.id")),
    )
    with store.short() as connection:
        connection.execute(
            text("CREATE TABLE toys (id INTEGER PRIMARY KEY, pet INTEGER REFERENCES pets (id))")
        )
    steps = WriteSet(store)
    for n in range(count):
        steps.insert(pets, {"id": n, "owner": 1}).insert(toys, {"id": n, "pet": n})
    steps.commit()
    assert len(rows_of(store, toys)) == count
    steps = WriteSet(store)
    for n in range(count, 2 * count):
        owner = 2 if n == 2 * count - 1 else 1
        steps.insert(pets, {"id": n, "owner": owner}).insert(toys, {"id": n, "pet": n})
    with pytest.raises(ForeignKeyViolation, match="refers to no row of owners") as caught:
        steps.commit()
    assert known(caught.value) == ("pets", "pets_owner_fkey", {"owner": 2})
    assert len(rows_of(store, toys)) == count


def test_restricted_delete_is_a_foreign_key_violation(store: Store) -> None:
    parents, children = family(store, ondelete="RESTRICT")
    insert_rows(store, parents, [{"id": 1, "name": "x"}])
    insert_rows(store, children, [{"id": 1, "of": 1, "called": "x"}])
    with pytest.raises(ForeignKeyViolation) as caught:
        WriteSet(store).delete(parents, {"id": 1, "name": "x"}).commit()
    assert known(caught.value)[2] == {"id": 1, "name": "x"}


@pytest.mark.parametrize("count", [1, MANY])
def test_reference_within_one_table_is_named(store: Store, count: int) -> None:
    tree = Table(
        "tree",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("above", ForeignKey("tree.id")),
    )
    store.create_all()
    rows = [{"id": n, "above": n - 1 if n else None} for n in range(count)]
    with pytest.raises(ForeignKeyViolation) as caught:
        insert_rows(store, tree, [*rows, {"id": count, "above": 999}])
    assert known(caught.value) == ("tree", "tree_above_fkey", {"above": 999})
    insert_rows(store, tree, [*rows, {"id": count, "above": count - 1}])
    with pytest.raises(ForeignKeyViolation) as caught:
        WriteSet(store).delete(tree, {"id": count - 1, "above": rows[-1]["above"]}).commit()
    assert known(caught.value) == ("tree", "tree_above_fkey", {"id": count - 1})


# -- other constraints ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, FEW, MANY])
def test_check_that_is_violated_is_named(store: Store, count: int) -> None:
    table = users(store, CheckConstraint("number >= 0", name="no_debts"))
    with pytest.raises(ConstraintViolation) as caught:
        insert_rows(store, table, ({"id": n, "number": -1} for n in range(count)))
    assert type(caught.value) is ConstraintViolation
    assert known(caught.value)[:2] == ("users", "no_debts")
    assert rows_of(store, table) == []


def test_missing_value_that_only_the_database_demands_is_named(store: Store) -> None:
    table = users(store)
    with store.short() as connection:
        connection.execute(text("DROP TABLE users"))
        connection.execute(
            text(
                "CREATE TABLE users (id integer primary key, email text NOT NULL, country text, "
                "number integer)"
            )
        )
    with pytest.raises(ConstraintViolation, match="email") as caught:
        insert_rows(store, table, [{"id": 1}])
    assert (type(caught.value), caught.value.table) == (ConstraintViolation, "users")


def test_exclusion_that_is_violated_is_named(server: Store) -> None:
    rooms = Table(
        "rooms",
        server.metadata,
        Column("id", Integer, primary_key=True),
        Column("during", INT4RANGE),
        ExcludeConstraint(("during", "&&"), name="one_at_a_time"),
    )
    server.create_all()
    rows = [{"id": n, "during": Range(n, n + 2)} for n in range(2)]
    with pytest.raises(ConstraintViolation) as caught:
        insert_rows(server, rooms, rows)
    assert type(caught.value) is ConstraintViolation
    assert known(caught.value)[:2] == ("rooms", "one_at_a_time")


@pytest.mark.parametrize("count", [1, MANY])
def test_unique_value_that_is_checked_at_the_commit_is_named(server: Store, count: int) -> None:
    table = users(
        server, UniqueConstraint("number", name="late", deferrable=True, initially="DEFERRED")
    )
    insert_rows(server, table, [{"id": -1, "number": count - 1}])
    with pytest.raises(UniqueViolation) as caught:
        insert_rows(server, table, ({"id": n, "number": n} for n in range(count)))
    assert known(caught.value) == ("users", "late", {"number": count - 1})
    assert len(rows_of(server, table)) == 1


@pytest.mark.parametrize("count", [1, MANY])
def test_connection_whose_commit_was_refused_can_be_used_again(server: Store, count: int) -> None:
    table = users(
        server, UniqueConstraint("number", name="late", deferrable=True, initially="DEFERRED")
    )
    insert_rows(server, table, [{"id": -1, "number": 0}])
    for _ in range(3):
        with pytest.raises(UniqueViolation):
            insert_rows(server, table, ({"id": n, "number": n} for n in range(count)))
        tables = Tables()
        with closing(server.session()) as session:
            found = session.query(select(table.c.id), tables, {tables.spec(table): {}})
        assert found == [(-1,)]


def test_violation_in_a_partition_names_the_table(server: Store) -> None:
    table = users(server)
    with server.short() as connection:
        connection.execute(text("DROP TABLE users"))
        connection.execute(
            text(
                "CREATE TABLE users (id integer primary key, email text, country text, "
                "number integer) PARTITION BY RANGE (id)"
            )
        )
        connection.execute(text("CREATE TABLE low PARTITION OF users DEFAULT"))
        connection.execute(text("CREATE UNIQUE INDEX ON low (number)"))
    with pytest.raises(UniqueViolation) as caught:
        insert_rows(
            server, table, ({"id": n, "number": 4 if n > 90 else n + 9} for n in (1, 91, 92))
        )
    assert (caught.value.table, caught.value.key) == ("users", {"number": 4})


# -- the connection ------------------------------------------------------------------------------


def test_statement_that_is_cancelled_is_no_lost_connection(server: Store) -> None:
    with server.engine.connect() as connection:
        number = connection.scalar(text("SELECT pg_backend_pid()"))

        def sleep() -> None:
            with translate_errors("sleep"):
                connection.execute(text(f"SELECT pg_sleep({2 * PATIENCE_S})"))

        sleeping = in_thread(sleep)
        until(lambda: is_asleep(server, number))
        with server.short() as other:
            other.execute(text("SELECT pg_cancel_backend(:pid)"), {"pid": number})
        with pytest.raises(StatementCancelled, match="sleep"):
            sleeping.result(PATIENCE_S)


@pytest.mark.parametrize("count", [1, MANY])
def test_connection_that_ends_during_a_flush_is_reported_and_not_used_again(
    server: Store, count: int
) -> None:
    table = users(server)
    steps = WriteSet(server)
    for n in range(count):
        steps.insert(table, {"id": n})
    session = server.session()
    with session.reading("ask for the number") as connection:
        number = connection.scalar(text("SELECT pg_backend_pid()"))
    with server.short() as other:
        other.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": number})
    with pytest.raises(ConnectionLost) as caught:
        session.flush(steps.changes, steps.log)
    assert caught.value.committed is False
    session.close()
    steps.commit()
    assert len(rows_of(server, table)) == count


def test_transaction_that_idles_too_long_is_a_lost_connection(server: Store) -> None:
    with server.engine.connect() as connection:
        number = connection.scalar(text("SELECT pg_backend_pid()"))
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 1"))

        def is_gone() -> bool:
            with server.short() as other:  # a transaction sees one state
                query = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
                return bool(other.scalar(query, {"pid": number}) == 0)

        until(is_gone)
        with pytest.raises(ConnectionLost, match="look"), translate_errors("look"):
            connection.execute(text("SELECT 1"))
