"""``activedb rules`` as a user calls it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tests.end_to_end.commands import REPOSITORY, activedb, figures

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import activedb as adb
from sqlalchemy import Column, Integer, Table
print("loaded")
db = adb.connect()
stock = Table(
    "stock", db.metadata, Column("id", Integer, primary_key=True), Column("count", Integer)
)
@db.rule(on=adb.updated(stock, "count"), when=lambda t, o: o.new["count"] < 5)
def reorder(t, o):
    t.update(stock, o.new["id"], count=o.new["count"] + 10)
@db.rule(on=adb.event("SOLD"), coupling="deferred", priority=2)
def sell(t, o):
    t.update(stock, o.params["id"], count=0)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.py"
    file.write_text(JOB, encoding="utf-8")
    return file


def test_ls_lists_the_rules_of_a_file(job: Path) -> None:
    done = activedb("rules", "ls", job, folder=job.parent)
    assert (done.returncode, done.stderr) == (0, "loaded\n")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["rule", "reorder", "sell"]
    listed = figures(activedb("rules", "ls", job, "--json", folder=job.parent))["rules"]
    assert [(r["name"], r["coupling"], r["priority"]) for r in listed] == [
        ("reorder", "immediate", None),
        ("sell", "deferred", 2),
    ]


def test_show_tells_what_a_rule_may_do_and_who_triggers_it(job: Path) -> None:
    done = activedb("rules", "show", job, "reorder", folder=job.parent)
    assert "updates stock.count (job.py:11)" in done.stdout
    shown = figures(activedb("rules", "show", job, "reorder", "--json", folder=job.parent))
    assert shown["writes"] == ["update stock.count"]
    assert [edge["source"] for edge in shown["triggered_by"]] == ["reorder", "sell"]


def test_analyze_reports_findings_and_fails_only_if_strict(job: Path) -> None:
    svg = job.parent / "graph.svg"
    done = activedb("rules", "analyze", job, "--svg", svg, folder=job.parent)
    assert done.returncode == 0, done.stderr
    assert "cycle: reorder\n" in done.stdout
    assert "bounded by cascade_max" in done.stdout
    ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    strict = activedb("rules", "analyze", job, "--strict", "--json", folder=job.parent)
    assert strict.returncode == 1
    result = json.loads(strict.stdout)
    assert result["termination"]["verdict"] == "unsure"
    assert result["confluence"] == {"verdict": "sure", "pairs": []}


def test_analyze_strict_of_rules_without_findings_exits_with_zero(tmp_path: Path) -> None:
    crisis = REPOSITORY / "examples" / "crisis.py"
    done = activedb("rules", "analyze", crisis, "--strict", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_explain_follows_an_event_through_the_rules(job: Path) -> None:
    told = figures(activedb("rules", "explain", job, "SOLD", "--json", folder=job.parent))
    (sell,) = told["triggers"]
    assert (sell["rule"], sell["coupling"], sell["turn"]) == ("sell", "deferred", 1)
    assert [step["rule"] for step in sell["then"]] == ["reorder"]
    done = activedb("rules", "explain", job, "update:stock.count", folder=job.parent)
    assert done.stdout.splitlines()[0] == "update stock.count"


@pytest.mark.parametrize(
    ("column", "said"),
    [("price", "there are 'count', 'id'"), ("counts", "did you mean 'count'?")],
)
def test_explain_of_a_column_that_the_table_does_not_have_names_its_columns(
    job: Path, column: str, said: str
) -> None:
    done = activedb("rules", "explain", job, f"update stock.{column}", folder=job.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"table stock has no column '{column}'" in done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "job.py", "reorders"], "'reorder'"),
        (["explain", "job.py", "SOLDE"], "'SOLD'"),
        (["ls", "missing.py"], "there is no file missing.py"),
        (["ls", "empty.py"], "has no database"),
        (["analyze", "job.py", "--svg", "nowhere/graph.svg"], "cannot write nowhere/graph.svg"),
        (["explain", "job.py"], "event"),
    ],
    ids=str,
)
def test_bad_input_exits_with_two_and_says_what_is_wrong(
    job: Path, arguments: list[str], said: str
) -> None:
    (job.parent / "empty.py").write_text("x = 1\n", encoding="utf-8")
    done = activedb("rules", *arguments, folder=job.parent)
    assert done.returncode == 2
    assert said in done.stderr.lower() or said in done.stderr


@pytest.mark.parametrize(
    "command", [[], ["ls"], ["show"], ["analyze"], ["explain"], ["enable"]], ids=str
)
def test_help_is_shown(command: list[str], tmp_path: Path) -> None:
    done = activedb("rules", *command, "--help", folder=tmp_path)
    assert (done.returncode, "Usage" in done.stdout) == (0, True)
