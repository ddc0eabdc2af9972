"""Every test here runs on memory and on Postgres."""

from __future__ import annotations

import pytest

import activedb as adb
from tests.transactions.bank import Bank, open_bank


@pytest.fixture
def bank(db: adb.Database) -> Bank:
    """Accounts 1 and 2 with balances 10 and 20."""
    return open_bank(db, {1: 10, 2: 20})
