"""A letter whose rule is run again; killed at a point of the commit, or together with another.

As a program, ``python -m tests.firing.letters_program '{"url": …, "point": …}'``, it retries the
letter that is there, and is killed with SIGKILL when its commit comes to a named point. With
``"point": null`` it lives, and prints what became of the letters.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import activedb as adb
from tests.ledger import open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.ledger import Ledger


def define(ledger: Ledger, *, works: bool = True) -> None:
    """Define the rule, which counts account 1 up and writes that down."""

    @ledger.db.rule(on=adb.event("E"), coupling="sequential")
    def count(t: Transaction, o: Occurrence) -> None:
        if not works:
            raise ValueError("not yet")
        row = t.get(ledger.accounts, 1, for_update=True)
        assert row is not None
        t.update(ledger.accounts, 1, balance=row["balance"] + 1)
        ledger.write(t, f"event {o.params['n']}")


def main(given: dict[str, Any]) -> None:
    def trigger(point: str) -> None:
        if point == given["point"]:
            os.kill(os.getpid(), signal.SIGKILL)

    with adb.connect(given["url"]) as db:
        define(open_ledger(db))
        print("ready", flush=True)
        sys.stdin.readline()
        db._store.trigger = trigger
        with open(given["log"], "w", encoding="utf-8") as log:
            for result in db.dead_letters.retry_all():
                print(result.outcome, file=log)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
