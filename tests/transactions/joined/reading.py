"""Accounts as the caller and as all others see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, Table, select

if TYPE_CHECKING:
    import activedb as adb


def balance(db: adb.Database, table: Table, key: int = 1) -> int | None:
    row = db.run(lambda t: t.get(table, key))
    return None if row is None else row["balance"]


def of_caller(connection: Connection, table: Table, key: int = 1) -> int | None:
    return connection.scalar(select(table.c.balance).where(table.c.id == key))
