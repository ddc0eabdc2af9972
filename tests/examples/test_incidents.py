"""The example of incidents: each line of its log, worked out by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "incidents.py"

# FREE at 22:00 (Ada) and 22:01 (Grace); ALERT 1 at 22:02, ACK and RESOLVED at 22:04; ALERT 2, 3, 4
# at 22:49:00, :20, :40; RESOLVED of mail at 23:00; ALERT 5 at 23:10, ACK at 23:11. At 23:11 the
# probes of 23:08 (fast) and 23:10 (slow) come, and then one of 23:06, whose time is over.
LOG = [
    ("09 22:02:00", "assigned: incident 1 to Ada"),
    ("09 22:34:00", "healthy: shop"),
    ("09 22:49:00", "assigned: incident 2 to Grace"),
    ("09 22:49:40", "storm: mail, incidents 2, 3, 4"),
    ("09 22:54:00", "escalated: incident 2"),
    ("09 22:54:20", "escalated: incident 3"),
    ("09 22:54:40", "escalated: incident 4"),
    ("09 23:10:00", "slow: mail, 900 ms"),
    ("09 23:11:00", "late: shop as of 23:06"),
    ("10 09:00:00", "report: 3 escalated"),
]


def test_night_is_logged_as_worked_out_by_hand(load_example: Callable[[str], ModuleType]) -> None:
    incidents = load_example("incidents")
    incidents.night()
    assert incidents.lines() == LOG


@pytest.mark.long
def test_example_is_run_as_its_first_lines_say(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ACTIVEDB_")}
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{at} {what}" for at, what in LOG]
    assert not list(tmp_path.iterdir())


def test_rules_of_the_night_are_told_by_the_events_that_trigger_them(
    load_example: Callable[[str], ModuleType],
) -> None:
    from activedb.analysis import explain

    incidents = load_example("incidents")
    analysis = incidents.db.rules.analyze()
    assert [step.rule for step in explain(analysis, "ALERT").steps] == ["assign", "declare_storm"]
    assert explain(analysis, "ALERT").later == ("escalate",)
    assert explain(analysis, "ACK").forbids == ("escalate",)
    assert {step.rule for step in explain(analysis, "time").steps} == {
        "escalate",
        "recover",
        "report",
    }
    assert [step.rule for step in explain(analysis, "late probes").steps] == ["regret"]
