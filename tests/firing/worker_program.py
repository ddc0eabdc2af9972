"""Jobs that processes share, and a program that works for them.

``python -m tests.firing.worker_program '{"url": …, "log": …}'`` writes a line to the log file for
each job that it is at, and works until SIGTERM. With ``"point"`` and ``"count"`` it is killed with
SIGKILL when its commits come to the named point for the ``count``-th time.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import activedb as adb
from tests.ledger import Ledger, open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction


def define_jobs(ledger: Ledger, at: Callable[[int], object] = lambda n: None) -> None:
    """Define what is done for JOB: a line, one for its detached and one for its sequential PART."""

    @ledger.db.rule(on=adb.event("JOB"), coupling="detached")
    def job(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"job {o.params['n']}")
        ledger.db.signal("PART", n=o.params["n"])
        at(o.params["n"])

    @ledger.db.rule(on=adb.event("PART"), coupling="detached")
    def part(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"part {o.params['n']}")

    @ledger.db.rule(on=adb.event("PART"), coupling="sequential")
    def after(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"after {o.params['n']}")


def lines_of(jobs: int) -> list[str]:
    """Return what `jobs` jobs write, sorted."""
    return sorted(f"{word} {n}" for word in ("job", "part", "after") for n in range(jobs))


def main(given: dict[str, Any]) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    log = Path(given["log"])
    left = itertools.count(given.get("count", 0) - 1, -1)

    def at(n: int) -> None:
        with log.open("a") as file:
            file.write(f"{n}\n")

    def trigger(point: str) -> None:
        if point == given.get("point") and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with adb.connect(given["url"], firings="queue", threads=2) as db:
        define_jobs(open_ledger(db), at)
        print("ready", flush=True)
        sys.stdin.readline()
        db._store.trigger = trigger
        db.run_worker(stop, poll_s=0.2)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
