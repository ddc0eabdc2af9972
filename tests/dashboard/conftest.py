"""A real Chromium, and dashboards in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import chromium as chromium
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

WAIT_MS = 1_000 * PATIENCE_S

REPOSITORY = Path(__file__).resolve().parents[2]


class Visit:
    """A browser with its own cookies that notes errors, and where requests go."""

    def __init__(self, context: BrowserContext, address: str):
        self.context = context
        self.address = address
        self.problems: list[str] = []
        self.requests: list[str] = []

    def open(self, path: str = "/") -> Page:
        """A page in a tab of its own, connected."""
        page = self.context.new_page()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url))
        page.on("pageerror", lambda error: self.problems.append(f"{path}: {error}"))
        page.on("console", lambda said: self._said(path, said.type, said.text))
        page.goto(f"{self.address}{path.removeprefix('/')}")
        page.wait_for_function("window.did_handshake === true")
        return page

    def _said(self, path: str, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(f"{path}: {text}")


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Visit]]:
    """Opens browsers: ``visit(address, width=390, dark=True)``; they last as long as the test.

    A page that is left open goes on following its process, at the cost of the next ones.
    """
    from playwright.sync_api import expect

    expect.set_options(timeout=WAIT_MS)
    contexts: list[BrowserContext] = []

    def make(address: str, *, width: int = 1280, dark: bool = False) -> Visit:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",  # without a graphics card each step of it is drawn by the CPU
        )
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        return Visit(context, address)

    yield make
    for context in contexts:
        context.close()


@contextmanager
def started(*command: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A dashboard in a process of its own, and the address that it says.

    In the end SIGTERM must end it well, if it has not ended yet.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        if not said:
            process.wait()
            assert process.stderr is not None
            pytest.fail(f"no dashboard: {process.stderr.read()}")
        yield said[-1], process
        if process.poll() is None:
            process.terminate()
            assert process.wait() == 0
    finally:
        process.kill()
        process.communicate()
