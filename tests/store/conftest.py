"""Fixtures for the tests of the store."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from activedb.store.embedded import EmbeddedServer
from tests.servers import temporary_folder
from tests.store.server_users import server_processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A folder for embedded servers, all of which must have ended with the test."""
    with temporary_folder() as folder:
        yield folder
        left = server_processes(folder)
        for process in left:
            process.kill()
        assert left == [], "the test left a server running"


@pytest.fixture(scope="session")
def _initialised() -> Iterator[Path]:
    with temporary_folder() as folder:
        EmbeddedServer.start(folder).close()
        yield folder


@pytest.fixture
def used_folder(server_folder: Path, _initialised: Path) -> Path:
    """A folder like `server_folder` in which a server has run before, which saves time."""
    subprocess.run(["cp", "-a", f"{_initialised}/.", server_folder], check=True)
    return server_folder
