"""HTTP server of the monitor: JSON for pages and terminals, text for Prometheus."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

from activedb.config import Settings
from activedb.errors import ConfigurationError
from activedb.monitor._access import Access
from activedb.monitor._addresses import Address, tell, withdraw
from activedb.monitor._routes import Answer, Metrics, Refused, answer
from activedb.monitor._source import Source

__all__ = ["MonitorServer"]


PATIENCE_S = 10.0
"""Time after which a client that sends or receives nothing is dropped."""
_BODY_BYTES_MAX = 10_000
_DIGITS_MAX = 18


class Serving(Protocol):
    """Interface of the server that a connection uses."""

    source: Source
    access: Access
    metrics: Metrics | None

    def note(self, connection: socket.socket, *, is_waited_for: bool) -> None:
        """Record whether the server waits for the connection's client from now on."""
        ...


class Handler(BaseHTTPRequestHandler):
    """One connection, over which several requests may arrive."""

    server: Serving  # type: ignore[assignment]  # made by that server alone
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_S
    # Send head and body at once in one packet; otherwise each answer is delayed by 40 ms.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    server_version = "activedb"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request that changes nothing."""
        self._handle(is_post=False)

    def do_HEAD(self) -> None:
        """Answer like GET, without the body."""
        self._handle(is_post=False)

    def do_POST(self) -> None:
        """Answer a request that changes something."""
        self._handle(is_post=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests, since paths may contain names chosen by users."""

    def handle_one_request(self) -> None:
        """Wait for a request and answer it; an idle connection may be closed for another."""
        self.server.note(self.connection, is_waited_for=True)
        super().handle_one_request()

    def _handle(self, *, is_post: bool) -> None:
        try:
            self._read_body(is_post=is_post)
            self.server.note(self.connection, is_waited_for=False)
            found = self._answer(is_post=is_post)
        except Refused as refused:
            found = Answer({"error": refused.message}, refused.status, refused.headers)
        except Exception as error:
            _LOG.exception("the monitor cannot answer")
            found = Answer(
                {"error": f"{type(error).__name__}; the log of the process says more"},
                HTTPStatus.INTERNAL_SERVER_ERROR,
            )
        self._send(found)

    def _read_body(self, *, is_post: bool) -> None:
        """Read and discard the request body; refuse one of unclear length.

        Unread bytes of a body would be parsed as the next request.
        """
        lengths = self.headers.get_all("Content-Length") or ["0"]
        is_chunked = "Transfer-Encoding" in self.headers
        if lengths == ["0"] and not is_chunked:
            return
        self.close_connection = True
        length = lengths[0]
        is_clear = len(lengths) == 1 and length.isascii() and length.isdigit()
        if is_chunked or not is_clear or len(length) > _DIGITS_MAX:
            raise Refused(HTTPStatus.BAD_REQUEST, "say with Content-Length how long the body is")
        if not is_post:
            raise Refused(HTTPStatus.BAD_REQUEST, "a request that only asks has no body")
        if int(length) > _BODY_BYTES_MAX:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body says nothing: send {}")
        if len(self.rfile.read(int(length))) < int(length):
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is shorter than Content-Length says")
        self.close_connection = self.headers.get("Connection", "").lower() == "close"

    def _answer(self, *, is_post: bool) -> Answer:
        access, given = self.server.access, self.headers.get("Authorization")
        if not access.is_proven(given) and not access.is_called_rightly(self.headers.get("Host")):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "the Host header names another site; call the monitor by its address",
            )
        path = self.path.partition("?")[0]
        if path != "/healthz" and not access.is_known(given):
            raise Refused(
                HTTPStatus.UNAUTHORIZED,
                "the token is missing or wrong; send the setting monitor_token as "
                "'Authorization: Bearer …'",
                {"WWW-Authenticate": "Bearer"},
            )
        if is_post:
            self._check_own_site()
        return answer(
            self.server.source,
            self.path,
            is_post=is_post,
            accept=self.headers.get("Accept") or "",
            metrics=self.server.metrics,
        )

    def _check_own_site(self) -> None:
        """Refuse requests that a page of another site could send without the user's consent."""
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{self.headers.get('Host')}":
            raise Refused(HTTPStatus.FORBIDDEN, "another site may not change anything here")
        kind = (self.headers.get("Content-Type") or "").partition(";")[0].strip()
        if kind != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send Content-Type: application/json")

    def _send(self, found: Answer) -> None:
        if isinstance(found.content, tuple):
            data, kind = found.content
        else:
            data, kind = json.dumps(found.content, default=str).encode(), "application/json"
        self.server.note(self.connection, is_waited_for=True)
        self.send_response(found.status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "default-src 'none'",
            **found.headers,
        }
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


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
