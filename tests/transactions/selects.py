"""Random SELECTs over three tables, for comparison with the same SELECT on plain tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    case,
    exists,
    func,
    intersect,
    literal,
    not_,
    or_,
    select,
    union,
    union_all,
)

if TYPE_CHECKING:
    import random

__all__ = ["Selects", "tables"]

LETTERS = ["", "a", "b", "A", "it's", "50%", "x:y", "ü"]


def tables(metadata: MetaData, schema: str | None) -> tuple[Table, Table, Table]:
    """Declare the tables; the third with its schema written out."""
    return (
        Table(
            "a",
            metadata,
            Column("id", Integer, primary_key=True),
            Column("n", Integer),
            Column("s", String(10)),
        ),
        Table(
            "Odd b",
            metadata,
            Column("x", Integer, primary_key=True),
            Column("y", String(5), primary_key=True),
            Column("n", Integer),
        ),
        Table(
            "c",
            metadata,
            Column("id", Integer, primary_key=True),
            Column("n", Integer),
            schema=schema,
        ),
    )


class Selects:
    """Writer of random statements."""

    def __init__(self, chance: random.Random, declared: tuple[Table, ...], *, is_sqlite: bool):
        self._chance = chance
        self._tables = declared
        self._is_sqlite = is_sqlite
        self._names = 0

    def draw(self) -> Any:
        """Draw a SELECT whose rows do not depend on chance; their order may."""
        chance = self._chance
        kind = chance.choice(["rows", "rows", "groups", "groups", "total", "set", "window", "top"])
        if kind == "set":
            operation = chance.choice([union, union_all, intersect])
            return operation(self._integers(), self._integers())
        source, columns = self._source(2)
        columns = self._some(columns)
        statement = select(*columns).select_from(source).where(self._condition(columns, 2))
        if kind == "groups":
            key = chance.choice(columns)
            counted = [func.count(), func.sum(self._integer(columns)), func.max(key)]
            statement = statement.with_only_columns(key, *counted, maintain_column_froms=True)
            statement = statement.group_by(key)
            if chance.random() < 0.4:
                statement = statement.having(func.count() > 1)
        elif kind == "total":
            number = self._integer(columns)
            totals = func.count(), func.sum(number), func.count(number.distinct())
            statement = statement.with_only_columns(*totals, maintain_column_froms=True)
        elif kind == "window":
            rank = func.sum(self._integer(columns)).over(partition_by=chance.choice(columns))
            statement = statement.add_columns(rank)
        elif kind == "top":
            statement = statement.order_by(*columns).limit(chance.randint(1, 4))
        elif chance.random() < 0.3:
            statement = statement.distinct()
        return statement

    def _source(self, depth: int) -> tuple[Any, list[Any]]:
        """Draw something to select from; returns its columns as well."""
        chance = self._chance
        table = chance.choice(self._tables)
        kind = chance.choice(["table", "alias", "alias", "subquery", "cte", "join", "join"])
        if kind == "table" and depth == 2:
            return table, list(table.c)
        if kind in ("table", "alias") or depth == 0:
            alias = table.alias(self._name())
            return alias, list(alias.c)
        source, columns = self._source(depth - 1)
        if kind == "join":
            right, others = self._source(0)
            joined: Any = self._integer(columns) == self._integer(others)
            if not self._is_sqlite and chance.random() < 0.3:
                right = select(right).where(joined).correlate(source).lateral(self._name())
                others, joined = list(right.c), literal(value=True)
            join = source.join(right, joined, isouter=chance.random() < 0.4)
            return join, [*columns, *others]
        inner = select(*(c.label(f"c{i}") for i, c in enumerate(columns))).select_from(source)
        inner = inner.where(self._condition(columns, 1))
        if kind == "subquery":
            found: Any = inner.subquery(self._name())
        else:
            # A table has this name, too, but only with its schema before it.
            name = chance.choice(["c", self._name()]) if depth == 2 else self._name()
            found = inner.cte(name)
        return found, list(found.c)

    def _some(self, columns: list[Any]) -> list[Any]:
        return self._chance.sample(columns, self._chance.randint(1, len(columns)))

    def _condition(self, columns: list[Any], depth: int) -> Any:
        chance = self._chance
        column = chance.choice(columns)
        kind = chance.choice(["is", "null", "true", "in", "exists", "and", "or", "not", "case"])
        if depth == 0 or kind == "is":
            return self._comparison(column)
        if kind == "null":
            return column.is_(None)
        if kind == "true":
            return literal(1) == literal(1)
        if kind == "in":
            return self._integer(columns).in_(self._integers())
        if kind == "exists":
            other = chance.choice(self._tables).alias(self._name())
            return exists().where(self._integer(other.c) == self._integer(columns))
        if kind == "not":
            return not_(func.coalesce(self._condition(columns, depth - 1), literal(value=False)))
        if kind == "case":
            return case((column.is_(None), 1), else_=2) == chance.randint(1, 2)
        both = and_ if kind == "and" else or_
        return both(self._condition(columns, depth - 1), self._condition(columns, depth - 1))

    def _comparison(self, column: Any) -> Any:
        value: Any = self._chance.randint(0, 5)
        if isinstance(column.type, String):
            value = self._chance.choice(LETTERS)
            return column == value if self._chance.random() < 0.7 else column.like(f"%{value}%")
        return self._chance.choice([column == value, column > value, column % 2 == 0])

    def _integers(self) -> Any:
        table = self._chance.choice(self._tables)
        return select(self._integer(table.c)).where(self._comparison(self._integer(table.c)))

    def _integer(self, columns: Any) -> Any:
        """Draw an integer that is made of one of `columns`."""
        column = self._chance.choice(list(columns))
        return column if isinstance(column.type, Integer) else func.length(column)

    def _name(self) -> str:
        self._names += 1
        return f"q{self._names}"
