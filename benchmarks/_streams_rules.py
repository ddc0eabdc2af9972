"""Rules over shared tables whose conditions wait for I/O: the setting of (Wang et al., section 6).

Each event triggers one rule. Its condition reads a number of values of shared tables, and waits
each time, as for the answer of an external service; a share of the rules then write one of these
values in their action. Tables and keys are drawn at random: from six tables, as the paper's pool
has rules over several, with ten rows each, few enough for s-transactions to meet on a row.

There are 768 events: the paper, too, measures batches much larger than the windows of its queries.
While a run begins and ends, fewer s-transactions run concurrently than in between, which costs a
scheduler more the more concurrency it allows; and with few events, conflicts are a matter of
chance. If only waiting took time, LWM over S2PL, by tables and with six reads, would be between 2.5
and 3.1 for ten draws of 192 events, between 2.7 and 3.2 for 768, and 2.95 in the long run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from activedb.events import Occurrence, event
from activedb.scheduling import Program, ProgramRun, Ref, Scheduler, SharedTable, View
from activedb.scheduling.locking import LWM, S2PL, SEI
from benchmarks._streams_driver import wait

__all__ = ["SCHEDULERS", "THREADS", "Pool", "RuleLoad", "scheduler_of"]

THREADS: Final = 32
"""Threads wait nearly all the time, and the paper does not bound the number of concurrent
s-transactions. So there are more threads than any scheduler uses: by rows LWM keeps 26 of 32 busy,
and would keep 15 of 16 busy."""
SCHEDULERS: Final = ("SEI", "S2PL", "LWM")


def scheduler_of(name: str, granularity: str, threads: int = THREADS) -> Scheduler:
    """Return one of `SCHEDULERS`; SEI has neither locks nor threads."""
    if name == "SEI":
        return SEI()
    kind: Callable[..., Scheduler] = S2PL if name == "S2PL" else LWM
    return kind(granularity, threads=threads)


@dataclass(frozen=True, slots=True)
class RuleLoad:
    """Work that events cause.

    Attributes
    ----------
    events : int
    reads : int
        Reads of each condition.
    writes : float
        Writes per s-transaction on average; up to 1, the share of rules that write.
    tables, keys : int
        Number of tables, and of keys in each table.
    wait_s : float
        Waiting time of each read.
    """

    events: int = 768
    reads: int = 6
    writes: float = 0.25
    tables: int = 6
    keys: int = 10
    wait_s: float = 0.001

    def of(self, **changes: Any) -> RuleLoad:
        """Return a copy with some changes."""
        return replace(self, **changes)


class Pool:
    """A program of such rules, and events for them."""

    def __init__(self, load: RuleLoad):
        self.load = load
        self.tables = [SharedTable(f"statuses{number}", initial=0) for number in range(load.tables)]
        self.program = Program("query_rule_pool", self.tables)
        self.program.rule(
            event("LOOKS"), name="looks", reads=self._read, writes=_nothing, when=self._holds
        )(_does_nothing)
        self.program.rule(
            event("WRITES"),
            name="writes",
            reads=self._read,
            writes=lambda o: self._read(o)[:1],
            when=self._holds,
        )(self._writes)

    def events(self, seed: int = 1) -> list[Occurrence]:
        """Return events a millisecond apart, always the same."""
        drawn = random.Random(seed)  # noqa: S311  # repeatable, not secret
        load = self.load
        made = []
        for number in range(1, load.events + 1):
            type_ = "WRITES" if drawn.random() < load.writes else "LOOKS"
            accesses = tuple(
                (drawn.randrange(load.tables), drawn.randrange(load.keys))
                for _ in range(load.reads)
            )
            made.append(Occurrence(type_, number / 1000, {"accesses": accesses}))
        return made

    def run(self, scheduler: Scheduler) -> ProgramRun:
        """Start a new run."""
        return ProgramRun(self.program, scheduler)

    def _read(self, o: Occurrence) -> list[Ref]:
        return [self.tables[table][key] for table, key in o.params["accesses"]]

    def _holds(self, t: View, o: Occurrence) -> bool:
        for ref in self._read(o):
            t.read(ref)
            wait(self.load.wait_s)
        return True

    def _writes(self, t: View, o: Occurrence) -> None:
        first = self._read(o)[0]
        t.write(first, t.read(first) + 1)


def _does_nothing(t: View, o: Occurrence) -> None:
    pass


def _nothing(o: Occurrence) -> Sequence[Ref]:
    return ()
