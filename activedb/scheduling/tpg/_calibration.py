"""Micro-benchmark that finds the thresholds of the decision model on a machine."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from activedb.scheduling._operations import Abort, At, Operation, STransaction, Write
from activedb.scheduling._scheduler import Scheduler, SerialOrder
from activedb.scheduling._state import SharedState
from activedb.scheduling._tables import Ref, SharedTable
from activedb.scheduling.tpg._model import (
    Decision,
    Properties,
    Thresholds,
    properties_of,
    threads_run_python_at_once,
)
from activedb.scheduling.tpg._planning import Planner, refine
from activedb.scheduling.tpg._scheduler import TPG

__all__ = ["calibrate"]

TAKES_US = 50.0
"""Duration of an operation, unless the duration is the property that varies."""

FASTER = 0.95
"""Ratio of times below which a decision wins over another."""


@dataclass(frozen=True, slots=True)
class _Load:
    """Synthetic batch: s-transactions of one operation, a write of a key of the first table.

    Attributes
    ----------
    transactions, keys : int
    skew : float
        Zipf exponent of the keys.
    reads : float
        Share of operations that also read a key of the second table, which others write: PDs.
    aborts : float
        Share of s-transactions that abort.
    takes_us : float
        Duration of an operation, during which others can run: it waits or, if threads run Python
        code in parallel, computes.
    """

    transactions: int
    keys: int
    skew: float = 0.0
    reads: float = 0.0
    aborts: float = 0.0
    takes_us: float = 0.0


class _Bench:
    """Benchmark that runs synthetic batches, each with its seed, and measures their duration."""

    def __init__(self, threads: int, rounds: int):
        self._threads = threads
        self._rounds = rounds
        self._tables = SharedTable("first", initial=0), SharedTable("second", initial=0)

    def batch(self, load: _Load) -> list[STransaction]:
        """Return the s-transactions of a load; always the same ones."""
        chosen = random.Random(repr(load))  # noqa: S311 - not for security
        first, second = self._tables
        weights = list(accumulate(1 / (n + 1) ** load.skew for n in range(load.keys)))
        keys = chosen.choices(range(load.keys), cum_weights=weights, k=load.transactions)
        batch = []
        for number, key in enumerate(keys):
            target: Ref = first[key]
            sources: tuple[Ref, ...] = (target,)
            if chosen.random() < load.reads:
                if chosen.random() < 0.5:
                    target, sources = second[key], (second[key],)
                else:
                    sources = (target, second[chosen.randrange(load.keys)])
            args = (load.takes_us / 1e6, chosen.random() < load.aborts)
            operations: tuple[Operation, ...] = (Write(target, sources, _next, args),)
            batch.append(STransaction(At(number, "", number), "load", {}, operations))
        return batch

    def properties(self, load: _Load) -> Properties:
        """Return the properties of the load's TPG."""
        planner = Planner()
        for transaction in self.batch(load):
            planner.add(transaction)
        return properties_of(planner, refine(planner))

    def serial_s(self, load: _Load) -> float:
        """Return the seconds that the load takes in the serial order."""
        return min(self._run_s(SerialOrder(), load) for _ in range(self._rounds))

    def takes_us(self, load: _Load) -> float:
        """Return the microseconds per operation in the serial order."""
        return self.serial_s(load) / load.transactions * 1e6

    def tpg_s(self, load: _Load, *decisions: Decision) -> list[float]:
        """Return the seconds with each decision, planning included; decisions run in turn."""
        taken = [
            [self._run_s(TPG(self._threads, decision), load) for decision in decisions]
            for _ in range(self._rounds)
        ]
        return [min(of_one) for of_one in zip(*taken, strict=True)]

    def plan_s(self, load: _Load) -> float:
        """Return the seconds that planning takes."""
        taken = []
        for _ in range(self._rounds):
            batch = self.batch(load)
            start = time.perf_counter()
            planner = Planner()
            for transaction in batch:
                planner.add(transaction)
            refine(planner)
            taken.append(time.perf_counter() - start)
        return min(taken)

    def is_faster(self, load: _Load, decision: Decision, than: Decision) -> bool:
        """Return whether one decision is faster than another, by more than chance."""
        one, other = self.tpg_s(load, decision, than)
        return one < FASTER * other

    def _run_s(self, scheduler: Scheduler, load: _Load) -> float:
        state, batch = SharedState(self._tables), self.batch(load)
        start = time.perf_counter()
        for transaction in batch:
            scheduler.add(transaction)
        scheduler.run(state)
        return time.perf_counter() - start


