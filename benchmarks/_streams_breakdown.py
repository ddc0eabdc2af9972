"""Breakdown of the time of a scheduler's threads: the six parts of (Mao et al., section 8.3.1)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from activedb.scheduling import (
    LWM,
    S2PL,
    TPG,
    At,
    Decision,
    Operation,
    Scheduler,
    SerialOrder,
    SharedState,
    STransaction,
)
from activedb.scheduling.locking import Gate
from benchmarks._streams_driver import wait

__all__ = ["PHASES", "SCHEDULERS", "Measured", "scheduler_of"]

PHASES: Final = ("useful", "sync", "lock", "construct", "explore", "abort")
"""Parts of the time: operations of s-transactions that commit, once each; waiting for others;
inserting locks; planning; all else; operations that were redone, failed or belong to s-transactions
that abort, with the handling of aborts."""

SCHEDULERS: Final = ("serial order", "S2PL", "LWM", "TPG", "TPG, always a graph")


def scheduler_of(name: str, threads: int, gate: Gate | None = None) -> Scheduler:
    """Return one of `SCHEDULERS`; those with locks report to the gate."""
    makers: dict[str, Callable[[], Scheduler]] = {
        "serial order": SerialOrder,
        "S2PL": lambda: S2PL("row", threads=threads, gate=gate),
        "LWM": lambda: LWM("row", threads=threads, gate=gate),
        "TPG": lambda: TPG(threads),
        "TPG, always a graph": lambda: TPG(threads, Decision()),
    }
    return makers[name]()


class _Listening:
    """A gate that stops no thread, and records how long each s-transaction has waited for locks."""

    def __init__(self) -> None:
        self.waited_s: defaultdict[At, float] = defaultdict(float)
        self._since_s: dict[At, float] = {}
        self.threads = 1
        self.started_s = 0.0
        self.left_s: list[float] = []

    def start(self, threads: int) -> None:
        self.threads = threads
        self.left_s = []
        self.started_s = time.perf_counter()

    def access(self, at: At, what: str) -> None:
        pass

    def blocked(self, at: At) -> None:
        self._since_s[at] = time.perf_counter()

    def unblocked(self, at: At) -> None:
        self.waited_s[at] += time.perf_counter() - self._since_s.pop(at)

    def leave(self) -> None:
        self.left_s.append(time.perf_counter())

    def stop(self) -> None:
        pass


class _Timed(Operation):
    """An operation that waits as for I/O, runs another operation, and records its duration.

    Waiting for locks, when it reads, does not count.
    """

    __slots__ = ("_at", "_operation", "_wait_s", "_waited_s", "all_s", "last_s")

    def __init__(
        self, operation: Operation, wait_s: float, at: At, waited_s: defaultdict[At, float]
    ):
        super().__init__(operation.targets, operation.sources)
        self.all_s = self.last_s = 0.0
        self._operation = operation
        self._wait_s = wait_s
        self._at = at
        self._waited_s = waited_s

    def evaluate(self, read: Callable[[Any], Any]) -> Any:
        before_s = self._waited_s[self._at]
        began_s = time.perf_counter()
        try:
            if self._wait_s:
                wait(self._wait_s)
            return self._operation.evaluate(read)
        finally:
            taken_s = time.perf_counter() - began_s
            self.last_s = taken_s - (self._waited_s[self._at] - before_s)
            self.all_s += self.last_s


class Measured:
    """One of `SCHEDULERS`, whose operations are timed.

    Parameters
    ----------
    name : str
    threads : int
    wait_s : float
        Waiting time of each operation.
    """

    def __init__(self, name: str, threads: int, wait_s: float):
        self._gate = _Listening()
        self._wait_s = wait_s
        self._scheduler = scheduler_of(name, threads, self._gate)

    def run(self, transactions: list[STransaction], state: SharedState) -> dict[str, float]:
        """Run s-transactions; return the seconds of all threads, by `PHASES`."""
        waited_s = self._gate.waited_s
        waited_s.clear()
        timed: list[tuple[STransaction, list[_Timed]]] = []
        for t in transactions:
            operations = [_Timed(o, self._wait_s, t.at, waited_s) for o in t.operations]
            t.operations = tuple(operations)
            timed.append((t, operations))
        began_s = time.perf_counter()
        for t in transactions:
            self._scheduler.add(t)
        self._scheduler.run(state)
        phases, total_s = self._told(began_s, time.perf_counter())
        for t, operations in timed:
            assert t.outcome is not None
            all_s = sum(operation.all_s for operation in operations)
            committed = t.outcome.committed
            useful_s = sum(operation.last_s for operation in operations) if committed else 0.0
            phases["useful"] += useful_s
            phases["abort"] += all_s - useful_s
        phases["explore"] = max(total_s - sum(phases.values()), 0.0)
        return phases

    def _told(self, began_s: float, ended_s: float) -> tuple[dict[str, float], float]:
        """Return the scheduler's own times, without operations, and the time of all threads."""
        phases = dict.fromkeys(PHASES, 0.0)
        if isinstance(self._scheduler, TPG):
            times = self._scheduler.times
            phases |= {"sync": times.wait_s, "construct": times.plan_s, "abort": times.abort_s}
            return phases, times.total_s
        if isinstance(self._scheduler, SerialOrder):
            return phases, ended_s - began_s
        gate = self._gate
        phases["lock"] = gate.started_s - began_s  # before the threads begin
        idle_s = sum(ended_s - left_s for left_s in gate.left_s)
        phases["sync"] = sum(gate.waited_s.values()) + idle_s
        return phases, phases["lock"] + gate.threads * (ended_s - gate.started_s)
