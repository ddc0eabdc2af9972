"""ASGI application of the monitor: JSON for pages and terminals, text for Prometheus."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from http import HTTPStatus
from typing import Any, TypeAlias

from activedb.monitor._access import MonitorAccess
from activedb.monitor._routes import HttpResponse, Metrics, RequestRefused, answer
from activedb.monitor._source import Source

__all__ = ["Application"]

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
