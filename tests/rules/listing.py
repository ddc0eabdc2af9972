"""Descriptions of rules in the catalog and in the store, to be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from activedb.store.system import rules
from tests.ledger import read

if TYPE_CHECKING:
    import activedb as adb


def listed(db: adb.Database) -> dict[str, tuple[int, bool, int | None]]:
    """Version, enabled and priority of each rule, as the transaction of this thread sees them."""
    return {r.name: (r.version, r.enabled, r.priority) for r in db.rules}


def stored(db: adb.Database) -> dict[str, tuple[int, bool, int | None]]:
    """The same as committed in the table."""
    return {r["name"]: (r["version"], r["enabled"], r["priority"]) for r in read(db, rules)}


def row(db: adb.Database, name: str) -> dict[str, Any]:
    """The row of one rule."""
    return next(dict(r) for r in read(db, rules) if r["name"] == name)
