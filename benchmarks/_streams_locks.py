"""SEI, S2PL and LWM over rules whose conditions wait for I/O, compared with each other."""

from __future__ import annotations

import time

from benchmarks._nested_parts import Figure
from benchmarks._streams_collector import frozen
from benchmarks._streams_rules import SCHEDULERS, Pool, RuleLoad, scheduler_of

__all__ = ["Locks", "rules_per_s"]


def rules_per_s(load: RuleLoad, granularity: str) -> dict[str, float]:
    """Return events per second of each scheduler, one after the other, on the same events."""
    pool = Pool(load)
    events = pool.events()
    rates = {}
    for name in SCHEDULERS:
        run = pool.run(scheduler_of(name, granularity))
        with frozen():
            began_s = time.perf_counter()
            run.feed(events)
            results = run.finish()
            rates[name] = len(events) / (time.perf_counter() - began_s)
        assert all(t.outcome and t.outcome.committed for t in results.transactions)
    return rates


class Locks:
    """One run: both granularities, some numbers of reads; 25% of the s-transactions write."""

    def __init__(self, load: RuleLoad, reads: tuple[int, ...]):
        self._load = load
        self._reads = reads

    def __call__(self) -> dict[str, Figure]:
        figures = {}
        for granularity in ("table", "row"):
            for reads in self._reads:
                rates = rules_per_s(self._load.of(reads=reads), granularity)
                sei, s2pl, lwm = (rates[name] for name in SCHEDULERS)
                setting = f"{granularity}_read{reads}"
                figures[f"lwm_{setting}_per_s"] = Figure(lwm, "1/s", "S2PL", s2pl)
                figures[f"lwm_over_s2pl_{setting}"] = Figure(lwm / s2pl, "ratio")
                figures[f"s2pl_over_sei_{setting}"] = Figure(s2pl / sei, "ratio")
        return figures