def calibrate(threads: int = 2, operations: int = 4000, rounds: int = 3) -> Thresholds:
    """Measure at which property values the decision model should switch on this machine.

    Synthetic batches are run with both decisions of each dimension, while one property grows. With
    the default arguments this takes half a minute on an idle machine. ``python -m
    activedb.scheduling.tpg`` is the same as a command. A decision that never wins gets a threshold
    that no batch reaches.

    Parameters
    ----------
    threads : int
        Number of threads that the scheduler will have.
    operations : int
        Size of the largest batches.
    rounds : int
        Number of runs of each batch; the fastest counts, since other load only slows a run.
    """
    bench = _Bench(threads, rounds)
    short = _Load(operations, operations)
    per_us = 1e6 / operations
    serial_us = bench.serial_s(short) * per_us
    plan_us = bench.plan_s(short) * per_us
    free = Decision("non-structured")
    (free_s,) = bench.tpg_s(short, free)
    explore_us = max(free_s * per_us - plan_us - serial_us, 0.0)

    # Decisions are compared only where a TPG is built: on functions that are long enough.
    breadth, depth = Decision("breadth-first"), Decision("depth-first")
    loads = [_Load(n, n // 2 or 1, reads=0.5, takes_us=TAKES_US) for n in _sizes(operations)]
    structured = depth if bench.is_faster(loads[-1], depth, breadth) else breadth
    many = _first(loads, lambda load: bench.is_faster(load, structured, free))
    uneven = many and _last_before(
        [replace(loads[-1], skew=skew) for skew in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)],
        lambda load: bench.is_faster(load, free, structured),
    )

    grouped = Decision(unit="group")
    chains = [_Load(n, 64, takes_us=TAKES_US) for n in _sizes(operations)]
    long = _first(chains, lambda load: bench.is_faster(load, grouped, free))
    crowded = long and _last_before(
        [replace(chains[-1], reads=share) for share in (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)],
        lambda load: bench.is_faster(load, free, grouped),
    )

    lazy = Decision(abort="lazy")
    aborting = [replace(chains[-1], aborts=ratio) for ratio in (0.1, 0.3, 0.5, 0.7, 0.9)]
    often = _first(aborting, lambda load: bench.is_faster(load, lazy, free))
    heavy = often and _last_before(
        [
            replace(often, transactions=operations // 4 or 1, takes_us=TAKES_US * factor)
            for factor in (1, 4, 16)
        ],
        lambda load: bench.is_faster(load, free, lazy),
    )

    found_many = bench.properties(many) if many else None
    found_crowded = bench.properties(crowded) if crowded else None
    # A batch without dependencies says nothing about them, even if a decision won on one by chance.
    return Thresholds(
        serial_us=serial_us,
        plan_us=plan_us,
        explore_us=explore_us,
        structured="depth-first" if structured is depth else "breadth-first",
        dependencies_high=max(found_many.tds + found_many.pds, 1) if found_many else math.inf,
        skew_high=bench.properties(uneven).skew if uneven else math.inf,
        tds_high=max(bench.properties(long).tds, 1) if long else math.inf,
        pds_share_high=found_crowded.pds / found_crowded.operations if found_crowded else math.inf,
        compute_us_high=bench.takes_us(heavy) - serial_us if heavy else math.inf,
        abort_ratio_high=often.aborts if often else math.inf,
    )


def _first(loads: Sequence[_Load], holds: Callable[[_Load], bool]) -> _Load | None:
    """Return the first load from which on `holds` is true for all; None if not for the last."""
    found = None
    for load in reversed(loads):
        if not holds(load):
            break
        found = load
    return found


def _last_before(loads: Sequence[_Load], holds: Callable[[_Load], bool]) -> _Load | None:
    """Return the load before the first later one for which `holds`; None if it never does."""
    for before, load in pairwise(loads):
        if holds(load):
            return before
    return None


def _sizes(operations: int) -> list[int]:
    """Return batch sizes from an eighth of `operations` on, doubling."""
    return [max(operations // part, 1) for part in (8, 4, 2, 1)]


def _next(value: Any, *rest: Any) -> Any:
    """Return the next value, or abort, after some seconds that other threads can use."""
    *_, seconds, aborts = rest
    if seconds:
        _take(seconds)
    if aborts:
        raise Abort("as asked")
    return value + 1


def _take(seconds: float) -> None:
    if not threads_run_python_at_once():
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
