"""A server that is starting or recovering is waited for; one that refuses is not."""

from __future__ import annotations

import logging
import re
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url

import activedb as adb
from activedb.errors import ServerUnreachable
from activedb.store.server import _connections
from activedb.store.server._connections import Readiness, _places, await_server
from tests.databases import in_thread, until
from tests.patience import PATIENCE_S
from tests.servers import recovering_server
from tests.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOURS_S = 3_600.0
"""Longer than any test waits: who waits for so long is found out."""


@pytest.fixture
def recovering() -> Iterator[tuple[str, Callable[[], None]]]:
    with recovering_server() as found:
        yield found


@pytest.mark.long
def test_server_that_recovers_is_waited_for_and_that_is_told(
    recovering: tuple[str, Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    url, end_recovery = recovering
    with caplog.at_level(logging.WARNING, "activedb.store"):
        with pytest.raises(ServerUnreachable, match="no Postgres answers"):
            adb.connect(url, wait_s=0)
        opening = in_thread(lambda: adb.connect(url, wait_s=HOURS_S))
        until(lambda: "is starting; waiting for it" in caplog.text)
        assert not opening.done()
        assert str(make_url(url).password) not in caplog.text
        end_recovery()
        with opening.result(PATIENCE_S) as db:
            assert db.run(lambda t: t.id) > 0


@pytest.mark.long
def test_server_that_recovers_is_waited_for_by_default(
    recovering: tuple[str, Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    """The wait is long enough to be logged; its total length depends on the machine."""
    url, _ = recovering
    with (
        caplog.at_level(logging.WARNING, "activedb.store"),
        pytest.raises(ServerUnreachable),
    ):
        adb.connect(url)
    assert "of 10 s" in caplog.text


@pytest.mark.long
def test_server_that_is_not_there_yet_is_waited_for_if_asked(
    plain_postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as reserved:  # so that no other program takes the port meanwhile
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        url = make_url(plain_postgres_url).set(port=port).render_as_string(hide_password=False)
        with caplog.at_level(logging.WARNING, "activedb.store"):
            opening = in_thread(lambda: adb.connect(url, wait_s=HOURS_S, db_schema="late"))
            until(lambda: "does not answer; waiting for it" in caplog.text)
        wire = Wire(plain_postgres_url, port=port)
    try:
        opening.result(PATIENCE_S).close()
    finally:
        wire.close()


@pytest.mark.long
@pytest.mark.parametrize("wait_s", [0, 1])
def test_server_that_accepts_and_never_answers_is_tried_once_in_a_shorter_wait(
    wait_s: float,
) -> None:
    """One try takes two seconds, the least that libpq can wait; all that connect stay queued."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        url = f"postgresql://u:p@127.0.0.1:{silent.getsockname()[1]}/d?connect_timeout=2"
        with pytest.raises(ServerUnreachable):
            adb.connect(f"{url}&sslmode=disable&gssencmode=disable", wait_s=wait_s)
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize("found", [Readiness.SILENT, Readiness.STARTING])
@pytest.mark.parametrize("wait_s", [0, 3, 7, 60, None])
def test_wait_is_no_longer_than_was_asked_and_than_is_told(
    found: Readiness,
    wait_s: float | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = [100.0]

    def asked(places: object, ask_s: float = 5.0) -> Readiness:
        """Take all the time that there is for an answer."""
        now_s[0] += ask_s
        return found

    monkeypatch.setattr(_connections, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(_connections, "readiness", asked)
    with caplog.at_level(logging.WARNING, "activedb.store"):
        await_server(make_url("postgresql://h/d"), wait_s)
    longest_s = wait_s if wait_s is not None else 10 if found is Readiness.STARTING else 5
    assert now_s[0] - 100 == longest_s
    told = re.findall(r"waiting for it, (\S+) of (\S+) s", caplog.text)
    assert all(float(waited) < float(of) for waited, of in told)
    assert bool(told) == (longest_s > 5)


@pytest.mark.parametrize("wrong", ["password", "database"])
def test_server_that_refuses_is_not_waited_for(plain_postgres_url: str, wrong: str) -> None:
    changed: dict[str, Any] = {wrong: "no_such_one"}
    url = make_url(plain_postgres_url).set(**changed)
    opening = in_thread(adb.connect, url.render_as_string(hide_password=False))
    assert isinstance(opening.exception(PATIENCE_S), ServerUnreachable)
    patient = in_thread(
        lambda: adb.connect(url.render_as_string(hide_password=False), wait_s=HOURS_S)
    )
    assert isinstance(patient.exception(PATIENCE_S), ServerUnreachable)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://h/d", [("h", 5432)]),
        ("postgresql://h:1/d", [("h", 1)]),
        ("postgresql:///d?host=/run&port=7", [("/run", 7)]),
        ("postgresql:///d?host=a:1&host=b:2", [("a", 1), ("b", 2)]),
        ("postgresql:///d?host=a,b&port=1,2", [("a", 1), ("b", 2)]),
        ("postgresql:///d", []),
    ],
)
def test_places_of_a_url_are_those_that_libpq_would_try(
    url: str, expected: list[tuple[str, int]]
) -> None:
    assert list(_places(make_url(url))) == expected
