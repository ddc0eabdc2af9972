"""Pages for people: their Python runs and prints what they show, their pictures are drawn anew."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, Block, blocks
from tests.patience import PATIENCE_S

CONCEPTS = sorted(path for path in (DOCS / "concepts").glob("*.md") if path.name != "index.md")
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))

# Each piece by itself, with what it prints; all in one process, as importing takes longest.
DRIVER = """
import contextlib, io, json, sys, traceback
for code in json.load(sys.stdin):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, "<document>", "exec"), {"__name__": "__main__"})
        except Exception:
            traceback.print_exc(file=printed)
    print(json.dumps(printed.getvalue()))
"""


def python_of(path: Path) -> list[tuple[Block, str | None]]:
    """Return the pieces of Python that run by themselves, with the output after each."""
    found = blocks(path)
    pieces = []
    for block, after in zip(found, [*found[1:], None], strict=False):
        if block.language == "python" and not block.info:
            is_output = after is not None and after.language == "text" and not after.title
            pieces.append((block, after.text if after is not None and is_output else None))
    return pieces


@pytest.mark.long
def test_pages_python_prints_what_is_shown(tmp_path: Path) -> None:
    pieces = [
        (path.relative_to(ROOT), block, shown)
        for path in (DOCS / "index.md", *HOW_TO, *CONCEPTS)
        for block, shown in python_of(path)
    ]
    assert pieces
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRIVER],
        cwd=tmp_path,
        env={**os.environ, "ACTIVEDB_URL": "memory://"},
        input=json.dumps([block.text for _, block, _ in pieces]),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(printed) == len(pieces), done.stderr
    for (path, block, shown), output in zip(pieces, printed, strict=True):
        assert output == (shown or ""), f"{path}, line {block.line}"


@pytest.mark.long
def test_how_to_test_rules_passes_its_own_tests(tmp_path: Path) -> None:
    files = [block for block in blocks(DOCS / "how-to" / "testing.md") if block.title]
    assert len(files) == 3
    for block in files:
        (tmp_path / str(block.title)).write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.long
def test_pictures_are_what_the_script_draws() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures" / "draw.py"))["PICTURES"]
    kept = {path.stem for path in (DOCS / "pictures").glob("*.svg")}
    assert kept == set(drawn)
    for name, draw in drawn.items():
        picture = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
        assert draw() == picture, f"python docs/pictures/draw.py draws {name}.svg otherwise"


@pytest.mark.parametrize("path", CONCEPTS, ids=lambda path: path.stem)
def test_concept_names_its_paper_and_shows_a_picture(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    papers = re.search(r"^\*Papers?: ([^*]+)\*$", text, re.M)
    assert papers is not None
    assert re.search(r"\b(19|20)\d\d\b", papers[1])
    assert "section" in papers[1]
    assert re.search(r"^!\[.+\]\(\.\./pictures/\w+\.svg\)$", text, re.M)
    assert path.name in (DOCS / "concepts" / "index.md").read_text(encoding="utf-8")


def test_every_picture_is_shown_somewhere() -> None:
    shown = set()
    for path in DOCS.rglob("*.md"):
        shown.update(re.findall(r"pictures/(\w+)\.svg", path.read_text(encoding="utf-8")))
    assert shown == {path.stem for path in (DOCS / "pictures").glob("*.svg")}
