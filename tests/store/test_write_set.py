"""Write sets of every size: the same rows as from plain statements, whichever way they go."""

from __future__ import annotations

import datetime
import enum
import tempfile
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import (
    ARRAY,
    CHAR,
    JSON,
    REAL,
    BigInteger,
    Boolean,
    Column,
    Computed,
    Date,
    DateTime,
    Dialect,
    Enum,
    Float,
    ForeignKey,
    Identity,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Table,
    Text,
    Time,
    TypeDecorator,
    Uuid,
    func,
    insert,
    text,
)
from sqlalchemy.dialects.postgresql import DOMAIN, INET, JSONB
from sqlalchemy.types import UserDefinedType

from activedb.errors import InvalidRow, SerializationConflict, UniqueViolation
from activedb.store.flush import Change, _bulk
from activedb.store.flush._write_set import write
from activedb.store.session import Store
from activedb.store.sql import Row, Tables
from tests.store.flushing import WriteSet, insert_rows, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MANY = 200
FEW = 7


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return which calls tried to write in bulk, and whether they did."""
    seen: list[tuple[str, bool]] = []
    for name in ("copy_rows", "update_rows", "delete_rows"):
        inner = getattr(_bulk, name)

        def call(*args: Any, inner: Any = inner, name: str = name) -> bool:
            done: bool = inner(*args)
            seen.append((name, done))
            return done

        monkeypatch.setattr(_bulk, name, call)
    return seen


# -- every type ----------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    DARK_BLUE = "dark blue"


class Celsius(TypeDecorator[float]):
    """Kept in tenths of a degree."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> int | None:
        return None if value is None else round(value * 10)

    def process_result_value(self, value: int | None, dialect: Dialect) -> float | None:
        return None if value is None else value / 10


class Point(UserDefinedType[tuple[float, float]]):
    """A type of the server that SQLAlchemy does not know."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "POINT"

    def bind_processor(self, dialect: Dialect) -> Any:
        return lambda value: None if value is None else f"({value[0]},{value[1]})"


class Upper(UserDefinedType[str]):
    """A type whose values are wrapped in SQL."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "VARCHAR(20)"

    def bind_expression(self, bindvalue: Any) -> Any:
        return func.upper(bindvalue)


AWARE = datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
ELSEWHERE = datetime.datetime(
    1, 1, 2, 3, 4, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=5, minutes=30))
)
NAIVE = datetime.datetime(9999, 12, 31, 23, 59, 59, 1)

