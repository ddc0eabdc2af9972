"""The micro-benchmark that finds the thresholds of the decision model on a machine."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from activedb.scheduling._operations import Abort, Operation, Write
from activedb.scheduling._s_transactions import At, STransaction
from activedb.scheduling._scheduler import Scheduler, SerialOrder
from activedb.scheduling._state import State
from activedb.scheduling._tables import Ref, SharedTable
from activedb.scheduling.tpg._decision import Decision
from activedb.scheduling.tpg._model import Thresholds
from activedb.scheduling.tpg._planning import Planner
from activedb.scheduling.tpg._properties import Properties, properties_of
from activedb.scheduling.tpg._refinement import refine
from activedb.scheduling.tpg._scheduler import TPG

__all__ = ["calibrate"]


@dataclass(frozen=True, slots=True)
class _Load:
    """A synthetic batch: s-transactions of one operation, a write of a key of a first table.

    Attributes
    ----------
    transactions, keys : int
    skew : float
        Of the keys: Zipf's exponent.
    reads : float
        The share of operations that read a key of the second table too, which others write: PDs.
    aborts : float
        The share that aborts.
    compute_us : float
        How long an operation computes.
    """

    transactions: int
    keys: int
    skew: float = 0.0
    reads: float = 0.0
    aborts: float = 0.0
    compute_us: float = 0.0


class _Bench:
    """Runs synthetic batches, each with its seed, and tells how long they take."""

    def __init__(self, threads: int, rounds: int):
        self._threads = threads
        self._rounds = rounds
        self._tables = SharedTable("first", initial=0), SharedTable("second", initial=0)

    def batch(self, load: _Load) -> list[STransaction]:
        """The s-transactions of a load; always the same."""
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
            args = (load.compute_us / 1e6, chosen.random() < load.aborts)
            operations: tuple[Operation, ...] = (Write(target, sources, _compute, args),)
            batch.append(STransaction(At(number, "", number), "load", {}, operations))
        return batch

    def properties(self, load: _Load) -> Properties:
        """The properties of its TPG."""
        planner = Planner()
        for transaction in self.batch(load):
            planner.add(transaction)
        return properties_of(planner, refine(planner))

    def serial_s(self, load: _Load) -> float:
        """Seconds in the serial order."""
        return min(self._run_s(SerialOrder(), load) for _ in range(self._rounds))

    def tpg_s(self, load: _Load, *decisions: Decision) -> list[float]:
        """Seconds with each decision, planning included; they are run in turn."""
        taken = [
            [self._run_s(TPG(self._threads, decision), load) for decision in decisions]
            for _ in range(self._rounds)
        ]
        return [min(of_one) for of_one in zip(*taken, strict=True)]

    def plan_s(self, load: _Load) -> float:
        """Seconds of planning."""
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
        """Whether one decision is faster than another."""
        one, other = self.tpg_s(load, decision, than)
        return one < other

    def _run_s(self, scheduler: Scheduler, load: _Load) -> float:
        state, batch = State(self._tables), self.batch(load)
        start = time.perf_counter()
        for transaction in batch:
            scheduler.add(transaction)
        scheduler.run(state)
        return time.perf_counter() - start


def calibrate(threads: int = 2, operations: int = 4000, rounds: int = 3) -> Thresholds:
    """Measure where the decision model should change its mind on this machine.

    Synthetic batches are run with both decisions of each dimension, while one property grows. Takes
    some ten seconds with the default arguments.

    Parameters
    ----------
    threads : int
        As many as the scheduler will have.
    operations : int
        Of the largest batches.
    rounds : int
        How often each is run; the fastest counts, as what else runs on the machine only slows.
    """
    bench = _Bench(threads, rounds)
    plain = _Load(operations, operations)
    per_us = 1e6 / operations
    serial_us = bench.serial_s(plain) * per_us
    plan_us = bench.plan_s(plain) * per_us
    free = Decision("non-structured")
    (free_s,) = bench.tpg_s(plain, free)
    explore_us = max(free_s * per_us - plan_us - serial_us, 0.0)

    breadth, depth = Decision("breadth-first"), Decision("depth-first")
    loads = [_Load(n, n // 2 or 1, reads=0.5) for n in _sizes(operations)]
    structured = depth if bench.is_faster(loads[-1], depth, breadth) else breadth
    many = _first(loads, lambda load: bench.is_faster(load, structured, free))
    dependencies = math.inf
    if many is not None:
        found = bench.properties(many)
        dependencies = found.tds + found.pds
    skewed = [replace(loads[-1], skew=skew) for skew in (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)]
    uneven = _first(skewed, lambda load: bench.is_faster(load, free, structured))

    grouped = Decision(unit="group")
    chains = [_Load(n, 8) for n in _sizes(operations)]
    long = _first(chains, lambda load: bench.is_faster(load, grouped, free))
    linked = [_Load(operations, 64, reads=share) for share in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)]
    crowded = _first(linked, lambda load: bench.is_faster(load, free, grouped))
    crowd = None if crowded is None else bench.properties(crowded)

    lazy = Decision(abort="lazy")
    aborting = [_Load(operations, 64, aborts=ratio) for ratio in (0.1, 0.3, 0.5, 0.7, 0.9)]
    often = _first(aborting, lambda load: bench.is_faster(load, lazy, free))
    computing = [
        _Load(operations // 4 or 1, 64, aborts=0.5 if often is None else often.aborts, compute_us=c)
        for c in (1.0, 5.0, 20.0, 80.0)
    ]
    heavy = _first(computing, lambda load: bench.is_faster(load, free, lazy))

    return Thresholds(
        serial_us=serial_us,
        plan_us=plan_us,
        explore_us=explore_us,
        structured="depth-first" if structured is depth else "breadth-first",
        dependencies_high=dependencies,
        skew_high=math.inf if uneven is None else bench.properties(uneven).skew,
        tds_high=math.inf if long is None else bench.properties(long).tds,
        pds_share_high=math.inf if crowd is None else crowd.pds / crowd.operations,
        compute_us_high=math.inf if heavy is None else heavy.compute_us,
        abort_ratio_high=math.inf if often is None else often.aborts,
    )


def _first(loads: Sequence[_Load], holds: Callable[[_Load], bool]) -> _Load | None:
    """The first load from which on something holds for all; None if not for the last one."""
    found = None
    for load in reversed(loads):
        if not holds(load):
            break
        found = load
    return found


def _sizes(operations: int) -> list[int]:
    """From an eighth on, doubled."""
    return [max(operations // part, 1) for part in (8, 4, 2, 1)]


def _compute(value: Any, *rest: Any) -> Any:
    """Busy for some seconds; then the next value, or an abort."""
    *_, seconds, aborts = rest
    if seconds:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
    if aborts:
        raise Abort("as asked")
    return value + 1
