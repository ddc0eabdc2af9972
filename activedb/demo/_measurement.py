"""Throughput of small transactions, rules and events in a database on this machine."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Column, Integer, Table, Text

from activedb.database import Database
from activedb.events import Occurrence, event, seq
from activedb.metrics import Histogram
from activedb.transactions import Transaction

__all__ = ["Measured", "measure"]

_WARM_UP_S = 0.2
_EVENTS = 100  # in one transaction
_FIRINGS = 50  # detached ones, before they are awaited


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure.

    Attributes
    ----------
    name, unit : str
    value : float
    """

    name: str
    value: float
    unit: str


def measure(db: Database, seconds: float) -> Iterator[Measured]:
    """Measure an empty database, `seconds` for each figure; yield the figures as they come.

    The tables and rules that it creates remain: use a separate schema.
    """
    work = _Work(db)
    db.create_all()
    db.run(work.fill)
    for share in (1, db.settings.threads):
        latencies = Histogram()
        rate = _in_threads(share, seconds, partial(work.transfer, latencies))
        of = "one thread" if share == 1 else f"{share} threads"
        yield Measured(f"transactions, {of}", rate, "per second")
        yield Measured(f"transaction, {of}, p50", latencies.quantile(0.5) * 1_000, "ms")
        yield Measured(f"transaction, {of}, p99", latencies.quantile(0.99) * 1_000, "ms")
        if db.settings.threads == 1:
            break
    yield Measured("immediate rules", _rate(seconds, work.ring), "per second")
    rate = _FIRINGS * _rate(seconds, work.call)
    yield Measured("detached rules", rate, "per second")
    rate = _EVENTS * _rate(seconds, work.pass_by)
    yield Measured("events through a pattern", rate, "per second")


class _Work:
    """A table with a row for each thread, three rules, and the operations that are measured."""

    def __init__(self, db: Database):
        self._db = db
        self._rows = Table(
            "counts",
            db.metadata,
            Column("name", Text, primary_key=True),
            Column("count", Integer, nullable=False),
        )
        self._names = [f"thread {n}" for n in range(db.settings.threads)]
        db.rule(on=event("RING"), name="ring")(self._count("ring"))
        db.rule(on=event("CALL"), coupling="detached", name="call")(lambda t, o: None)
        self._passed = itertools.count()
        pair = seq(event("ENTER"), event("EXIT")).same("who").within(60)
        db.rule(on=pair, name="pair")(lambda t, o: None)

    def fill(self, t: Transaction) -> None:
        """Insert the rows."""
        for name in (*self._names, "ring"):
            t.insert(self._rows, {"name": name, "count": 0})

    def transfer(self, latencies: Histogram, number: int) -> None:
        """Run a transaction that reads a row and writes it."""
        began = time.perf_counter()
        self._db.run(self._count(self._names[number]), None)
        latencies.record(time.perf_counter() - began)

    def ring(self) -> None:
        """Run a transaction whose event triggers a rule, which reads and writes a row."""
        self._db.signal("RING")

    def call(self) -> None:
        """Raise events that trigger detached rules, and wait for these."""
        for number in range(_FIRINGS):
            self._db.signal("CALL", number=number)
        self._db.wait_idle()

    def pass_by(self) -> None:
        """Run a transaction with events of a pattern; every second event completes it."""
        now_s = time.time()
        with self._db.transaction():
            for number in range(_EVENTS // 2):
                who = next(self._passed)
                at_s = now_s + number * 1e-6  # one is before the other
                self._db.signal("ENTER", timestamp=at_s, who=who)
                self._db.signal("EXIT", timestamp=at_s + 1e-6, who=who)

    def _count(self, name: str) -> Callable[[Transaction, Occurrence | None], Any]:
        def count(t: Transaction, o: Occurrence | None) -> None:
            row = t.get(self._rows, name, for_update=True)
            assert row is not None
            t.update(self._rows, name, count=row["count"] + 1)

        return count


def _rate(seconds: float, do: Callable[[], None]) -> float:
    return _in_threads(1, seconds, lambda number: do())


def _in_threads(threads: int, seconds: float, do: Callable[[int], None]) -> float:
    """Return the calls of `do` per second, on this number of threads at once, after a warm-up."""
    begin = threading.Barrier(threads)

    def repeat(number: int) -> tuple[int, float]:
        until = time.perf_counter() + _WARM_UP_S
        while time.perf_counter() < until:
            do(number)
        begin.wait()
        done, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            do(number)
            done += 1
        return done, time.perf_counter() - began

    with ThreadPoolExecutor(threads) as pool:
        return sum(done / taken for done, taken in pool.map(repeat, range(threads)))
