"""Rows through the database: types, defaults, constraints, the order of the write set."""

from __future__ import annotations

import datetime
import enum
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy
import pytest
from sqlalchemy import (
    ARRAY,
    CHAR,
    JSON,
    REAL,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Enum,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Time,
    TypeDecorator,
    UniqueConstraint,
    Uuid,
    bindparam,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    table,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import INET

from activedb.errors import (
    ConstraintViolation,
    DefinitionError,
    InvalidRow,
    RowExists,
    SerializationConflict,
    UnsupportedStatement,
)
from activedb.store.sql import TableSpec
from lockmgr import LockManager, LockTable
from tests.databases import (
    PATIENCE_S,
    Place,
    in_thread,
    lock_waits,
    until,
    waits_at_the_server,
)
from tests.drawing import Worlds

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    import activedb as adb


@pytest.fixture
def db(where: Place) -> adb.Database:
    """An open database."""
    return where.open()


VALUES: dict[str, tuple[Any, list[Any]]] = {
    "integer": (Integer, [0, -5, 2**31 - 1, None]),
    "float": (Float, [0.5, -1e300, 3, None]),
    "numeric": (Numeric(12, 3), [Decimal("1.250"), Decimal("-0.001"), None]),
    "string": (String(30), ["", "it's", "ü€😀", "%(x)s :y", None]),
    "boolean": (Boolean, [True, False, None]),
    "json": (JSON, [{"a": [1, None, {"b": "ü"}]}, [1, 2], "text", 5, True, {}, None]),
    "instant": (
        DateTime(timezone=True),
        [
            datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=datetime.UTC),
            datetime.datetime(
                2024, 7, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=5, minutes=30))
            ),
            None,
        ],
    ),
    "datetime": (DateTime, [datetime.datetime(2024, 2, 29, 1, 2, 3, 4), None]),
    "date": (Date, [datetime.date(1999, 12, 31), None]),
    "bytes": (LargeBinary, [b"", b"\0\xff", None]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_are_the_same_before_and_after_the_commit(db: adb.Database, kind: str) -> None:
    """Values are equal by key, by query over the sphere, and once committed."""
    sql_type, values = VALUES[kind]
    table = Table(
        "things", db.metadata, Column("id", Integer, primary_key=True), Column("v", sql_type)
    )
    db.create_all()
    rows = dict(enumerate(values))
    everything = select(table).order_by(table.c.id)
    nulls = select(func.count()).where(table.c.v.is_(None)).select_from(table)
    with db.transaction() as t:
        for key, value in rows.items():
            t.insert(table, {"id": key, "v": value})
        t.insert(table, {"id": 99})
        assert {k: r["v"] for k, r in t.get_many(table, rows).items() if r} == rows
        before = [tuple(row) for row in t.query(everything)]
        nulls_before = t.query(nulls)
    with db.transaction() as t:
        assert {k: r["v"] for k, r in t.get_many(table, rows).items() if r} == rows
        after = [tuple(row) for row in t.query(everything)]
        assert before == after == [*rows.items(), (99, None)]
        assert nulls_before == t.query(nulls)
    with db.transaction() as t:
        for key in rows:
            t.update(table, key, v=values[0])
        assert {v for _, v in t.query(everything)[:1]} == {values[0]} if kind != "json" else True
    with db.transaction() as t:
        assert [r["v"] for k, r in t.get_many(table, rows).items() if r] == [values[0]] * len(rows)


def test_defaults_are_filled_in_at_the_insert(db: adb.Database) -> None:
    count = iter(range(100, 200))
    table = Table(
        "defaults",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("scalar", Integer, default=7, nullable=False),
        Column("called", Integer, default=lambda: next(count)),
        Column("sql", Integer, default=select(text("40 + 2")).scalar_subquery()),
        Column("server", String(20), server_default="it's"),
        Column("server_sql", Integer, server_default=text("6 * 7"), nullable=False),
    )
    db.create_all()
    with db.transaction() as t:
        row = t.insert(table, {})
        assert row == {
            "id": 1,
            "scalar": 7,
            "called": 100,
            "sql": 42,
            "server": "it's",
            "server_sql": 42,
        }
        assert t.get(table, 1) == row
        second = t.insert(table, {"scalar": 1, "called": None, "server": "x"})
        assert (second["id"], second["scalar"], second["called"], second["server"]) == (
            2,
            1,
            None,
            "x",
        )
    with db.transaction() as t:
        assert t.get_many(table, [1, 2]) == {1: row, 2: second}


def test_numbers_are_never_given_twice(db: adb.Database) -> None:
    table = Table("n", db.metadata, Column("id", Integer, primary_key=True), Column("x", Integer))
    db.create_all()

    def insert_some() -> list[int]:
        return [int(db.run(lambda t: t.insert(table, {"x": 0}))["id"]) for _ in range(5)]

    threads = [in_thread(insert_some) for _ in range(4)]
    numbers = [n for thread in threads for n in thread.result(PATIENCE_S)]
    assert len(set(numbers)) == 20
    with db.transaction() as t:
        assert t.query(select(func.count()).select_from(table)) == [(20,)]


def declare_family(db: adb.Database) -> tuple[Table, Table]:
    # The child's name sorts before the parent's, so the alphabet does not help.
    parents = Table(
        "z_parents", db.metadata, Column("id", Integer, primary_key=True), Column("x", Integer)
    )
    children = Table(
        "a_children",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("parent", ForeignKey("z_parents.id"), nullable=False),
    )
    db.create_all()
    return parents, children


def test_write_set_respects_foreign_keys(db: adb.Database) -> None:
    parents, children = declare_family(db)
    with db.transaction() as t:
        t.insert(parents, {"id": 1})
        t.insert(children, {"id": 1, "parent": 1})
    with db.transaction() as t:
        t.delete(children, 1)
        t.delete(parents, 1)
        t.insert(parents, {"id": 2})
        t.insert(children, {"id": 2, "parent": 2})
    assert db.admin.row_counts() == {"a_children": 1, "z_parents": 1}


def test_write_set_moves_a_child_away_from_a_parent_that_is_deleted(db: adb.Database) -> None:
    """Each step is allowed where it is done, so the commit must be."""
    parents, children = declare_family(db)
    with db.transaction() as t:
        t.insert(parents, {"id": 1})
        t.insert(children, {"id": 1, "parent": 1})
    with db.transaction() as t:
        t.insert(parents, {"id": 2})
        t.update(children, 1, parent=2)
        t.delete(parents, 1)
    with db.transaction() as t:
        assert t.query(select(children)) == [(1, 2)]
        assert t.get(parents, 1) is None


def test_write_set_respects_a_table_that_refers_to_itself(db: adb.Database) -> None:
    tree = Table(
        "tree",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("above", ForeignKey("tree.id")),
    )
    db.create_all()
    with db.transaction() as t:
        t.insert(tree, {"id": 2})
        t.insert(tree, {"id": 1, "above": 2})
        t.insert(tree, {"id": 3, "above": 1})
    with db.transaction() as t:
        for key in (3, 1, 2):
            t.delete(tree, key)
    assert db.admin.row_counts() == {"tree": 0}


def declare_users(db: adb.Database) -> Table:
    users = Table(
        "users",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("email", String(50)),
        Column("age", Integer),
        UniqueConstraint("email", name="one_user_per_email"),
        CheckConstraint("age >= 0", name="nobody_is_unborn"),
    )
    db.create_all()
    return users


def test_write_set_hands_a_unique_value_from_a_deleted_row_to_a_new_one(db: adb.Database) -> None:
    users = declare_users(db)
    with db.transaction() as t:
        t.insert(users, {"id": 1, "email": "a"})
    with db.transaction() as t:
        t.delete(users, 1)
        t.insert(users, {"id": 2, "email": "a"})
    with db.transaction() as t:
        t.update(users, 2, email="b")
        t.insert(users, {"id": 1, "email": "a"})
    assert db.admin.row_counts() == {"users": 2}


def test_write_set_hands_a_unique_value_down_a_line_of_rows(db: adb.Database) -> None:
    users = declare_users(db)
    with db.transaction() as t:
        t.insert(users, {"id": 1, "email": "a"})
        t.insert(users, {"id": 2, "email": "b"})
    with db.transaction() as t:
        t.update(users, 2, email="c")
        t.update(users, 1, email="b")
    with db.transaction() as t:
        assert sorted(t.query(select(users.c.id, users.c.email))) == [(1, "b"), (2, "c")]


@pytest.mark.parametrize(
    ("row", "constraint", "detail"),
    [
        ({"id": 2, "email": "a"}, "one_user_per_email", "email"),
        ({"id": 2, "age": -1}, "nobody_is_unborn", ""),
    ],
)
def test_constraint_that_is_violated_is_named(
    where: Place, row: dict[str, Any], constraint: str, detail: str
) -> None:
    db = where.open()
    users = declare_users(db)
    with db.transaction() as t:
        t.insert(users, {"id": 1, "email": "a"})
    with pytest.raises(ConstraintViolation, match="users") as caught, db.transaction() as t:
        t.insert(users, row)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    if not where.is_memory:
        assert (caught.value.table, caught.value.constraint) == ("users", constraint)
        assert detail in caught.value.detail
    assert db.admin.row_counts() == {"users": 1}


def test_foreign_key_that_is_violated_is_refused(where: Place) -> None:
    db = where.open()
    _, children = declare_family(db)
    with pytest.raises(ConstraintViolation) as caught, db.transaction() as t:
        t.insert(children, {"id": 1, "parent": 77})
    if not where.is_memory:
        assert caught.value.table == "a_children"
        assert "77" in caught.value.detail
    assert db.admin.row_counts() == {"a_children": 0, "z_parents": 0}


def test_value_that_only_the_server_refuses_is_an_invalid_row(where: Place) -> None:
    if where.is_memory:
        pytest.skip("SQLite takes it")
    db = where.open()
    users = declare_users(db)
    with pytest.raises(InvalidRow, match="insert into users"), db.transaction() as t:
        t.insert(users, {"id": 1, "email": "x" * 51})
    with pytest.raises(InvalidRow, match="insert into users"), db.transaction() as t:
        t.insert(users, {"id": 1, "age": 2**40})


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**70])
def test_number_beyond_64_bits_is_an_invalid_row(db: adb.Database, number: int) -> None:
    users = declare_users(db)
    with db.transaction() as t:
        t.insert(users, {"id": 1, "age": 1})
    uses: list[Callable[[adb.Transaction], object]] = [
        lambda t: t.insert(users, {"id": 2, "age": number}),
        lambda t: t.insert(users, {"id": number}),
        lambda t: t.update(users, 1, age=number),
        lambda t: t.get(users, number),
        lambda t: t.get_many(users, [1, number]),
        lambda t: t.delete(users, number),
        lambda t: t.query(select(users).where(users.c.id == number)),
        lambda t: t.query(select(users).where(users.c.id.in_([1, number]))),
        lambda t: t.query(select(users).where(users.c.age > number)),
        lambda t: t.execute(update(users).values(age=number)),
    ]
    for use in uses:
        with pytest.raises(InvalidRow):
            db.run(use)
    with db.transaction() as t:
        assert t.query(select(users.c.id, users.c.age)) == [(1, 1)]


