"""What the tests of commands share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.calling import Caller


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Caller:
    """``activedb`` in an empty folder, with no settings in the environment."""
    for name in list(os.environ):
        if name.startswith("ACTIVEDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    return Caller(monkeypatch, capsys)
