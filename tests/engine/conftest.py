"""Every test here runs on memory and on Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import activedb as adb
from tests.databases import Place, place
from tests.engine.ledger import Ledger, open_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["memory", "postgres"])
def where(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Somewhere to open databases, empty at first."""
    url = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    with place(url) as opened:
        yield opened


@pytest.fixture
def db(where: Place) -> adb.Database:
    """An open database with the default settings and no tables."""
    return where.open()


@pytest.fixture
def ledger(db: adb.Database) -> Ledger:
    """Accounts 1 and 2 with balances 10 and 20."""
    return open_ledger(db, {1: 10, 2: 20})