@pytest.mark.parametrize("kind", [Integer(), Float(), Numeric(8, 2), Numeric(asdecimal=False)])
def test_statements_write_null_into_numbers(db: adb.Database, kind: Any) -> None:
    numbers = Table(
        "numbers", db.metadata, Column("id", Integer, primary_key=True), Column("v", kind)
    )
    db.create_all()
    given = {"x": None}
    writes: list[tuple[Any, Any]] = [
        (update(numbers).values(v=None), None),
        (update(numbers).values(v=null()), None),
        (update(numbers).values(v=bindparam("x")), given),
        (update(numbers).values(v=func.nullif(numbers.c.v, numbers.c.v)), None),
        (update(numbers).values(v=select(literal(None)).scalar_subquery()), None),
        (insert(numbers).values(id=2, v=None), None),
        (insert(numbers).values(id=2, v=null()), None),
        (insert(numbers).values(id=2, v=bindparam("x")), given),
        (insert(numbers).from_select(["id", "v"], select(literal(2), null())), None),
    ]
    for statement, parameters in writes:
        with db.transaction() as t:
            t.insert(numbers, {"id": 1, "v": 1})
        with db.transaction() as t:
            t.execute(statement, parameters)
        with db.transaction() as t:
            last = max(t.query(select(numbers)))
            assert last.v is None, str(statement)
            t.execute(delete(numbers))


