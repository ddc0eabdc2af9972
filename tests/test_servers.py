"""The servers that tests start end with the process that started them, however that ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.databases import until

HOLD_ONE = """
from tests.servers import plain_server
with plain_server() as url:
    print(url, flush=True)
    input()
"""


@pytest.mark.crash
def test_plain_server_ends_with_a_process_that_is_killed() -> None:
    command = [sys.executable, "-c", HOLD_ONE]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as holder:
        assert holder.stdout is not None
        url = make_url(holder.stdout.readline().strip())
        port = url.port
        assert port is not None
        assert is_heard(port)
        holder.kill()
    until(lambda: not is_heard(port))


def is_heard(port: int) -> bool:
    """Return whether a server accepts connections on this loopback port."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
