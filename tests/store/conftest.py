"""Fixtures for the tests of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from activedb.store.server import EmbeddedServer
from tests.servers import temporary_folder
from tests.store.flushing import opened
from tests.store.server_users import server_processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from activedb.store.session import Store


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store, once in memory and once on Postgres."""
    url = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    with opened(url) as store:
        yield store


@pytest.fixture
def server(postgres_url: str) -> Iterator[Store]:
    """An empty store on Postgres."""
    with opened(postgres_url) as store:
        yield store


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """An empty folder for embedded servers, all of which must have ended with the test."""
    with temporary_folder() as folder:
        yield folder
        _end_servers(folder)


@pytest.fixture
def used_folder(_used_folder: Path) -> Iterator[Path]:
    """The folder of a server that has run before; tests share it, to save time."""
    yield _used_folder
    _end_servers(_used_folder)


@pytest.fixture(scope="session")
def _used_folder() -> Iterator[Path]:
    with temporary_folder() as folder:
        EmbeddedServer.start(folder).close()
        yield folder


def _end_servers(folder: Path) -> None:
    left = server_processes(folder)
    for process in left:
        process.kill()
    assert left == [], "the test left a server running"