def test_aware_time_in_a_column_without_time_zone_is_an_invalid_row(db: adb.Database) -> None:
    kinds = Table(
        "kinds",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("plain", DateTime),
        Column("instant", DateTime(timezone=True)),
        Column("of_day", Time),
    )
    db.create_all()
    aware = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    east = datetime.timezone(datetime.timedelta(hours=14))
    refused: list[dict[str, Any]] = [
        {"plain": aware},
        {"instant": aware.replace(tzinfo=None)},
        {"instant": datetime.datetime.min.replace(tzinfo=east)},  # in UTC: before the year 1
        {"of_day": aware.timetz()},
    ]
    for values in refused:
        with db.transaction() as t, pytest.raises(InvalidRow, match=f"column {next(iter(values))}"):
            t.insert(kinds, {"id": 1, **values})
    with db.transaction() as t:
        t.insert(kinds, {"id": 1, "plain": aware.replace(tzinfo=None), "instant": aware})


def test_numbers_of_numpy_and_the_null_of_json_are_kept(db: adb.Database) -> None:
    kept = Table(
        "kept",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("double", Float),
        Column("decimal", Numeric(8, 3)),
        Column("found", JSON(none_as_null=True)),
    )
    db.create_all()
    tenth = numpy.float64(0.1)
    with db.transaction() as t:
        t.insert(kept, {"id": 1, "double": tenth, "decimal": tenth, "found": JSON.NULL})
    with db.transaction() as t:
        row = t.get(kept, 1)
        assert row == {"id": 1, "double": 0.1, "decimal": Decimal("0.100"), "found": None}
        assert t.query(select(kept.c.id).where(kept.c.found.is_not(None))) == [(1,)]
        t.update(kept, 1, double=numpy.float64("inf"))


