"""Any value in any column, by every call that takes values: it is taken, or the error says why."""

from __future__ import annotations

import datetime
import enum
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Table,
    Time,
    Uuid,
    delete,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import ArgumentError

from activedb.errors import ActiveDBError, InvalidRow
from activedb.store.flush._bulk import UNNEST_ROWS_MIN
from tests.drawing import drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import activedb as adb
    from tests.databases import Place


# Memory asks sqlite3 to convert dates in text queries, which newer Pythons warn of.
pytestmark = pytest.mark.filterwarnings("ignore:The default (date|datetime) adapter")


class Colour(enum.Enum):
    RED = "red"


class Closed:
    """Value that no driver knows, and that cannot be copied, compared or hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __deepcopy__(self, memo: object) -> Closed:
        raise RuntimeError("not to be copied")


KINDS: dict[str, Any] = {
    "integer": Integer(),
    "small": SmallInteger(),
    "big": BigInteger(),
    "boolean": Boolean(),
    "float": Float(),
    "double": Double(),
    "numeric": Numeric(),
    "scaled": Numeric(8, 2),
    "numeric_as_float": Numeric(8, 2, asdecimal=False),
    "string": String(),
    "short": String(3),
    "date": Date(),
    "time": DateTime(),
    "instant": DateTime(timezone=True),
    "of_day": Time(),
    "interval": Interval(),
    "binary": LargeBinary(),
    "uuid": Uuid(),
    "uuid_as_text": Uuid(as_uuid=False),
    "json": JSON(),
    "enum": Enum(Colour),
    "enum_of_text": Enum("a", "b", name="letters"),
    "array": ARRAY(Integer),
}
"""Types of columns."""

NO_KEYS = {"json", "array", "numeric_as_float"}

VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    -1,
    2**15,
    2**31,
    2**63,
    2**70,
    10**400,
    0.5,
    1e300,
    float("nan"),
    float("inf"),
    float("-inf"),
    Decimal("0.5"),
    Decimal("1e999999"),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    "",
    "a",
    "12",
    "\0",
    "\ud800",
    "x" * 5_000,
    b"",
    b"\0\xff",
    bytearray(b"a"),
    memoryview(b"a"),
    datetime.date.min,
    datetime.date.max,
    datetime.datetime.min,
    datetime.datetime.max,
    datetime.datetime.min.replace(tzinfo=datetime.UTC),
    datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14))),
    datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-14))),
    datetime.time.min,
    datetime.time(1, tzinfo=datetime.UTC),
    datetime.timedelta.min,
    datetime.timedelta.max,
    datetime.timedelta(1),
    uuid.UUID(int=0),
    "00000000-0000-0000-0000-000000000000",
    Colour.RED,
    "RED",
    (),
    (1, 2),
    [],
    [1, None],
    ["a"],
    {},
    {"a": Decimal(1)},
    {1: {2}},
    {1, 2},
    object(),
    Closed(),
    print,
    iter(()),
    1j,
    text("now()"),
    select(1).scalar_subquery(),
)


def uses(table: Table, keyed: Table, value: Any) -> dict[str, Callable[[adb.Transaction], object]]:
    """Return all calls that take a value for a column, as a key, or to compare with."""
    many = [{"id": 10 + n, "v": None if n else value} for n in range(UNNEST_ROWS_MIN)]
    by_text = {"v": value}
    return {
        "insert": lambda t: t.insert(table, {"id": 2, "v": value}),
        "insert many": lambda t: [t.insert(table, row) for row in many],
        "insert by statement": lambda t: t.execute(insert(table).values(id=2, v=value)),
        "update": lambda t: t.update(table, 1, v=value),
        "update twice": lambda t: [t.update(table, 1, v=value) for _ in range(2)],
        "update by statement": lambda t: t.execute(update(table).values(v=value)),
        "update and query": lambda t: [t.update(table, 1, v=value), t.query(select(table))],
        "update where": lambda t: t.execute(update(table).where(table.c.v == value).values(v=None)),
        "delete where": lambda t: t.execute(delete(table).where(table.c.v == value)),
        "query": lambda t: t.query(select(table).where(table.c.v == value)),
        "query in": lambda t: t.query(select(table).where(table.c.v.in_([value]))),
        "query above": lambda t: t.query(select(table).where(table.c.v > value)),
        "query by text": lambda t: t.query(text("SELECT id FROM things WHERE v = :v"), by_text),
        "key insert": lambda t: t.insert(keyed, {"k": value, "n": 1}),
        "key insert and get": lambda t: [
            t.insert(keyed, {"k": value, "n": 1}),
            t.get(keyed, value),
        ],
        "key get": lambda t: t.get(keyed, value),
        "key get many": lambda t: t.get_many(keyed, [value]),
        "key update": lambda t: t.update(keyed, value, n=1),
        "key delete": lambda t: t.delete(keyed, value),
        "key query": lambda t: t.query(select(keyed).where(keyed.c.k == value)),
        "key query in": lambda t: t.query(select(keyed).where(keyed.c.k.in_([value]))),
        "key query by text": lambda t: t.query(text("SELECT n FROM keyed WHERE k = :v"), by_text),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_some_value_is_taken_or_refused_and_what_is_taken_is_kept(where: Place, kind: str) -> None:
    check_values(where, kind, drawn("values", kind).sample(VALUES, 6))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_any_value_is_taken_or_refused_and_what_is_taken_is_kept(where: Place, kind: str) -> None:
    assert any(value is not None for value in check_values(where, kind, VALUES))


def check_values(where: Place, kind: str, values: Sequence[Any]) -> list[Any]:
    """Check all calls with these values; return those that the column has kept."""
    if kind == "array" and where.is_memory:
        pytest.skip("memory has no arrays")
    db = where.open()
    things = Table(
        "things", db.metadata, Column("id", Integer, primary_key=True), Column("v", KINDS[kind])
    )
    of_key = String() if kind in NO_KEYS else KINDS[kind]
    keyed = Table(
        "keyed",
        db.metadata,
        Column("k", of_key, primary_key=True, autoincrement=False),
        Column("n", Integer),
    )
    db.create_all()
    wrong: list[tuple[str, Any, object]] = []
    taken = []

    def clean(t: adb.Transaction) -> None:
        for table in (things, keyed):
            t.query(select(table))
            t.execute(delete(table))
        t.insert(things, {"id": 1})

    def kept(t: adb.Transaction) -> Any:
        row = t.get(things, 1)
        assert row is not None
        return row["v"]

    for value in values:
        db.run(clean)
        for name, call in uses(things, keyed, value).items():
            if (error := refused(db, call)) is not None:
                wrong.append((name, value, error))
        db.run(clean)  # the tables can be read and written, whatever they were given
        try:
            with db.transaction() as t:
                t.update(things, 1, v=value)
                seen = [kept(t)]
                if kind != "json":  # queries ask Postgres, which has other forms of numbers in it
                    seen += [row.v for row in t.query(select(things.c.v))]
            with db.transaction() as t:
                seen.append(kept(t))
        except InvalidRow:
            continue
        if not all(is_same(seen[0], other, as_double=where.is_memory) for other in seen):
            wrong.append(("kept", value, seen))
        taken.append(value)
    assert not wrong
    return taken


def refused(db: adb.Database, call: Callable[[adb.Transaction], object]) -> Exception | None:
    """Run a call in a transaction of its own; return an error that is none of ours."""
    try:
        db.run(call)
    except (ActiveDBError, ArgumentError):  # SQLAlchemy builds no such statement
        return None
    except Exception as error:
        return error
    return None


def is_same(a: Any, b: Any, *, as_double: bool) -> bool:
    if as_double and isinstance(a, int | float | Decimal) and isinstance(b, float | Decimal):
        a, b = float(str(a)), float(b)  # SQLite's numbers are doubles
    return bool(a == b or (a != a and b != b))
