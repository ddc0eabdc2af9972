from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from sqlalchemy import URL, create_engine, make_url, text

from activedb.errors import ConfigurationError, ServerUnreachable
from activedb.store.server import EmbeddedServer
from activedb.store.server._postmaster import Postmaster
from tests.patience import PATIENCE_S
from tests.store.server_users import (
    START,
    START_AND_WAIT,
    User,
    postmaster,
    server_processes,
    wait_until,
    watchers,
)


def ask(url: str, *statements: str) -> Any:
    """Run statements in one transaction and return the last one's first value."""
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            for statement in statements:
                answer = connection.execute(text(statement))
            return answer.scalar() if answer.returns_rows else None
    finally:
        engine.dispose()


@pytest.mark.long
def test_server_new_folder_answers_over_a_private_socket_only(server_folder: Path) -> None:
    with EmbeddedServer.start(server_folder / ".activedb") as server:
        assert make_url(server.url).get_backend_name() == "postgresql"
        assert ask(server.url, "SHOW server_version").startswith("18.")
        assert ask(server.url, "SHOW listen_addresses") == ""
        assert ask(server.url, "SHOW fsync") == "on"
        assert ask(server.url, "SHOW server_encoding") == "UTF8"
        assert ask(server.url, "SHOW TimeZone") == "UTC"
        assert ask(server.url, "SELECT 'Z' < 'a' AND upper('é') = 'É'") is True
        assert server.home.stat().st_mode & 0o777 == 0o700
        for process in server_processes(server.home):
            with contextlib.suppress(psutil.NoSuchProcess):  # some of them come and go
                assert not process.net_connections("tcp")


def test_server_started_again_still_has_its_rows(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder) as server:
        ask(server.url, "CREATE TABLE stopped AS SELECT 7 AS n")
    assert server_processes(used_folder) == []
    with EmbeddedServer.start(used_folder) as server:
        assert ask(server.url, "SELECT n FROM stopped") == 7


def test_server_used_twice_in_one_process_stops_with_the_last_use(used_folder: Path) -> None:
    first = EmbeddedServer.start(used_folder)
    second = EmbeddedServer.start(used_folder)
    assert first.url == second.url
    first.close()
    first.close()
    assert ask(second.url, "SELECT 1") == 1
    second.close()
    assert server_processes(used_folder) == []


def test_server_started_by_many_threads_at_once_is_one_server(used_folder: Path) -> None:
    together = threading.Barrier(4)

    def use() -> tuple[str, int]:
        together.wait()
        with EmbeddedServer.start(used_folder) as server:
            pid = postmaster(server.home).pid
            together.wait()
            return server.url, pid

    with ThreadPoolExecutor(4) as threads:
        uses = [threads.submit(use) for _ in range(4)]
        assert len({use.result() for use in uses}) == 1
    assert server_processes(used_folder) == []


@pytest.mark.long
def test_server_started_by_two_processes_at_once_stops_with_the_last(server_folder: Path) -> None:
    with User(START_AND_WAIT, server_folder) as one, User(START_AND_WAIT, server_folder) as other:
        url = one.line()
        assert url == other.line()
        assert one.finish() == 0
        assert ask(url, "SELECT 1") == 1
        assert other.finish() == 0
    assert server_processes(server_folder) == []


@pytest.mark.long
def test_server_started_and_stopped_by_processes_in_turn_never_fails(
    used_folder: Path, scale: int
) -> None:
    program = f"""{START}
from sqlalchemy import create_engine, text
server.close()
for _ in range({3 * scale}):
    with EmbeddedServer.start(Path(sys.argv[1])) as server:
        engine = create_engine(server.url)
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        engine.dispose()
"""
    with contextlib.ExitStack() as stack:
        users = [stack.enter_context(User(program, used_folder)) for _ in range(3)]
        assert [user.process.wait(timeout=PATIENCE_S) for user in users] == [0, 0, 0]
    assert server_processes(used_folder) == []


