"""ASGI application of the monitor: JSON for pages and terminals, text for Prometheus."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from http import HTTPStatus
from typing import Any, TypeAlias

from activedb.config import Settings
from activedb.errors import ConfigurationError
from activedb.loopback import is_loopback
from activedb.monitor._routes import HttpResponse, Metrics, RequestRefused, answer
from activedb.monitor._source import Source

__all__ = [
    "Application",
    "MonitorAccess",
]


_LOG = logging.getLogger(__name__)
_BODY_BYTES_MAX = 10_000
_METHODS = ("GET", "HEAD", "POST")

Message: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Response: TypeAlias = tuple[HTTPStatus, dict[str, str], bytes]


class Application:
    """ASGI application that checks a request and answers it.

    Parameters
    ----------
    source : Source
        The monitor to serve.
    access : MonitorAccess
    metrics : callable, optional
        Returns, for an ``Accept`` header, the text for Prometheus and its content type.
    threads : Executor
        Threads that answer requests: the source takes latches and may ask the store.
    """

    def __init__(
        self, source: Source, access: MonitorAccess, metrics: Metrics | None, threads: Executor
    ):
        self._source = source
        self._access = access
        self._metrics = metrics
        self._threads = threads

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {
            name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]
        }
        try:
            if not await _is_whole(scope["method"], headers, receive):
                return
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._threads, self._respond, scope, headers)
        except RequestRefused as refused:
            found = _response(
                HttpResponse({"error": refused.message}, refused.status, refused.headers)
            )
        except Exception as error:
            _LOG.exception("the monitor cannot answer")
            said = {"error": f"{type(error).__name__}; the log of the process says more"}
            found = _response(HttpResponse(said, HTTPStatus.INTERNAL_SERVER_ERROR))
        status, named, data = found
        encoded = [(name.lower().encode(), text.encode("latin-1")) for name, text in named.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": data})

    def _respond(self, scope: Message, headers: Mapping[str, str]) -> Response:
        path = scope["raw_path"].decode("ascii")
        given = headers.get("authorization")
        if not self._access.is_proven(given):
            if not self._access.is_called_rightly(headers.get("host")):
                raise RequestRefused(
                    HTTPStatus.FORBIDDEN,
                    "the Host header names another site; call the monitor by its address",
                )
            if path != "/healthz" and not self._access.is_known(given):
                raise RequestRefused(
                    HTTPStatus.UNAUTHORIZED,
                    "the token is missing or wrong; send the setting monitor_token as "
                    "'Authorization: Bearer …'",
                    {"WWW-Authenticate": "Bearer"},
                )
        is_post = scope["method"] == "POST"
        if is_post:
            _check_own_site(headers)
        return _response(
            answer(
                self._source,
                path,
                scope["query_string"].decode("ascii"),
                is_post=is_post,
                accept=headers.get("accept", ""),
                metrics=self._metrics,
            )
        )


async def _is_whole(method: str, headers: Mapping[str, str], receive: Receive) -> bool:
    """Read and discard the body, which says nothing; return False if the client leaves."""
    closing = {"Connection": "close"}  # instead of reading what is refused
    length = int(headers.get("content-length", "0"))
    if method not in _METHODS:
        raise RequestRefused(
            HTTPStatus.NOT_IMPLEMENTED, f"use one of {', '.join(_METHODS)}", closing
        )
    if length and method != "POST":
        raise RequestRefused(
            HTTPStatus.BAD_REQUEST, "a request that only asks has no body", closing
        )
    if length > _BODY_BYTES_MAX:
        said = "the body says nothing: send {}"
        raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, said, closing)
    while (message := await receive())["type"] == "http.request":
        if not message["more_body"]:
            return True
    return False


def _check_own_site(headers: Mapping[str, str]) -> None:
    """Refuse requests that a page of another site could send without the user's consent."""
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{headers.get('host')}":
        raise RequestRefused(HTTPStatus.FORBIDDEN, "another site may not change anything here")
    kind = headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise RequestRefused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send Content-Type: application/json"
        )


def _response(found: HttpResponse) -> Response:
    if isinstance(found.content, tuple):
        data, kind = found.content
    else:
        data, kind = json.dumps(found.content, default=str).encode(), "application/json"
    headers = {
        "Content-Type": kind,
        "Content-Length": str(len(data)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'",
        **found.headers,
    }
    return found.status, headers, data


# -- access control: the Host header and the token -------------------------------------------------


class MonitorAccess:
    """Check of requests by Host header and bearer token.

    Parameters
    ----------
    settings : Settings
        Its ``monitor_…`` fields are used.

    Raises
    ------
    ConfigurationError
        If the settings would let others read or change more than they should, because there is no
        token.
    """

    def __init__(self, settings: Settings):
        host = settings.monitor_host
        token = settings.monitor_token
        self._token = None if token is None else token.get_secret_value()
        self._host = host
        self._is_local = is_loopback(host)
        if self._token is None and not self._is_local:
            raise ConfigurationError(
                f"monitor_host is {host}, where others can reach it: set monitor_token to a secret "
                f"of at least 16 characters, or leave the host at 127.0.0.1"
            )
        if self._token is None and settings.monitor_writable:
            raise ConfigurationError(
                "monitor_writable lets rules be disabled from outside: set monitor_token to a "
                "secret of at least 16 characters, too"
            )

    def is_called_rightly(self, host: str | None) -> bool:
        """Return whether the Host header names this server.

        This check defeats DNS rebinding, where a page of another site makes its own name resolve to
        this address. On loopback only loopback names are accepted. Otherwise the configured address
        or name is accepted, or any address if the server listens on all of them.
        """
        if not host:
            return False
        name = _without_port(host).lower()
        if is_loopback(name) or name == self._host.lower():
            return True
        return not self._is_local and _is_address(name)

    def is_known(self, authorization: str | None) -> bool:
        """Return whether the Authorization header has the token, if one is needed."""
        return self._token is None or self.is_proven(authorization)

    def is_proven(self, authorization: str | None) -> bool:
        """Return whether a token is set and the Authorization header has it.

        A request that has the token does not come from a foreign page, so its Host header doesn't
        matter.
        """
        if self._token is None:
            return False
        scheme, _, given = (authorization or "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._token.encode())
        return is_right and scheme.lower() == "bearer"


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] or host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
