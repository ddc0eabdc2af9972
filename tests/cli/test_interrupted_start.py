"""Ctrl-C while a command starts: one line, and the status of an interrupt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

# Sends the signal just before a module is imported: no user must see which one it was.
_SITE = """
import os, signal, sys
class At:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, At())
"""
MODULES = (
    "activedb.clock",
    "pydantic_settings",
    "sqlalchemy",
    "psycopg",
    "activedb.database",
    "typer",
    "activedb.cli._demo",
    "activedb.cli._running",
)
ENTRIES = {
    "module": [sys.executable, "-m", "activedb"],
    "script": [str(Path(sys.executable).with_name("activedb"))],
}


def interrupted(
    command: Sequence[str], module: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(_SITE.format(module=module))
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("module", MODULES)
def test_interrupt_while_the_command_is_imported_is_one_line(
    entry: str, module: str, tmp_path: Path
) -> None:
    done = interrupted([*ENTRIES[entry], "demo", "--help"], module, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.long
def test_interrupt_while_a_command_loads_what_it_needs_is_one_line(tmp_path: Path) -> None:
    command = [*ENTRIES["module"], "demo", "--url", "memory://", "--events", "10"]
    done = interrupted(command, "spark_bridge", tmp_path)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1:] == ["interrupted; run the command again to continue"]
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_other_programs_have_their_own_way_with_interrupts(tmp_path: Path) -> None:
    program = "import signal, activedb; print(signal.getsignal(signal.SIGINT).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == "default_int_handler\n"
