"""Every test here runs on memory and on Postgres, if it does not say otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import activedb as adb
from tests.databases import place
from tests.ledger import Ledger, open_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ledger(db: adb.Database) -> Ledger:
    """Accounts 1 and 2 with balances 10 and 20."""
    return open_ledger(db, {1: 10, 2: 20})


@pytest.fixture
def in_memory() -> Iterator[Ledger]:
    """The same in memory only, for what is refused before the store is asked."""
    with place(None) as where:
        yield open_ledger(where.open(), {1: 10, 2: 20})
