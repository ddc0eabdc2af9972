"""HTTP server of the monitor: JSON for pages and terminals, text for Prometheus."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import socket
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from activedb.config import Settings
from activedb.errors import ConfigurationError
from activedb.monitor._access import Access
from activedb.monitor._addresses import Address, tell, withdraw
from activedb.monitor._handler import PATIENCE_S, Handler
from activedb.monitor._routes import Metrics
from activedb.monitor._source import Source

__all__ = ["MonitorServer"]

_LOG = logging.getLogger(__name__)
_CONNECTIONS_MAX = 32
_MAKES_ROOM_AFTER_S = 1.0
_LAST_WORD_S = 1.0


class MonitorServer:
    """Server that answers requests about one process, on separate threads, until it is closed.

    At most 32 connections are open at a time. To admit another, the server closes the connection
    whose client it has waited for longest, for a request or to read an answer, and for at least a
    second; if there is none, the new client is told to come back. A client that sends or receives
    nothing is dropped after ten seconds. Nothing is cached, and no other site may read the answers.

    Parameters
    ----------
    source : Source
        The monitor to serve.
    settings : Settings
        Its ``monitor_…`` fields, and the folder, where the address is written.
    metrics : callable, optional
        Returns, for an ``Accept`` header, the text for Prometheus and its content type.

    Attributes
    ----------
    url : str
        Address of the server: ``http://127.0.0.1:40123``.

    Raises
    ------
    ConfigurationError
        If a token is missing, or the server cannot listen on the address. If another process uses
        the port, the server picks another one and logs a warning.
    """

    def __init__(self, source: Source, settings: Settings, metrics: Metrics | None = None):
        access = Access(settings)
        host, port = settings.monitor_host, settings.monitor_port
        try:
            self._server = self._listening(host, port, source, access, metrics)
        except OSError as error:
            raise ConfigurationError(
                f"the monitor cannot listen at {host}:{port}: {error.strerror or error}; set "
                f"monitor_host to an address of this computer, and monitor_port to one that this "
                f"user may take, or to 0"
            ) from error
        port = self._server.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{port}"
        self._is_closed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="activedb-monitor",
            daemon=True,
        )
        self._thread.start()
        self._file = _told(settings.folder, self.url)
        _LOG.info("the monitor listens at %s", self.url)

    @staticmethod
    def _listening(host: str, port: int, *how: Any) -> _Server:
        """Return a server at that port, or at any if it is taken: the work must go on."""
        try:
            return _Server(host, port, *how)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == 0:
                raise
            server = _Server(host, 0, *how)
            _LOG.warning(
                "another process has port %d: the monitor listens at port %d instead",
                *(port, server.server_address[1]),
            )
            return server

    def close(self) -> None:
        """Stop answering, once pending requests are answered; safe to call again."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pid != os.getpid():  # a fork inherits the socket, but neither threads nor file
            self._server.socket.close()
            return
        withdraw(self._file)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server.end_connections()


def _told(folder: Path, url: str) -> Path | None:
    return tell(folder, Address(url, os.getpid(), time.time()))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(
        self,
        host: str,
        port: int,
        source: Source,
        access: Access,
        metrics: Metrics | None,
    ):
        self.source = source
        self.access = access
        self.metrics = metrics
        # For each connection, since when the server waits for its client; infinity: it does not.
        self._connections: dict[socket.socket, float] = {}
        self._changed = threading.Condition()  # guards the connections
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        # As in the base class, but without resolving the host name, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            has_room = len(self._connections) < _CONNECTIONS_MAX or self._make_room()
            if has_room:
                self._connections[request] = time.monotonic()
        if not has_room:
            self._turn_away(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread has begun that would forget it at its end
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def end_connections(self) -> None:
        """Close connections that await a request, give the others a moment, and close them."""
        with self._changed:
            for how, patience_s in ((socket.SHUT_RD, _LAST_WORD_S), (socket.SHUT_RDWR, PATIENCE_S)):
                for connection in self._connections:
                    with contextlib.suppress(OSError):
                        connection.shutdown(how)
                if self._changed.wait_for(lambda: not self._connections, patience_s):
                    return

    def note(self, connection: socket.socket, *, is_waited_for: bool) -> None:
        """Record whether the server waits for the connection's client from now on."""
        with self._changed:
            if connection in self._connections:
                since_s = time.monotonic() if is_waited_for else math.inf
                self._connections[connection] = since_s

    def _make_room(self) -> bool:
        """Close the connection whose client is waited for longest. REQUIRES: the latch.

        The client may be sending slowly, or keeping an idle connection: it makes room for a new
        one.
        """
        longest = min(self._connections, key=self._connections.__getitem__)
        if time.monotonic() - self._connections[longest] < _MAKES_ROOM_AFTER_S:
            return False
        del self._connections[longest]
        with contextlib.suppress(OSError):
            longest.shutdown(socket.SHUT_RDWR)
        return True

    def _forget(self, request: Any) -> None:
        with self._changed:
            self._connections.pop(request, None)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOG.debug("a connection of the monitor has failed", exc_info=True)

    def _turn_away(self, request: Any) -> None:
        request.settimeout(1.0)
        try:
            request.sendall(
                b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
                b"Connection: close\r\n\r\n"
            )
        except OSError:
            pass
        finally:
            self.shutdown_request(request)
