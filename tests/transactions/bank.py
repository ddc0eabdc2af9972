"""The tables that the tests of transactions use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, String, Table, select

if TYPE_CHECKING:
    import activedb as adb


@dataclass(frozen=True)
class Bank:
    """A database with accounts in it."""

    db: adb.Database
    accounts: Table
    notes: Table

    def committed(self) -> dict[int, int | None]:
        """Balances by account, as a new transaction sees them."""
        with self.db.transaction() as t:
            return {row.id: row.balance for row in t.query(select(self.accounts))}

    def committed_notes(self) -> list[str]:
        """Texts of the notes, sorted."""
        with self.db.transaction() as t:
            return sorted(row.text for row in t.query(select(self.notes)))


def open_bank(db: adb.Database, balances: dict[int, Any] | None = None) -> Bank:
    """Declare the tables, create them where they are missing, and fill in `balances`."""
    accounts = Table(
        "accounts",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("balance", Integer),
        Column("owner", String(50)),
    )
    notes = Table(
        "notes",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("text", String(200), nullable=False),
    )
    db.create_all()
    if balances:
        with db.transaction() as t:
            for key, balance in balances.items():
                t.insert(accounts, {"id": key, "balance": balance})
    return Bank(db, accounts, notes)
