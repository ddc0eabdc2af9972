"""Distributions built as for a release: the sdist of a clean tree, the wheel of the sdist."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

from tests.patience import TEST_S

if TYPE_CHECKING:
    from email.message import Message

REPOSITORY = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
PACKAGES: tuple[str, ...] = tuple(
    PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
)
VERSION: str = PYPROJECT["project"]["version"]

_NOT_IN_A_TREE = (".git", "__pycache__", ".venv", ".activedb", "*.egg-info", ".*_cache", "dist")


@dataclass(frozen=True)
class Distributions:
    """Both files, and the tree that they were built from."""

    tree: Path
    sdist: Path
    wheel: Path

    def in_sdist(self) -> set[str]:
        """Names of its files, without the folder around them."""
        with tarfile.open(self.sdist) as archive:
            return {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}

    def in_wheel(self) -> set[str]:
        """Names of its files."""
        with ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def metadata(self) -> Message:
        """Return the metadata of the wheel."""
        return Parser().parsestr(self.of_wheel("METADATA"))

    def of_wheel(self, name: str) -> str:
        """Return one file of the wheel's ``dist-info``."""
        with ZipFile(self.wheel) as archive:
            return archive.read(f"activedb-{VERSION}.dist-info/{name}").decode()


def build(folder: Path) -> Distributions:
    """Build both into `folder`, offline, with the hatchling that is installed."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("building distributions needs hatchling")
    tree = folder / "tree"
    _export(tree)
    _hatchling("sdist", tree, folder)
    sdist = folder / f"activedb-{VERSION}.tar.gz"
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    _hatchling("wheel", folder / f"activedb-{VERSION}", folder)
    return Distributions(tree, sdist, folder / f"activedb-{VERSION}-py3-none-any.whl")


def _export(tree: Path) -> None:
    """Copy what belongs to the repository, as it is now, and nothing that lies about."""
    if not (REPOSITORY / ".git").exists():
        shutil.copytree(REPOSITORY, tree, ignore=shutil.ignore_patterns(*_NOT_IN_A_TREE))
        return
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True)
    for name in done.stdout.decode().split("\0"):
        if name and (REPOSITORY / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, tree / name)
    shutil.copy2(REPOSITORY / ".gitignore", tree)


def _hatchling(target: str, source: Path, into: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "ACTIVEDB_COMPILE"}
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)],
        cwd=source,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
