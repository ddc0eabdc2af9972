"""Numbers that a statement computes: stored as by plain SQL, in memory as on Postgres."""

from __future__ import annotations

import math
from collections import Counter
from datetime import date
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    REAL,
    BigInteger,
    Boolean,
    Column,
    Date,
    Double,
    Integer,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    bindparam,
    case,
    cast,
    extract,
    func,
    insert,
    literal,
    literal_column,
    null,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import activedb as adb
from activedb.errors import StoreError
from tests.databases import place
from tests.drawing import Worlds, drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.databases import Place


class Doubled(TypeDecorator[int]):
    """A number that is stored as its double."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value * 2

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value // 2


class Cents(TypeDecorator[Decimal]):
    """A price that is stored in cents."""

    impl = Numeric(12, 0)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value * Decimal(100)

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value / Decimal(100)


TARGETS: Mapping[str, Any] = {
    "small": SmallInteger,
    "whole": Integer,
    "big": BigInteger,
    "exact": Numeric(12, 2),
    "hundreds": Numeric(12, -2),
    "free": Numeric,
    "as_float": Numeric(12, 2, asdecimal=False),
    "double": Double,
    "as_decimal": Double(asdecimal=True),
    "single": REAL,
    "own": Doubled,
    "price": Cents,
}
ROWS: list[dict[str, Any]] = [
    {"id": 1, "g": 1, "v": 7, "n": Decimal("1.30"), "f": 0.95, "d": date(2024, 1, 31)},
    {"id": 2, "g": -3, "v": 2**40, "n": Decimal("-2.50"), "f": -2.5, "d": date(2020, 2, 29)},
    {"id": 3, "g": None, "v": None, "n": None, "f": None, "d": None},
    {"id": 4, "g": 5, "v": -1, "n": Decimal("0.05"), "f": 1e-7, "d": date(1999, 12, 31)},
    {"id": 5, "g": 2, "v": 3, "n": Decimal("3.50"), "f": 1.005, "d": date(2001, 1, 1)},
]


def columns() -> list[Column[Any]]:
    """Return what statements compute from, and a column of each type to compute for."""
    return [
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("g", Integer),
        Column("v", BigInteger),
        Column("n", Numeric(10, 2)),
        Column("f", Double),
        Column("d", Date),
        Column("words", Text, server_default="12"),
        Column("yes", Boolean, server_default=text("true")),
        *(Column(each, kind) for each, kind in TARGETS.items()),
    ]


def declared(db: adb.Database) -> tuple[Table, Table]:
    """Declare two tables of all these columns: one for transactions, one for plain SQL.

    Neither is vacuumed meanwhile: then the server would put new rows before older ones in one of
    them, and a sum of doubles depends on their order.
    """
    ours, plain = (
        Table(name, db.metadata, *columns(), postgresql_with={"autovacuum_enabled": "off"})
        for name in ("ours", "plain")
    )
    db.create_all()
    return ours, plain


def expressions(c: Any) -> dict[str, Any]:
    """Return what may be assigned to a column, computed from the columns of a row."""
    return {
        "number": c.g,
        "big": c.v,
        "decimal": c.n,
        "double": c.f,
        "sum": c.g + 1,
        "half": c.g / 2,
        "floor": c.g // 2,
        "times a fraction": c.g * 1.5,
        "decimal times double": c.n * c.f,
        "double times decimal": c.f * c.n,
        "decimal quotient": c.n / 3,
        "double quotient": c.f / 3,
        "single": cast(c.f, REAL),
        "single quotient": cast(c.n, REAL) / cast(3, REAL),
        "year": extract("year", c.d),
        "root": func.sqrt(func.abs(c.g)),
        "decimal root": func.sqrt(func.abs(c.n)),
        "rounded": func.round(c.n * 3),
        "case": case((c.g > 1, c.n + 1), else_=None),
        "nothing": null(),
        "text of nothing": literal_column("NULL"),
        "fraction": literal(2.5),
        "text of a fraction": literal_column("2.345"),
        "text of a double": literal_column("2.5::float8"),
        "not finite": literal_column("'NaN'::float8"),
        "words": c.words,
        "truth": c.yes,
        "date": c.d,
    }


OWN = {"own", "price"}
OF_OWN = {"words", "truth", "date", "fraction"}
"""Expressions of which a user's type makes something of its own, or which it may take."""


