"""``activedb --wait``: commands wait for a server that is starting, and say so."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.databases import in_thread
from tests.patience import PATIENCE_S
from tests.servers import recovering_server


@pytest.mark.long
def test_command_waits_for_a_server_that_recovers_and_says_so(tmp_path: Path) -> None:
    with recovering_server() as (url, end_recovery):
        command = [sys.executable, "-m", "activedb", "--wait", "3600", "migrate", "--url", url]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if not k.startswith("ACTIVEDB_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            told = in_thread(lambda: next(x for x in process.stderr if "waiting for it" in x))  # type: ignore[union-attr]
            assert re.search("is starting; waiting for it", told.result(2 * PATIENCE_S))
            end_recovery()
            out, _ = process.communicate(timeout=4 * PATIENCE_S)
            assert process.returncode == 0
            assert "activedb's tables" in out
        finally:
            process.kill()
            process.communicate()


@pytest.mark.long
def test_command_that_is_told_not_to_wait_ends_at_once(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"postgresql+psycopg://me@127.0.0.1:{probe.getsockname()[1]}/db"
        command = [sys.executable, "-m", "activedb", "--wait", "0", "status", "--url", url]
        ended = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
        )
    assert ended.returncode == 3
    assert "no Postgres answers" in ended.stderr
