"""A stretch of wire between a client and a Postgres server that a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Literal

from sqlalchemy import make_url

from tests.databases import PATIENCE_S, in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PORT = 5432  # only part of the socket's name
_BYTES_MAX = 1 << 16

When = Literal["before", "after"]


class Proxy:
    """Hands on what clients and a server say to each other over unix sockets.

    Attributes
    ----------
    url : str
        Of the same database through the proxy.
    cut : {"before", "after"} or None
        Where to cut the connection on which the next COMMIT comes: before the server gets it, or
        before the client gets the answer. Only once.
    cuts : int
        How many connections have been cut.
    on_cut : callable
        Called at the cut, before the client can notice.
    is_down : bool
        Whether nobody gets through any more.
    """

    def __init__(self, server_url: str, folder: Path):
        url = make_url(server_url)
        port = url.query.get("port", str(_PORT))
        self._server = f"{url.query['host']}/.s.PGSQL.{port}"
        self.url = url.update_query_dict(
            {"host": str(folder), "port": str(_PORT)}
        ).render_as_string(hide_password=False)
        self.cut: When | None = None
        self.cuts = 0
        self.on_cut: Callable[[], object] = lambda: None
        self.is_down = False
        self._clients: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / f".s.PGSQL.{_PORT}"))
        self._listener.listen()
        self._acceptor = in_thread(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.result(PATIENCE_S)
        self._listener.close()

    def take_down(self) -> None:
        """Let nobody through any more, and cut all who are."""
        self.is_down = True
        for client in list(self._clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        links = []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            server = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(OSError):
                if not self.is_down:
                    server.connect(self._server)
                    self._clients.add(client)
                    links.append(in_thread(self._link, client, server))
                    continue
            client.close()
            server.close()
        for link in links:
            link.result(PATIENCE_S)

    def _link(self, client: socket.socket, server: socket.socket) -> None:
        """Pump both ways until either end is closed, or the link is cut."""
        is_deaf, answered, is_cut = threading.Event(), threading.Event(), threading.Event()

        def down() -> None:
            with _ending(client, server):
                while said := server.recv(_BYTES_MAX):
                    if is_deaf.is_set():
                        answered.set()
                    else:
                        client.sendall(said)
                if is_deaf.is_set():
                    is_cut.wait(PATIENCE_S)

        pump = in_thread(down)
        with client, server:
            with _ending(client, server):
                while said := client.recv(_BYTES_MAX):
                    if self.cut is None or b"COMMIT" not in said:
                        server.sendall(said)
                        continue
                    is_deaf.set()
                    when, self.cut, self.cuts = self.cut, None, self.cuts + 1
                    try:
                        if when == "after":
                            server.sendall(said)
                            assert answered.wait(PATIENCE_S), "the server has not answered"
                        self.on_cut()
                    finally:
                        is_cut.set()
                    break
            pump.result(PATIENCE_S)
            self._clients.discard(client)


@contextlib.contextmanager
def _ending(*sockets: socket.socket) -> Iterator[None]:
    """End both directions of both when one of them is done; the other pump notices."""
    try:
        with contextlib.suppress(OSError):
            yield
    finally:
        for end in sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
