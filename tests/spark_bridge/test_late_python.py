"""Spark gives the Python of a source ten seconds to start; a busy machine may take longer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from activedb.streams import Replay

pytestmark = pytest.mark.spark

LATE_ONCE = """#!/bin/sh
case "$*" in
*python_streaming_source_runner*) mkdir "$0.was_late" && sleep 12 ;;
esac
exec "{python}" "$@"
"""


def test_replay_whose_python_is_late_begins_again(
    playground: Any, clicks: Any, column: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "python"
    late.write_text(LATE_ONCE.format(python=sys.executable))
    late.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(late))
    playground.write("a.csv", "seconds,kind,user", *(f"{n},CLICK,u{n}" for n in range(5)))
    stream = clicks(source=Replay(options={"header": "true"}, rows_per_batch=3))
    batches = playground.run(stream)
    assert (tmp_path / "python.was_late").is_dir()
    assert column(batches, "p_user") == [f"u{n}" for n in range(5)]
