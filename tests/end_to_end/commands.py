"""The command line as a user calls it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

ACTIVEDB = str(Path(sys.executable).with_name("activedb"))
REPOSITORY = Path(__file__).resolve().parents[2]


def activedb(
    *arguments: str | Path,
    folder: Path,
    url: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``activedb`` with `arguments` in `folder`; never raises for its status."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ACTIVEDB_")}
    if url is not None:
        environment["ACTIVEDB_URL"] = url
    environment.update(variables or {})
    return subprocess.run(
        [ACTIVEDB, *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def figures(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object that a command with ``--json`` printed."""
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed
