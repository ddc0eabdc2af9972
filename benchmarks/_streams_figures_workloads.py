"""Figures 11 to 15 of (Mao et al., section 8.2), and compiled functions over their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from activedb.columns.program._run import ColumnRun
from activedb.scheduling import Scheduler
from activedb.scheduling.tpg import TPG, Decision
from benchmarks._examples import load as load_example
from benchmarks._streams_comparison import ROUNDS, Comparison, Makers, decided, general, median
from benchmarks._streams_driver import Driven, drive, drive_columns
from benchmarks._streams_loads import APPLICATIONS, batches_of
from benchmarks._streams_plots import Drawing, Panel

__all__ = ["FIGURES", "THREADS", "TITLES", "WAIT_S", "changing_ledger"]

THREADS: Final = 4
WAIT_S: Final = 0.0001

_SL: Any = APPLICATIONS["sl"].module
_GS: Any = APPLICATIONS["gs"].module
_TP: Any = APPLICATIONS["tp"].module


def _size(events: int, scale: float) -> int:
    return max(round(events * scale), 20)


def _parts(events: Any, batch: int) -> list[Any]:
    return [part for part, _ in events.batches(batch)]


def _compiled(program: Any, events: Any, batch: int, decision: str | None = None) -> Driven:
    """Return the median of some runs over columns, after a run that compiles the code."""
    batches = batches_of(events, batch)
    if decision != "python":
        drive_columns(ColumnRun(program, 2, decision), batches_of(events.part(slice(0, 1)), 1))
    return median([drive_columns(ColumnRun(program, 2, decision), batches) for _ in range(ROUNDS)])


def schedulers(scale: float) -> list[Panel]:
    """Draw figure 11: Streaming Ledger at its defaults, C = 0, by every scheduler."""
    found = Comparison("Streaming Ledger, C = 0", "", bars=True, log_y=True)
    program = _SL.program()
    few = _SL.columns(_size(2_000, scale))
    found.run(general(THREADS), "", program, _parts(few, len(few)), 0.0)
    many = _SL.columns(_size(102_400, scale))
    found.add("columns, Python", "", _compiled(program, many, 10_240, "python"))
    found.add("columns, compiled", "", _compiled(program, many, 10_240))
    panel, latency = found.panels()
    panel.lines = {
        "MorphStream, two cores": APPLICATIONS["sl"].morphstream_per_s,
        "S-Store, two cores, at most": 290_000,
    }
    return [panel, latency]


def changing_ledger(scale: float) -> tuple[Any, list[Any], dict[str, tuple[float, float]]]:
    """Return Streaming Ledger with a changing workload (Mao et al., section 8.2.2).

    Returns
    -------
    program : Program
    parts : list of GeneratedEvents
        Batches, one after the other.
    spans : dict of str to (first, last)
        The phases, by their first and last batch, numbered from 1.
    """
    steps = 5 if scale >= 1 else 1
    batch = _size(200, scale)
    parts: list[Any] = []
    spans = {}
    for phase, name in enumerate(("deposits", "skew rises", "more transfers", "aborts")):
        first = len(parts)
        for step in range(1, steps + 1):
            share = step / steps
            options = (
                {"deposits": 0.9, "skew": 0.0, "aborts": 0.0},
                {"deposits": 0.9, "skew": share, "aborts": 0.0},
                {"deposits": 0.9 - 0.8 * share, "skew": 0.6, "aborts": 0.0},
                {"deposits": 0.1, "skew": 0.6, "aborts": 0.6 * share},
            )[phase]
            seed = len(parts) + 1
            events = _SL.columns(batch, accounts=4_096, seed=seed, **options)
            later_us = len(parts) * batch * 1_000
            parts.append(replace(events, us=events.us + later_us))
        spans[name] = (first + 0.6, len(parts) + 0.4)
    return _SL.program(accounts=4_096), parts, spans


def dynamic(scale: float) -> list[Panel]:
    """Draw figure 12: Streaming Ledger while its workload changes, in four phases."""
    program, parts, spans = changing_ledger(scale)
    rates = Panel("each operation waits 0.1 ms", "batch", "events per second", spans=spans)
    latencies = Panel("latency, p99", "batch", "ms", log_y=True, spans=spans)
    makers = general(THREADS, "serial order", "S2PL", "LWM", "TPG")
    rounds = [
        {name: drive(program, parts, make(), wait_s=WAIT_S) for name, make in makers.items()}
        for _ in range(ROUNDS)
    ]
    for name in makers:
        for number in range(1, len(parts) + 1):
            driven = median([whole[name].per_batch[number - 1] for whole in rounds])
            rates.add(name, number, driven.per_s)
            latencies.add(name, number, 1_000 * float(np.percentile(driven.latencies_s, 99)))
            if driven.decision:
                rates.notes.append([name, number, driven.decision])
    return [rates, latencies]


def nested(scale: float) -> list[Panel]:
    """Draw figure 13: two groups of Toll Processing in one batch, one decision or one for each."""
    half = 2_048
    events = _two_groups(_size(300, scale), half)
    first = Decision("non-structured", "group", "lazy")
    second = Decision("breadth-first", "group", "eager")

    def by_group() -> Scheduler:
        return TPG(
            THREADS,
            {True: first, False: second},
            group_of=lambda t: t.params["segment0"] < half,
        )

    makers: Makers = {
        "nested": by_group,
        **decided(THREADS, plain_1=first, plain_2=second),
        **general(THREADS, "S2PL"),
    }
    found = Comparison("Toll Processing, each operation waits 0.1 ms", "", bars=True)
    found.run(makers, "", _TP.program(segments=2 * half), _parts(events, len(events) // 2), WAIT_S)
    return found.panels()


def windows(scale: float) -> list[Panel]:
    """Draw figure 14: GrepSum with windows, compiled: window size, and frequency of reads."""
    keys, wide = 1_024, 10
    count, batch = _size(40_960, scale), 10_240
    sizes: Sequence[float] = (1, 3, 10, 30) if scale >= 1 else (1,)
    by_size = Comparison("one event in 100 reads windows", "window, events", log_x=True)
    events = _GS.columns(count, "windowed", keys=keys, window_keys=wide, aborts=0.0)
    for size in sizes:
        program = _GS.program("windowed", keys=keys, window_keys=wide, window_s=size)
        by_size.add("compiled", round(1_000 * size), _compiled(program, events, batch))
    by_period = Comparison("windows of 1,000 events", "one event in … reads windows", log_x=True)
    program = _GS.program("windowed", keys=keys, window_keys=wide, window_s=1.0)
    for every in (100, 300, 1_000, 10_000) if scale >= 1 else (10,):
        events = _GS.columns(
            count, "windowed", keys=keys, window_keys=wide, aborts=0.0, every=every
        )
        by_period.add("compiled", every, _compiled(program, events, batch))
    return [*by_size.panels(), *by_period.panels()]


def computed_keys(scale: float) -> list[Panel]:
    """Draw figure 15: GrepSum, where a share of the events compute their key from the state."""
    shares = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5) if scale >= 1 else (0.0, 0.5)
    program = _GS.program("computed", keys=4_096)
    waiting = Comparison("each operation waits 0.1 ms", "share of computed keys")
    compiled = Comparison("compiled, C = 0", "share of computed keys")
    for share in shares:
        options = {"keys": 4_096, "computed": share}
        few = _GS.columns(_size(300, scale), "computed", **options)
        makers = general(THREADS, "serial order", "S2PL", "LWM")
        makers |= decided(THREADS, TPG=Decision())
        waiting.run(makers, share, program, _parts(few, len(few)), WAIT_S)
        many = _GS.columns(_size(40_960, scale), "computed", **options)
        compiled.add("compiled", share, _compiled(program, many, 10_240))
    return [*waiting.panels(), *compiled.panels()]


def compiled_parameters(scale: float) -> list[Panel]:
    """Draw compiled functions: skew, aborts and disorder, C = 0."""
    panels = {
        "skew": (Comparison("skew", "theta"), (0.0, 0.2, 0.6, 1.0)),
        "aborts": (Comparison("aborts", "share of aborting events"), (0.0, 0.1, 0.3, 0.5)),
        "disorder": (Comparison("disorder", "places an event may be late"), (0, 100, 300, 1_000)),
    }
    for application in APPLICATIONS.values():
        program: Any = application.module.program()
        for option, (found, values) in panels.items():
            for value in values:
                count = _size(4 * application.batch, scale)
                events = application.module.columns(count, **{option: value})
                driven = _compiled(program, events, application.batch)
                found.add(application.title, value, driven)
    return [found.throughput() for found, _ in panels.values()]


def _two_groups(events: int, half: int) -> Any:
    """Return skewed reports that often abort, and even ones on other segments that never do."""
    skewed = _TP.columns(events, segments=half, skew=1.0, aborts=0.5, seed=1)
    even = _TP.columns(events, segments=half, skew=0.0, aborts=0.0, seed=2)
    even.params["segment0"] += half
    params = {
        name: np.concatenate([skewed.params[name], even.params[name]]) for name in skewed.params
    }
    made = load_example("_columns").GeneratedEvents(
        skewed.takes,
        np.concatenate([skewed.codes, even.codes]),
        np.concatenate([skewed.us, even.us + 500]),
        params,
    )
    return made.in_order()


FIGURES: Final[dict[str, Drawing]] = {
    "mao_11": schedulers,
    "mao_12": dynamic,
    "mao_13": nested,
    "mao_14": windows,
    "mao_15": computed_keys,
    "compiled": compiled_parameters,
}
TITLES: Final = {
    "mao_11": "Schedulers",
    "mao_12": "A workload that changes",
    "mao_13": "One decision, or one for each group",
    "mao_14": "Windows",
    "mao_15": "Computed keys",
    "compiled": "Compiled functions",
}
