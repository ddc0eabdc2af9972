"""``activedb rules load``: a text's rules, with a caret where it has no meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.commands import activedb, figures

PROGRAM = """
import activedb
from sqlalchemy import Column, Integer, String, Table

db = activedb.connect("memory://")
Table("log", db.metadata, Column("id", Integer, primary_key=True), Column("note", String))
db.create_all()
"""
RULES = """CREATE QUERY Q PATTERN SEQ(A, B) WITHIN 5 sec RETURN B.id;
CREATE RULE R ON OUTPUT Q PRIORITY 3 BEGIN INSERT INTO log (id) VALUES (NEW.id) END
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "ours.rules").write_text(RULES)
    return tmp_path


@pytest.mark.long
def test_rules_load_prints_the_rules(folder: Path) -> None:
    done = activedb("rules", "load", "ours.rules", "program.py", folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "rule R is enabled (version 1)\nqueries: Q\n"


@pytest.mark.long
def test_rules_load_of_an_error_shows_a_caret_and_exits_with_2(folder: Path) -> None:
    (folder / "ours.rules").write_text(RULES.replace("INTO log", "INTO lag"))
    done = activedb("rules", "load", "ours.rules", "program.py", folder=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    # Before them that the database is opened, if that takes over a second.
    message, line, caret = done.stderr.rstrip("\n").split("\n")[-3:]
    assert message == (
        "error: ours.rules: line 2, column 56: no table 'lag' is declared; did you mean 'log'?"
    )
    assert line == RULES.split("\n")[1].replace("INTO log", "INTO lag")
    assert line[len(caret) - 1 :].startswith("lag")


@pytest.mark.long
def test_rules_load_dry_run_leaves_the_database_as_it_was(folder: Path, database_url: str) -> None:
    (folder / "program.py").write_text(PROGRAM.replace('connect("memory://")', "connect()"))

    def load(*options: str) -> int:
        command = ("rules", "load", "ours.rules", "program.py", "--json", *options)
        found = figures(activedb(*command, folder=folder, url=database_url))
        assert found["queries"] == ["Q"]
        (rule,) = found["rules"]
        assert (rule["name"], rule["on"], rule["priority"]) == ("R", "OUTPUT Q", 3)
        version: int = rule["version"]
        return version

    assert load("--dry-run") == 1
    assert load() == 1
    (folder / "ours.rules").write_text(RULES.replace("NEW.id", "NEW.id + 1"))
    assert load("--dry-run") == 2
    assert load("--dry-run") == 2
    # The tables are there now: no program needs to declare them.
    found = activedb("rules", "load", "ours.rules", "--url", database_url, folder=folder)
    assert "rule R is enabled (version 2)" in found.stdout


@pytest.mark.long
def test_rules_load_knows_the_streams_of_its_program_alone(folder: Path, database_url: str) -> None:
    (folder / "ours.rules").write_text("CREATE QUERY Q ON ward PATTERN A")
    done = activedb("rules", "load", "ours.rules", "program.py", folder=folder)
    assert done.returncode == 2
    assert "ours.rules: line 1, column 19: there is no stream 'ward'" in done.stderr
    # Without a program, the streams are not known yet.
    done = activedb("rules", "load", "ours.rules", "--url", database_url, folder=folder)
    assert (done.returncode, done.stdout) == (0, "queries: Q\n"), done.stderr
