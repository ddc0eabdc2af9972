"""The tutorial, as a reader does it: its Python is one file, and what is shown is what comes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, Block, blocks
from tests.patience import PATIENCE_S

BLOCKS = blocks(DOCS / "tutorial.md")
END = "\x1e"  # between what the pieces print


def run(command: list[str], folder: Path) -> str:
    """Return what a program prints to both of its streams, whatever its status."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.stdout


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def shown_behind(number: int) -> Block | None:
    """Return the output that is shown after a piece of Python."""
    after = BLOCKS[number + 1 : number + 2]
    return after[0] if after and after[0].language == "text" and not after[0].title else None


@pytest.mark.long
@pytest.mark.parametrize("where", ["memory", "postgres"])
def test_tutorial_pieces_in_one_file_print_what_is_shown(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pieces = [(n, block) for n, block in enumerate(BLOCKS) if block.language == "python"]
    assert len(pieces) >= 10
    code = "".join(f'{block.text}\nprint("\\x1e", end="")\n\n' for _, block in pieces)
    # On Postgres the second database, with the clock of its own, stays in memory.
    if where == "postgres":
        url = request.getfixturevalue("database_url")
        code = code.replace('adb.connect("memory://")', f"adb.connect({url!r})")
    (tmp_path / "shop.py").write_text(code, encoding="utf-8")
    printed = run([sys.executable, "-W", "error", "shop.py"], tmp_path).split(END)
    assert len(printed) == len(pieces) + 1, printed[-1]
    for (number, block), output in zip(pieces, printed, strict=False):
        shown = shown_behind(number)
        expected = lines(shown.text) if shown else []
        assert lines(output) == expected, f"the piece at line {block.line} of docs/tutorial.md"


@pytest.mark.long
def test_tutorial_commands_print_what_is_shown(tmp_path: Path) -> None:
    for block in BLOCKS:
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    commands = [block for block in BLOCKS if block.language == "console"]
    assert commands
    for block in commands:
        command, _, shown = block.text.partition("\n")
        assert command.startswith("$ ")
        output = run(["/bin/sh", "-c", command.removeprefix("$ ")], tmp_path)
        assert lines(output) == lines(shown), f"line {block.line} of docs/tutorial.md"
