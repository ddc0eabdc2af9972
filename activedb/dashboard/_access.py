"""Access control: checks made on every request, for pages and web sockets alike.

- Without a token, ``Host`` must name this computer: a page elsewhere whose own name resolves to
  this address (DNS rebinding) is refused.
- ``Origin``, where a browser sends one, must be this server: other pages can neither open the web
  socket nor post a form.
- With a token, a request needs the cookie that was given for it, or ``Authorization: Bearer``. A
  browser gets the cookie through the form, or by opening an address with ``?token=``, from which
  the token is then removed.

This module never logs a token, a cookie or an address with its query.
"""

from __future__ import annotations

import hmac
import logging
from hashlib import sha256
from html import escape
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from activedb.errors import ConfigurationError
from activedb.loopback import is_loopback

__all__ = ["AccessMiddleware", "DashboardAccess"]

TOKEN_LENGTH_MIN = 16
_TOKEN_LENGTH_MAX = 512
_BODY_MAX = 4_096
_LOGIN = "/login"
_MONTH_S = 30 * 24 * 3600

_log = logging.getLogger(__name__)

_HEADERS = {
    # The framework compiles functions from text in the browser, hence 'unsafe-eval'.
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
        "connect-src 'self'; object-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'self'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
}


class DashboardAccess:
    """Access rules of a dashboard that is bound to a host.

    Parameters
    ----------
    host : str
        Address on which the server listens.
    token : str or None
        Secret of at least 16 characters that visitors must know. Needed unless `host` is loopback.

    Raises
    ------
    ConfigurationError
        If a token is missing, or too short.
    """

    def __init__(self, host: str, token: str | None = None):
        token = token or None
        if token is None and not is_loopback(host):
            raise ConfigurationError(
                f"other computers can reach {host}, so the dashboard needs a token there: give "
                "--token, or set ACTIVEDB_DASHBOARD_TOKEN; or leave it on 127.0.0.1"
            )
        if token is not None and not TOKEN_LENGTH_MIN <= len(token) <= _TOKEN_LENGTH_MAX:
            raise ConfigurationError(
                f"the token of the dashboard has {len(token)} characters; use at least "
                f"{TOKEN_LENGTH_MIN} random ones, such as those of: "
                "python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        self._token = None if token is None else token.encode()
        self._names = {"localhost", "127.0.0.1", "[::1]", host.lower()}

    @property
    def needs_token(self) -> bool:
        """True if visitors need a token."""
        return self._token is not None

    def is_token(self, given: str) -> bool:
        """Return whether this is the token; takes as long for any other of its length."""
        return self._token is not None and hmac.compare_digest(given.encode(), self._token)

    @property
    def cookie(self) -> str:
        """Cookie for a browser that has given the token; it reveals nothing about the token."""
        assert self._token is not None
        return hmac.new(self._token, b"cookie of the activedb dashboard", sha256).hexdigest()

    def is_cookie(self, given: str) -> bool:
        """Return whether this is the cookie's value."""
        return self._token is not None and hmac.compare_digest(given.encode(), self.cookie.encode())

    def is_for_us(self, host: str) -> bool:
        """Return whether a ``Host`` header names this server.

        Without a token only the names of loopback are accepted. With a token any name is, as a
        computer, or a proxy in front of it, has more names than it knows of: a page whose own name
        resolves to this address has no cookie for that name.
        """
        if not host or any(c in host for c in " /\\@"):
            return False
        return self.needs_token or _name(host) in self._names


def _netloc(origin: str) -> str | None:
    """Return host and port of an ``Origin`` header; None if it is no origin."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _name(host: str) -> str:
    """Return the name in a ``Host`` header, without the port."""
    if host.startswith("["):
        return f"{host.partition(']')[0]}]".lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


class AccessMiddleware:
    """Middleware that lets a request through or refuses it (403: stranger, 401: no token)."""

    def __init__(self, app: ASGIApp, access: DashboardAccess):
        self.app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the opening of one web socket."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        response = await self._refused(scope, receive)
        if response is None:
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await response(scope, receive, _with_headers(send))

    async def _refused(self, scope: Scope, receive: Receive) -> Response | None:
        """Return the answer to send in place of the page; None if the page may be shown."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._access.is_for_us(host):
            _log.warning("a request for another host was refused")
            return PlainTextResponse(
                "This is not the address of the dashboard; open the one that the command prints.",
                403,
            )
        if origin is not None and _netloc(origin) != host:
            _log.warning("a request from a page of another origin was refused")
            return PlainTextResponse("Pages of other origins cannot use the dashboard.", 403)
        if not self._access.needs_token:
            return None
        is_get = scope["type"] == "http" and scope["method"] == "GET"
        if scope["type"] == "http" and scope["path"] == _LOGIN:
            return await self._login(Request(scope, receive))
        if is_get and b"token=" in scope["query_string"]:
            return self._exchanged(scope)  # also with a cookie: a token must not stay in an address
        name = _cookie_name(scope)
        if self._access.is_cookie(_cookies(headers).get(name, "")):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._access.is_token(given.strip()):
            return None
        if is_get:
            return _form(_here(scope))
        return PlainTextResponse("The dashboard requires a token.", 401)

    def _exchanged(self, scope: Scope) -> Response:
        """Exchange ``?token=`` for the cookie and the address without it; else show the form."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token", "")
        if not self._access.is_token(given):
            _log.warning("a wrong token was refused")
            return _form(_here(scope), "The token is wrong.")
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        return self._admitted(scope, f"{_path(scope)}?{rest}" if rest else _path(scope))

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return _form("/")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _BODY_MAX:
                return PlainTextResponse("The request is too long.", 413)
        given = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        then = given.get("then", "/")
        if not then.startswith("/") or then.startswith(("//", "/\\")):
            then = "/"
        if not self._access.is_token(given.get("token", "")):
            _log.warning("a wrong token was refused")
            return _form(then, "The token is wrong.")
        return self._admitted(request.scope, then)

    def _admitted(self, scope: Scope, then: str) -> Response:
        response = RedirectResponse(then, 303)
        response.set_cookie(
            _cookie_name(scope),
            self._access.cookie,
            max_age=_MONTH_S,
            path="/",
            httponly=True,
            samesite="strict",
            secure=scope["scheme"] in ("https", "wss"),
        )
        return response


def _cookie_name(scope: Scope) -> str:
    """Return a cookie name for this port alone: browsers share cookies between ports of a host."""
    server = scope.get("server")
    return f"activedb_dashboard_{server[1] if server else 0}"


def _cookies(headers: Headers) -> dict[str, str]:
    pairs = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
    return {name: value for name, _, value in pairs}


def _path(scope: Scope) -> str:
    """Return the requested path as one on this server: never ``//elsewhere``."""
    return "/" + str(scope["path"]).lstrip("/\\")


def _here(scope: Scope) -> str:
    query = [
        (name, value)
        for name, value in parse_qsl(scope["query_string"].decode("latin-1"))
        if name != "token"
    ]
    return f"{_path(scope)}?{urlencode(query)}" if query else _path(scope)


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sent


def _form(then: str, problem: str = "") -> HTMLResponse:
    said = f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""
    return HTMLResponse(_PAGE.format(then=escape(then, quote=True), said=said), 401)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>activedb: token</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; display: grid; place-items: center }}
body {{ min-height: 90vh }}
form {{ display: grid; gap: .75rem; width: min(22rem, 90vw) }}
h1 {{ font-size: 1.25rem; margin: 0 }} p {{ margin: 0 }}
input, button {{ font: inherit; padding: .5rem .75rem }}
.problem {{ color: #cf222e; font-weight: 600 }}
@media (prefers-color-scheme: dark) {{ .problem {{ color: #ff8182 }} }}
</style></head><body><main><form method="post" action="/login">
<h1>activedb dashboard</h1>{said}
<label for="token">Token of <code>activedb dashboard --token</code></label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<input type="hidden" name="then" value="{then}">
<button>Open</button></form></main></body></html>
"""
