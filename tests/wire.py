"""A TCP proxy before a Postgres server that cuts a connection at a message, or stalls."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Literal

from sqlalchemy import make_url

from tests.databases import in_thread
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BYTES_MAX = 1 << 16
_LENGTH = struct.Struct("!I")
_NEGOTIATIONS = {80877103, 80877104}  # for TLS and GSSAPI: another start follows
_ANSWERED = b"QS"  # after these the server says that it is ready
_READY = b"Z\0\0\0\x05"
_COPY_IN = b"G\0\0\0"  # what COPY is answered with: the server waits for rows
_WRITES = (b"INSERT", b"UPDATE", b"DELETE", b"MERGE", b"COPY", b"TRUNCATE")

When = Literal["before", "after"]


class Wire:
    """Forward messages between clients, over TCP on the loopback, and a server.

    Parameters
    ----------
    server_url : str
        The server listens on TCP or on a Unix socket.

    Attributes
    ----------
    url : str
        Of the same database through it.
    sent : list of str
        The messages of clients since `count_anew`, by their letters, with a part of their content.
    cut_at : int or None
        Which of them, from 0, is the last on its connection.
    when : {"before", "after"}
        Whether that one is cut off before the server gets it, or before its answer is heard.
    cuts : int
        How many connections have been cut.
    on_cut : callable
        Called at each cut, before the client can notice.
    is_down : bool
        Whether new connections are refused.
    swallows : bool
        Whether nothing is handed on any more, either way, while all stay connected.
    """

    def __init__(self, server_url: str, *, port: int = 0):
        self.server_url = server_url
        url = make_url(server_url)
        socket_folder = url.query.get("host")
        self._server: str | tuple[str, int]
        if socket_folder:
            self._server = f"{socket_folder}/.s.PGSQL.{url.query.get('port', 5432)}"
            url = url.difference_update_query(["host", "port"])
        else:
            assert url.host is not None
            assert url.port is not None
            self._server = (url.host, url.port)
        self._listener = socket.create_server(("127.0.0.1", port))
        port = self._listener.getsockname()[1]
        self.url = url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        self.sent: list[str] = []
        self.cut_at: int | None = None
        self.when: When = "before"
        self.cuts = 0
        self.on_cut: Callable[[], object] = lambda: None
        self.is_down = False
        self._is_commit_cut = False
        self._clients: set[socket.socket] = set()
        self._latch = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._is_closed = False
        self._acceptor = in_thread(self._accept)

    @property
    def swallows(self) -> bool:
        return not self._flows.is_set()

    @swallows.setter
    def swallows(self, does: bool) -> None:
        (self._flows.clear if does else self._flows.set)()

    def count_anew(self, cut_at: int | None = None, when: When = "before") -> None:
        """Number messages from 0 again, and cut at one of them."""
        with self._latch:
            self.sent.clear()
            self.cut_at, self.when, self.cuts = cut_at, when, 0

    def cut_commit(self, when: When) -> None:
        """Cut one connection, at the next COMMIT of a transaction that has written.

        Commits of read-only transactions, such as those of monitoring, are passed on.
        """
        with self._latch:
            self.when, self.cuts = when, 0
            self._is_commit_cut = True

    def take_down(self) -> None:
        """Refuse new connections and cut all open ones."""
        self.is_down = True
        for client in list(self._clients):
            _end(client)

    def close(self) -> None:
        self._is_closed = True
        self._flows.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.result(PATIENCE_S)
        self._listener.close()

    # -- inside ------------------------------------------------------------------------------

    def _accept(self) -> None:
        links, ends = [], []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            family = socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET
            server = socket.socket(family)
            try:
                if self.is_down:
                    raise ConnectionRefusedError
                server.connect(self._server)
            except OSError:
                client.close()
                server.close()
                continue
            self._clients.add(client)
            ends += [client, server]
            links.append(in_thread(self._link, client, server))
        for end in ends:
            _end(end)
        for link in links:
            link.result(PATIENCE_S)

    def _link(self, client: socket.socket, server: socket.socket) -> None:
        link = _Link(client, server)
        with client, server:
            down = in_thread(self._down, link)
            with _ending(client, server):
                self._up(link)
            down.result(PATIENCE_S)

    def _up(self, link: _Link) -> None:
        """Forward from the client to the server, message by message."""
        waiting, is_started = b"", False
        while said := link.client.recv(_BYTES_MAX):
            self._flows.wait()
            waiting += said
            passed = b""
            while (size := _size(waiting, is_started)) and len(waiting) >= size:
                message, waiting = waiting[:size], waiting[size:]
                if not is_started:
                    is_started = _LENGTH.unpack(message[4:8])[0] not in _NEGOTIATIONS
                if self._is_last(link, message):
                    self._cut(link, passed, message)
                    return
                passed += message
            link.server.sendall(passed)

    def _cut(self, link: _Link, passed: bytes, message: bytes) -> None:
        try:
            if self.when == "before":
                link.server.sendall(passed)
            else:
                link.is_deaf.set()
                link.server.sendall(passed + message)
                assert link.answered.wait(PATIENCE_S), "the server has not answered"
            self.on_cut()
        finally:
            link.is_cut.set()

    def _down(self, link: _Link) -> None:
        """Forward from the server to the client."""
        tail = b""
        with _ending(link.client, link.server):
            try:
                while said := link.server.recv(_BYTES_MAX):
                    self._flows.wait()
                    if not link.is_deaf.is_set():
                        link.client.sendall(said)
                        continue
                    tail = tail[-len(_READY) :] + said
                    if _READY in tail or _COPY_IN in tail:
                        link.answered.set()
            finally:
                link.answered.set()
                if link.is_last:  # what was done at the cut, to the server too, comes first
                    link.is_cut.wait(PATIENCE_S)

    def _is_last(self, link: _Link, message: bytes) -> bool:
        """Count a message; whether it is the one to cut at."""
        with self._latch:
            number = len(self.sent)
            self.sent.append(message[:60].decode("latin-1"))
            link.is_last = number == self.cut_at
            if link.commits_writes(message) and self._is_commit_cut:
                link.is_committing = True
            if link.is_committing and (self.when == "before" or message[:1] in _ANSWERED):
                self._is_commit_cut, link.is_last = False, True
            if self.when == "after" and message[:1] not in _ANSWERED:
                link.is_last = False
            self.cuts += link.is_last
            return link.is_last


class _Link:
    """Both ends of one connection."""

    def __init__(self, client: socket.socket, server: socket.socket):
        self.client = client
        self.server = server
        self.is_deaf = threading.Event()
        self.answered = threading.Event()
        self.is_last = False
        self.is_cut = threading.Event()
        self.is_committing = False
        self._prepared: dict[bytes, bytes] = {}
        self._has_written = False

    def commits_writes(self, message: bytes) -> bool:
        """Return whether a message commits a transaction that has written on this connection."""
        kind, words = message[:1], message[5:].split(b"\0")
        if kind == b"P":
            self._prepared[words[0]] = words[1]
        if kind not in b"QB":
            return False
        statement = words[0] if kind == b"Q" else self._prepared.get(words[1], b"")
        if statement.lstrip().startswith(_WRITES):
            self._has_written = True
        if statement not in (b"COMMIT", b"ROLLBACK"):
            return False
        has_written, self._has_written = self._has_written, False
        return has_written and statement == b"COMMIT"


def _size(waiting: bytes, is_started: bool) -> int:
    """Length of the first message, 0 if that cannot be told yet."""
    skipped = 1 if is_started else 0
    if len(waiting) < skipped + 4:
        return 0
    return skipped + int(_LENGTH.unpack(waiting[skipped : skipped + 4])[0])


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _ending(*sockets: socket.socket) -> Iterator[None]:
    """End both directions of both when one of them is done; the other pump notices."""
    try:
        with contextlib.suppress(OSError):
            yield
    finally:
        for one in sockets:
            _end(one)