@pytest.mark.long
def test_server_of_an_interrupted_process_survives_until_it_ends(used_folder: Path) -> None:
    program = f"""{START}
try:
    print("inside", flush=True)
    sys.stdin.readline()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.readline()
"""
    with User(program, used_folder) as user:
        url = user.line()
        assert user.line() == "inside"
        pid = postmaster(used_folder / "postgres").pid
        os.killpg(user.process.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
        assert user.line() == "interrupted"
        assert ask(url, "SELECT 1") == 1
        assert postmaster(used_folder / "postgres").pid == pid
        assert os.getpgid(pid) != user.process.pid
        assert user.finish() == 0
    assert server_processes(used_folder) == []


@pytest.mark.long
def test_server_closed_while_a_forked_child_lives_stops(used_folder: Path) -> None:
    program = f"""{START}
import os
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.close(write)
    server.close()  # not the child's to close
    print("child", flush=True)
    os.read(read, 1)
    os._exit(0)
sys.stdin.readline()
server.close()
print("closed", flush=True)
sys.stdin.readline()
os.close(write)
os.waitpid(child, 0)
"""
    with User(program, used_folder) as user:
        url = user.line()
        assert user.line() == "child"
        assert ask(url, "SELECT 1") == 1
        assert user.process.stdin is not None
        user.process.stdin.write("\n")
        user.process.stdin.flush()
        assert user.line() == "closed"
        assert server_processes(used_folder) == []


@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_server_of_a_process_that_a_signal_ends_stops(
    used_folder: Path, number: signal.Signals
) -> None:
    program = START_AND_WAIT
    if number == signal.SIGHUP:  # ignored in whatever nohup has started
        program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n{program}"
    with User(program, used_folder) as user:
        user.line()
        user.process.send_signal(number)
        assert user.process.wait(PATIENCE_S) == -number
        wait_until(lambda: not server_processes(used_folder) and not watchers(used_folder))
    with EmbeddedServer.start(used_folder) as server:
        assert ask(server.url, "SELECT 1") == 1
        assert watchers(used_folder)
    assert server_processes(used_folder) == []
    wait_until(lambda: not watchers(used_folder))


@pytest.mark.crash
def test_server_of_a_program_that_is_terminated_as_one_connects_stops(used_folder: Path) -> None:
    program = """
import activedb as adb, signal, sys
db = adb.connect(folder=sys.argv[1])
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)
sys.stdin.readline()
"""
    with User(program, used_folder) as user:
        assert user.line() == "True"  # the application's handlers are its own
        assert server_processes(used_folder)
        user.process.terminate()
        user.process.wait(PATIENCE_S)
        wait_until(lambda: not server_processes(used_folder) and not watchers(used_folder))


@pytest.mark.crash
def test_server_goes_on_while_one_of_its_users_lives(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder) as server:
        left = postmaster(server.home).pid
        with User(START_AND_WAIT, used_folder) as user:
            user.line()
            user.kill()
        (watcher,) = watchers(used_folder)
        with User(START_AND_WAIT, used_folder) as user:
            user.line()
            assert watchers(used_folder) == [watcher]
        assert postmaster(server.home).pid == left
        assert ask(server.url, "SELECT 1") == 1
    assert server_processes(used_folder) == []


@pytest.mark.crash
def test_server_whose_watcher_was_killed_gets_another_one(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder):
        (watcher,) = watchers(used_folder)
        watcher.kill()
        wait_until(lambda: not watchers(used_folder))
        with User(START_AND_WAIT, used_folder) as user:
            user.line()
            assert watchers(used_folder)
    assert server_processes(used_folder) == []
    wait_until(lambda: not watchers(used_folder))


@pytest.mark.crash
def test_server_of_a_killed_process_is_stopped_though_its_forked_child_lives(
    used_folder: Path,
) -> None:
    program = f"""{START}
import os, signal
if os.fork() == 0:
    print("child", flush=True)
    sys.stdin.readline()
    os._exit(0)
signal.pause()
"""
    with User(program, used_folder) as user:
        user.line()
        assert user.line() == "child"
        user.kill()
        EmbeddedServer.start(used_folder).close()
        assert server_processes(used_folder) == []


@pytest.mark.crash
def test_server_killed_is_recovered_by_the_next_start(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder) as server:
        ask(server.url, "CREATE TABLE killed AS SELECT 7 AS n")
        postmaster(server.home).kill()
        with EmbeddedServer.start(used_folder) as again:
            assert ask(again.url, "SELECT n FROM killed") == 7


@pytest.mark.crash
def test_server_killed_with_a_session_at_work_waits_for_its_end(
    used_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that computes does not notice that its postmaster is gone."""
    end = used_folder / "end"
    busy = (
        f"DO $$ BEGIN WHILE pg_stat_file('{end}', true) IS NULL LOOP "
        "PERFORM pg_try_advisory_lock(7); END LOOP; END $$"
    )
    find = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"
    answering = Postmaster._answering

    def look(postmaster: Postmaster) -> URL | None:
        end.touch()  # the start has seen that the session lives
        return answering(postmaster)

    with EmbeddedServer.start(used_folder) as server, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(ask, server.url, busy)
        try:
            wait_until(lambda: answer.done() or ask(server.url, find) is not None)
            session = psutil.Process(ask(server.url, find))
            postmaster(server.home).kill()
            assert session.is_running()
            monkeypatch.setattr(Postmaster, "_answering", look)
            with EmbeddedServer.start(used_folder) as again:
                assert not session.is_running() or session.status() == psutil.STATUS_ZOMBIE
                assert ask(again.url, "SELECT 1") == 1
        finally:
            end.touch()
        answer.exception()  # whether the session still could answer is open
    end.unlink()


def is_ended_during_initdb(folder: Path, number: signal.Signals) -> bool:
    """Have a process initialise a server, and end it meanwhile; False if it was faster."""
    home = folder / "postgres"
    with User(START_AND_WAIT, folder) as user:
        group = user.process.pid
        wait_until(lambda: (home / "data.new" / "base").exists() or (home / "data").exists())
        os.killpg(group, signal.SIGSTOP)  # what it has not done yet, it does not do
        wait_until(lambda: psutil.Process(group).status() == psutil.STATUS_STOPPED)
        is_faster = (home / "data").exists()
        for each in (signal.SIGCONT,) if is_faster else (number, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, each)
        if is_faster:
            return False
        assert user.process.wait(timeout=PATIENCE_S) != 0
        assert not (home / "data").exists()
    return True


@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_server_ended_during_initdb_is_initialised_anew(
    server_folder: Path, number: signal.Signals
) -> None:
    folders = (server_folder / str(n) for n in itertools.count())
    folder = next(each for each in folders if is_ended_during_initdb(each, number))
    with EmbeddedServer.start(folder) as server:
        assert ask(server.url, "SELECT 1") == 1
        assert not (server.home / "data.new").exists()


@pytest.mark.crash
def test_server_with_the_pid_file_of_a_lost_server_starts(used_folder: Path) -> None:
    """The server starts although the pid in the file is that of another process.

    The pid may be that of any other process after a loss of power.
    """
    with EmbeddedServer.start(used_folder) as server:
        pid_file = server.home / "data" / "postmaster.pid"
        lines = pid_file.read_text().split("\n")
    account = pid_file.parent.stat()
    with subprocess.Popen(
        ["/bin/cat"],
        stdin=subprocess.PIPE,
        user=account.st_uid if os.geteuid() == 0 else None,
    ) as other:
        pid_file.write_text("\n".join([str(other.pid), *lines[1:]]))
        os.chown(pid_file, account.st_uid, account.st_gid)
        with EmbeddedServer.start(used_folder) as server:
            assert ask(server.url, "SELECT 1") == 1
        assert other.poll() is None, "an innocent process was stopped"


@pytest.mark.parametrize(
    ("name", "socket_at_home"),
    [("long" * 50, False), ("a,b", False), ('c"d', False), ("e 'f' $HOME `id` %20 é\\", True)],
)
def test_server_in_a_folder_with_a_difficult_path_starts(
    server_folder: Path, used_folder: Path, name: str, socket_at_home: bool
) -> None:
    folder = server_folder / name
    home = used_folder / "postgres"
    used_home = folder / "postgres"
    folder.mkdir()
    home.rename(used_home)
    try:
        with EmbeddedServer.start(folder) as server:
            socket_folder = Path(str(make_url(server.url).query["host"]))
            assert (socket_folder == used_home) == socket_at_home
            assert len(os.fsencode(socket_folder)) < 90
            assert socket_folder.stat().st_mode & 0o777 == 0o700
            assert ask(server.url, "SHOW data_directory") == str(used_home / "data")
        assert socket_folder.exists() == socket_at_home
    finally:
        used_home.rename(home)


def test_server_with_a_broken_configuration_shows_what_its_log_says(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder) as server:
        configuration = server.home / "data" / "postgresql.conf"
    good = configuration.read_text()
    configuration.write_text("shared_buffers = lots\n")
    try:
        with pytest.raises(ServerUnreachable, match="invalid value for parameter") as raised:
            EmbeddedServer.start(used_folder)
    finally:
        configuration.write_text(good)
    assert str(server.home / "server.log") in str(raised.value)


def test_server_folder_that_is_a_file_is_refused(server_folder: Path) -> None:
    (server_folder / "file").write_text("")
    with pytest.raises(ConfigurationError, match="ACTIVEDB_FOLDER"):
        EmbeddedServer.start(server_folder / "file")


def test_server_whose_folder_is_gone_closes_without_an_error(
    used_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedServer.start(used_folder)
    process = postmaster(server.home)
    gone = server.home.rename(used_folder / "gone")
    try:
        server.close()
        assert "cannot stop the embedded server" in caplog.text
        with contextlib.suppress(psutil.NoSuchProcess):  # the watcher may have stopped it
            process.terminate()
        wait_until(lambda: server_processes(used_folder) == [])
    finally:
        gone.rename(server.home)
