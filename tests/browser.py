"""A real Chromium for the tests that look at pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def chromium_path() -> str | None:
    """``ACTIVEDB_CHROMIUM``, or the first Chromium of the PATH."""
    given = os.environ.get("ACTIVEDB_CHROMIUM")
    names = ("chromium", "chromium-browser", "google-chrome")
    return given or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One headless browser for a module."""
    path = chromium_path()
    if path is None:
        pytest.skip(
            "no Chromium: install one (Debian: apt-get install chromium), or set ACTIVEDB_CHROMIUM"
        )
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
