"""One connection to the monitor: reading requests, access checks, and answers."""

from __future__ import annotations

import json
import logging
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol

from activedb.monitor._access import Access
from activedb.monitor._routes import Answer, Metrics, Refused, answer
from activedb.monitor._source import Source

__all__ = ["PATIENCE_S", "Handler", "Serving"]

_LOG = logging.getLogger(__name__)
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