class Ward(enum.StrEnum):
    EAST = "e"


def test_values_are_as_the_database_returns_them_already_in_the_transaction_that_writes_them(
    db: adb.Database,
) -> None:
    forms = Table(
        "forms",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("ward", Enum(Ward)),
        Column("letter", Enum("a", "b", name="letters")),
        Column("found", JSON),
        Column("data", LargeBinary),
        Column("uid", Uuid(as_uuid=False)),
    )
    db.create_all()
    number = uuid.UUID(int=7)
    given: dict[str, Any] = {
        "ward": Ward.EAST, "letter": "a", "found": {1: (2, 3)}, "data": bytearray(b"x"),
        "uid": str(number).upper(),
    }  # fmt: skip
    kept = {"ward": Ward.EAST, "letter": "a", "found": {"1": [2, 3]}, "data": b"x"}
    with db.transaction() as t:
        t.insert(forms, {"id": 1, **given})
        assert t.get(forms, 1) == {"id": 1, **kept, "uid": str(number)}
        with pytest.raises(InvalidRow, match="column letter"):
            t.update(forms, 1, letter="c")  # which could not be read any more
        with pytest.raises(InvalidRow, match="column id"):
            t.update(forms, 1, id=numpy.array([1, 2]))
    with db.transaction() as t:
        assert t.get(forms, 1) == {"id": 1, **kept, "uid": str(number)}


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        (JSON(), "String"),
        (ARRAY(Integer), "String"),
        (CHAR(3), "String"),
        (REAL(), "Double"),
        (Float(24), "Double"),
        (Float(asdecimal=True), "Double"),
        (Numeric(8, 2, asdecimal=False), "Double"),
    ],
)
def test_key_that_cannot_be_found_by_its_value_is_a_definition_error(
    kind: Any, instead: str
) -> None:
    with pytest.raises(DefinitionError, match=f"key column k: .*; use {instead}"):
        TableSpec(Table("keyed", MetaData(), Column("k", kind, primary_key=True)))


class Decoded(TypeDecorator[Any]):
    impl = Numeric(8, 2)
    cache_ok = True


