"""A transfer and a rule that writes it down, in any coupling mode, killed at a point of a commit.

As a program, ``python -m tests.firing.kill_program '{"url": …, "coupling": …, "aborts": …, "at": …,
"point": …}'``, it is killed with SIGKILL when the commit of the triggering transaction (``at`` is
``trigger``) or of the rule's own (``rule``) comes to a named point.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import activedb as adb
from tests.ledger import open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.ledger import Ledger


def define(ledger: Ledger, coupling: str) -> None:
    """Define the rule."""

    @ledger.db.rule(on=adb.updated(ledger.accounts), coupling=coupling)
    def write_down(t: Transaction, o: Occurrence) -> None:
        assert o.new is not None
        ledger.write(t, f"account {o.new['id']} has {o.new['balance']}")


def main(given: dict[str, Any]) -> None:
    def trigger(point: str) -> None:
        at = "trigger" if threading.current_thread() is threading.main_thread() else "rule"
        if (at, point) == (given["at"], given["point"]):
            os.kill(os.getpid(), signal.SIGKILL)

    def transfer(t: Transaction) -> None:
        t.update(ledger.accounts, 1, balance=11)
        if given["aborts"]:
            raise ZeroDivisionError

    with adb.connect(given["url"]) as db:
        ledger = open_ledger(db, {1: 10})
        define(ledger, given["coupling"])
        print("ready", flush=True)
        sys.stdin.readline()
        db._store.trigger = trigger
        with contextlib.suppress(ZeroDivisionError):
            db.run(transfer)
        db.wait_idle()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
