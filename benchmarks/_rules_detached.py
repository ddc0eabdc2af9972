"""Detached and sequential rules, against the jobs of a queue on the same Postgres."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Table, select

import activedb
from benchmarks._nested_parts import Figure, p50, times_in_turn
from benchmarks._nested_rows import Server, rows_of
from benchmarks._rules_procrastinate import Procrastinate

__all__ = ["WORKERS", "DetachedRules"]

WORKERS = 4
_ROUNDS = 3
_COUPLINGS = ("detached", "sequential")


class DetachedRules:
    """One run: `firings` of each coupling and as many jobs of the peer, in turn, several times.

    Each begins with the first event and ends when the last firing is done and removed from the
    queue. A firing, and a job, inserts a row; a firing is marked done in the same commit, while
    procrastinate fetches a job, runs it and marks it done in a commit each. Caller and workers are
    threads of this process, as are the peer's.

    ``detached_per_s``, ``sequential_per_s``: one caller raises each event, and defers each job, in
    a separate transaction; meanwhile they are executed. ``sequential_batch_per_s``: all events are
    raised in one transaction, all jobs deferred by one call.
    """

    def __init__(self, server: Server, firings: int, peer: Procrastinate | None):
        self._firings = firings
        self._peer = peer
        self._db = server.database(threads=WORKERS)
        self._events = 0
        self._tables: dict[str, Table] = {}
        for coupling in _COUPLINGS:
            self._define(coupling)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def __call__(self) -> dict[str, Figure]:
        """Do one run; return firings per second."""
        one_by_one: list[Callable[[int], None]] = [
            self._one_by_one(coupling) for coupling in _COUPLINGS
        ]
        together: list[Callable[[int], None]] = [self._together]
        peer = self._peer
        if peer is not None:
            one_by_one.append(lambda _: peer.run(self._firings))
            together.append(lambda _: peer.run_batch(self._firings))
        figures = {}
        for names, calls in (
            (("detached_per_s", "sequential_per_s"), one_by_one),
            (("sequential_batch_per_s",), together),
        ):
            rates = [self._firings / p50(times) for times in times_in_turn(calls, _ROUNDS)]
            for name, rate in zip(names, rates, strict=False):
                figures[name] = (
                    Figure(rate, "rules/s")
                    if peer is None
                    else Figure(rate, "rules/s", peer.name, rates[-1])
                )
        return figures

    def written(self, coupling: str) -> int:
        """Return the number of firings that have written their row."""
        with self._db.transaction() as t:
            return len(t.query(select(self._tables[coupling].c.id)))

    def _define(self, coupling: str) -> None:
        """Define table and rule of one coupling."""
        written = self._tables[coupling] = rows_of(self._db, f"{coupling}_written", 0)

        def write(t: activedb.Transaction, o: activedb.Occurrence) -> None:
            t.insert(written, {"id": o.params["number"], "balance": 0})

        listens = activedb.event(coupling.upper())
        self._db.rule(on=listens, coupling=coupling, name=f"writes {coupling}")(write)

    def _one_by_one(self, coupling: str) -> Callable[[int], None]:
        def run(number: int) -> None:
            self._raise_events(coupling)
            self._db.wait_idle()

        return run

    def _together(self, number: int) -> None:
        with self._db.transaction():
            self._raise_events("sequential")
        self._db.wait_idle()

    def _raise_events(self, coupling: str) -> None:
        for _ in range(self._firings):
            self._events += 1
            self._db.signal(coupling.upper(), number=self._events)