@pytest.mark.parametrize("kind", [Numeric(), Decoded()])
def test_computed_doubles_keep_their_digits_as_decimals(db: adb.Database, kind: Any) -> None:
    scaled = isinstance(kind, Decoded)
    mixed = Table(
        "mixed",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("double", Float),
        Column("kept", kind),
    )
    db.create_all()
    given = 2.5 if scaled else 1.25e-12
    with db.transaction() as t:
        t.insert(mixed, {"id": 1, "double": given, "kept": Decimal(1)})
    with db.transaction() as t:
        t.execute(update(mixed).values(kept=mixed.c.double))
        t.execute(insert(mixed).values(id=2, kept=literal(given) * literal(1)))
        found = [t.get(mixed, number) for number in (1, 2)]
        assert [row and row["kept"] for row in found] == [Decimal(str(given))] * 2
        t.execute(update(mixed).values(kept=None))
    with db.transaction() as t:
        assert t.query(select(mixed.c.kept)) == [(None,), (None,)]


def test_items_of_arrays_have_the_form_of_their_type(there: Place) -> None:
    db = there.open()
    lists = Table(
        "lists",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("doubles", ARRAY(Float)),
        Column("wards", ARRAY(Enum(Ward))),
        Column("found", ARRAY(JSON, dimensions=1, as_tuple=True)),
    )
    db.create_all()
    given: dict[str, Any] = {"doubles": (1, None), "wards": ["EAST"], "found": [[1, (2,)]]}
    kept = {"id": 1, "doubles": [1.0, None], "wards": [Ward.EAST], "found": ([1, [2]],)}
    with db.transaction() as t:
        t.insert(lists, {"id": 1, **given})
        assert t.get(lists, 1) == kept
    with db.transaction() as t:
        assert t.get(lists, 1) == kept


def test_key_in_a_buffer_is_found(db: adb.Database) -> None:
    keyed = Table("keyed", db.metadata, Column("k", LargeBinary, primary_key=True))
    db.create_all()
    with db.transaction() as t:
        t.insert(keyed, {"k": bytearray(b"a")})
        assert t.get(keyed, memoryview(bytearray(b"a"))) == {"k": b"a"}
        with pytest.raises(InvalidRow, match="keys that a dict can have"):
            t.get_many(keyed, [bytearray(b"a")])


def test_json_too_deep_for_python_is_an_invalid_row(db: adb.Database) -> None:
    deep = Table("deep", db.metadata, Column("id", Integer, primary_key=True), Column("v", JSON))
    db.create_all()
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidRow, match="column v"), db.transaction() as t:
        t.insert(deep, {"id": 1, "v": value})


def test_nan_is_no_key(db: adb.Database) -> None:
    keyed = Table("keyed", db.metadata, Column("k", Float, primary_key=True, autoincrement=False))
    db.create_all()
    nan = float("nan")
    uses: list[Callable[[adb.Transaction], object]] = [
        lambda t: t.insert(keyed, {"k": nan}),
        lambda t: t.get(keyed, nan),
        lambda t: t.get_many(keyed, [nan]),
    ]
    for use in uses:
        with pytest.raises(InvalidRow, match="NaN"):
            db.run(use)


@pytest.mark.long
def test_many_rows_of_composite_keys_are_written_and_deleted(db: adb.Database) -> None:
    pairs = Table(
        "pairs",
        db.metadata,
        Column("a", Integer, primary_key=True),
        Column("b", String(9), primary_key=True),
        Column("n", Integer),
    )
    db.create_all()
    keys = [(a, f"k{b}") for a in range(-10, 10) for b in range(20)]
    with db.transaction() as t:
        for key in keys:
            t.insert(pairs, {"a": key[0], "b": key[1], "n": 0})
    with db.transaction() as t:
        for key in keys[::2]:
            t.delete(pairs, key)
        for number, key in enumerate(keys[1::2]):
            t.update(pairs, key, n=number)
    with db.transaction() as t:
        assert t.query(select(func.count(), func.max(pairs.c.n))) == [(200, 199)]


@pytest.mark.long
def test_very_many_rows_of_composite_keys_are_read_and_changed(db: adb.Database) -> None:
    pairs = Table(
        "pairs",
        db.metadata,
        Column("a", Integer, primary_key=True),
        Column("b", Integer, primary_key=True),
        Column("n", Integer),
    )
    db.create_all()
    db._forest.locks = LockManager(LockTable())  # to verify each step is quadratic
    keys = [(n, -n) for n in range(12_000)]
    with db.transaction() as t:
        t.execute(pairs.insert().values([{"a": a, "b": b, "n": 0} for a, b in keys]))
    with db.transaction() as t:
        assert t.execute(pairs.update().values(n=pairs.c.a)) == len(keys)
    with db.transaction() as t:
        rows = t.get_many(pairs, keys)
    assert [row and row["n"] for row in rows.values()] == [a for a, _ in keys]


