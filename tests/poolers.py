"""A real pgbouncer in front of a server of the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import URL, make_url

from activedb.store.server._home import server_account
from tests.patience import PATIENCE_S
from tests.servers import temporary_folder
from tests.store.server_users import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def pgbouncer(server_url: str, **settings: str) -> Iterator[str]:
    """Yield the URL of the same database through a pgbouncer with `settings`, else its defaults.

    Skips the test where none is installed.
    """
    program = shutil.which("pgbouncer") or shutil.which(
        "pgbouncer", path="/usr/sbin:/usr/local/sbin"
    )
    if program is None:
        pytest.skip("no pgbouncer is installed (apt-get install pgbouncer)")
    server = make_url(server_url)
    account = server_account()
    with temporary_folder() as folder:
        os.chown(folder, account.uid, account.gid)
        for _ in range(3):  # another program may take the port in between
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            url = server.set(host="127.0.0.1", port=port)
            chosen = {
                "listen_addr": "127.0.0.1",
                "listen_port": str(port),
                "unix_socket_dir": "",
                "auth_type": "any",
                "logfile": str(folder / "log"),
                **settings,
            }
            lines = [f"{name} = {value}" for name, value in chosen.items()]
            there = (
                f"host={server.host} port={server.port} user={server.username} "
                f"password={server.password}"
            )
            configuration = folder / "pgbouncer.ini"
            configuration.write_text(
                "\n".join(["[databases]", f"* = {there}", "[pgbouncer]", *lines, ""])
            )
            os.chown(configuration, account.uid, account.gid)
            process = subprocess.Popen(
                [program, "-q", str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                user=account.uid if account.switch else None,
                group=account.gid if account.switch else None,
                extra_groups=[] if account.switch else None,
            )
            try:
                wait_until(partial(_has_ended_or_answers, process, url))
                if process.poll() is None:
                    yield url.render_as_string(hide_password=False)
                    return
            finally:
                process.kill()
                process.wait(PATIENCE_S)
        raise AssertionError((folder / "log").read_text())


def _has_ended_or_answers(process: subprocess.Popen[bytes], url: URL) -> bool:
    return process.poll() is not None or _answers(url)


def _answers(url: URL) -> bool:
    try:
        psycopg.connect(
            url.set(drivername="postgresql").render_as_string(hide_password=False)
        ).close()
    except psycopg.OperationalError:
        return False
    return True
