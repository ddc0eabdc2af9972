"""``activedb rules``: what it finds, says and exits with."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.calling import Caller

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


def test_ls_lists_the_rules_of_a_file(call: Caller, job: Path) -> None:
    done = call("rules", "ls", "job.py")
    assert done.status == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()] == ["rule", "reorder", "sell"]
    listed = call("rules", "ls", "job.py", "--json").json["rules"]
    assert [(r["name"], r["coupling"], r["priority"]) for r in listed] == [
        ("reorder", "immediate", None),
        ("sell", "deferred", 2),
    ]


def test_show_tells_what_a_rule_may_do_and_who_triggers_it(call: Caller, job: Path) -> None:
    done = call("rules", "show", "job.py", "reorder")
    assert "updates stock.count (job.py:11)" in done.out
    shown = call("rules", "show", "job.py", "reorder", "--json").json
    assert shown["writes"] == ["update stock.count"]
    assert [edge["source"] for edge in shown["triggered_by"]] == ["reorder", "sell"]


def test_analyze_reports_findings_and_fails_only_if_strict(call: Caller, job: Path) -> None:
    done = call("rules", "analyze", "job.py", "--svg", "graph.svg")
    assert done.status == 0, done.err
    assert "cycle: reorder\n" in done.out
    assert "bounded by cascade_max" in done.out
    ElementTree.fromstring((job.parent / "graph.svg").read_text(encoding="utf-8"))
    strict = call("rules", "analyze", "job.py", "--strict", "--json")
    assert strict.status == 1
    assert strict.json["termination"]["verdict"] == "unsure"
    assert strict.json["confluence"] == {"verdict": "sure", "pairs": []}


def test_analyze_strict_of_rules_without_findings_exits_with_zero(call: Caller) -> None:
    crisis = Path(__file__).resolve().parents[2] / "examples" / "crisis.py"
    done = call("rules", "analyze", str(crisis), "--strict")
    assert done.status == 0, done.out + done.err


def test_explain_follows_an_event_through_the_rules(call: Caller, job: Path) -> None:
    told = call("rules", "explain", "job.py", "SOLD", "--json").json
    (sell,) = told["triggers"]
    assert (sell["rule"], sell["coupling"], sell["turn"]) == ("sell", "deferred", 1)
    assert [step["rule"] for step in sell["then"]] == ["reorder"]
    done = call("rules", "explain", "job.py", "update:stock.count")
    assert done.out.splitlines()[0] == "update stock.count"


@pytest.mark.parametrize(
    ("column", "said"),
    [("price", "there are 'count', 'id'"), ("counts", "did you mean 'count'?")],
)
def test_explain_of_a_column_that_the_table_does_not_have_names_its_columns(
    call: Caller, job: Path, column: str, said: str
) -> None:
    done = call("rules", "explain", "job.py", f"update stock.{column}")
    assert (done.status, done.out) == (2, "")
    assert f"table stock has no column '{column}'" in done.err
    assert said in done.err


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
    call: Caller, job: Path, arguments: list[str], said: str
) -> None:
    (job.parent / "empty.py").write_text("x = 1\n", encoding="utf-8")
    done = call("rules", *arguments)
    assert done.status == 2
    assert said in done.err.lower() or said in done.err


@pytest.mark.parametrize(
    "command", [[], ["ls"], ["show"], ["analyze"], ["explain"], ["enable"]], ids=str
)
def test_help_is_shown(call: Caller, command: list[str]) -> None:
    done = call("rules", *command, "--help")
    assert (done.status, "Usage" in done.out) == (0, True)