AGGREGATES: Mapping[str, Callable[[Any], Any]] = {
    "sum": lambda c: func.sum(c.g),
    "sum of big": lambda c: func.sum(c.v),
    "sum of decimals": lambda c: func.sum(c.n),
    "sum of doubles": lambda c: func.sum(c.f),
    "mean": lambda c: func.avg(c.g),
    "mean of doubles": lambda c: func.avg(c.f),
    "last year": lambda c: func.max(extract("year", c.d)),
    "count": lambda c: func.count(),
    "spread": lambda c: func.stddev(c.n),
    "words": lambda c: func.max(c.words),
}


def stored(db: adb.Database, table: Table, statement: Any, *, is_plain: bool) -> Any:
    """Return the rows that a statement leaves in a table, or that it is refused."""
    with db.connection() as connection:
        connection.execute(table.delete())
        connection.execute(insert(table), ROWS)
        connection.commit()
    try:
        if is_plain:
            with db.connection() as connection:
                connection.execute(statement)
                connection.commit()
        else:
            db.run(lambda t: t.execute(statement))
    except (DBAPIError, StoreError):
        return "refused"
    with db.connection() as connection:
        rows = connection.execute(select(table).order_by(table.c.id))
        return [tuple(map(_written, row)) for row in rows]


def _written(value: Any) -> str:
    # A decimal is sent as NUMERIC, which has no -0: a double that is read as one is stored as 0.
    return repr(abs(value) if isinstance(value, Decimal) and value.is_zero() else value)


def check(db: adb.Database, tables: tuple[Table, Table], made: Callable[[Table], Any]) -> Any:
    """Check that a statement does the same as plain SQL; return the rows that it leaves."""
    ours, plain = tables
    found = stored(db, ours, made(ours), is_plain=False)
    expected = stored(db, plain, made(plain), is_plain=True)
    assert found == expected, str(made(ours))
    return found


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_computed_number_is_stored_as_plain_sql_does(there: Place, target: str) -> None:
    db = there.open()
    tables = declared(db)
    outcomes: Counter[bool] = Counter()
    for name in expressions(tables[0].c):
        if target in OWN and name in OF_OWN:
            continue

        def to_update(table: Table, name: str = name) -> Any:
            return update(table).values({target: expressions(table.c)[name]})

        def to_insert(table: Table, name: str = name) -> Any:
            chosen = select(table.c.id + 10, expressions(table.c)[name], expressions(table.c)[name])
            return insert(table).from_select(["id", target, "f"], chosen.order_by(table.c.id))

        for made in (to_update, to_insert):
            outcomes[check(db, tables, made) == "refused"] += 1
    assert outcomes[False] > outcomes[True] > 0


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_computed_aggregate_is_stored_as_plain_sql_does(there: Place, target: str) -> None:
    db = there.open()
    tables = declared(db)
    for name, aggregate in AGGREGATES.items():
        if target in OWN and name in OF_OWN:
            continue

        def to_update(table: Table, of: Callable[[Any], Any] = aggregate) -> Any:
            return update(table).values({target: select(of(table.alias().c)).scalar_subquery()})

        def to_insert(table: Table, of: Callable[[Any], Any] = aggregate) -> Any:
            found = select(of(table.alias().c)).scalar_subquery()
            return insert(table).values({"id": 20, target: found})

        def to_insert_groups(table: Table, of: Callable[[Any], Any] = aggregate) -> Any:
            chosen = select(table.c.id % 2 + 20, of(table.c)).group_by(table.c.id % 2)
            return insert(table).from_select(["id", target], chosen)

        for made in (to_update, to_insert, to_insert_groups):
            check(db, tables, made)


def drawn_number(world: Random, c: Any, depth: int) -> Any:
    """Return a drawn expression of numbers."""
    if depth == 0 or world.random() < 0.2:
        constants = [literal(world.randrange(-9, 9)), literal(round(world.uniform(-9, 9), 3))]
        return world.choice([c.g, c.v, c.n, c.f, *constants, literal_column("0.05")])
    kinds: list[Any] = [Integer, BigInteger, Numeric(14, 3), Double, REAL]
    left, right = (drawn_number(world, c, depth - 1) for _ in range(2))
    return world.choice(
        [
            left + right,
            left - right,
            left * right,
            left / func.nullif(right, 0),
            func.abs(left),
            func.coalesce(left, right),
            case((left > right, left), else_=right),
            cast(left, world.choice(kinds)),
        ]
    )


