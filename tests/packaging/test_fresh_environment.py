"""The wheel in an environment of its own: it installs, shows its version, runs rules.

The libraries that activedb requires, and what they require, are not downloaded again: links to
those of this environment stand in the new one, and nothing else, so what is missing in the wheel's
requirements is missing there. With ``ACTIVEDB_TEST_SCALE`` above 1 pip installs everything from the
registry, the extra for Spark too, and the demo runs whole.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.distributions import PYPROJECT, VERSION
from tests.patience import TEST_S

if TYPE_CHECKING:
    from tests.packaging.distributions import Distributions

EXAMPLE = """
import sys
from sqlalchemy import Column, Integer, Table, select
import activedb as adb, activedb.cli, activedb.language, activedb.analysis, activedb.batches

assert "/site-packages/activedb/" in adb.__file__, adb.__file__
db = adb.connect(sys.argv[1] or None, monitor="on")
with db:
    seen = Table("seen", db.metadata, Column("id", Integer, primary_key=True), Column("n", Integer))
    db.create_all()
    db.rules.load_text(
        "CREATE RULE copy ON E BEGIN INSERT INTO seen (id, n) VALUES (NEW.id, 1); END;"
    )

    @db.rule(on=adb.inserted(seen), coupling="detached")
    def later(t, o):
        t.update(seen, o.new["id"], n=o.new["n"] + 1)

    with db.transaction():
        db.signal("E", id=7)
    db.wait_idle()
    assert db.admin.monitor.state(0)["counters"]["rules_fired"] == 2
    with db.transaction() as t:
        print([tuple(row) for row in t.query(select(seen))])
"""


@dataclass(frozen=True)
class Fresh:
    """A virtual environment, and a folder to work in."""

    folder: Path

    @property
    def bin(self) -> Path:
        """Return the folder with its commands."""
        return self.folder / "bin"

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of its commands, in an empty folder and with little around."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        kept = ("PATH", "HOME", "JAVA_HOME", "TMPDIR", "LANG", "LC_ALL", *_of_pip())
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=work,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TEST_S,
            check=False,
        )

    def checked(self, *command: str, **variables: str) -> str:
        """Run a command that must succeed; return what it prints."""
        done = self.run(*command, **variables)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout


def _of_pip() -> list[str]:
    return [name for name in os.environ if name.startswith("PIP_")]


@pytest.fixture(scope="module")
def fresh(
    distributions: Distributions, scale: int, tmp_path_factory: pytest.TempPathFactory
) -> Fresh:
    """An environment in which the wheel is installed, and where its libraries can be found."""
    folder = tmp_path_factory.mktemp("fresh")
    folder.chmod(0o755)
    venv.create(folder, symlinks=True, with_pip=scale > 1)
    made = Fresh(folder)
    if scale > 1:
        made.checked("python", "-m", "pip", "install", "--quiet", f"{distributions.wheel}[spark]")
    else:
        _install(made, distributions.wheel)
        _link(made, _required())
    return made


def _install(fresh: Fresh, wheel: Path) -> None:
    """Install the wheel alone, with the pip that is here."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(fresh.bin / "python"), "install"),
            *("--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", str(wheel)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _required() -> set[str]:
    """Names of the distributions that activedb requires without extras, and what they require."""
    left = [Requirement(text) for text in PYPROJECT["project"]["dependencies"]]
    done: set[tuple[str, str]] = set()
    while left:
        requirement = left.pop()
        for extra in ("", *sorted(requirement.extras)):
            key = canonicalize_name(requirement.name), extra
            if key in done:
                continue
            done.add(key)
            for text in importlib.metadata.requires(requirement.name) or ():
                below = Requirement(text)
                if below.marker is None or below.marker.evaluate({"extra": extra}):
                    left.append(below)
    return {name for name, _ in done}


def _link(fresh: Fresh, names: set[str]) -> None:
    """Let the new environment have some distributions of this one."""
    below = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = fresh.folder / "lib" / below / "site-packages"
    for name in sorted(names):
        found = importlib.metadata.distribution(name)
        for outermost in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = site / outermost
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(outermost))).resolve())


@pytest.mark.long
def test_version_is_told(fresh: Fresh) -> None:
    assert fresh.checked("activedb", "--version") == f"activedb {VERSION}\n"


@pytest.mark.long
def test_help_is_shown(fresh: Fresh) -> None:
    told = fresh.checked("python", "-m", "activedb", "demo", "--help", NO_COLOR="1")
    assert "Run the hospital ward" in told


@pytest.mark.long
@pytest.mark.parametrize("url", ["memory://", ""], ids=["memory", "embedded Postgres"])
def test_rules_run_without_any_extra(fresh: Fresh, url: str) -> None:
    assert fresh.checked("python", "-W", "error", "-c", EXAMPLE, url) == "[(7, 2)]\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("spark", ("python", "-c", "import spark_bridge; spark_bridge.SparkFeed.check_tools()")),
        ("dashboard", ("activedb", "dashboard")),
        ("columnar", ("python", "-c", "import activedb.columns.detect")),
    ],
)
def test_what_needs_an_extra_says_which(
    fresh: Fresh, scale: int, extra: str, command: tuple[str, ...]
) -> None:
    if scale > 1:
        pytest.skip("extras are installed")
    done = fresh.run(*command)
    assert done.returncode == (2 if command[0] == "activedb" else 1), done.stderr
    assert f"pip install '.[{extra}]'" in done.stderr.strip().splitlines()[-1], done.stderr


@pytest.mark.long
def test_entry_points_are_found(fresh: Fresh) -> None:
    told = fresh.checked(
        "python",
        "-c",
        "import importlib.metadata as m, json; e = m.entry_points(group='activedb.feeds'); "
        "print(json.dumps({p.name: p.value for p in e}))",
    )
    assert json.loads(told) == {"spark": "spark_bridge:SparkFeed"}


@pytest.mark.spark
def test_demo_runs_and_agrees_with_the_recount(fresh: Fresh, scale: int) -> None:
    if scale == 1:
        pytest.skip("the demo in a fresh environment runs with ACTIVEDB_TEST_SCALE above 1")
    told = json.loads(fresh.checked("activedb", "demo", "--events", "2000", "--json"))
    assert told["agrees with the replay"] == "yes"
