"""Values that executors get by name, and values that are pickled with them."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activedb.scheduling import SharedTable

pytest.importorskip("pyspark", reason="no Spark: make test-all installs it")

from spark_bridge._pickling import dumps

HELPER = "UNIT = 2\nclass Odd(Exception):\n    pass\ndef twice(n):\n    return UNIT * n\n"


def read_elsewhere(data: bytes, expression: str, folder: Path) -> str:
    """Return the text of an expression of the value, in another process.

    That process has only the installed modules.
    """
    code = f"import pickle, sys; it = pickle.load(sys.stdin.buffer); print({expression})"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], input=data, cwd=folder, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that is found because the program has put its folder into its path."""
    folder = tmp_path / "beside"
    folder.mkdir()
    (folder / "helper_of_a_user.py").write_text(HELPER)
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("helper_of_a_user")
    del sys.modules["helper_of_a_user"]


def test_functions_of_a_module_beside_the_program_are_taken_along(
    helper: Any, tmp_path: Path
) -> None:
    value = [helper.twice, lambda n: helper.twice(n) + 1, helper.Odd("odd")]
    found = read_elsewhere(dumps(value), "it[0](2), it[1](2), type(it[2]).__name__", tmp_path)
    assert found == "4 5 Odd"
    assert type(pickle.loads(dumps(helper.Odd("odd")))) is helper.Odd


@pytest.mark.long
def test_what_is_installed_goes_by_name(tmp_path: Path) -> None:
    data = dumps([SharedTable("t"), os.getcwd, pytest.raises])
    assert len(data) < 400
    assert read_elsewhere(data, "it[0].name, it[2].__module__", tmp_path) == "t _pytest.raises"
