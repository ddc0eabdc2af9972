"""Type checkers: what users write passes mypy, strictly, and what is wrong is found."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT
from tests.docs.test_pages import CONCEPTS, HOW_TO, python_of
from tests.patience import PATIENCE_S

USE = """
from sqlalchemy import Column, Integer, MetaData, Table, select

import activedb as adb

db = adb.connect("memory://")
accounts = Table("accounts", db.metadata, Column("id", Integer, primary_key=True))
options: adb.StreamOptions = {"type": "k", "timestamp": "t", "types": {"A": ("n",)}}
stream = db.stream("s", **options)
stream.feed([adb.occurrence("A", timestamp=1.0, n=1)])


@db.rule(on=adb.event("A"), when=lambda t, o: t.get(accounts, o.params["n"]) is None, priority=1)
def first(t: adb.Transaction, o: adb.Occurrence) -> None:
    t.insert(accounts, {"id": o.params["n"]})


@db.rule(on=adb.seq(adb.event("A"), adb.event("B")), params={"n": 3}, when=lambda t, o, n: n > 2)
def second(t: adb.Transaction, o: adb.Occurrence, n: int) -> None:
    t.abort(f"{t.path} {o.params} {n}")


def add(t: adb.Transaction, number: int) -> int:
    child = t.spawn(add, number - 1) if number else None
    with t.subtransaction() as s:
        s.execute(accounts.update().values(id=number))
    return child.result() if child else len(t.query(select(accounts)))


total: int = db.run(add, 3) + db.with_timeout(5).run(add, number=3)
created: adb.RuleOptions = {"on": adb.updated(accounts), "name": "created"}
db.rules.create(lambda t, o: t.delete(accounts, o.old["id"]), **created)
"""

WRONG = [
    ("db.rule(on=adb.event('A'), when=lambda t: True)", "arg-type"),
    ("db.rule(on=adb.event('A'), prioritty=3)", "call-arg"),
    ("db.stream('s2', type='k', timestamp='t')", "call-arg"),
    ("db.run(add)", "call-arg"),
    ("db.run(add, 'three')", "arg-type"),
    ("db.transaction().comit()", "attr-defined"),
]


def complaints(code: dict[str, str], folder: Path, *options: str) -> list[str]:
    """Return mypy's errors in the files, one line each."""
    for name, text in code.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--scripts-are-modules", *options, *code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


@pytest.mark.long
def test_use_is_strictly_typed_and_mistakes_are_found(tmp_path: Path) -> None:
    assert complaints({"use.py": USE}, tmp_path, "--strict") == []
    text = USE + "\n" + "\n".join(line for line, _ in WRONG)
    first = len(USE.split("\n"))
    found = complaints({"wrong.py": text}, tmp_path, "--strict")
    kinds = [
        (int(match[1]) - first, match[2])
        for line in found
        if (match := re.search(r"wrong\.py:(\d+): error: .*\[([\w-]+)\]$", line))
    ]
    for number, (line, kind) in enumerate(WRONG, 1):
        assert (number, kind) in kinds, f"{line}\n" + "\n".join(found)
    assert {number for number, _ in kinds} == set(range(1, len(WRONG) + 1)), found


@pytest.mark.long
def test_python_of_the_pages_passes_mypy(tmp_path: Path) -> None:
    code = {
        f"{path.stem.replace('-', '_')}_{block.line}.py": block.text
        for path in (ROOT / "README.md", DOCS / "index.md", *HOW_TO, *CONCEPTS)
        for block, _ in python_of(path)
    }
    assert len(code) > 10
    # Functions in the documents have no annotations where they would only be in the way.
    brief = ("--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls")
    assert complaints(code, tmp_path, "--strict", *brief, "--ignore-missing-imports") == []


@pytest.mark.long
def test_pyright_agrees(tmp_path: Path) -> None:
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("pyright is not installed: pip install '.[pyright]'")
    wrong = USE + "\n" + "\n".join(line for line, _ in WRONG)
    (tmp_path / "use.py").write_text(USE, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    place = {"venvPath": str(Path(sys.prefix).parent), "venv": Path(sys.prefix).name}
    config = {**place, "typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    found = {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    }
    first = len(USE.split("\n"))
    assert found == {("wrong.py", first + number) for number in range(1, len(WRONG) + 1)}
