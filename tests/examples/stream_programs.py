"""Common parts of the tests of programs over generated events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks._examples import STREAMS, load
from tests.patience import PATIENCE_S

SCHEDULERS = ("serial", "sei", "s2pl", "lwm", "tpg", "columns")

workload = load("_workload")


def wrong(program: Any, events: Any, replay: Any, by: str, batch: int = 100) -> list[str]:
    """Run a program over events by a scheduler; return the differences from the plain loop."""
    found: list[str] = workload.differences(
        workload.run(program, events, by, batch=batch), replay(events)
    )
    return found


def command(name: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run a program as its own process; return its status, its JSON if any, its errors."""
    done = subprocess.run(
        [sys.executable, STREAMS / f"{name}.py", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def one_by_one(program: Any, events: list[tuple[str, dict[str, Any]]]) -> Any:
    """Run events, a millisecond apart, in the serial order; return the run and its results."""
    from activedb.events import Occurrence
    from activedb.scheduling import ProgramRun, SerialOrder

    run = ProgramRun(program, SerialOrder())
    run.feed([Occurrence(type_, ms / 1000, e) for ms, (type_, e) in enumerate(events, 1)])
    return run, run.finish()