COPIED = "copy_rows"
SINGLY = None
EVERYWHERE: dict[str, tuple[Any, list[Any], str | None]] = {
    "smallint": (SmallInteger, [0, -(2**15), 2**15 - 1, None], COPIED),
    "integer": (Integer, [0, -(2**31), 2**31 - 1, None], COPIED),
    "bigint": (BigInteger, [0, -(2**63), 2**63 - 1, None], COPIED),
    "float": (Float, [0.1, -1e300, 5e-324, 1e22, None], COPIED),
    "real": (REAL, [0.1, 3.4028234e38, 1.17e-38, 16777217.0, 1.0000000596046448, None], COPIED),
    "numeric": (Numeric(12, 3), [Decimal("1.250"), Decimal("-0.001"), Decimal(0), None], COPIED),
    "numeric_as_float": (Numeric(12, 3, asdecimal=False), [0.1, 2.5, None], SINGLY),
    "string": (String(30), ["", "it's\t\n\\N \\. \\", "ü€😀", "%(x)s %s :y", "\\", None], COPIED),
    "text": (Text, ["x" * 100_000, "\r\n", "NULL", None], COPIED),
    "boolean": (Boolean, [True, False, None], COPIED),
    "json": (JSON, [{"a": [1, None, {"b": "ü\\n"}]}, [1, 2], "text", 5, True, {}, None], COPIED),
    "json_or_null": (JSON(none_as_null=True), [{"a": 1}, [], None], COPIED),
    "instant": (DateTime(timezone=True), [AWARE, ELSEWHERE, None], COPIED),
    "datetime": (DateTime, [NAIVE, datetime.datetime(1, 1, 1), None], COPIED),
    "date": (Date, [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None], COPIED),
    "time": (Time, [datetime.time(0), datetime.time(23, 59, 59, 999_999), None], COPIED),
    "bytes": (LargeBinary, [b"", b"\0\xff\\x", None], COPIED),
    "uuid": (Uuid, [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), None], COPIED),
    "uuid_as_text": (Uuid(as_uuid=False), [str(uuid.UUID(int=7)), None], COPIED),
    "interval": (
        Interval,
        [datetime.timedelta(0), datetime.timedelta(-3, 4, 5), datetime.timedelta(9_999, 1), None],
        COPIED,
    ),
    "enum": (Enum(Colour, name="colour"), [Colour.RED, Colour.DARK_BLUE, None], COPIED),
    "enum_as_text": (Enum(Colour, native_enum=False), [Colour.RED, None], COPIED),
    "decorated": (Celsius, [36.6, -0.1, None], COPIED),
}
ON_SERVER: dict[str, tuple[Any, list[Any], str | None]] = {
    "not_a_number": (Float, [float("inf"), float("-inf"), float("nan")], COPIED),
    "numeric_long": (Numeric, [Decimal("1e-20"), Decimal("123456789012345678901.5")], COPIED),
    "numeric_special": (Numeric, [Decimal("NaN"), Decimal("0.00"), Decimal("1E+3")], COPIED),
    "real_too_large_for_it": (REAL, [float("inf"), 1.5], COPIED),
    "char": (CHAR(5), ["a", "abcde", None], COPIED),
    "jsonb": (JSONB, [{"b": 1, "a": [1.50, None]}, "x", None], COPIED),
    "integers": (ARRAY(Integer), [[1, None, 2**31 - 1], [], [[1, 2], [3, 4]], None], COPIED),
    "texts": (ARRAY(Text), [["a,b", 'c"d', "", "NULL", "\\", None, " x "], None], COPIED),
    "doubles": (ARRAY(Float), [[0.1, 1e300], None], COPIED),
    "numerics_of_floats": (ARRAY(Numeric), [[0.1, 1 / 3], None], SINGLY),
    "instants": (ARRAY(DateTime(timezone=True)), [[AWARE], None], COPIED),
    "instants_without_zone": (ARRAY(DateTime), [[AWARE], None], SINGLY),
    "enums": (ARRAY(Enum("x", "y z", name="letters")), [["x", "y z"], None], SINGLY),
    "address": (INET, ["10.0.0.1/8", "::1", None], COPIED),
    "point": (Point, [(1.5, -2), None], COPIED),
    "wrapped": (Upper, ["abc", None], SINGLY),
    "domain": (DOMAIN("positive", Integer, check="VALUE > 0"), [1, 5, None], SINGLY),
    "reals": (ARRAY(REAL), [[0.1], None], SINGLY),
}


def stored(store: Store, table: Table) -> list[Any]:
    """Return what is stored, as the database itself writes it down."""
    with store.short() as connection:
        name = connection.dialect.identifier_preparer.format_table(table)
        shown = "v::text, pg_typeof(v)::text" if store.is_shared else "v, typeof(v)"
        return list(connection.exec_driver_sql(f"SELECT id, {shown} FROM {name} ORDER BY id").all())


def check_values(
    store: Store,
    sql_type: Any,
    values: list[Any],
    count: int,
    ways: list[tuple[str, bool]],
    way: str | None,
) -> None:
    """Flushed rows, new ones and changed ones, equal those that SQLAlchemy inserts singly."""
    flushed, plain = (
        Table(
            f"values_{name}",
            store.metadata,
            Column("id", Integer, primary_key=True),
            Column("v", sql_type),
        )
        for name in ("flushed", "plain")
    )
    store.create_all()
    cells = [values[number % len(values)] for number in range(count)]
    insert_rows(store, flushed, ({"id": n, "v": v} for n, v in enumerate(cells)))
    with store.short() as connection:
        for number, value in enumerate(cells):
            connection.execute(insert(plain), {"id": number, "v": value})
    assert stored(store, flushed) == stored(store, plain)

    turned = [*cells[1:], cells[0]]
    change = WriteSet(store)
    for number, (old, new) in enumerate(zip(cells, turned, strict=True)):
        change.update(flushed, {"id": number, "v": old}, v=new)
    change.commit()
    with store.short() as connection:
        connection.execute(plain.delete())
        for number, value in enumerate(turned):
            connection.execute(insert(plain), {"id": number, "v": value})
    assert stored(store, flushed) == stored(store, plain)
    if store.is_shared:
        expected = {(way or "copy_rows", way is not None)} if count >= MANY else set()
        assert {(name, done) for name, done in ways if name == "copy_rows"} == expected


@pytest.mark.parametrize("count", [1, FEW, MANY])
@pytest.mark.parametrize("kind", EVERYWHERE)
def test_values_arrive_as_by_single_inserts(
    store: Store, ways: list[tuple[str, bool]], kind: str, count: int
) -> None:
    check_values(store, *EVERYWHERE[kind][:2], count, ways, EVERYWHERE[kind][2])