@pytest.mark.long
def test_drawn_numbers_are_stored_as_plain_sql_does(there: Place) -> None:
    db = there.open()
    tables = declared(db)
    worlds = Worlds(60, "computed numbers", stored=30, refused=1)
    for world in worlds:
        state, target = world.getrandbits(64), world.choice(sorted(TARGETS.keys() - OWN))
        is_insert = world.random() < 0.5

        def made(
            table: Table,
            state: int = state,
            target: str = target,
            is_insert: bool = is_insert,
        ) -> Any:
            number = drawn_number(Random(state), table.c, 3)
            if not is_insert:
                return update(table).values({target: number})
            return insert(table).from_select(["id", target], select(table.c.id + 10, number))

        worlds.met["refused" if check(db, tables, made) == "refused" else "stored"] += 1


@pytest.mark.parametrize("target", ["exact", "free", "as_float", "double", "as_decimal", "single"])
def test_given_numbers_are_stored_as_plain_sql_does(there: Place, target: str) -> None:
    db = there.open()
    ours, plain = declared(db)
    world = drawn("given numbers", target)
    numbers = [1.30 * 0.95, 0.1 + 0.2, 1e9 + 0.345, 2.675, -1e-9, 123456789.125, 7]
    numbers += [world.uniform(-1, 1) * 10 ** world.randrange(-6, 9) for _ in range(50)]
    records = [{"id": number, target: value} for number, value in enumerate(numbers)]
    with db.connection() as connection:
        connection.execute(insert(plain), records)
        connection.commit()
    with db.transaction() as t:
        for record in records:
            t.insert(ours, record)
    with db.connection() as connection:
        found, expected = (
            connection.execute(select(each.c[target]).order_by(each.c.id)).scalars().all()
            for each in (ours, plain)
        )
    assert list(map(repr, found)) == list(map(repr, expected))


ALIKE = {
    "number",
    "decimal",
    "double",
    "sum",
    "half",
    "times a fraction",
    "decimal times double",
    "decimal quotient",
    "double quotient",
    "year",
    "root",
    "case",
    "nothing",
    "fraction",
    "date",
}
"""Expressions that mean the same to SQLite, where numbers with a fraction are doubles."""


@pytest.mark.long
@pytest.mark.parametrize(
    "target", ["small", "whole", "big", "exact", "free", "double", "own", "price"]
)
def test_computed_number_in_memory_is_that_of_postgres(there: Place, target: str) -> None:
    with place(None) as memory:
        databases = [memory.open(), there.open()]
        tables = [declared(db)[0] for db in databases]
        for name in sorted(ALIKE):
            statements = [
                update(each).values({target: expressions(each.c)[name]}) for each in tables
            ]
            found = [
                stored(db, each, statement, is_plain=False)
                for db, each, statement in zip(databases, tables, statements, strict=True)
            ]
            if target in OWN and name in OF_OWN:
                continue
            if "refused" in found:
                assert found[0] == found[1], name
                continue
            place_of = list(tables[0].c.keys()).index(target)
            for mine, theirs in zip(*found, strict=True):
                assert close(mine[place_of], theirs[place_of]), (name, mine, theirs)


def close(a: str, b: str) -> bool:
    """Return whether two numbers are equal but for the precision of doubles."""
    x, y = (eval(each, {"Decimal": Decimal}) for each in (a, b))
    if x is None or y is None or isinstance(x, int):
        return bool(x == y)
    return math.isclose(float(x), float(y), abs_tol=1e-9)  # SQLAlchemy reads ten digits


