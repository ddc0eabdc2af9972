"""A real database to look at: a bank with rules, a stream, a workflow, a deadlock and load."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Integer, Table, Text, select

import activedb as adb
from activedb.errors import RuleFailed
from activedb.events import AccuracyInterval
from activedb.monitor import addresses

ACCOUNTS = 400
TOKEN = "a token of the bank's monitor"


class Bank:
    """A database in memory whose monitor listens on a free port of loopback."""

    def __init__(self, folder: Path, *, writable: bool = False):
        more: dict[str, Any] = (
            {"monitor_writable": True, "monitor_token": TOKEN} if writable else {}
        )
        self._folder = folder
        self.db = adb.connect("memory://", folder=folder, monitor="on", monitor_values=True, **more)
        db = self.db
        self.accounts = Table(
            "accounts",
            db.metadata,
            Column("id", Integer, primary_key=True),
            Column("balance", Integer, nullable=False),
        )
        self.log = Table(
            "log", db.metadata, Column("id", Integer, primary_key=True), Column("line", Text)
        )
        db.create_all()
        self._add_rules()
        with db.transaction() as t:
            for id in range(ACCOUNTS):
                t.insert(self.accounts, {"id": id, "balance": 1_000_000})

    def _add_rules(self) -> None:
        db, accounts, log = self.db, self.accounts, self.log

        @db.rule(on=adb.updated(accounts, "balance"), when=lambda t, o: o.new["balance"] < 0)
        def overdraft(t: Any, o: Any) -> None:
            raise ValueError(f"account {o.new['id']} has only {o.old['balance']}")

        @db.rule(
            on=adb.updated(accounts, "balance"),
            when=lambda t, o: o.new["id"] % 50 == 0,
            coupling="deferred",
        )
        def write_down(t: Any, o: Any) -> None:
            t.insert(log, {"line": f"{o.new['id']}: {o.new['balance']}"})

        @db.rule(on=adb.event("odd <b>name</b>"), coupling="detached")
        def broken(t: Any, o: Any) -> None:
            raise RuntimeError("<script>window.hacked = 1</script>")

        pair = adb.seq(adb.event("EXIT"), adb.event("ENTER")).same("worker").within(45)

        @db.rule(on=pair, coupling="sequential")
        def unsanitised(t: Any, o: Any) -> None:
            t.insert(log, {"line": f"worker {o.params['worker']}"})

    def state(self) -> dict[str, Any]:
        """Return the state that the monitor shows."""
        monitor = self.db.admin.monitor
        assert monitor is not None
        return monitor.state()

    def transfer(self, t: adb.Transaction, source: int, target: int, amount: int) -> None:
        """Move money."""
        rows = t.get_many(self.accounts, [source, target], for_update=True)
        less, more = rows[source], rows[target]
        assert less is not None
        assert more is not None
        t.update(self.accounts, source, balance=less["balance"] - amount)
        t.update(self.accounts, target, balance=more["balance"] + amount)

    def transfers(self, number: int, first: int = 0) -> None:
        """Make `number` transfers, one after the other."""
        for n in range(first, first + number):
            self.db.run(self.transfer, n % ACCOUNTS, (n * 7 + 1) % ACCOUNTS, 1)

    def load(self, is_enough: Callable[[], bool], threads: int = 2) -> int:
        """Make transfers on some threads until there are enough; return how many."""
        done = threading.Event()
        counts = [0] * threads

        def work(k: int) -> None:
            while not done.is_set():
                self.transfers(20, counts[k] * threads + 20 * k)
                counts[k] += 20

        workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
        for worker in workers:
            worker.start()
        try:
            while not is_enough():
                pass
        finally:
            done.set()
            for worker in workers:
                worker.join()
        return sum(counts)

    def fail(self) -> None:
        """An overdraft, which its rule refuses, and a rule that fails alone."""
        with contextlib.suppress(RuleFailed):
            self.db.run(self.transfer, 1, 2, 10_000_000)
        self.db.signal("odd <b>name</b>", n=1)
        self.db.signal("EXIT", worker=7)
        self.db.signal("ENTER", worker=7)

    def leave_open(self, door: str) -> None:
        """Leave a decision open: two events whose order their timestamps do not tell."""
        pair = adb.seq(adb.event("OPEN"), adb.event("CLOSE")).same("door")

        @self.db.rule(on=pair)
        def closed(t: Any, o: Any) -> None:
            t.insert(self.log, {"line": f"closed {o.params['door']}"})

        for name, node, us in (("OPEN", "P", 0), ("CLOSE", "Q", 10)):
            about = AccuracyInterval(us + 10, us, us + 20, node=node)
            self.db.signal(name, timestamp=about, door=door)

    def lines(self) -> list[str]:
        """The lines of the log."""
        return self.db.run(lambda t: [row.line for row in t.query(select(self.log))])

    def deadlock(self) -> None:
        """Two transactions that lock two accounts crosswise; the victim is tried again."""
        both = threading.Barrier(2)
        is_first = [True, True]

        def crosswise(t: adb.Transaction, k: int) -> None:
            t.get(self.accounts, (10, 11)[k], for_update=True)
            if is_first[k]:
                is_first[k] = False
                both.wait()
            t.get(self.accounts, (11, 10)[k], for_update=True)

        runs = [threading.Thread(target=self.db.run, args=(crosswise, k)) for k in range(2)]
        for run in runs:
            run.start()
        for run in runs:
            run.join()

    def waiting(self) -> Callable[[], None]:
        """Have one transaction wait for a row of another; call what is returned to end both."""
        go_on, has = threading.Event(), threading.Event()

        def hold(t: adb.Transaction) -> None:
            t.get(self.accounts, 20, for_update=True)
            has.set()
            go_on.wait()

        def ask(t: adb.Transaction) -> None:
            t.get(self.accounts, 20, for_update=True)

        threads = [threading.Thread(target=self.db.run, args=(hold,))]
        threads[0].start()
        has.wait()
        threads.append(threading.Thread(target=self.db.run, args=(ask,)))
        threads[1].start()

        def end() -> None:
            go_on.set()
            for thread in threads:
                thread.join()

        return end

    def batches(self) -> None:
        """A workflow with three batches, and a stream with a late event."""
        usage = self.db.workflow("usage", sources="calls")

        @usage.program(reads="calls")
        def rate(t: adb.Transaction, batch: Any) -> Any:
            return [{"who": call["who"], "price": 3} for call in batch]

        @usage.program(reads="rate")
        def bill(t: adb.Transaction, batch: Any) -> None:
            t.insert(self.log, {"line": f"{len(batch)} bills"})

        run = self.db.workflows.open("usage")
        for who in ("ann", "bob", "eve"):
            run.feed("calls", [{"who": who}])
        ward = self.db.stream(
            "ward",
            source=adb.Files(format="csv"),
            type="kind",
            timestamp="at",
            types={"SEEN": ("worker",)},
            delay=timedelta(seconds=5),
        )
        for at in (100, 200, 10):  # the last one is late
            ward.feed([adb.occurrence("SEEN", timestamp=at, worker=1)])

    def close(self) -> None:
        """Close the database, and with it the monitor."""
        self.db.close()

    @property
    def address(self) -> str:
        """Return the address at which its monitor listens."""
        return addresses(self._folder)[0].url
