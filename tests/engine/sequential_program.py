"""A transfer, and the sequential rule that writes it down; killed at a point of either commit.

As a program, ``python -m tests.engine.sequential_program '{"url": …, "point": …, "count": …}'``, it
is killed with SIGKILL when its commits come to a named point for the ``count``-th time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import activedb as adb
from tests.engine.ledger import open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.engine.ledger import Ledger


def define(ledger: Ledger) -> None:
    """Define the rule."""

    @ledger.db.rule(on=adb.updated(ledger.accounts), coupling="sequential")
    def write_down(t: Transaction, o: Occurrence) -> None:
        assert o.new is not None
        ledger.write(t, f"account {o.new['id']} has {o.new['balance']}")


def main(given: dict[str, Any]) -> None:
    left = given["count"]

    def trigger(point: str) -> None:
        nonlocal left
        if point == given["point"]:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    with adb.connect(given["url"]) as db:
        ledger = open_ledger(db, {1: 10})
        define(ledger)
        print("ready", flush=True)
        sys.stdin.readline()
        db._store.trigger = trigger
        db.run(lambda t: t.update(ledger.accounts, 1, balance=11))
        db.join()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
