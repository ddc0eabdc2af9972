"""A chain of programs that is fed, or compensated, and killed at a point of a commit.

As a program, ``python -m tests.workflows.kill_program '{"url": …, "does": …, "commit": …,
"point": …}'``, it is killed with SIGKILL when the workflow's commit of that number, counted from
when it begins to feed or to compensate, comes to a named point.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import activedb as adb
from activedb.batches import isolated, merged, split
from tests.workflows.marking import Marking, chain, marking, rows_of

if TYPE_CHECKING:
    from activedb import Database

FED = rows_of("x", "y")


def opened(db: Database) -> Marking:
    """The chain, with a detached rule that counts what is written down."""
    of = marking(db, chain(isolated(), split(2), merged(2)))

    @db.rule(on=adb.inserted(of.marks), coupling="sequential")
    def count(t: adb.Transaction, o: adb.Occurrence) -> None:
        assert o.new is not None
        if not o.new["id"].startswith("counted"):
            of.add(t, f"counted {o.new['id']}", 1)

    return of


def main(given: dict[str, Any]) -> None:
    with adb.connect(given["url"]) as db:
        of = opened(db)
        if given["does"] == "compensate":
            of.run.feed("a", FED)
            db.wait_idle()
        run = of.run
        print("ready", flush=True)
        sys.stdin.readline()
        commits = 0

        def trigger(point: str) -> None:
            nonlocal commits
            if threading.current_thread() is not threading.main_thread():
                return  # the commit of a rule
            commits += point == "before flush"
            if (commits, point) == (given["commit"], given["point"]):
                os.kill(os.getpid(), signal.SIGKILL)

        db._store.trigger = trigger
        if given["does"] == "compensate":
            run.compensate("a#1")
        else:
            run.feed("a", FED)
        db.wait_idle()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
