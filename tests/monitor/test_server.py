"""The monitor over HTTP: what it answers, and whom it refuses."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.config import Settings
from activedb.errors import ConfigurationError, DefinitionError
from activedb.events import AccuracyInterval
from activedb.monitor import MonitorServer, RemoteMonitor, _connection
from activedb.monitor._application import MonitorAccess
from tests.databases import PATIENCE_S, in_thread, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.monitor.conftest import Watched

TOKEN = "correct horse battery"


class Caller:
    """Caller of a monitor over plain HTTP, like any other program."""

    def __init__(self, url: str):
        self.address = url.removeprefix("http://")
        self.connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)

    def __call__(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, named)
        response = self.connection.getresponse()
        data = response.read()
        assert response.headers["Access-Control-Allow-Origin"] is None
        assert response.headers["Cache-Control"] == "no-store"
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(data) if is_json and data else data


@pytest.fixture
def open_one(memory: Callable[..., Watched]) -> Watched:
    """Return a watched database in memory, without a token."""
    return memory()


@pytest.fixture
def call(open_one: Watched) -> Iterator[Caller]:
    caller = Caller(url_of(open_one))
    yield caller
    caller.connection.close()


def url_of(watched: Watched) -> str:
    monitoring = watched.db._monitoring
    assert monitoring is not None
    return monitoring.server.url


def test_server_answers_every_path_of_the_contract(open_one: Watched, call: Caller) -> None:
    open_one.db.run(lambda t: t.update(open_one.accounts, 1, balance=5))
    status, state = call("/api/state?since=0")
    assert status == 200
    assert state["recent"]
    id = state["recent"][-1]["id"]
    assert call(f"/api/transactions/{id}")[1] == json.loads(json.dumps(open_one.story(id)))
    assert call("/api/batches")[1]["workflows"] == []
    assert call("/api/letters") == (200, {"counts": {}, "total": 0, "letters": []})
    assert call("/api/pending") == (200, {"total": 0, "pending": []})
    assert call("/healthz") == (200, {"status": "ok"})
    status, text = call("/metrics")
    assert status == 200
    assert b"activedb_transactions" in text


def test_server_head_tells_no_body(call: Caller) -> None:
    assert call("/api/state", method="HEAD") == (200, b"")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/api", 404),
        ("/api/states", 404),
        ("/api/state/", 404),
        ("/../../etc/passwd", 404),
        ("/api/transactions/", 400),
        ("/api/transactions/x", 400),
        ("/api/transactions/-1", 400),
        ("/api/transactions/1e3", 400),
        ("/api/transactions/%31%30%30%30%30%30%30", 404),
        ("/api/transactions/99999999999999999999999", 400),
        ("/api/transactions/999999999", 404),
        ("/api/transactions/٣", 400),
        ("/api/deadlocks/1", 404),
        ("/api/deadlocks/one", 400),
        ("/api/state?since=soon", 400),
        ("/api/state?since=-1", 400),
        ("/api/state?since=1&since=2", 400),
        ("/api/state?" + "&".join(f"a{n}=1" for n in range(100)), 400),
        ("/api/batches?workflow=none", 400),
        ("/api/rules/x/enable", 405),
        ("//[", 404),
    ],
)
def test_server_bad_request_is_refused_as_json(call: Caller, path: str, status: int) -> None:
    from urllib.parse import quote

    found, told = call(quote(path, safe="/?&=%[.-"))
    assert found == status, told
    assert list(told) == ["error"]
    assert told["error"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_server_other_methods_are_not_there(call: Caller, method: str) -> None:
    call.connection.request(method, "/api/state")
    response = call.connection.getresponse()
    response.read()
    assert response.status == 501
    assert response.headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(
    ("host", "is_right"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:1", True),
        ("localhost:8000", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("evil.example:80", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("192.168.1.5", False),
        ("", False),
    ],
)
def test_server_called_by_a_strange_name_refuses(call: Caller, host: str, is_right: bool) -> None:
    assert call("/api/state", Host=host)[0] == (200 if is_right else 403)
    assert call("/healthz", Host=host)[0] == (200 if is_right else 403)


def test_server_with_a_token_tells_only_who_knows_it(memory: Callable[..., Watched]) -> None:
    call = Caller(url_of(memory(monitor_token=TOKEN)))
    for path in ("/api/state", "/metrics", "/api/letters", "/nothing"):
        assert call(path)[0] == 401
        assert call(path, Authorization="Bearer wrong")[0] == 401
        assert call(path, Authorization=f"Basic {TOKEN}")[0] == 401
        assert call(path, Authorization="Bearer ")[0] == 401
        assert call(f"{path}?token={TOKEN.replace(' ', '%20')}")[0] == 401
    assert call("/api/state", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert call("/api/state", Authorization=f"bearer {TOKEN}")[0] == 200
    assert call("/healthz")[0] == 200
    call.connection.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "db.example.org"])
def test_access_beyond_loopback_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigurationError, match="monitor_token"):
        MonitorAccess(Settings(monitor_host=host))
    access = MonitorAccess(Settings(monitor_host=host, monitor_token=TOKEN))  # type: ignore[arg-type]
    assert not access.is_called_rightly("evil.example")
    assert access.is_called_rightly(f"{host if ':' not in host else '[' + host + ']'}:80")
    assert access.is_called_rightly("10.0.0.7:80")


def test_access_to_change_something_needs_a_token() -> None:
    with pytest.raises(ConfigurationError, match="monitor_writable"):
        MonitorAccess(Settings(monitor_writable=True))


def test_database_that_may_not_listen_is_not_opened(tmp_path: Path) -> None:
    before: dict[str, Any] = {"monitor": "on", "monitor_host": "0.0.0.0", "folder": tmp_path}
    with pytest.raises(ConfigurationError, match="at least 16 characters"):
        adb.connect("memory://", **before)
    with pytest.raises(ConfigurationError, match="monitor_token") as short:
        adb.connect("memory://", **before, monitor_token="short-one")
    assert "short-one" not in str(short.value)
    assert TOKEN not in repr(Settings(monitor_token=TOKEN))  # type: ignore[arg-type]


def test_server_at_a_port_that_is_taken_takes_another_and_warns(
    open_one: Watched, caplog: Any, tmp_path: Path
) -> None:
    port = int(url_of(open_one).rpartition(":")[2])
    other = MonitorServer(open_one.monitor, Settings(monitor_port=port, folder=tmp_path))
    try:
        assert str(port) not in other.url
        assert f"another process has port {port}" in caplog.text
        with RemoteMonitor(other.url) as remote:
            assert remote.state()["process"]["url"] == "memory://"
    finally:
        other.close()


def test_server_at_an_address_of_another_computer_says_what_to_do(open_one: Watched) -> None:
    settings = Settings(monitor_host="192.0.2.1", monitor_token=TOKEN)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="monitor_host"):
        MonitorServer(open_one.monitor, settings)


def test_server_listens_to_the_other_protocol_too(memory: Callable[..., Watched]) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 here")
    url = url_of(memory(monitor_host="::1"))
    assert url.startswith("http://[::1]:")
    with RemoteMonitor(url) as remote:
        assert remote.state()["process"]["url"] == "memory://"


def test_server_switches_rules_only_if_that_is_allowed(memory: Callable[..., Watched]) -> None:
    watched = memory(monitor_token=TOKEN, monitor_writable=True)

    @watched.db.rule(on=adb.event("paid"), name="a rule/with a slash")
    def rule(t: adb.Transaction, o: adb.Occurrence) -> None: ...

    call = Caller(url_of(watched))
    path = "/api/rules/a%20rule%2Fwith%20a%20slash/"
    right = {"Authorization": f"Bearer {TOKEN}", "Content_Type": "application/json"}
    assert call(path + "disable", "POST", b"{}", Content_Type="application/json")[0] == 401
    assert call(path + "disable", "POST", b"{}", Authorization=f"Bearer {TOKEN}")[0] == 415
    assert call(path + "disable", "POST", b"{}", **right, Origin="http://evil.example")[0] == 403
    assert watched.state()["rules"][0]["enabled"] is True
    assert call(path + "disable", "POST", b"{}", **right) == (
        200, {"rule": "a rule/with a slash", "enabled": False},
    )  # fmt: skip
    assert watched.state()["rules"][0]["enabled"] is False
    own = f"http://{call.address}"
    assert call(path + "enable", "POST", b"{}", **right, Origin=own)[0] == 200
    assert watched.state()["rules"][0]["enabled"] is True
    assert call("/api/rules/nobody/enable", "POST", b"{}", **right)[0] == 404
    assert call("/api/state", "POST", b"{}", **right)[0] == 404
    call.connection.close()


def test_server_that_is_read_only_refuses_to_switch(open_one: Watched, call: Caller) -> None:
    @open_one.db.rule(on=adb.event("paid"))
    def rule(t: adb.Transaction, o: adb.Occurrence) -> None: ...

    status, told = call("/api/rules/rule/disable", "POST", b"{}", Content_Type="application/json")
    assert (status, "monitor_writable" in told["error"]) == (403, True)
    assert open_one.state()["rules"][0]["enabled"] is True


def leave_open(watched: Watched, *doors: str) -> list[str]:
    """Leave a decision open for each door, whose rule fails for "jammed"; their ids."""

    @watched.db.rule(on=adb.seq(adb.event("OPEN"), adb.event("CLOSE")).same("door"))
    def closed(t: adb.Transaction, o: adb.Occurrence) -> None:
        if o.params["door"] == "jammed":
            raise ValueError(f"{o.params['door']} is secret")
        t.insert(watched.accounts, {"id": 70, "balance": 0})

    for second, door in enumerate(doors):
        us = second * 1_000_000
        watched.db.signal("OPEN", timestamp=stamp("P", us, us + 20), door=door)
        watched.db.signal("CLOSE", timestamp=stamp("Q", us + 10, us + 30), door=door)
    return [each.id for each in watched.db.decisions]


def stamp(node: str, low_us: int, high_us: int) -> AccuracyInterval:
    return AccuracyInterval((low_us + high_us) // 2, low_us, high_us, node=node)


def test_server_makes_decisions_only_if_that_is_allowed(memory: Callable[..., Watched]) -> None:
    watched = memory(monitor_token=TOKEN, monitor_writable=True)
    front, back, jammed = leave_open(watched, "front", "back", "jammed")
    call = Caller(url_of(watched))
    told: dict[str, Any] = {"Authorization": f"Bearer {TOKEN}"}
    right: dict[str, Any] = {**told, "Content_Type": "application/json"}

    def resolve(id: str, choose: str, **headers: Any) -> tuple[int, Any]:
        path = f"/api/decisions/{id}/resolve{choose}"
        return call(path, "POST", b"{}", **(headers or right))

    status, listed = call("/api/decisions", **told)
    assert (status, listed["total"]) == (200, 3)
    assert [each["id"] for each in listed["decisions"]] == [front, back, jammed]
    assert listed["decisions"][0]["texts"] == ["«…»"], "values are hidden"
    assert "front" not in json.dumps(listed)
    assert resolve(front, "?choose=0", Content_Type="application/json")[0] == 401
    assert resolve(front, "?choose=0", **told)[0] == 415
    assert resolve(front, "?choose=0", **right, Origin="http://evil.example")[0] == 403
    assert call(f"/api/decisions/{front}/resolve?choose=0", **told)[0] == 405
    for wrong in ("", "?choose=", "?choose=x", "?choose=7", "?choose=-1", "?choose=0&choose=0"):
        assert resolve(front, wrong)[0] == 400, wrong
    assert resolve("nothing", "?choose=0")[0] == 404
    assert len(list(watched.db.decisions)) == 3
    assert resolve(front, "?choose=0") == (200, {"decision": front, "chosen": [0]})
    assert watched.db.run(lambda t: t.get(watched.accounts, 70)) is not None
    assert resolve(front, "?choose=none")[0] == 409
    assert resolve(back, "?choose=none") == (200, {"decision": back, "chosen": []})
    status, said = resolve(jammed, "?choose=0")
    assert (status, "open as before" in said["error"], "secret" in said["error"]) == (
        409, True, False,
    )  # fmt: skip
    assert [each.id for each in watched.db.decisions] == [jammed]
    with RemoteMonitor(url_of(watched), TOKEN) as remote:
        assert remote.decisions()["total"] == 1
        with pytest.raises(DefinitionError, match="no decision 'a/b'"):
            remote.resolve("a/b", [0])
        with pytest.raises(ConfigurationError, match="was decided by the monitor"):
            remote.resolve(back, [0])
        remote.resolve(jammed, [])
    assert list(watched.db.decisions) == []
    call.connection.close()


def test_server_that_is_read_only_refuses_to_decide(open_one: Watched, call: Caller) -> None:
    (front,) = leave_open(open_one, "front")
    path = f"/api/decisions/{front}/resolve?choose=0"
    status, told = call(path, "POST", b"{}", Content_Type="application/json")
    assert (status, "monitor_writable" in told["error"]) == (403, True)
    assert [each.id for each in open_one.db.decisions] == [front]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST {path} HTTP/1.1\r\nContent-Length: 99999999999", 413),
        ("POST {path} HTTP/1.1\r\nContent-Length: 10001", 413),
        ("POST {path} HTTP/1.1\r\nContent-Length: -1", 400),
        ("POST {path} HTTP/1.1\r\nContent-Length: x", 400),
        ("POST {path} HTTP/1.1\r\nContent-Length: " + "9" * 5_000, 400),
        ("POST {path} HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3", 400),
        ("POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked", 400),
        ("GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked", 400),
        ("GET /healthz HTTP/1.1\r\nContent-Length: 50", 400),
    ],
)
def test_server_body_of_unclear_length_is_refused_and_ends_the_connection(
    memory: Callable[..., Watched], head: str, status: int
) -> None:
    watched = memory(monitor_token=TOKEN, monitor_writable=True)

    @watched.db.rule(on=adb.event("paid"))
    def rule(t: adb.Transaction, o: adb.Occurrence) -> None: ...

    hidden = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    given = f"Host: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer {TOKEN}"
    request = f"{head.format(path='/api/rules/rule/disable')}\r\n{given}\r\n\r\n{hidden}"
    with socket.create_connection(where(watched), timeout=PATIENCE_S) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: received(connection), b""))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.count(b"HTTP/1.1 ") == 1  # what follows is no request
    assert watched.state()["rules"][0]["enabled"] is True


def received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(10_000)
    except ConnectionResetError:  # what was sent and not read is thrown away
        return b""


def where(watched: Watched) -> tuple[str, int]:
    host, port = url_of(watched).removeprefix("http://").split(":")
    return host, int(port)


def wait_for_clients(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let servers wait so long for each client; those that are open now, too, within a second."""
    monkeypatch.setattr(_connection, "PATIENCE_S", seconds)
    monkeypatch.setattr(_connection, "_LOOKS", max(10, round(seconds)))


