"""`make test` starts no test once its time is up, and says so; without any test it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import TEST_S

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.mark.long
@pytest.mark.parametrize("processes", ["0", "2"])
def test_tests_after_the_limit_are_counted_and_not_run(processes: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/test_config.py", "-n", processes],
        cwd=REPOSITORY,
        env={**os.environ, "ACTIVEDB_TEST_UNTIL": "1"},
        capture_output=True,
        text=True,
        timeout=TEST_S,
        check=False,
    )
    assert run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, run.stdout
    assert "tests were not run: time was up" in run.stdout
    assert "passed" not in run.stdout
