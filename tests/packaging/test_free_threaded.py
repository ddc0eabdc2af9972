"""The lock manager on many threads, also on a Python without the interpreter's one lock.

Such a Python is looked for on the PATH (``python3.13t`` or newer), or named by
``ACTIVEDB_FREE_THREADED``. The program is run on this Python, too, so that it is known to work.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "tests" / "packaging" / "many_threads.py"
SEED = int(os.environ.get("ACTIVEDB_TEST_SEED", "0"))
TRANSFERS = 40
NAMES = ("python3.15t", "python3.14t", "python3.13t")


def _run(python: str, scale: int) -> str:
    done = subprocess.run(
        [python, "-P", str(PROGRAM), str(SEED), str(TRANSFERS * scale)],
        env={"PATH": os.defpath, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"seed {SEED}: {done.stderr}"
    return done.stdout


@pytest.mark.long
def test_locks_alone_protect_the_rows_on_this_python(scale: int) -> None:
    assert re.fullmatch(r"(one lock|free), \d+ victims\n", _run(sys.executable, scale))


@pytest.mark.long
def test_locks_alone_protect_the_rows_on_a_free_threaded_python(scale: int) -> None:
    python = os.environ.get("ACTIVEDB_FREE_THREADED") or next(
        (found for name in NAMES if (found := shutil.which(name))), None
    )
    if python is None:
        pytest.skip(f"there is no free-threaded Python here: none of {', '.join(NAMES)}")
    assert _run(python, scale).startswith("free, ")
