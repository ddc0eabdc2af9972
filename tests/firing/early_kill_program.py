"""Work that triggers a detached rule, by way of a causal rule or not, killed before the work ends.

As a program, ``python -m tests.firing.early_kill_program '{"url": …, "firings": …, "kind": …,
"way": …, "at": …}'``, it is killed with SIGKILL when the detached rule is ``"running"`` or
``"done"``. The work is a transaction of the ``"application"``, a ``"program"`` of a workflow, or a
``"firing"`` of a detached rule, which a ``"batch"`` of a stream or a ``"workflow"`` may trigger.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import activedb as adb
from activedb.batches import isolated
from tests.databases import PATIENCE_S, until
from tests.firing.working import working
from tests.ledger import Ledger, declare, event, open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction


@dataclass
class Chain:
    """The work, the causal rule that it triggers, and the detached rule that this one triggers.

    Attributes
    ----------
    kind : str
        What the work is: "application", "program", "firing", "batch" or "workflow".
    way : str
        The work triggers the detached rule itself ("direct") or by way of a "causal" rule.
    at : str
        When the process is killed: the detached rule is "running" or "done"; empty for never.
    first : str
        What goes first, the "work" or the detached rule ("rule"); empty for whatever comes.
    """

    ledger: Ledger
    kind: str
    way: str
    at: str = ""
    first: str = ""
    has_triggered: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        db, ledger = self.ledger.db, self.ledger

        @db.rule(on=adb.event("GO"), coupling="causal")
        def causal(t: Transaction, o: Occurrence) -> None:
            self.trigger()
            ledger.write(t, "causal")

        @db.rule(on=adb.event("TRY"), coupling="detached")
        def beside(t: Transaction, o: Occurrence) -> None:
            if self.at == "running":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.first == "work":
                assert self.has_triggered.wait(PATIENCE_S)
            ledger.write(t, "beside")

        @db.rule(on=adb.event("A"), coupling="detached")
        def work(t: Transaction, o: Occurrence) -> None:
            self.work(t)

        self.workflow = db.workflow("chain", sources="a")

        @self.workflow.program(reads={"a": isolated()})
        def program(t: Transaction, rows: list[dict[str, Any]]) -> None:
            if self.kind == "program":
                self.work(t)
            else:
                db.signal("A")
                self.stop()

        @db.rule(on=adb.event("B"))
        def stop(t: Transaction, o: Occurrence) -> None:
            self.stop()

    def stop(self) -> None:
        if self.at:
            threading.Event().wait(PATIENCE_S)  # until the process is killed

    def trigger(self) -> None:
        self.ledger.db.signal("TRY")
        self.has_triggered.set()

    def work(self, t: Transaction) -> None:
        """Trigger the detached rule, and write a line."""
        if self.first == "rule":
            until(lambda: self.ledger.lines() == ["beside"])
        if self.way == "causal":
            self.ledger.db.signal("GO")
        else:
            self.trigger()
        assert self.has_triggered.wait(PATIENCE_S)
        if self.at:
            until(lambda: self.ledger.lines() == ["beside"])
            os.kill(os.getpid(), signal.SIGKILL)
        self.ledger.write(t, "work")

    def begin(self) -> None:
        """Have the work done."""
        db = self.ledger.db
        if self.kind == "batch":
            declare(db).feed([event("A", 1), event("B", 2)])
        elif self.kind == "firing":
            db.signal("A")
        elif self.kind in ("program", "workflow"):
            run = db.workflows.open(self.workflow)
            if run.due():
                run.resume()
            else:
                run.feed("a", [{"n": 1}])
        else:
            db.run(self.work)

    def expected(self) -> list[str]:
        """Lines that must be there after the crash, sorted."""
        if self.kind == "application":
            return ["beside"]
        return ["beside", "causal", "work"] if self.way == "causal" else ["beside", "work"]


def main(given: dict[str, Any]) -> None:
    with adb.connect(given["url"], firings=given["firings"], threads=8) as db:
        chain = Chain(open_ledger(db), given["kind"], given["way"], given["at"])
        print("ready", flush=True)
        sys.stdin.readline()
        with working(db, poll_s=0.1):
            chain.begin()
            until(lambda: chain.ledger.pending() == [])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
