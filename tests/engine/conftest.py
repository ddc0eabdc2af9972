"""Every test here runs on memory and on Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import activedb as adb
from tests.databases import Place, place

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
