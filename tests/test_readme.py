"""The Python of the README, and of the guides, runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = [
    block
    for name in (
        "README.md",
        "docs/batches.md",
        "docs/coupling.md",
        "docs/language.md",
        "docs/metrics.md",
        "docs/monitoring.md",
        "docs/sources.md",
        "docs/streams.md",
        "docs/uncertain-time.md",
        "docs/workflows.md",
    )
    for block in re.findall(
        r"^```python\n(.*?)^```", (ROOT / name).read_text(encoding="utf-8"), re.M | re.S
    )
]


def test_readme_has_python() -> None:
    assert BLOCKS


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_python_block_runs(number: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS[number]],
        cwd=tmp_path,
        env={**os.environ, "ACTIVEDB_URL": "memory://"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
