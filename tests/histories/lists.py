"""Lists that grow, kept in tables in four ways; each way relies on other locks.

``text``: a row per list, so rows are read and written. ``scan``: a row per value, found by
``t.query``, so phantoms matter; a row per list says how long it is. ``absent``: a row per value,
looked up one by one until there is none, so it matters that absent rows stay absent. ``asked``: a
row per value, found by queries of many forms, and nothing else: how long a list is, a query tells,
so only the locks of queries keep two transactions from appending at one position.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from sqlalchemy import Column, Integer, String, Table, Text, func, insert, select, text, update

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from activedb import Database, Transaction

KINDS = ("text", "scan", "absent", "asked")


class Lists(ABC):
    """The tables of one kind, declared and created."""

    is_scan = False

    def __init__(self, db: Database):
        self.declare(db)
        db.create_all()

    @abstractmethod
    def declare(self, db: Database) -> None:
        """Declare the tables."""

    @abstractmethod
    def read(self, t: Transaction, key: str, chance: random.Random) -> list[int]:
        """The whole list."""

    @abstractmethod
    def append(
        self, t: Transaction, key: str, value: int, chance: random.Random
    ) -> list[int] | None:
        """Append a value; returns the list before, if it had to be read."""

    ROWS: str
    """Statement that lists the rows, for programs without activedb."""

    @classmethod
    def found(cls, connection: Connection) -> dict[str, list[int]]:
        """All lists, as a plain connection sees them."""
        lists: dict[str, list[int]] = {}
        for key, value in connection.execute(text(cls.ROWS)):
            lists.setdefault(key, []).append(value)
        return lists


class TextLists(Lists):
    ROWS = "SELECT id, items FROM texts"

    def declare(self, db: Database) -> None:
        self._texts = Table(
            "texts",
            db.metadata,
            Column("id", String(20), primary_key=True),
            Column("items", Text, nullable=False),
        )

    def read(self, t: Transaction, key: str, chance: random.Random) -> list[int]:
        return self._values(t.get(self._texts, key))

    def append(self, t: Transaction, key: str, value: int, chance: random.Random) -> list[int]:
        row = t.get(self._texts, key, for_update=chance.random() < 0.7)
        values = self._values(row)
        items = json.dumps([*values, value])
        if row is None:
            t.insert(self._texts, {"id": key, "items": items})
        else:
            t.update(self._texts, key, items=items)
        return values

    @staticmethod
    def _values(row: Mapping[str, object] | None) -> list[int]:
        return [] if row is None else json.loads(str(row["items"]))

    @classmethod
    def found(cls, connection: Connection) -> dict[str, list[int]]:
        return {key: json.loads(items) for key, items in connection.execute(text(cls.ROWS))}


class ScanLists(Lists):
    is_scan = True
    ROWS = "SELECT list, value FROM scan_items ORDER BY list, position"

    def declare(self, db: Database) -> None:
        self._lengths = Table(
            "lengths",
            db.metadata,
            Column("list", String(20), primary_key=True),
            Column("length", Integer, nullable=False),
        )
        self._items = Table(
            "scan_items",
            db.metadata,
            Column("list", String(20), primary_key=True),
            Column("position", Integer, primary_key=True),
            Column("value", Integer, nullable=False),
        )

    def read(self, t: Transaction, key: str, chance: random.Random) -> list[int]:
        items = self._items
        wanted = select(items.c.value).where(items.c.list == key).order_by(items.c.position)
        return [value for (value,) in t.query(wanted)]

    def append(self, t: Transaction, key: str, value: int, chance: random.Random) -> None:
        row = t.get(self._lengths, key, for_update=True)
        length = 1
        if row is None:
            t.insert(self._lengths, {"list": key, "length": length})
        else:
            length = row["length"] + 1
            if chance.random() < 0.1:
                longer = update(self._lengths).where(self._lengths.c.list == key)
                assert t.execute(longer.values(length=self._lengths.c.length + 1)) == 1
            else:
                t.update(self._lengths, key, length=length)
        values = {"list": key, "position": length, "value": value}
        if chance.random() < 0.3:
            t.execute(insert(self._items).values(**values))
        else:
            t.insert(self._items, values)


class AbsentLists(Lists):
    ROWS = "SELECT list, value FROM items ORDER BY list, position"

    def declare(self, db: Database) -> None:
        self._items = Table(
            "items",
            db.metadata,
            Column("list", String(20), primary_key=True),
            Column("position", Integer, primary_key=True),
            Column("value", Integer, nullable=False),
        )

    def read(self, t: Transaction, key: str, chance: random.Random) -> list[int]:
        values: list[int] = []
        while (row := t.get(self._items, (key, len(values) + 1))) is not None:
            values.append(row["value"])
        return values

    def append(self, t: Transaction, key: str, value: int, chance: random.Random) -> list[int]:
        values = self.read(t, key, chance)
        t.insert(self._items, {"list": key, "position": len(values) + 1, "value": value})
        return values


class AskedLists(Lists):
    is_scan = True
    ROWS = "SELECT list, value FROM asked_items ORDER BY list, position"
    TABLE = "asked_items"
    PLAIN_APPEND = (
        "INSERT INTO asked_items (value, list, position) "
        "SELECT %(value)s, %(key)s::varchar, coalesce(max(position), 0) + 1 FROM asked_items "
        "WHERE list = %(key)s::varchar"
    )

    def declare(self, db: Database) -> None:
        self._items = Table(
            self.TABLE,
            db.metadata,
            Column("value", Integer, primary_key=True, autoincrement=False),
            Column("list", String(20), nullable=False),
            Column("position", Integer, nullable=False),
        )

    def read(self, t: Transaction, key: str, chance: random.Random) -> list[int]:
        items = self._items.c
        values = select(items.value).order_by(items.position)
        match chance.randrange(6):
            case 0:
                found = t.query(values.where(items.list == key))
            case 1:
                found = t.query(values.where(items.list.in_([key, "none"]), items.position > 0))
            case 2:
                found = t.query(
                    text(
                        "SELECT value FROM asked_items WHERE position BETWEEN 1 AND 1000000 "
                        "AND list = :key ORDER BY position"
                    ),
                    {"key": key},
                )
            case 3:
                first = values.where(items.list == key, items.position < 3)
                rest = values.where(items.list == key, items.position >= 3)
                found = [*t.query(first), *t.query(rest)]
            case 4:
                places = range(1, self._length(t, key) + 1)
                found = t.query(values.where(items.list == key, items.position.in_(places)))
            case _:
                found = t.query(values.where(items.list == key).with_for_update())
        return [value for (value,) in found]

    def append(
        self, t: Transaction, key: str, value: int, chance: random.Random
    ) -> list[int] | None:
        before = None
        if chance.random() < 0.5:
            before = self.read(t, key, chance)
            length = len(before)
        else:
            length = self._length(t, key)
        row = {"value": value, "list": key, "position": length + 1}
        items = self._items
        match chance.randrange(4):
            case 0:
                t.execute(insert(items).values(**row))
            case 1:  # a row that comes from another list
                t.insert(items, {**row, "list": "limbo"})
                t.update(items, value, list=key)
            case 2:  # a row that comes from before the list
                t.insert(items, {**row, "position": -value})
                moved = update(items).where(items.c.list == key, items.c.position == -value)
                assert t.execute(moved.values(position=length + 1)) == 1
            case _:
                t.insert(items, row)
        return before

    def _length(self, t: Transaction, key: str) -> int:
        items = self._items.c
        return int(t.query(select(func.count()).where(items.list == key))[0][0])


LISTS: dict[str, type[Lists]] = {
    "text": TextLists,
    "scan": ScanLists,
    "absent": AbsentLists,
    "asked": AskedLists,
}
