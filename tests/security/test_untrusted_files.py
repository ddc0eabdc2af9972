"""Files that everybody may write say neither what is run nor where the rows go."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.config import Settings
from activedb.errors import UntrustedFile
from activedb.trust import VARIABLE, check_trusted
from tests.end_to_end.commands import activedb
from tests.servers import temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB = "import activedb\nopen('ran', 'w').close()\ndb = activedb.connect('memory://')\n"
RULES = "CREATE RULE r ON E SIGNAL F();\n"
YAML = "- {name: r, on: {event: E}, do: 'job:f'}\n"
SOMEBODY = 4_711  # whose account it is does not matter


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of ours."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with temporary_folder() as made:
        yield made


def made(path: Path, content: str = "", mode: int = 0o644) -> Path:
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o400])
def test_file_that_some_may_write_is_used(folder: Path, mode: int) -> None:
    check_trusted(made(folder / "file", mode=mode))


@pytest.mark.parametrize("mode", [0o666, 0o602, 0o777])
def test_file_that_all_may_write_is_refused(folder: Path, mode: int) -> None:
    path = made(folder / "file", mode=mode)
    with pytest.raises(UntrustedFile) as raised:
        check_trusted(path)
    assert str(raised.value) == (
        f"{path} is not used: every account may write {path}, so any user can have changed what it "
        f"says; chmod o-w {path}, or set ACTIVEDB_TRUST_FILES=1 if this file system knows no modes"
    )


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_file_in_a_folder_that_all_may_write_is_refused(folder: Path, depth: int) -> None:
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    (folder, folder / "a", inner)[depth].chmod(0o777)
    with pytest.raises(UntrustedFile, match="every account may write"):
        check_trusted(made(inner / "file"))


def test_file_of_ours_where_all_may_put_files_is_used(folder: Path) -> None:
    folder.chmod(0o777 | stat.S_ISVTX)
    check_trusted(made(folder / "file"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_that_somebody_has_put_where_all_may_is_refused(folder: Path) -> None:
    folder.chmod(0o777 | stat.S_ISVTX)
    theirs = folder / "theirs"
    theirs.mkdir()
    path = made(theirs / "file")
    os.chown(path, SOMEBODY, SOMEBODY)
    check_trusted(path)  # whose it is says nothing where only some may write
    os.chown(theirs, SOMEBODY, SOMEBODY)
    with pytest.raises(UntrustedFile, match=f"user {SOMEBODY} has put it into {folder}, where"):
        check_trusted(path)


def test_link_is_followed_and_its_own_place_counts_too(folder: Path) -> None:
    closed, open_ = folder / "closed", folder / "open"
    closed.mkdir()
    open_.mkdir()
    (closed / "link").symlink_to(made(open_ / "file"))
    (open_ / "link").symlink_to(made(closed / "file"))
    check_trusted(closed / "link")
    check_trusted(open_ / "link")
    open_.chmod(0o777)
    for link in (closed / "link", open_ / "link"):
        with pytest.raises(UntrustedFile, match="every account may write"):
            check_trusted(link)


def test_missing_file_is_left_to_who_reads_it(folder: Path) -> None:
    check_trusted(folder / "missing" / "file")


def test_file_system_without_modes_can_be_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(folder / "file", mode=0o666)
    monkeypatch.setenv(VARIABLE, "1")
    check_trusted(path)
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(UntrustedFile):
        check_trusted(path)


@pytest.mark.parametrize(("name", "content"), [("r.rules", RULES), ("r.yaml", YAML)])
def test_rules_that_all_may_write_are_not_read(folder: Path, name: str, content: str) -> None:
    with adb.connect("memory://") as db:
        with pytest.raises(UntrustedFile):
            db.rules.load_file(made(folder / name, content, 0o666))
        assert list(db.rules) == []


def test_settings_that_all_may_write_are_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may write to a folder above ours cannot choose where the rows go."""
    monkeypatch.chdir(folder)
    table = "[tool.activedb]\nurl = 'postgresql+psycopg://thief/rows'\n"
    path = made(folder / "pyproject.toml", table, 0o666)
    with pytest.raises(UntrustedFile):
        Settings.load()
    made(path, "[tool.other]\n")
    assert Settings.load().url is None  # it says nothing to us


@pytest.mark.long
def test_command_that_all_may_write_is_not_run(folder: Path) -> None:
    done = activedb("rules", "ls", made(folder / "job.py", JOB, 0o666), folder=folder)
    assert done.returncode == 2
    assert "is not used: every account may write" in done.stderr
    assert not (folder / "ran").exists()
