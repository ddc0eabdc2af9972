"""Files that commands run: what these open is closed, however the command ends."""

from __future__ import annotations

import stat
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import activedb
from activedb.database import Database
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.cli.calling import Caller

OPENS = "import activedb\ndb = activedb.connect('memory://')\n"
ONE = OPENS + "db.stream('one', type='kind', timestamp='at', types={'A': ()})\n"
FILES = {
    "opens another": ONE + "other = activedb.connect('memory://')\n",
    "has no stream": OPENS,
    "has two streams": ONE + "db.stream('two', type='kind', timestamp='at', types={'A': ()})\n",
    "fails later": OPENS + "1 / 0\n",
    "is interrupted": OPENS + "raise KeyboardInterrupt\n",
    "refuses a rule": OPENS + "db.rule(on='A')(print)\n",
}


@pytest.mark.parametrize("words", ["run", "follow", "work", "rules ls"])
@pytest.mark.parametrize("text", FILES)
def test_databases_of_a_file_are_closed(
    words: str, text: str, call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text == "opens another" and words in ("run", "work"):
        pytest.skip("it runs")
    opened: list[Database] = []
    connect = activedb.connect

    def noted(*given: str) -> Database:
        opened.append(connect(*given))
        return opened[-1]

    monkeypatch.setattr(activedb, "connect", noted)
    (tmp_path / "job.py").write_text(FILES[text])
    done = call(*words.split(), "job.py")
    assert opened
    assert all(db._closed for db in opened), done


def of_program(
    folder: Path, *arguments: str, started: str = "module"
) -> subprocess.CompletedProcess[str]:
    """Run a command as a program of its own, in a folder of whose files it knows nothing."""
    ways = {
        "module": [sys.executable, "-m", "activedb"],
        "script": [str(Path(sysconfig.get_path("scripts")) / "activedb")],
    }
    return subprocess.run(
        [*ways[started], *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["queue", "types", "random", "turtle", "activedb", "sqlalchemy"])
def test_file_named_like_a_module_of_others_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / f"{name}.py").write_text("print('it has run')\n" + OPENS)
    done = of_program(tmp_path, "rules", "ls", f"files/{name}.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"files/{name}.py has the name of the module {name} of" in done.stderr
    assert "rename the file" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("mode", [0o755, 0o1777])
@pytest.mark.parametrize("started", ["script", "module"])
def test_file_imports_its_siblings_and_is_found_under_its_name(
    started: str, mode: int, tmp_path: Path
) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    folder.chmod(mode)
    (folder / "helper_of_job.py").write_text("import job\nname = job.__name__\n")
    (folder / "job.py").write_text(
        OPENS + "import helper_of_job as helper\n"
        "db.rule(on=activedb.event('A'), name=helper.name)(print)\n"
    )
    done = of_program(tmp_path, "rules", "ls", "jobs/job.py", started=started)
    if mode & stat.S_IWOTH:  # anyone may have put the module there
        assert done.returncode == 2
        assert "No module named 'helper_of_job'" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert "job" in done.stdout
