"""Decision model: from the properties of a TPG to its scheduling (Mao et al., table 2)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from activedb.errors import DefinitionError
from activedb.scheduling.tpg._planning import Planner, TaskGraph

__all__ = [
    "SERIAL",
    "Abort",
    "Decision",
    "Explore",
    "Properties",
    "Thresholds",
    "Unit",
    "decide",
    "properties_of",
    "serial_is_fastest",
    "threads_run_python_at_once",
]


Explore = Literal["breadth-first", "depth-first", "non-structured", "serial"]
Unit = Literal["operation", "group"]
Abort = Literal["eager", "lazy"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Scheduling of a batch (Mao et al., table 1).

    Attributes
    ----------
    explore : {"non-structured", "breadth-first", "depth-first", "serial"}
        ``breadth-first`` and ``depth-first`` are the two forms of structured exploration. With
        ``serial``, there is no exploration: no TPG is built, and the calling thread runs one
        s-transaction after the other; the other dimensions have no meaning then.
    unit : {"operation", "group"}
        Unit that a worker takes at once: f-schedule, c-schedule.
    abort : {"eager", "lazy"}
        Time at which failed operations are handled: e-abort, l-abort.
    speculative : bool
        Whether a worker that would wait runs an operation that is still BLK.

    Raises
    ------
    DefinitionError
        If a value is none of these.
    """

    explore: Explore = "non-structured"
    unit: Unit = "operation"
    abort: Abort = "eager"
    speculative: bool = False

    def __post_init__(self) -> None:
        for name, words in (("explore", Explore), ("unit", Unit), ("abort", Abort)):
            if getattr(self, name) not in get_args(words):
                known = ", ".join(map(repr, get_args(words)))
                raise DefinitionError(
                    f"a decision's {name} is one of {known}, not {getattr(self, name)!r}"
                )
        if not isinstance(self.speculative, bool):
            raise DefinitionError(
                f"a decision's speculative is True or False, not {self.speculative!r}"
            )

    @property
    def is_serial(self) -> bool:
        """True if no TPG is built."""
        return self.explore == "serial"


@dataclass(frozen=True, slots=True)
class Properties:
    """Properties of a batch that are known before it is run.

    Attributes
    ----------
    transactions, operations : int
        Their numbers.
    lds, tds, pds : int
        Number of dependencies by kind.
    skew : float
        Accesses of the most accessed key over the mean of all keys; 1 if all are equal.
    cyclic : bool or None
        Whether groups depend on each other in cycles; None if the decision did not need to check.
    compute_us : float
        Duration of an operation in microseconds, as measured on the first of the batch.
    parallel_share : float
        Share of it that another thread can use, from 0 to 1.
    abort_ratio : float
        Share of s-transactions that aborted in earlier batches.
    """

    transactions: int = 0
    operations: int = 0
    lds: int = 0
    tds: int = 0
    pds: int = 0
    skew: float = 1.0
    cyclic: bool | None = None
    compute_us: float = 0.0
    parallel_share: float = 0.0
    abort_ratio: float = 0.0


def properties_of(
    planner: Planner, graph: TaskGraph, measured: Properties | None = None
) -> Properties:
    """Return the properties of a TPG; those that a TPG lacks come from `measured`. O(keys)."""
    degrees = [len(found) for lists in planner.tables.values() for found in lists.of.values()]
    return replace(
        measured or Properties(),
        transactions=len(graph.nodes),
        operations=graph.operations,
        lds=graph.lds,
        tds=graph.tds,
        pds=graph.pds,
        skew=max(degrees) * len(degrees) / sum(degrees) if degrees else 1.0,
    )


SERIAL = Decision("serial")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Property values at which the decision model switches; `calibrate` finds them for a machine.

    Attributes
    ----------
    serial_us, plan_us, explore_us : float
        Costs of an operation besides its function, in microseconds: to run it in the serial order;
        to plan it; to take it from a TPG and resolve the operations that depend on it.
    structured : {"breadth-first", "depth-first"}
        The better one of the two.
    dependencies_high : float
        Number of TDs and PDs from which structured exploration pays off.
    skew_high : float
        Skew above which work is too uneven for structured exploration.
    tds_high : float
        Number of TDs from which scheduling by groups pays off.
    pds_share_high : float
        PDs per operation above which groups wait for each other too much.
    compute_us_high : float
        Duration of an operation above which redoing is too expensive for lazy aborts.
    abort_ratio_high : float
        Share of aborting s-transactions from which they are better handled together.

    The default costs are rounded from `calibrate` on two idle cores with CPython 3.11. The other
    defaults reflect, to the order of magnitude, the cases in which each decision wins in section
    8.4 of the paper: batches of thousands, functions of tens of microseconds, nearly half of all
    aborting. With a global interpreter lock, `calibrate` may find that some decisions never win.
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
    """Return the decision of figure 7: three dimensions, each independent of the others.

    Parameters
    ----------
    properties : Properties
    thresholds : Thresholds
    is_cyclic : callable
        Returns whether groups depend on each other in cycles; called only if the other properties
        favour groups.
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
    """Return whether planning and exploring, `times` over, costs more than threads can gain.

    Threads gain nothing on work that only one of them can do at a time: Python code, under a global
    interpreter lock.
    """
    p, t = properties, thresholds
    gain_us = p.compute_us * p.parallel_share * (1 - 1 / threads)
    return gain_us <= times * (t.plan_us + t.explore_us)


def threads_run_python_at_once() -> bool:
    """Return whether this interpreter runs without a global lock."""
    is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return not is_enabled()
