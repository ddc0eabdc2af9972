"""Rules whose detectors remember, fed by a stream or by signals; in one go, or killed in between.

As a program, ``python -m tests.firing.remembering '{"url": …, "of": …, "point": …, "count": …}'``,
it does the work from where it was left, and is killed with SIGKILL when a commit comes to the named
point for the ``count``-th time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, Table

import activedb as adb
from activedb.streams import AtomicBatch
from tests.ledger import EPOCH, Rows, at, declare, event, open_ledger

if TYPE_CHECKING:
    from activedb import Database, Expression, Occurrence, SimulatedClock, Transaction
    from tests.ledger import Ledger

BATCHES = 5
STEPS = 24


def patterns(ledger: Ledger) -> dict[str, Expression]:
    """One of each kind of memory."""

    def is_even(t: Transaction, parts: Any) -> bool:
        """Return whether rules have written an even number of facts before."""
        row = t.get(ledger.facts, "count")
        return row is None or row["value"] % 2 == 0

    a, b, c = adb.event("A"), adb.event("B"), adb.event("C")
    return {
        "plain": adb.seq(a, b).same("n").within(30),
        "chronicle": adb.seq(a, c).within(60).context("chronicle"),
        "skips": adb.seq(a, b, c).within(60).selecting("next").skipping("past_last"),
        "silence": adb.seq(b, ~c).within(7),
        "delay": c.after(4),
        "reading": adb.seq(b, a).within(40).context("recent").reading(is_even),
    }


def define(ledger: Ledger, coupling: str = "immediate") -> None:
    """Rules that write down each match; one of them what the reading reads, too."""
    for name, on in patterns(ledger).items():

        def note(t: Transaction, o: Occurrence, name: str = name) -> None:
            places = " ".join(f"{c.name}{c.us // 1_000_000 - START_S}" for c in o.constituents)
            ledger.write(t, f"{name} {places} at {o.us // 1_000_000 - START_S}")
            if name == "plain":
                row = t.get(ledger.facts, "count", for_update=True)
                if row is None:
                    t.insert(ledger.facts, {"name": "count", "value": 1})
                else:
                    t.update(ledger.facts, "count", value=row["value"] + 1)

        ledger.db.rule(on=on, name=name, coupling=coupling)(note)


START_S = int(EPOCH.timestamp())


# -- a stream --------------------------------------------------------------------------------


def batch_of(number: int) -> tuple[list[Occurrence], int]:
    """Events of a batch, in disorder, and its punctuation."""
    first = 20 * number
    kinds = "ABCBACCABBACABCBCACB"
    events = [
        event(kinds[(7 * s + number) % 20], first + s, f"{first + s:04}", n=s % 3)
        for s in range(20)
        if (s + number) % 4
    ]
    return events[::-1], event("A", first + 17).us


def feed(db: Database) -> None:
    """Hand all batches over, as Spark does after a crash: what took effect changes nothing."""
    ledger = open_ledger(db)
    define(ledger)
    stream = declare(db)
    run = stream.run
    for number in range(BATCHES):
        events, punctuation_us = batch_of(number)
        run.apply(AtomicBatch(stream.name, "q", number, Rows(events), punctuation_us))
    run.finish()
    end = Rows([])
    run.apply(AtomicBatch(stream.name, "q", BATCHES, end, event("A", 1_000).us))
    db.wait_idle()


# -- signals ---------------------------------------------------------------------------------


def raise_all(db: Database, clock: SimulatedClock) -> None:
    """Raise a signal every few seconds, from the one on that has not committed yet."""
    ledger = open_ledger(db)
    progress = Table("progress", db.metadata, Column("id", Integer, primary_key=True))
    db.create_all()
    define(ledger)
    db.recover()
    with db.transaction() as t:
        done = {row.id for row in t.query(progress.select())}
    db.wait_idle()
    for step in range(max(done, default=-1) + 1, STEPS):
        when = at(3 * step)
        clock.advance(max((when - clock.now()).total_seconds(), 0))
        db.wait_idle()  # what is due by then comes first
        with db.transaction() as t:
            t.insert(progress, {"id": step})
            db.signal("ABCBACCABB"[(7 * step) % 10], timestamp=when, n=step % 2)
    clock.advance(1_000)
    db.wait_idle()


def clock_of(url: str) -> SimulatedClock:
    """A clock at the last signal that has committed."""
    with adb.connect(url) as db:
        progress = Table("progress", db.metadata, Column("id", Integer, primary_key=True))
        db.create_all()
        with db.transaction() as t:
            last = max((row.id for row in t.query(progress.select())), default=0)
    return adb.SimulatedClock(EPOCH + timedelta(seconds=3 * last))


def do(url: str, of: str, trigger: Any = None) -> list[str]:
    """Go on with the work from where it was left; return what has been written, sorted."""
    is_stream = of == "stream"
    clock = None if is_stream else clock_of(url)
    with adb.connect(url, clock=clock, batch_events_max=6) as db:
        if trigger is not None:
            db._store.trigger = trigger
        if clock is None:
            feed(db)
        else:
            raise_all(db, clock)
        assert db.dead_letters.list() == []
        with db.transaction() as t:
            rows = t.query(db.metadata.tables["log"].select())
            return sorted(row.text for row in rows)


def main(given: dict[str, Any]) -> None:
    latch = threading.Lock()
    reached = 0

    def trigger(point: str) -> None:
        nonlocal reached
        with latch:
            reached += point == given["point"]
            if point == given["point"] and reached == given["count"]:
                os.kill(os.getpid(), signal.SIGKILL)

    print("ready", flush=True)
    sys.stdin.readline()
    do(given["url"], given["of"], trigger)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
