"""Access control: host, origin, token and cookie, for pages and web sockets."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import urlencode

import pytest

from activedb.dashboard._access import AccessMiddleware, DashboardAccess
from activedb.errors import ConfigurationError

TOKEN = "correct horse battery"


async def inner(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a page"})


def ask(
    access: DashboardAccess,
    path: str = "/",
    *,
    method: str = "GET",
    query: str = "",
    body: bytes = b"",
    kind: str = "http",
    **headers: str,
) -> tuple[int, dict[str, str], str]:
    """Status (of a web socket: 101 or its close code), headers and body."""
    given = {"host": "127.0.0.1:8088"} | {k.replace("_", "-"): v for k, v in headers.items()}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": method,
        "scheme": "http" if kind == "http" else "ws",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(k.encode(), v.encode()) for k, v in given.items()],
        "server": ("127.0.0.1", 8088),
        "client": ("127.0.0.1", 5),
    }
    asyncio.run(AccessMiddleware(inner, access)(scope, receive, send))
    first = sent[0]
    if kind == "websocket":
        return (101 if first["type"] == "websocket.accept" else first["code"]), {}, ""
    found = {k.decode(): v.decode() for k, v in first["headers"]}
    text = b"".join(each.get("body", b"") for each in sent[1:]).decode()
    return first["status"], found, text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_host_that_others_reach_without_token_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="needs a token"):
        DashboardAccess(host)
    assert DashboardAccess(host, TOKEN).needs_token


def test_short_token_is_refused_and_not_quoted() -> None:
    with pytest.raises(ConfigurationError, match="at least 16") as caught:
        DashboardAccess("127.0.0.1", "hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert not DashboardAccess(host).needs_token


def test_page_on_loopback_is_shown_with_headers_that_keep_it_at_home() -> None:
    status, headers, body = ask(DashboardAccess("127.0.0.1"))
    assert (status, body) == (200, "a page")
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "connect-src 'self'" in headers["content-security-policy"]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:8088"},
        {"host": ""},
        {"host": "127.0.0.1.evil.example"},
        {"host": "evil.example@127.0.0.1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://127.0.0.1:9999"},
    ],
)
def test_other_host_or_origin_is_refused(kind: str, headers: dict[str, Any]) -> None:
    status, _, _ = ask(DashboardAccess("127.0.0.1"), kind=kind, **headers)
    assert status == (403 if kind == "http" else 1008)


@pytest.mark.parametrize("host", ["localhost:8088", "[::1]:8088", "127.0.0.1"])
def test_names_of_loopback_are_all_ours(host: str) -> None:
    assert ask(DashboardAccess("127.0.0.1"), host=host)[0] == 200


def test_any_name_will_do_with_a_token_as_proxies_have_their_own() -> None:
    access = DashboardAccess("127.0.0.1", TOKEN)
    token = f"Bearer {TOKEN}"
    named: dict[str, Any] = {"host": "bank.example", "authorization": token}
    assert ask(access, **named)[0] == 200
    assert ask(access, **named, origin="https://bank.example")[0] == 200
    assert ask(access, **named, origin="https://evil.example")[0] == 403


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_without_token_there_is_no_page_and_no_socket(kind: str) -> None:
    status, _, body = ask(DashboardAccess("0.0.0.0", TOKEN), kind=kind)
    assert status == (401 if kind == "http" else 1008)
    assert "a page" not in body


def test_token_in_the_address_becomes_a_cookie_and_leaves_the_address() -> None:
    access = DashboardAccess("127.0.0.1", TOKEN)
    query = urlencode({"token": TOKEN, "workflow": "a b"})
    status, headers, _ = ask(access, "/batches", query=query)
    assert (status, headers["location"]) == (303, "/batches?workflow=a+b")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    pair = cookie.partition(";")[0]
    assert ask(access, cookie=f"other=1; {pair}")[0] == 200
    assert ask(access, kind="websocket", cookie=pair)[0] == 101
    assert ask(access, query=query, cookie=pair)[0] == 303  # a token is to stand nowhere


def test_cookie_of_another_token_or_port_is_refused() -> None:
    access, other = DashboardAccess("127.0.0.1", TOKEN), DashboardAccess("127.0.0.1", TOKEN + "!")
    assert ask(access, cookie=f"activedb_dashboard_8088={other.cookie}")[0] == 401
    assert ask(access, cookie=f"activedb_dashboard_9999={access.cookie}")[0] == 401
    assert ask(access, cookie=f"activedb_dashboard_8088={TOKEN}")[0] == 401


def test_bearer_token_is_taken_from_programs() -> None:
    access = DashboardAccess("127.0.0.1", TOKEN)
    assert ask(access, authorization=f"Bearer {TOKEN}")[0] == 200
    assert ask(access, authorization="Bearer wrong")[0] == 401
    assert ask(access, authorization="Bearer ümlaut")[0] == 401


def test_form_with_the_token_leads_to_the_page_asked_for() -> None:
    access = DashboardAccess("127.0.0.1", TOKEN)
    _, _, form = ask(access, "/locks", query='a="><script>')
    assert 'name="token"' in form
    assert "<script>" not in form
    body = urlencode({"token": TOKEN, "then": "/locks"}).encode()
    status, headers, _ = ask(access, "/login", method="POST", body=body)
    assert (status, headers["location"]) == (303, "/locks")


@pytest.mark.parametrize("then", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_form_never_leads_elsewhere(then: str) -> None:
    body = urlencode({"token": TOKEN, "then": then}).encode()
    _, headers, _ = ask(DashboardAccess("127.0.0.1", TOKEN), "/login", method="POST", body=body)
    assert headers["location"] == "/"


def test_address_with_token_never_leads_elsewhere() -> None:
    query = urlencode({"token": TOKEN})
    _, headers, _ = ask(DashboardAccess("127.0.0.1", TOKEN), "//evil.example/x", query=query)
    assert headers["location"] == "/evil.example/x"


def test_wrong_token_is_refused_and_nothing_of_it_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    access = DashboardAccess("127.0.0.1", TOKEN)
    assert ask(access, query="token=guess-number-one")[0] == 401
    body = urlencode({"token": "guess-number-two"}).encode()
    assert ask(access, "/login", method="POST", body=body)[0] == 401
    assert ask(access, "/login", method="POST", body=b"x" * 10_000)[0] == 413
    assert "refused" in caplog.text
    assert "guess" not in caplog.text


def test_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    access = DashboardAccess("127.0.0.1", TOKEN)
    assert access.is_token(TOKEN)
    assert not access.is_cookie("x")
    assert compared == [(TOKEN.encode(), TOKEN.encode()), (b"x", access.cookie.encode())]