def fill(watched: Watched, stack: ExitStack) -> None:
    """Take every place, with connections that wait to be asked again."""
    for number in range(32):
        connection = stack.enter_context(
            socket.create_connection(where(watched), timeout=PATIENCE_S)
        )
        if number % 2:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(15).startswith(b"HTTP/1.1 200")
        else:
            connection.sendall(b"GET /he")  # and never the rest


def is_answered(watched: Watched) -> bool:
    with socket.create_connection(where(watched), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return received(connection).startswith(b"HTTP/1.1 200")


def test_server_without_room_turns_away_who_comes_while_all_are_fresh(
    memory: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "_MAKES_ROOM_AFTER_S", PATIENCE_S)
    wait_for_clients(monkeypatch, PATIENCE_S)
    watched = memory()
    with ExitStack() as stack:
        fill(watched, stack)
        with socket.create_connection(where(watched), timeout=PATIENCE_S) as one_more:
            assert received(one_more).startswith(b"HTTP/1.1 503")
    until(lambda: is_answered(watched))


def test_server_without_room_ends_who_is_waited_for_the_longest(
    memory: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "_MAKES_ROOM_AFTER_S", 0.0)
    wait_for_clients(monkeypatch, PATIENCE_S)
    watched = memory()
    with ExitStack() as stack:
        fill(watched, stack)
        for _ in range(40):
            assert is_answered(watched)


def test_server_is_called_by_any_name_with_the_token(memory: Callable[..., Watched]) -> None:
    call = Caller(url_of(memory(monitor_token=TOKEN)))
    right: dict[str, Any] = {"Authorization": f"Bearer {TOKEN}"}
    assert call("/api/state", Host="monitor.example", **right)[0] == 200
    assert call("/api/state", Host="monitor.example")[0] == 403
    assert call("/api/state", Host="LOCALHOST:1", **right)[0] == 200
    call.connection.close()


@pytest.mark.parametrize("token", ["a line\nand another one", "sécret" * 5, " " + "x" * 20])
def test_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigurationError, match="monitor_token") as refused:
        Settings.load(monitor_token=token)
    assert token not in str(refused.value)
    if not token.startswith(" "):
        with pytest.raises(ConfigurationError, match="token") as remote:
            RemoteMonitor("http://127.0.0.1:1", token)
        assert token not in str(remote.value)


