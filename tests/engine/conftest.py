"""Every test here runs on memory and on Postgres."""

from __future__ import annotations

import pytest

import activedb as adb
from tests.engine.ledger import Ledger, open_ledger


@pytest.fixture
def ledger(db: adb.Database) -> Ledger:
    """Accounts 1 and 2 with balances 10 and 20."""
    return open_ledger(db, {1: 10, 2: 20})
