"""The monitor of another process shows the same as that process itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import (
    ActiveDBError,
    ConfigurationError,
    DefinitionError,
    ServerUnreachable,
)
from activedb.monitor import Address, RemoteMonitor, addresses, attach
from activedb.monitor._addresses import tell
from tests.monitor.test_server import TOKEN, url_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.monitor.conftest import Watched


def test_remote_tells_what_the_process_itself_tells(memory: Callable[..., Watched]) -> None:
    watched = memory()
    watched.db.run(lambda t: t.update(watched.accounts, 1, balance=5))
    with RemoteMonitor(url_of(watched)) as remote:
        mine, theirs = watched.monitor.state(0), remote.state(0)
        for state in (mine, theirs):
            del state["process"]["now_s"]
        assert theirs == json.loads(json.dumps(mine))
        id = mine["recent"][-1]["id"]
        assert remote.transaction(id) == watched.monitor.transaction(id)
        assert remote.transaction(10**9) is None
        assert remote.deadlock(1) is None
        assert remote.batches() == watched.monitor.batches()
        assert remote.letters() == watched.monitor.letters()
        assert remote.pending() == watched.monitor.pending()
        with pytest.raises(ConfigurationError, match="workflow"):
            remote.batches("none")


def test_remote_switches_rules_with_the_token(memory: Callable[..., Watched]) -> None:
    watched = memory(monitor_token=TOKEN, monitor_writable=True)

    @watched.db.rule(on=adb.event("paid"))
    def rule(t: adb.Transaction, o: adb.Occurrence) -> None: ...

    for token in (None, "not the right one"):
        with (
            RemoteMonitor(url_of(watched), token) as stranger,
            pytest.raises(ConfigurationError, match="token"),
        ):
            stranger.state()
    with RemoteMonitor(url_of(watched), TOKEN) as remote:
        remote.switch("rule", False)
        assert remote.state()["rules"][0]["enabled"] is False
        remote.switch("rule", True)
        assert remote.state()["rules"][0]["enabled"] is True
        with pytest.raises(DefinitionError, match="nobody"):
            remote.switch("nobody", True)


def test_remote_switches_rules_although_kept_connections_were_closed(
    memory: Callable[..., Watched],
) -> None:
    """The process closes connections that are not used; a request that changes is sent once."""
    watched = memory(monitor_token=TOKEN, monitor_writable=True)

    @watched.db.rule(on=adb.event("paid"))
    def rule(t: adb.Transaction, o: adb.Occurrence) -> None: ...

    with RemoteMonitor(url_of(watched), TOKEN) as remote:
        remote.state()
        (kept,) = remote._idle
        assert kept.sock is not None
        kept.sock.shutdown(socket.SHUT_RDWR)
        remote.switch("rule", False)
        assert remote.state()["rules"][0]["enabled"] is False


def test_remote_of_a_process_that_is_read_only_cannot_switch(
    memory: Callable[..., Watched],
) -> None:
    watched = memory()
    with (
        RemoteMonitor(url_of(watched)) as remote,
        pytest.raises(ConfigurationError, match="monitor_writable"),
    ):
        remote.switch("rule", False)


def test_remote_whose_process_has_ended_says_so(memory: Callable[..., Watched]) -> None:
    watched = memory()
    with RemoteMonitor(url_of(watched)) as remote:
        remote.state()
        watched.db.close()
        with pytest.raises(ServerUnreachable, match="no monitor answers"):
            remote.state()


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://host", "http://", "file:///etc/passwd",
    "http://[bad", "http://h:99999", "http://h:x", "http://.a",
])  # fmt: skip
def test_remote_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not an address of a monitor"):
        RemoteMonitor(url)


@pytest.mark.parametrize("url", ["https://me:s3cret@127.0.0.1:9", "me:s3cret@127.0.0.1:9"])
def test_remote_shows_no_password_of_its_address(url: str) -> None:
    with pytest.raises(ActiveDBError) as raised, RemoteMonitor(url) as remote:
        assert "s3cret" not in f"{remote!r} {remote.url}"
        remote.state()
    assert "me:***@127.0.0.1:9" in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>", b"HTTP/1.1 200 OK\r\n\r\n{}"],
)
def test_remote_that_is_no_monitor_is_told(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(ServerUnreachable):
            RemoteMonitor(f"http://127.0.0.1:{listening.getsockname()[1]}").state()


def test_attach_finds_the_newest_process_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable, match="monitor='on'"):
        attach(folder=tmp_path)
    with adb.connect("memory://", monitor="on", folder=tmp_path) as first:
        with adb.connect("memory://", monitor="on", folder=tmp_path) as second:
            assert first.admin.monitor is not None
            assert second.admin.monitor is not None
            assert len(addresses(tmp_path)) == 2
            remote = attach(folder=tmp_path)
            started_s = remote.state()["process"]["started_s"]
            assert started_s == second.admin.monitor.state()["process"]["started_s"]
            remote.close()
        assert len(addresses(tmp_path)) == 1
    assert addresses(tmp_path) == []


STRANGE = {
    "deep": "[" * 9_000,
    "endless": '{"url": "http://127.0.0.1:1", "pid": 1e999, "started_s": 0}',
    "late": '{"url": "http://127.0.0.1:1", "pid": 1, "started_s": 1' + "0" * 400 + "}",
    "long": '{"url": "http://127.0.0.1:1", "pid": 1' + "0" * 5_000 + ', "started_s": 0}',
    "large": '{"url": "http://127.0.0.1:1", "pid": 99999999999999999999, "started_s": 0}',
    "no process": '{"url": "http://127.0.0.1:1", "pid": NaN, "started_s": NaN}',
    "list": "[1, 2]",
    "text": '"url"',
    "none": '{"url": null, "pid": null, "started_s": null}',
    "empty": "",
    "bytes": "\x00\udcff",
}


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_strange_file_is_no_address(tmp_path: Path, content: str) -> None:
    (tmp_path / "monitors").mkdir()
    (tmp_path / "monitors" / "1-1.json").write_text(content, "utf-8", "surrogateescape")
    assert addresses(tmp_path) == []


def test_file_that_is_a_pipe_or_a_folder_is_no_address(tmp_path: Path) -> None:
    (tmp_path / "monitors" / "1-1.json").mkdir(parents=True)
    os.mkfifo(tmp_path / "monitors" / "1-2.json")
    assert addresses(tmp_path) == []


@pytest.mark.long
def test_addresses_of_killed_processes_and_strange_files_are_passed_over(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    tell(tmp_path, Address("http://127.0.0.1:1", dead.pid, 5.0))
    mine = tell(tmp_path, Address("http://127.0.0.1:2", os.getpid(), 6.0))
    assert mine is not None
    assert mine.stat().st_mode & 0o077 == 0
    for name, text in (
        ("a", "no JSON"),
        ("b", "[]"),
        ("c", '{"url": 1}'),
        ("d", ""),
        ("e", '{"url": "http://127.0.0.1:3", "pid": 1000000000000000000000, "started_s": 9}'),
        ("f", f'{{"url": "ftp://127.0.0.1", "pid": {os.getpid()}, "started_s": 9}}'),
    ):
        (tmp_path / "monitors" / f"{name}.json").write_text(text)
    assert [address.pid for address in addresses(tmp_path)] == [os.getpid()]
    assert not list((tmp_path / "monitors").glob(f"{dead.pid}-*"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_address_that_another_user_has_written_is_not_even_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tell(tmp_path, Address("http://127.0.0.1:2", os.getpid(), 6.0))
    assert path is not None
    os.chown(path, 12_345, -1)
    monkeypatch.setattr("activedb.monitor._addresses.json", None)
    assert addresses(tmp_path) == []


def test_address_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with adb.connect("memory://", monitor="on", folder=tmp_path / "file") as db:
        assert db.admin.monitor is not None
        assert db.admin.monitor.state()["process"]["pid"] == os.getpid()
