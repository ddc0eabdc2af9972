"""Figures 18 to 21 of (Mao et al., sections 8.4 and 8.5): the effect of each decision.

Each operation waits 0.1 ms, as for I/O, unless otherwise noted: Python functions that compute would
not run concurrently.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from activedb.columns.program._run import ColumnRun
from activedb.scheduling.tpg import Decision
from benchmarks._streams_busy import busy_turns
from benchmarks._streams_comparison import ROUNDS, Comparison, decided, general, median
from benchmarks._streams_driver import drive_columns
from benchmarks._streams_loads import APPLICATIONS, batches_of
from benchmarks._streams_plots import Drawing, Panel

__all__ = ["FIGURES", "TITLES"]

THREADS: Final = 4
KEYS: Final = 4_096
WAIT_S: Final = 0.0001
INTERVALS: Final = (64, 128, 256, 512)

_GS: Any = APPLICATIONS["gs"].module
_SL: Any = APPLICATIONS["sl"].module
_TP: Any = APPLICATIONS["tp"].module


def _parts(events: Any, batch: int) -> list[Any]:
    return [part for part, _ in events.batches(batch)]


def _size(events: int, scale: float) -> int:
    return max(round(events * scale), 20)


def exploration(scale: float) -> list[Panel]:
    """Draw figure 18: structured and non-structured exploration."""
    makers = decided(
        THREADS,
        non_structured=Decision("non-structured"),
        breadth_first=Decision("breadth-first"),
        depth_first=Decision("depth-first"),
    )
    program = _GS.program(keys=KEYS)
    intervals = Comparison("skew 0", "punctuation interval")
    for interval in INTERVALS if scale >= 1 else (20,):
        events = _GS.columns(_size(512, scale), keys=KEYS, skew=0.0)
        intervals.run(makers, interval, program, _parts(events, interval), WAIT_S)
    skews = Comparison("punctuation interval 512", "skew (theta)")
    for skew in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0) if scale >= 1 else (0.0, 1.0):
        events = _GS.columns(_size(512, scale), keys=KEYS, skew=skew)
        skews.run(makers, skew, program, _parts(events, 512), WAIT_S)
    return [*intervals.panels(), *skews.panels()]


def granularity(scale: float) -> list[Panel]:
    """Draw figure 19: operations or groups as the unit."""
    makers = decided(THREADS, operations=Decision(unit="operation"), groups=Decision(unit="group"))
    count = _size(400, scale)
    keys = 256
    cycles = Comparison("cycles among groups", "", bars=True)
    program = _GS.program(keys=keys)
    events = _GS.columns(count, keys=keys)
    for name in ("acyclic", "cyclic"):
        if name == "acyclic":  # no key is read for an earlier key
            for read in ("read0_0", "read0_1"):
                np.minimum(events.params[read], events.params["key0"], out=events.params[read])
        else:
            events = _GS.columns(count, keys=keys)
        cycles.run(makers, name, program, _parts(events, count), WAIT_S)
    intervals = Comparison("no PDs", "punctuation interval")
    tolls = _TP.program(segments=keys)
    for interval in INTERVALS if scale >= 1 else (20,):
        reports = _TP.columns(_size(512, scale), segments=keys)
        intervals.run(makers, interval, tolls, _parts(reports, interval), WAIT_S)
    shares = Comparison("events that read other keys", "share of them")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0) if scale >= 1 else (0.0, 1.0):
        events = _GS.columns(count, keys=keys)
        alone = np.random.default_rng(1).random(count) >= share
        for read in ("read0_0", "read0_1"):
            events.params[read][alone] = events.params["key0"][alone]
        shares.run(makers, share, program, _parts(events, count), WAIT_S)
    return [*cycles.panels(), *intervals.panels(), *shares.panels()]


def aborting(scale: float) -> list[Panel]:
    """Draw figure 20: eager and lazy handling of aborts."""
    makers = decided(THREADS, eager=Decision(abort="eager"), lazy=Decision(abort="lazy"))
    count = _size(256, scale)
    program = _SL.program(accounts=1_024)
    costs = Comparison("half of the events abort", "wait of an operation, ms")
    for wait_ms in (0.0, 0.05, 0.1, 0.3) if scale >= 1 else (0.1,):
        events = _SL.columns(count, accounts=1_024, aborts=0.5)
        costs.run(makers, wait_ms, program, _parts(events, count), wait_ms / 1_000)
    ratios = Comparison("no waiting", "share of aborting events")
    for ratio in (0.0, 0.2, 0.4, 0.6, 0.8) if scale >= 1 else (0.5,):
        events = _SL.columns(4 * count, accounts=1_024, aborts=ratio)
        ratios.run(makers, ratio, program, _parts(events, 4 * count), 0.0)
    return [*costs.panels(), *ratios.panels()]


def scalability(scale: float) -> list[Panel]:
    """Draw figure 21b: threads."""
    waiting = Comparison("each operation waits 0.5 ms", "threads")
    program = _SL.program()
    events = _SL.columns(_size(128, scale))
    for threads in (1, 2, 4, 8) if scale >= 1 else (1, 2):
        makers = general(threads, "S2PL", "LWM", "TPG")
        waiting.run(makers, threads, program, _parts(events, len(events)), 0.0005)
    busy = Comparison("compiled, each operation computes 10 µs", "threads")
    slow = _SL.program(turns=busy_turns(10))
    many = batches_of(_SL.columns(_size(10_240, scale)), 10_240)
    few = batches_of(_SL.columns(20), 20)
    for threads in (1, 2):
        drive_columns(ColumnRun(slow, threads), few)  # compiled now
        runs = [drive_columns(ColumnRun(slow, threads), many) for _ in range(ROUNDS)]
        busy.add("compiled", threads, median(runs))
    return [*waiting.panels(), *busy.panels()]


FIGURES: Final[dict[str, Drawing]] = {
    "mao_18": exploration,
    "mao_19": granularity,
    "mao_20": aborting,
    "mao_21b": scalability,
}
TITLES: Final = {
    "mao_18": "Exploration",
    "mao_19": "Unit of scheduling",
    "mao_20": "Handling of aborts",
    "mao_21b": "Threads",
}