@pytest.mark.parametrize("count", [1, FEW, MANY])
@pytest.mark.parametrize("kind", ON_SERVER)
def test_values_of_server_types_arrive_as_by_single_inserts(
    server: Store, ways: list[tuple[str, bool]], kind: str, count: int
) -> None:
    check_values(server, *ON_SERVER[kind][:2], count, ways, ON_SERVER[kind][2])


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40, 2**70])
def test_number_too_large_for_the_column_is_refused_however_many_rows(
    server: Store, value: int
) -> None:
    numbers = Table(
        "numbers",
        server.metadata,
        Column("id", Integer, primary_key=True),
        Column("n", Integer),
    )
    server.create_all()
    for count in (FEW, MANY):
        rows = [{"id": n, "n": 0} for n in range(count)]
        rows[-1]["n"] = value
        with pytest.raises(InvalidRow, match="numbers"):
            insert_rows(server, numbers, rows)
    assert rows_of(server, numbers) == []


# -- tables --------------------------------------------------------------------------------------


def test_names_that_need_quotes_are_written_in_bulk(
    server: Store, ways: list[tuple[str, bool]]
) -> None:
    odd = Table(
        'Odd "%s" {x} table',
        server.metadata,
        Column('key %(a)s "', Integer, primary_key=True),
        Column("Second:Key", String(20), primary_key=True),
        Column("{value} 50%", Integer),
    )
    server.create_all()
    names = [str(column.name) for column in odd.columns]
    rows = [dict(zip(names, (n, f"k{n}", n), strict=True)) for n in range(MANY)]
    insert_rows(server, odd, rows)
    assert rows_of(server, odd) == rows
    steps = WriteSet(server)
    for row in rows[: MANY // 2]:
        steps.update(odd, row, **{names[2]: -1})
    for row in rows[MANY // 2 :]:
        steps.delete(odd, row)
    steps.commit()
    assert rows_of(server, odd) == [{**row, names[2]: -1} for row in rows[: MANY // 2]]
    assert ways == [("copy_rows", True), ("delete_rows", True), ("update_rows", True)]


def test_table_in_another_schema_is_written_in_bulk(
    server: Store, ways: list[tuple[str, bool]]
) -> None:
    with server.short() as connection:
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS elsewhere"))
    far = Table(
        f"far_{uuid.uuid4().hex}",
        server.metadata,
        Column("id", Integer, primary_key=True),
        schema="elsewhere",
    )
    server.create_all()
    insert_rows(server, far, ({"id": n} for n in range(MANY)))
    assert len(rows_of(server, far)) == MANY
    assert ways == [("copy_rows", True)]


@pytest.mark.parametrize("count", [1, FEW, MANY])
def test_computed_columns_are_left_to_the_database(store: Store, count: int) -> None:
    boxes = Table(
        "boxes",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("side", Integer, nullable=False),
        Column("area", Integer, Computed("side * side"), nullable=False),
    )
    store.create_all()
    insert_rows(store, boxes, ({"id": n, "side": n} for n in range(count)))
    steps = WriteSet(store)
    for row in rows_of(store, boxes):
        steps.update(boxes, row, side=row["side"] + 1)
    steps.commit()
    assert [row["area"] for row in rows_of(store, boxes)] == [(n + 1) ** 2 for n in range(count)]
    with pytest.raises(InvalidRow, match="computes column area"):
        WriteSet(store).insert(boxes, {"id": -1, "side": 1, "area": 1})


@pytest.mark.parametrize("count", [1, FEW, MANY])
def test_numbers_that_are_always_generated_are_kept(store: Store, count: int) -> None:
    tickets = Table(
        "tickets",
        store.metadata,
        Column("id", Integer, Identity(always=True), primary_key=True),
        Column("what", String(20)),
    )
    store.create_all()
    rows = [{"id": 100 + n, "what": f"t{n}"} for n in range(count)]
    insert_rows(store, tickets, rows)
    assert rows_of(store, tickets) == rows


@pytest.mark.parametrize("refusal", ["rule", "row security", "view"])
def test_table_that_copy_does_not_write_as_an_insert_does_is_written_singly(
    server: Store, ways: list[tuple[str, bool]], refusal: str
) -> None:
    seen = Table("seen", server.metadata, Column("id", Integer, primary_key=True))
    server.create_all()
    with server.short() as connection:
        if refusal == "rule":
            connection.execute(
                text(
                    "CREATE RULE small AS ON INSERT TO seen WHERE NEW.id >= 100 DO INSTEAD NOTHING"
                )
            )
        elif refusal == "row security":
            connection.execute(text("ALTER TABLE seen ENABLE ROW LEVEL SECURITY"))
        else:
            connection.execute(text("ALTER TABLE seen RENAME TO beneath"))
            connection.execute(text("CREATE VIEW seen AS SELECT * FROM beneath"))
    insert_rows(server, seen, ({"id": n} for n in range(MANY)))
    assert len(rows_of(server, seen)) == (100 if refusal == "rule" else MANY)
    assert ways == [("copy_rows", False)]


def test_key_that_another_process_inserted_is_a_conflict_however_many_rows(server: Store) -> None:
    things = Table("things", server.metadata, Column("id", Integer, primary_key=True))
    server.create_all()
    insert_rows(server, things, [{"id": FEW - 1}])
    for count in (FEW, MANY):
        with pytest.raises(SerializationConflict, match="retry") as caught:
            insert_rows(server, things, ({"id": n} for n in range(count)))
        assert isinstance(caught.value.__cause__, UniqueViolation)
        assert caught.value.__cause__.key == {"id": FEW - 1}
    assert rows_of(server, things) == [{"id": FEW - 1}]


# -- order ---------------------------------------------------------------------------------------


def family(store: Store) -> tuple[Table, Table]:
    parents = Table("z_parents", store.metadata, Column("id", Integer, primary_key=True))
    children = Table(
        "a_children",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("parent", ForeignKey("z_parents.id")),
    )
    store.create_all()
    return parents, children


@pytest.mark.parametrize("count", [1, MANY])
def test_inside_flush_is_reached_when_one_table_is_written_and_the_others_are_not(
    store: Store, count: int
) -> None:
    parents, children = family(store)
    points: list[str] = []

    class Stopped(Exception):
        pass

    def stop(point: str) -> None:
        points.append(point)
        if point == "inside flush":
            raise Stopped

    steps = WriteSet(store)
    for number in range(count):
        steps.insert(parents, {"id": number})
        steps.insert(children, {"id": number, "parent": number})
    session = store.session()
    store.trigger = stop
    with pytest.raises(Stopped):
        session.flush(steps.changes, steps.log)
    assert points == ["before flush", "inside flush"]
    session.close()
    store.trigger = lambda point: None
    assert rows_of(store, parents) == rows_of(store, children) == []
    store.trigger = points.append
    points.clear()
    steps.commit()
    assert points == ["before flush", "inside flush", "before commit", "after commit"]
    assert len(rows_of(store, parents)) == len(rows_of(store, children)) == count


def test_steps_are_written_after_several_refused_sets_on_one_connection(server: Store) -> None:
    """The driver must not take for prepared what the server has skipped after a failure."""
    tree = Table(
        "tree",
        server.metadata,
        Column("id", Integer, primary_key=True),
        Column("above", ForeignKey("tree.id")),
    )
    server.create_all()
    for number in range(0, 40, 2):
        steps = WriteSet(server)
        steps.insert(tree, {"id": number + 1, "above": None})
        steps.insert(tree, {"id": number, "above": number + 1})
        steps.commit()
    assert len(rows_of(server, tree)) == 40


def round_trips(driver: psycopg.Connection[Any], work: Callable[[], object]) -> int:
    """Return how often the server says, while `work` is done, that it waits for more."""
    with tempfile.TemporaryFile() as wire:
        driver.pgconn.trace(wire.fileno())
        work()
        driver.pgconn.untrace()
        wire.seek(0)
        return wire.read().count(b"ReadyForQuery")


def test_few_rows_are_one_round_trip(server: Store) -> None:
    _, children = family(server)
    session = server.session()
    with session.reading("look") as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)

        spec = Tables().spec(children)
        rows = [spec.complete({"id": n, "parent": None}) for n in range(9)]

        def sent(old: Sequence[Row | None], new: Sequence[Row | None]) -> int:
            pairs = zip(old, new, strict=True)
            changes = [Change(spec, spec.key_of(a or b or {}), a, b) for a, b in pairs]
            return round_trips(driver, lambda: write(connection, changes, server.metadata))

        sent([None], [rows[0]])
        sent([rows[0]], [None])  # both statements are prepared now
        assert sent([None], [rows[1]]) == 1
        assert sent([rows[1]], [None]) == 1
        assert sent([None] * 3, rows[2:5]) == 1
        assert sent(rows[2:5], [None] * 3) == 1
        assert sent([rows[1]], [rows[1]]) == 0
    session.close()