def statements(table: Table) -> dict[str, tuple[Any, str, list[Any]]]:
    """Return statements, with a column that each of them writes, and its values afterwards."""
    c, rows = table.c, insert(table)
    half = c.g * literal_column("0.5")
    total = select(func.sum(table.alias().c.id)).scalar_subquery()
    labelled = select((c.id + 10).label("key"), half.label("half")).where(c.g > 0)
    united = union_all(
        select(c.id + 10, c.g).where(c.id == 1), select(c.id + 20, half).where(c.id < 4)
    )
    texts = {
        name: text(f"SELECT id + 10, {value} FROM ours WHERE g > 0").columns(c.id, c.whole)
        for name, value in (("text", "g * 0.5"), ("text of nothing", "NULL"))
    }
    none = [None] * len(ROWS)
    return {
        "sum": (update(table).values(big=total), "big", [15] * 5),
        "decimals": (update(table).values(big=half), "big", [1, -2, None, 3, 1]),
        "doubles": (update(table).values(small=c.f), "small", [1, -2, None, 0, 1]),
        "product": (update(table).values(exact=c.n * c.f), "exact", [1.24, 6.25, None, 0, 3.52]),
        "given": (update(table).values(exact=1.3 * 0.95), "exact", [1.24] * 5),
        "cell": (rows.values(id=9, big=total), "big", [*none, 15]),
        "labels": (rows.from_select(["id", "exact"], labelled), "exact", [*none, 0.5, 2.5, 1]),
        "distinct": (
            rows.from_select(["id", "whole"], labelled.distinct().order_by("half")),
            "whole",
            [*none, 1, 3, 1],
        ),
        "groups": (
            rows.from_select(["id", "big"], labelled.group_by(c.id, c.g).order_by(half)),
            "big",
            [*none, 1, 3, 1],
        ),
        "decimal to double": (
            rows.from_select(["id", "double", "exact"], select(c.id + 10, c.n, c.f)),
            "double",
            [*none, 1.3, -2.5, None, 0.05, 3.5],
        ),
        "union": (rows.from_select(["id", "whole"], united), "whole", [*none, 1, 1, -2, None]),
        "text": (rows.from_select(["id", "whole"], texts["text"]), "whole", [*none, 1, 3, 1]),
        "text of nothing": (
            rows.from_select(["id", "whole"], texts["text of nothing"]),
            "whole",
            [None] * 8,
        ),
    }


STATEMENTS = list(statements(Table("ours", MetaData(), *columns())))


@pytest.mark.parametrize("name", STATEMENTS)
def test_computed_number_is_converted_to_the_type_of_its_column(
    db: adb.Database, name: str
) -> None:
    ours, _ = declared(db)
    statement, target, expected = statements(ours)[name]
    rows = stored(db, ours, statement, is_plain=False)
    place_of = list(ours.c.keys()).index(target)
    found = [eval(row[place_of], {"Decimal": Decimal}) for row in rows]
    assert [None if each is None else float(each) for each in found] == expected


def test_parameter_of_a_statement_is_converted_to_the_type_of_its_column(db: adb.Database) -> None:
    ours, _ = declared(db)
    with db.transaction() as t:
        t.insert(ours, {"id": 1})
        statement = update(ours).values(exact=bindparam("x"), whole=bindparam("y"))
        t.execute(statement, {"x": 1.3 * 0.95, "y": 7})
        row = t.get(ours, 1)
    assert row is not None
    assert (row["exact"], row["whole"]) == (Decimal("1.24"), 7)


def test_number_that_a_rule_computes_is_converted_to_the_type_of_its_column(
    db: adb.Database,
) -> None:
    ours, plain = declared(db)
    db.rules.load_text(
        """CREATE RULE convert ON made BEGIN
             UPDATE ours SET whole = g * 0.5, exact = n * f WHERE id = 1;
             INSERT INTO plain (id, big, double)
             SELECT id, sum(g) * 1.5, n FROM ours GROUP BY id, n;
           END"""
    )
    with db.transaction() as t:
        t.insert(ours, {"id": 1, "g": 5, "n": Decimal("1.30"), "f": 0.95})
    db.signal("made")
    with db.transaction() as t:
        row, other = t.get(ours, 1), t.get(plain, 1)
    assert row is not None
    assert other is not None
    assert (row["whole"], row["exact"]) == (3, Decimal("1.24"))
    assert (other["big"], other["double"]) == (8, 1.3)


def test_attribute_of_a_mapped_class_is_converted_to_the_type_of_its_column(
    db: adb.Database,
) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Line(Base):
        __tablename__ = "lines"
        id: Mapped[int] = mapped_column(primary_key=True)
        n: Mapped[Decimal] = mapped_column(Numeric(8, 2))
        f: Mapped[float]

    db.create_all()
    with db.transaction() as t:
        t.insert(Line, {"id": 1, "n": Decimal("1.30"), "f": 0.95})
        t.execute(insert(Line).from_select(["id", "n", "f"], select(Line.id + 1, Line.f, Line.n)))
        t.execute(update(Line).where(Line.id == 1).values(n=Line.n * Line.f))
        assert t.query(select(Line.n, Line.f).order_by(Line.id)) == [
            (Decimal("1.24"), 0.95),
            (Decimal("0.95"), 1.3),
        ]
