"""Numbers of letters and firings, counted at the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.store.journals import FiringCounts, Journal

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction


@pytest.mark.parametrize("count", [0, 3])
def test_standing_counts_letters_and_pending_firings(db: adb.Database, count: int) -> None:
    journal = Journal(db._store)

    @db.rule(on=adb.event("E"), on_abort="rule")
    def rule(t: Transaction, o: Occurrence) -> None:
        raise ValueError("no")

    for _ in range(count):
        db.signal("E")
    firing: dict[str, Any] = {"run": "r", "rule": "x", "occurrence": {}, "keep": False}
    journal.record({**firing, "firing": str(n), "done": n == 0} for n in range(count))
    if count:
        journal.intend([{**firing, "firing": "intent", "done": False}])
    letters = {"rule": count} if count else {}
    assert journal.standing() == FiringCounts(letters, pending=max(count - 1, 0))