# -- two database objects on one server: "another process" ---------------------------------


def two(where: Place) -> tuple[adb.Database, adb.Database, Table, Table]:
    if where.is_memory:
        pytest.skip("memory belongs to one process")
    one, other = where.open(retries_max=0), where.open(retries_max=0)
    tables = [
        Table("rows", db.metadata, Column("id", Integer, primary_key=True), Column("v", Integer))
        for db in (one, other)
    ]
    one.create_all()
    return one, other, tables[0], tables[1]


def test_insert_of_a_key_waits_for_another_process_that_inserts_it(where: Place) -> None:
    one, other, mine, yours = two(where)

    def insert(u: adb.Transaction) -> None:
        u.insert(yours, {"id": 1, "v": 2})

    with one.transaction() as t:
        t.insert(mine, {"id": 1, "v": 1})
        second = in_thread(other.run, insert)
        until(lambda: waits_at_the_server(one))
    with pytest.raises(RowExists):
        second.result(PATIENCE_S)
    with other.transaction() as u:
        assert u.get(yours, 1) == {"id": 1, "v": 1}


def test_insert_of_a_key_waits_for_another_process_that_saw_it_absent(where: Place) -> None:
    one, other, mine, yours = two(where)
    with one.transaction() as t:
        assert t.get(mine, 1) is None
        second = in_thread(other.run, lambda u: u.insert(yours, {"id": 1, "v": 2}))
        until(lambda: waits_at_the_server(one))
        assert t.get(mine, 1) is None
        t.insert(mine, {"id": 2, "v": 1})
    second.result(PATIENCE_S)
    with one.transaction() as t:
        assert t.query(select(mine).order_by(mine.c.id)) == [(1, 2), (2, 1)]


def test_many_absent_keys_are_guarded_by_their_table(where: Place) -> None:
    one, other, mine, yours = two(where)
    with one.transaction() as t:
        assert set(t.get_many(mine, range(200)).values()) == {None}
        second = in_thread(other.run, lambda u: u.insert(yours, {"id": 5_000, "v": 2}))
        until(lambda: waits_at_the_server(one))
    second.result(PATIENCE_S)


def test_insert_of_a_key_that_a_plain_program_inserted_is_a_conflict(where: Place) -> None:
    one, other, mine, yours = two(where)
    with pytest.raises(SerializationConflict, match="retry"), one.transaction() as t:
        t.insert(mine, {"id": 1, "v": 1})
        with other._store.short() as plain:
            plain.execute(yours.insert(), {"id": 1, "v": 2})
    with one.transaction() as t:
        assert t.get(mine, 1) == {"id": 1, "v": 2}


def test_absence_that_a_plain_program_ended_is_a_conflict(where: Place) -> None:
    one, other, mine, yours = two(where)
    with pytest.raises(SerializationConflict, match=r"\(1,\)"), one.transaction() as t:
        assert t.get(mine, 1) is None
        t.insert(mine, {"id": 2, "v": 1})
        with other._store.short() as plain:
            plain.execute(yours.insert(), {"id": 1, "v": 2})
    with one.transaction() as t:
        assert t.query(select(mine)) == [(1, 2)]


