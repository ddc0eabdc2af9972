"""``activedb decisions``: what is open, and deciding it from another program."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, Table, Text, select

import activedb as adb
from activedb.events import AccuracyInterval
from tests.cli.calling import Caller, Said
from tests.databases import until

pytestmark = pytest.mark.long


def stamp(node: str, low_us: int, high_us: int) -> AccuracyInterval:
    """A timestamp that is not known exactly."""
    return AccuracyInterval((low_us + high_us) // 2, low_us, high_us, node=node)


PROGRAM = """
import activedb as adb
from sqlalchemy import Column, Integer, Table, Text

db = adb.connect()
doors = Table("doors", db.metadata, Column("id", Integer, primary_key=True), Column("name", Text))
db.create_all()


@db.rule(on=adb.seq(adb.event("OPEN"), adb.event("CLOSE")).same("door"))
def closed(t, o):
    t.update(doors, 1, name=o.params["door"])


@db.rule(on=adb.updated(doors, "name"))
def renamed(t, o): ...
"""


def test_explain_shows_the_open_decisions_of_the_rules(
    call: Caller, database_url: str, tmp_path: Path
) -> None:
    program = tmp_path / "doors.py"
    program.write_text(PROGRAM, encoding="utf-8")

    def explain(event: str, *more: str) -> Said:
        return call("rules", "explain", str(program), event, *more)

    with adb.connect(database_url) as db:
        rule = adb.seq(adb.event("OPEN"), adb.event("CLOSE")).same("door")
        db.rule(on=rule, name="closed")(lambda t, o: None)
        for second, door in enumerate(("front", "back")):
            us = second * 1_000_000
            db.signal("OPEN", timestamp=stamp("P", us, us + 20), door=door)
            db.signal("CLOSE", timestamp=stamp("Q", us + 10, us + 30), door=door)
        oldest, _ = db.decisions.list()
        there = ("--url", database_url)
        left = {"closed": {"number": 2, "oldest": oldest.id, "us": 20}}
        for event in ("CLOSE", "OPEN"):  # it completes the rule's event, or is a part of it
            assert explain(event, "--json", *there).json["decisions"] == left
        said = explain("CLOSE", *there).out
        assert "closed: 2 decisions are open, the oldest of 1970-01-01 00:00:00.000020 UTC" in said
        assert f"activedb decisions show {oldest.id}; then resolve, with --choose NUMBER" in said
        assert explain("update doors.name", "--json", *there).json["decisions"] == {}
        assert explain("CLOSE", "--json").json["decisions"] == {}, "the one in memory has none"
        db.decisions.resolve(oldest.id, [])
        assert "closed: 1 decision is open" in explain("CLOSE", *there).out


def test_decisions_are_listed_shown_and_made(call: Caller, database_url: str) -> None:
    place = ("--url", database_url)
    with adb.connect(database_url) as db:
        log = Table("log", db.metadata, Column("id", Integer, primary_key=True), Column("n", Text))
        db.create_all()

        @db.rule(on=adb.seq(adb.event("OPEN"), adb.event("CLOSE")).same("door"))
        def closed(t: adb.Transaction, o: adb.Occurrence) -> None:
            t.insert(log, {"n": o.params["door"]})

        assert call("decisions", "list", *place).status == 0
        for second, door in enumerate(("front", "back")):
            us = second * 1_000_000
            db.signal("OPEN", timestamp=stamp("P", us, us + 20), door=door)
            db.signal("CLOSE", timestamp=stamp("Q", us + 10, us + 30), door=door)
        listed = call("decisions", "list", "--json", *place).json["decisions"]
        found = {each["us"]: each for each in listed}
        first = found[20]
        assert (first["rule"], first["status"], first["us"]) == ("closed", "open", 20)
        (candidate,) = first["candidates"]
        assert candidate["OPEN"]["params"]["door"] == "front"
        said = call("decisions", "list", "--rule", "closed", *place)
        assert first["id"] in said.out
        assert "front" in said.out
        said = call("decisions", "show", first["id"], *place)
        assert "candidate 0" in said.out
        assert "not certain" in said.out
        status = call("status", "--json", *place).json
        (counted,) = status["decisions"]
        assert (counted["rule"], counted["status"]) == ("closed", "open")

        wrong = call("decisions", "resolve", first["id"], "--choose", "9", *place)
        assert (wrong.status, "not a candidate" in wrong.err) == (2, True)
        assert call("decisions", "resolve", first["id"], *place).status == 2
        assert call("decisions", "resolve", "none", "--nothing", *place).status == 2
        assert call("decisions", "show", "none", *place).status == 2
        done = call(
            "decisions", "resolve", first["id"], "--choose", "0", "--by", "me", "--json", *place
        )
        assert (done.status, done.json["status"], done.json["by"]) == (0, "chosen", "me")
        again = call("decisions", "resolve", first["id"], "--nothing", *place)
        assert (again.status, "was decided by me" in again.err) == (1, True)
        until(lambda: db.decisions.get(first["id"]).status == "resolved")
        with db.transaction() as t:
            assert [row.n for row in t.query(select(log))] == ["front"]
    every = call("decisions", "list", "--all", "--json", *place).json["decisions"]
    assert {each["status"] for each in every} >= {"open", "resolved"}
