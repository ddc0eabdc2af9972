"""The tables of the scenarios."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, ForeignKey, Integer, String, Table

if TYPE_CHECKING:
    from sqlalchemy import MetaData

NAMES = (
    "accounts",
    "doctors",
    "control",
    "receipts",
    "people",
    "projects",
    "bookings",
    "lessons",
    "customers",
    "orders",
    "users",
    "tickets",
    "jobs",
)


def declare(metadata: MetaData) -> dict[str, Table]:
    """Declare the tables in `metadata`; return them by name.

    All keys are whole numbers named ``id``; ``tickets`` leave theirs to the database, ``orders``
    refer to ``customers``, the ``email`` of ``users`` is unique.
    """

    def table(name: str, *columns: Any) -> Table:
        return Table(name, metadata, *columns)

    def key(**options: Any) -> Column[int]:
        return Column("id", Integer, primary_key=True, **{"autoincrement": False, **options})

    def number(name: str) -> Column[int]:
        return Column(name, Integer)

    customer = Column("customer", Integer, ForeignKey("customers.id"))
    made = (
        table("accounts", key(), number("balance")),
        table("doctors", key(), number("on_call")),
        table("control", key(), number("batch")),
        table("receipts", key(), number("batch"), number("amount")),
        table("people", key(), number("manager")),
        table("projects", key(), number("manager")),
        table("bookings", key(), number("room"), number("start"), number("finish")),
        table("lessons", key(), number("room"), number("hour")),
        table("customers", key(), number("orders")),
        table("orders", key(), customer, number("amount")),
        table("users", key(), Column("email", String(50), unique=True)),
        table("tickets", key(autoincrement="auto"), number("seat")),
        table("jobs", key(), Column("state", String(20))),
    )
    assert tuple(t.name for t in made) == NAMES
    return {t.name: t for t in made}
