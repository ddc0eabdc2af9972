"""The way of users' plain code stays short: calls are counted, so no machine is too slow for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import path

CALLS_MAX = {"update_rule": 85, "feed_sequence": 640, "feed_many": 145, "program_event": 85}


def test_ways_are_no_longer_than_their_budgets() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.path", "--json", "--runs", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert {name for name in CALLS_MAX if found[f"{name}_calls"]["value"] < 10} == set()
    for name, most in CALLS_MAX.items():
        assert found[f"{name}_calls"]["value"] <= most, (name, found)
        assert found[f"{name}_rooms"]["value"] < found[f"{name}_calls"]["value"]
        assert found[f"{name}_us"]["value"] > 0


def test_functions_of_a_journey_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    path.main(["--calls", "program_event", "--runs", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert any("scheduling/_access.py Access.write" in line for line in lines)
