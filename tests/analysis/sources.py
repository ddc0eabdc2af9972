"""Tables, helpers and a mapped class, named by the sources of rules in these tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Table, Text, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

METADATA = MetaData()
accounts = Table(
    "accounts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("balance", Integer),
    Column("owner", Text),
)
log = Table("log", METADATA, Column("id", Integer, primary_key=True), Column("line", Text))
stamped = Table(
    "stamped",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("value", Integer),
    Column("changed", Integer, onupdate=1),
)
FIND = select(accounts.c.balance)
RAISE = update(accounts).values(balance=accounts.c.balance + 1)
BY_NAME = {"accounts": accounts, "log": log}


class Base(DeclarativeBase):
    """Base of the mapped classes."""


class Person(Base):
    """A mapped class."""

    __tablename__ = "people"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables behind attributes."""

    first: Table
    second: Table


def elsewhere(t: Any) -> None:
    """Do something in another module than the rules of the tests."""
    t.insert(log, {})