def test_counter_in_two_processes_loses_nothing(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory belongs to one process")
    one, other = where.open(retries_max=50), where.open(retries_max=50)
    tables = {
        db: Table(
            "rows", db.metadata, Column("id", Integer, primary_key=True), Column("v", Integer)
        )
        for db in (one, other)
    }
    one.create_all()
    with one.transaction() as t:
        t.insert(tables[one], {"id": 1, "v": 0})

    def count(db: adb.Database) -> None:
        def work(t: adb.Transaction) -> None:
            row = t.get(tables[db], 1, for_update=True)
            assert row is not None
            t.update(tables[db], 1, v=row["v"] + 1)

        for _ in range(25):
            db.run(work)

    threads = [in_thread(count, db) for db in (one, other) for _ in range(2)]
    for thread in threads:
        thread.result(PATIENCE_S)
    with other.transaction() as t:
        assert t.get(tables[other], 1) == {"id": 1, "v": 100}


def test_scan_keeps_another_process_from_inserting(where: Place) -> None:
    one, other, mine, yours = two(where)
    with one.transaction() as t:
        assert t.query(select(func.count()).select_from(mine)) == [(0,)]
        before = lock_waits(other)
        inserter = in_thread(other.run, lambda u: u.insert(yours, {"id": 1}))
        until(lambda: lock_waits(other) > before or waits_at_the_server(one))
        assert t.query(select(func.count()).select_from(mine)) == [(0,)]
    inserter.result(PATIENCE_S)


def test_list_changed_in_place_is_not_the_row_until_it_is_written(where: Place) -> None:
    db = where.open()
    notes = Table(
        "jotted",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("tags", JSON, nullable=False),
    )
    db.create_all()
    with db.transaction() as t:
        given = ["a"]
        t.insert(notes, {"id": 1, "tags": given})
        given.append("not written")
    with db.transaction() as t:
        row = t.get(notes, 1, for_update=True)
        assert row is not None
        row["tags"].append("b")
        assert (t.get(notes, 1) or {})["tags"] == ["a"]
        t.update(notes, 1, tags=row["tags"])
    with db.transaction() as t:
        assert (t.get(notes, 1) or {})["tags"] == ["a", "b"]
        t.update(notes, 1, tags=[{"a": 1}])
    with db.transaction() as t:
        t.update(notes, 1, tags=[{"a": True}])
    with db.transaction() as t:
        assert repr((t.get(notes, 1) or {})["tags"]) == "[{'a': True}]"


def test_query_that_names_its_table_in_text_is_refused(where: Place) -> None:
    db = where.open()
    with db.transaction() as t:
        for source in (text("accounts"), table("accounts")):
            with pytest.raises(UnsupportedStatement, match="as a Table"):
                t.query(select(func.count()).select_from(source))


# -- one row, one key ----------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def test_key_in_two_guises_is_one_key(db: adb.Database) -> None:
    tagged = Table(
        "tagged",
        db.metadata,
        Column("id", Uuid, primary_key=True),
        Column("colour", Enum(Colour), primary_key=True),
        Column("n", Integer),
    )
    db.create_all()
    one = uuid.UUID(int=7)
    with db.transaction() as t:
        t.insert(tagged, {"id": str(one).upper(), "colour": "RED", "n": 1})
        assert t.get(tagged, (one, Colour.RED)) == {"id": one, "colour": Colour.RED, "n": 1}
        t.insert(tagged, {"id": one, "colour": Colour.BLUE, "n": 2})
        t.update(tagged, (str(one), "BLUE"), n=3)
    with db.transaction() as t:
        rows = t.get_many(tagged, [(one, Colour.RED), (str(one), "BLUE")])
        assert [row and row["n"] for row in rows.values()] == [1, 3]
        for wrong in (("no uuid", "RED"), (one, "GREEN")):
            with pytest.raises(InvalidRow, match=r"Uuid|Enum"):
                t.get(tagged, wrong)


class Lowered(TypeDecorator[str]):
    """Text that the database keeps in small letters."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: object) -> str | None:
        return None if value is None else value.lower()


class Growing(TypeDecorator[str]):
    """Text that is another one each time that it comes back."""

    impl = String
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: object) -> str | None:
        return None if value is None else f"{value}+"


class Network(TypeDecorator[str]):
    """Addresses, which the server compares in its own way."""

    impl = INET
    cache_ok = True


BACK = datetime.datetime(2020, 10, 25, 0, tzinfo=datetime.UTC)
"""An hour before clocks are set back in Berlin."""
ZONES = [datetime.UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("America/St_Johns"), ZoneInfo("UTC")]
GUISES: dict[str, tuple[Any, Callable[[Random], Any], Callable[[Random, Any], Any]]] = {
    "moments": (
        DateTime(timezone=True),
        lambda world: BACK + datetime.timedelta(minutes=30 * world.randrange(6)),
        lambda world, key: key.astimezone(world.choice(ZONES)),
    ),
    "small letters": (
        Lowered(),
        lambda world: world.choice(["abc", "abd", "é"]),
        lambda world, key: "".join(world.choice((c, c.upper())) for c in key),
    ),
}
"""Types of keys, a function that draws a key, and one that draws another value that equals it."""


@pytest.mark.parametrize("kind", GUISES)
def test_drawn_guises_of_keys_are_one_key_each(db: adb.Database, kind: str) -> None:
    sql_type, draw, disguise = GUISES[kind]
    table = Table("t", db.metadata, Column("k", sql_type, primary_key=True), Column("n", Integer))
    db.create_all()
    model: dict[Any, int] = {}
    worlds = Worlds(20, "guises", kind, inserted=1, updated=1, deleted=1, absent=1)
    for world in worlds:
        with db.transaction() as t:
            for n in range(world.randrange(1, 6)):
                key = draw(world)
                seen = disguise(world, key)
                row = t.get(table, seen) if world.random() < 0.5 else None
                assert row is None or row["n"] == model[key]
                if key not in model:
                    worlds.met["absent"] += 1
                    assert t.get(table, disguise(world, key)) is None
                    if world.random() < 0.5:
                        t.insert(table, {"k": seen, "n": n})
                    else:
                        t.execute(insert(table).values(k=seen, n=n))
                    model[key] = n
                    worlds.met["inserted"] += 1
                elif world.random() < 0.3:
                    t.delete(table, seen)
                    del model[key]
                    worlds.met["deleted"] += 1
                else:
                    row = t.get(table, disguise(world, key))
                    assert row is not None
                    model[key] = row["n"] + 10
                    if world.random() < 0.5:
                        t.update(table, seen, n=row["n"] + 10)
                    else:
                        changed = update(table).where(table.c.k == seen)
                        assert t.execute(changed.values(n=table.c.n + 10)) == 1
                    worlds.met["updated"] += 1
            for key, n in model.items():
                (row,) = t.get_many(table, [disguise(world, key)]).values()
                assert row == {"k": key, "n": n}
        with db.transaction() as t:
            assert {tuple(row) for row in t.query(select(table))} == set(model.items())
            key = draw(world)
            by_key = select(table.c.n).where(table.c.k == disguise(world, key))
            assert t.query(by_key) == ([(model[key],)] if key in model else [])


def test_keys_that_only_python_takes_for_one_are_not_looked_up_together(db: adb.Database) -> None:
    table = Table("t", db.metadata, Column("k", DateTime(timezone=True), primary_key=True))
    db.create_all()
    first, second = (
        (BACK + datetime.timedelta(minutes=30 + after)).astimezone(ZONES[1]) for after in (0, 60)
    )
    assert first == second  # by the clock, which has been set back
    with db.transaction() as t:
        t.insert(table, {"k": second})
        assert t.get(table, first) is None
        with pytest.raises(InvalidRow, match="equal in Python"):
            t.get_many(table, [first, second])


def test_moment_key_is_found_on_a_connection_with_a_time_zone_of_its_own(where: Place) -> None:
    db = where.open()
    table = Table("t", db.metadata, Column("k", DateTime(timezone=True), primary_key=True))
    db.create_all()
    with db.connection() as connection:
        connection.execute(insert(table).values(k=BACK))
        if not where.is_memory:
            connection.execute(text("SET timezone = 'Europe/Berlin'"))
        with db.transaction(connection=connection) as t:
            assert t.get(table, BACK) is not None
            assert None not in t.get_many(table, [BACK]).values()
            with pytest.raises(RowExists):
                t.insert(table, {"k": BACK.astimezone(ZONES[1])})


def test_decorated_key_that_cannot_be_found_again_is_refused(db: adb.Database) -> None:
    table = Table("t", db.metadata, Column("k", Growing(), primary_key=True))
    db.create_all()
    with db.transaction() as t, pytest.raises(InvalidRow, match=r"comes back as 'a\+' and then"):
        t.insert(table, {"k": "a"})
    refused = Table("r", db.metadata, Column("k", Network(), primary_key=True))
    with db.transaction() as t, pytest.raises(DefinitionError, match="use String"):
        t.get(refused, "10.0.0.1")


def test_key_without_a_time_zone_takes_no_instants(db: adb.Database) -> None:
    logs = Table("logs", db.metadata, Column("at", DateTime, primary_key=True))
    db.create_all()
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    with db.transaction() as t:
        with pytest.raises(InvalidRow, match="no time zone"):
            t.get(logs, when)
        assert t.get(logs, when.replace(tzinfo=None)) is None
