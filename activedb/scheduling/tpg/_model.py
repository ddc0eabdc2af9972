"""The decision model: from the properties of a TPG to how it is scheduled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from activedb.scheduling.tpg._decision import Abort, Decision, Explore, Unit
from activedb.scheduling.tpg._properties import Properties

__all__ = ["SERIAL", "Thresholds", "decide", "serial_is_fastest", "threads_run_python_at_once"]

SERIAL = Decision("serial")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where the decision model changes its mind; `calibrate` finds them for a machine.

    Attributes
    ----------
    serial_us, plan_us, explore_us : float
        What an operation costs beside its function: to run it in the serial order; to plan it; to
        take it from a TPG and resolve what depends on it. Microseconds.
    structured : {"breadth-first", "depth-first"}
        The better one of the two.
    dependencies_high : float
        So many TDs and PDs are worth structured exploration.
    skew_high : float
        With more skew than this, work is too uneven for structured exploration.
    tds_high : float
        So many TDs are worth scheduling by groups.
    pds_share_high : float
        With more PDs per operation than this, groups wait for each other too much.
    compute_us_high : float
        If an operation takes longer than this, redoing is too dear for lazy aborts.
    abort_ratio_high : float
        From this share of aborting s-transactions on, they are better dealt with together.

    The costs among the defaults are rounded from `calibrate` on two idle cores with CPython 3.11.
    The others tell, to the order of magnitude, where section 8.4 of the paper sees each decision
    win: batches of thousands, functions of tens of microseconds, nearly half of all aborting. Where
    threads share a global interpreter lock, `calibrate` may find that some never win.
    """

    serial_us: float = 5.0
    plan_us: float = 2.5
    explore_us: float = 17.0
    structured: Literal["breadth-first", "depth-first"] = "breadth-first"
    dependencies_high: float = 20_000
    skew_high: float = 20.0
    tds_high: float = 2_000
    pds_share_high: float = 0.3
    compute_us_high: float = 20.0
    abort_ratio_high: float = 0.4


def decide(
    properties: Properties, thresholds: Thresholds, is_cyclic: Callable[[], bool]
) -> Decision:
    """The decision of figure 7: three dimensions, each on its own.

    Parameters
    ----------
    properties : Properties
    thresholds : Thresholds
    is_cyclic : callable
        Whether groups depend on each other in cycles; only asked if the rest speaks for groups.
    """
    p, t = properties, thresholds
    explore: Explore = "non-structured"
    if p.tds + p.pds >= t.dependencies_high and p.skew <= t.skew_high:
        explore = t.structured
    unit: Unit = "operation"
    if p.tds >= t.tds_high and p.pds <= t.pds_share_high * p.operations and not is_cyclic():
        unit = "group"
    abort: Abort = "eager"
    if p.compute_us <= t.compute_us_high and p.abort_ratio >= t.abort_ratio_high:
        abort = "lazy"
    return Decision(explore, unit, abort)


def serial_is_fastest(
    properties: Properties, thresholds: Thresholds, threads: int, times: float = 1.0
) -> bool:
    """Whether planning and exploring, so many times, costs more than threads can gain.

    They gain nothing on what only one of them can do at a time: Python code, under a global
    interpreter lock.
    """
    p, t = properties, thresholds
    gain_us = p.compute_us * p.parallel_share * (1 - 1 / threads)
    return gain_us <= times * (t.plan_us + t.explore_us)


def threads_run_python_at_once() -> bool:
    """Whether this interpreter has no global lock."""
    is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return not is_enabled()