def test_server_is_closed_though_clients_read_nothing(
    open_one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "_LAST_WORD_S", 0.0)
    with ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(
                socket.create_connection(where(open_one), timeout=PATIENCE_S)
            )
            ask = b"GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n"
            connection.sendall(ask * 200)
            connection.recv(1)
        open_one.db.close()
        assert not connections(open_one)


def connections(watched: Watched) -> set[Any]:
    assert watched.db._monitoring is not None
    found: set[Any] = watched.db._monitoring.server._server.server_state.connections
    return found


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /he",
        b"POST /api/rules/rule/enable HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000,  # and reads no answer
    ],
    ids=["nothing", "half a head", "half a body", "half of the chunks", "one request", "many"],
)
def test_server_ends_who_lets_it_wait(
    open_one: Watched, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    begun = threading.Event()  # seen although it may have ended by then
    begin = _connection.Connection.connection_made

    def noted(connection: Any, transport: Any) -> None:
        begin(connection, transport)
        begun.set()

    monkeypatch.setattr(_connection.Connection, "connection_made", noted)
    wait_for_clients(monkeypatch, 0.2)
    with socket.create_connection(where(open_one), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        assert begun.wait(PATIENCE_S)
        until(lambda: not connections(open_one))
        while received(connection):
            pass


class Slow:
    """Letters of a monitor, which are read only when they are allowed to."""

    def __init__(self, watched: Watched, monkeypatch: pytest.MonkeyPatch):
        self.is_asked = threading.Event()
        self.goes_on = threading.Event()
        monkeypatch.setattr(watched.monitor, "letters", self)

    def __call__(self) -> dict[str, str]:
        self.is_asked.set()
        assert self.goes_on.wait(PATIENCE_S)
        return {"letters": "read"}

    def asked_by(self, call: Caller) -> Future[Any]:
        """Ask for them, on another thread."""
        asking = in_thread(call, "/api/letters")
        assert self.is_asked.wait(PATIENCE_S)
        return asking


def test_server_does_not_end_who_waits_for_it(
    memory: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_clients(monkeypatch, PATIENCE_S)
    watched = memory()
    slow = Slow(watched, monkeypatch)
    call = Caller(url_of(watched))
    asking = slow.asked_by(call)
    monkeypatch.setattr(_connection, "_MAKES_ROOM_AFTER_S", 0.0)
    with ExitStack() as stack:
        fill(watched, stack)
        assert is_answered(watched)
        wait_for_clients(monkeypatch, 0.1)
        until(lambda: len(connections(watched)) == 1)
    slow.goes_on.set()
    assert asking.result(PATIENCE_S) == (200, {"letters": "read"})
    call.connection.close()


def test_server_sends_answers_without_delay(open_one: Watched) -> None:
    with socket.create_connection(where(open_one), timeout=PATIENCE_S):
        until(lambda: connections(open_one))
        (connection,) = connections(open_one)
        transport = connection.transport.get_extra_info("socket")
        assert transport.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_server_that_is_closed_answers_what_it_was_asked_before(
    open_one: Watched, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "_LAST_WORD_S", PATIENCE_S)
    slow = Slow(open_one, monkeypatch)
    asking = slow.asked_by(call)
    address = where(open_one)
    closing = in_thread(open_one.db.close)
    until(lambda: not is_listening(address))
    slow.goes_on.set()
    assert asking.result(PATIENCE_S) == (200, {"letters": "read"})
    closing.result(PATIENCE_S)


def is_listening(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=PATIENCE_S).close()
    except OSError:
        return False
    return True


@pytest.mark.long
def test_server_is_closed_though_an_answer_takes_too_long(
    memory: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "_LAST_WORD_S", 0.0)
    before = set(threading.enumerate())
    with monkeypatch.context() as patched:
        patched.setattr(_connection, "PATIENCE_S", 1)  # when it is closed
        watched = memory()
    wait_for_clients(monkeypatch, PATIENCE_S)
    slow = Slow(watched, monkeypatch)
    call = Caller(url_of(watched))
    asking = slow.asked_by(call)
    watched.db.close()
    with pytest.raises((OSError, http.client.HTTPException)):
        asking.result(PATIENCE_S)
    call.connection.close()
    slow.goes_on.set()
    until(lambda: not [e for e in threading.enumerate() if e not in before and "monitor" in e.name])


def test_server_logs_no_requests_and_leaves_the_loggers_of_others(
    open_one: Watched, call: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert logging.getLogger("uvicorn.access").propagate
    assert call("/api/secret")[0] == 404
    assert call("/healthz", Connection="Upgrade", Upgrade="websocket")[0] == 200
    with socket.create_connection(where(open_one), timeout=PATIENCE_S) as connection:
        connection.sendall(b"no request\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 400")
    open_one.db.close()
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]
    assert "secret" not in caplog.text
    logging.getLogger("uvicorn.error").info("of the program itself")
    assert "of the program itself" in caplog.text


@pytest.mark.long
def test_clients_of_a_monitor_do_not_import_its_server() -> None:
    program = "import sys, activedb.monitor; sys.exit('uvicorn' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


FORKING = """
import os, signal, socket, sys, warnings
import activedb as adb
from activedb.monitor import attach
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: that is the test
with adb.connect("memory://", monitor="on", folder=sys.argv[1]) as db:
    child = os.fork()
    if child == 0:
        signal.alarm(int(sys.argv[2]))
        db.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    with attach(folder=sys.argv[1]) as process:
        told = process.state()["process"]["pid"]
    host, port = process.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=float(sys.argv[2]))
    client.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    client.recv(1)
    child = os.fork()  # and has a copy of the connection
    if child == 0:
        signal.alarm(int(sys.argv[2]))
        signal.pause()
while client.recv(10_000):
    pass
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
client.close()
print(status, told == os.getpid())
"""


@pytest.mark.long
def test_server_that_a_fork_closes_goes_on_in_the_parent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path), str(round(PATIENCE_S))],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.split() == ["0", "True"], done.stderr


def test_server_error_of_ours_is_told_without_details(
    open_one: Watched, call: Caller, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(since: int) -> None:
        raise RuntimeError("a secret of the process")

    monkeypatch.setattr(open_one.monitor, "state", fail)
    status, told = call("/api/state")
    assert status == 500
    assert "secret" not in told["error"]
    assert "a secret of the process" in caplog.text


def test_server_that_is_closed_answers_nobody_and_leaves_no_file(
    open_one: Watched, tmp_path: Path
) -> None:
    url = url_of(open_one)
    assert list(tmp_path.glob("monitors/*.json"))
    open_one.db.close()
    assert not list(tmp_path.glob("monitors/*"))
    with pytest.raises(OSError):  # noqa: PT011
        Caller(url)("/healthz")
