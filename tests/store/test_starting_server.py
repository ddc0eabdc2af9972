"""A server that is starting or recovering is waited for; one that refuses is not."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url

import activedb as adb
from activedb.errors import ServerUnreachable
from activedb.store.server._connections import _places
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


def test_server_that_is_not_there_yet_is_waited_for_if_asked(
    plain_postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = make_url(plain_postgres_url).set(port=port).render_as_string(hide_password=False)
    with caplog.at_level(logging.WARNING, "activedb.store"):
        opening = in_thread(lambda: adb.connect(url, wait_s=HOURS_S, db_schema="late"))
        until(lambda: "does not answer; waiting for it" in caplog.text)
    wire = Wire(plain_postgres_url, port=port)
    try:
        opening.result(PATIENCE_S).close()
    finally:
        wire.close()


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
