"""``activedb rules enable`` and ``disable``, while a program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, Table

import activedb as adb
from tests.end_to_end.commands import activedb, figures

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import activedb as adb
from sqlalchemy import Column, Integer, Table

db = adb.connect()
bells = Table("bells", db.metadata, Column("id", Integer, primary_key=True))
print("loaded")

@db.rule(on=adb.event("RING"))
def ring(t, o):
    t.insert(bells, {})
"""


@pytest.mark.long
def test_rules_are_disabled_and_enabled_from_outside(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "job.py").write_text(JOB)

    def rules(*arguments: str) -> dict[str, object]:
        return figures(activedb("rules", *arguments, "--json", folder=tmp_path, url=database_url))

    with adb.connect(database_url) as db:
        bells = Table("bells", db.metadata, Column("id", Integer, primary_key=True))
        db.create_all()
        db.rule(on=adb.event("RING"), name="ring")(lambda t, o: t.insert(bells, {}))
        assert rules("disable", "ring") == {"name": "ring", "enabled": False, "version": 2}
        assert rules("disable", "ring") == {"name": "ring", "enabled": False, "version": 2}
        db.signal("RING")
        db.rules.refresh()
        assert not db.rules["ring"].enabled
        db.signal("RING")
        assert db.admin.row_counts()["bells"] == 1
        # A file that defines the rule in its own way makes that a new version first.
        assert rules("enable", "ring", "job.py") == {"name": "ring", "enabled": True, "version": 4}
        db.rules.refresh()
        db.signal("RING")
        assert db.admin.row_counts()["bells"] == 2
        db.rules.quarantine("ring", "by hand")
        assert rules("enable", "ring")["version"] == 6
        db.rules.refresh()
        assert db.rules["ring"].quarantine is None
    done = activedb("rules", "disable", "ringg", folder=tmp_path, url=database_url)
    assert done.returncode == 2
    assert "no program has defined a rule named 'ringg'" in done.stderr
    assert "did you mean 'ring'" in done.stderr
    done = activedb("rules", "disable", "ring", folder=tmp_path, url=database_url)
    assert (done.returncode, done.stdout) == (0, "rule ring is disabled (version 7)\n")
