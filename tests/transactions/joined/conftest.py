"""Fixtures for the tests of blocks inside the caller's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, String, Table, create_engine

import activedb as adb

if TYPE_CHECKING:
    from tests.databases import Place


@pytest.fixture
def accounts(db: adb.Database) -> Table:
    table = Table(
        "accounts",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("balance", Integer, nullable=False),
        Column("owner", String(20), unique=True),
    )
    db.create_all()
    db.run(lambda t: t.insert(table, {"id": 1, "balance": 100, "owner": "ann"}))
    return table


@pytest.fixture
def own_engine(where: Place, db: adb.Database, accounts: Table) -> Any:
    if where.is_memory:
        pytest.skip("memory has connections of its own")
    options = {"options": f"-csearch_path={where._schema}"}
    engine = create_engine(where._url, connect_args=options)
    yield engine
    engine.dispose()
