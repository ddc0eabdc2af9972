"""A server that tests kill and start again."""

from __future__ import annotations

import secrets
import signal
from typing import TYPE_CHECKING

from sqlalchemy import make_url

from activedb.store.server import EmbeddedServer
from tests.histories.processes import Server
from tests.store.server_users import postmaster, server_processes, wait_until

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Mortal"]


class Mortal:
    """A server of a test's own that can be killed and started again."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._uses = [EmbeddedServer.start(folder)]
        self.url = self._uses[0].url

    def database(self) -> str:
        """Make an empty database, which goes when the server does; its URL."""
        name = f"test_{secrets.token_hex(6)}"
        Server(self.url).run(f"CREATE DATABASE {name}")
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL; return when all of its processes are gone."""
        postmaster(self._uses[0].home).kill()
        wait_until(lambda: not server_processes(self._uses[0].home))

    def start(self) -> None:
        """Start it again; it answers at the same place."""
        self._uses.append(EmbeddedServer.start(self.folder))

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def kill_backend(self, number: int) -> None:
        """Kill one process of the server with SIGKILL, after which all the others start anew."""
        (process,) = (p for p in server_processes(self._uses[0].home) if p.pid == number)
        process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Stop it."""
        if not server_processes(self._uses[0].home):
            self.start()
        for use in self._uses:
            use.close()
