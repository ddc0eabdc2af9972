"""``activedb rules ls`` and ``show``: the states that a database has recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update

import activedb as adb
from activedb.store.system import rules

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calling import Caller, Said

RULES = """\
import activedb as adb
db = adb.connect()
for name in ("runs", "rests", "failed"):
    db.rule(on=adb.event(name), name=name, on_abort="rule")(lambda t, o: None)
"""
REASON = "since today: too slippery"


def told(said: Said) -> dict[str, tuple[bool, str | None]]:
    """Return for each rule if it is enabled, and why it is in quarantine."""
    assert said.status == 0, said.err
    return {each["name"]: (each["enabled"], each["quarantine"]) for each in said.json["rules"]}


def test_states_without_a_database_are_those_of_the_file(call: Caller, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(RULES + "db.rules.disable('rests')\n")
    listed = call("rules", "ls", "job.py", "--json")
    assert told(listed) == {"runs": (True, None), "rests": (False, None), "failed": (True, None)}
    shown = call("rules", "ls", "job.py")
    assert [line.split()[-1] for line in shown.out.splitlines()] == [
        "state",
        "enabled",
        "disabled",
        "enabled",
    ]
    assert "the states are those of the file" in shown.err
    one = call("rules", "show", "job.py", "rests")
    assert one.out.splitlines()[-1] == "disabled"


@pytest.mark.parametrize("way", ["--url", "ACTIVEDB_URL"])
def test_states_are_those_of_the_database(
    way: str, call: Caller, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.py").write_text(RULES)
    place: tuple[str, ...] = ()
    if way == "--url":
        place = ("--url", database_url)
    else:
        monkeypatch.setenv("ACTIVEDB_URL", database_url)
    # Opening the file over the database is what records its rules.
    assert call("pending", "job.py", "--url", database_url).status == 0
    assert call("rules", "disable", "rests", *place).status == 0
    with adb.connect(database_url) as db, db.connection() as connection:
        failed = update(rules).where(rules.c.name == "failed")
        connection.execute(failed.values(quarantine=REASON))
        connection.commit()
    expected = {"runs": (True, None), "rests": (False, None), "failed": (True, REASON)}
    assert told(call("rules", "ls", "job.py", "--json", *place)) == expected
    shown = call("rules", "ls", "job.py", *place)
    lines = {line.split()[0]: line for line in shown.out.splitlines()}
    assert lines["rests"].rstrip().endswith("disabled")
    assert lines["failed"].rstrip().endswith(f"in quarantine {REASON}")
    assert "those of the file" not in shown.err
    for name, state in {"rests": "disabled", "failed": f"in quarantine {REASON}"}.items():
        assert call("rules", "show", "job.py", name, *place).out.splitlines()[-1] == state
    one = call("rules", "show", "job.py", "rests", "--json", *place).json
    assert (one["name"], one["enabled"], one["quarantine"]) == ("rests", False, None)
