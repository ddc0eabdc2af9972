"""Sub-runs of pytest as a user has them: a process of its own, with the plugin and a test file."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers import temporary_folder

SubRun = Callable[..., Any]


@pytest.fixture(scope="module")
def kept() -> Iterator[Path]:
    """The cache of the sub-runs: where the server's account can enter, and shared, to be quick."""
    with temporary_folder() as folder:
        yield folder


@pytest.fixture
def sub_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kept: Path) -> SubRun:
    """Run a file of tests with options; the result of pytester."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("ACTIVEDB_URL", "ACTIVEDB_DB_SCHEMA", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)

    def run(source: str, *options: str) -> Any:
        pytester.makepyfile(textwrap.dedent(source))
        return pytester.runpytest_subprocess(
            *("-p", "pytest_activedb", "--strict-markers", "-W", "error"),
            *("-o", f"cache_dir={kept}"),
            *options,
            timeout=PATIENCE_S,
        )

    return run
