"""The scenario files: every step is replayed, and what it causes compared to the letter.

How to read them, and how to write them anew: `tests.lockmgr.script`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.lockmgr.script import replay
from tests.patience import PATIENCE_S

FOLDER = Path(__file__).parent / "scenarios"
FILES = {f"{file.parent.name}/{file.stem}": file for file in sorted(FOLDER.glob("*/*.txt"))}
REWRITE = os.environ.get("ACTIVEDB_REWRITE_SCENARIOS") == "1"


@pytest.mark.parametrize("name", FILES)
def test_scenario_replayed_reads_the_same(name: str) -> None:
    expected = FILES[name].read_text(encoding="utf-8")
    actual = replay(expected)
    if REWRITE:
        FILES[name].write_text(actual, encoding="utf-8")
    else:
        assert actual == expected


def test_scenario_files_begin_with_what_they_show_and_what_that_serves() -> None:
    assert FILES
    for name, file in FILES.items():
        comments, _, steps = file.read_text(encoding="utf-8").partition("\n\n")
        assert all(line.startswith("# ") for line in comments.splitlines()), name
        assert "\n# Serves " in comments, name
        assert steps, name


def test_replay_wrong_expectations_are_replaced_by_what_happened() -> None:
    wrong = (
        "# Kept.\n\nbegin 1 2\n1 asks X a -> denied: 1 -held-> 1\n2 asks S a\n  -> granted\n"
        "1 downgrades a to X\ndump\n  empty\ncounters -> none\n"
    )
    right = (
        "# Kept.\n\nbegin 1 2\n1 asks X a -> granted\n2 asks S a -> blocked by 1 (held)\n"
        "1 downgrades a to X -> error: rule 5 (downgrade): transaction 1 holds X on a; X is not "
        "weaker\ndump\n  1\n  2 waits for 1 (held)\n  a: held 1 X; queue 2 S\n"
        "counters -> requests 2, grants 1\n"
    )
    assert replay(wrong) == right
    assert replay(right) == right


def test_replay_unknown_step_names_its_line() -> None:
    with pytest.raises(AssertionError, match="not a step: 1 sleeps") as caught:
        replay("begin 1\n1 sleeps\n")
    assert caught.value.__notes__ == ["line 2: 1 sleeps"]


def test_replay_threads_that_still_wait_at_the_end_are_ended() -> None:
    before = set(threading.enumerate())
    scenario = "manager\nbegin 1 2\n1 acquires X a -> granted\n2 acquires S a/7 -> waits\n"
    assert replay(scenario) == scenario
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
