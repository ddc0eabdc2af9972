"""Pilots: s-transactions that are run alone, and measured, before it is decided about the rest."""

from __future__ import annotations

from activedb.scheduling.tpg._model import (
    Thresholds,
    serial_is_fastest,
    threads_run_python_at_once,
)
from activedb.scheduling.tpg._parts import Known
from activedb.scheduling.tpg._properties import Properties

__all__ = ["PILOTS_MIN", "Pilots", "pilots_due"]

PILOTS_MAX = 16
"""So many of the earliest s-transactions of a part are run alone at most, to be measured."""

PILOTS_MIN = 3
"""So many are enough if each of them speaks for a TPG, and clearly."""

CLEARLY = 4.0
"""Clearly: threads gain so many times what planning and exploring costs."""

UNMEASURED_MAX = 128
"""While TPGs are best: so many s-transactions have to come before some are measured again."""


def pilots_due(known: Known, count: int, thresholds: Thresholds, threads: int) -> int:
    """How many of the next `count` s-transactions are to be measured, at most.

    Where a TPG is best they are lost to other threads: there it is done rarely. Where the serial
    order is, they are run alone anyway.
    """
    if (
        known.compute_us is not None
        and known.unmeasured + count < UNMEASURED_MAX
        and not _is_serial(known.compute_us, known.parallel_share, thresholds, threads)
    ):
        return 0
    return min(PILOTS_MAX, (count + 3) // 4)


class Pilots:
    """What was measured of s-transactions that were run alone.

    Parameters
    ----------
    thresholds : Thresholds
    threads : int

    Attributes
    ----------
    are_enough : bool
        Whether all of them speak for a TPG so clearly that no more are needed.
    """

    def __init__(self, thresholds: Thresholds, threads: int):
        self.are_enough = False
        self._thresholds = thresholds
        self._threads = threads
        self._measured: list[tuple[float, float]] = []
        self._clear = 0

    def add(self, operations: int, wall_us: float, cpu_us: float) -> None:
        """Take one of so many operations: how long it took, and how long the thread was at work."""
        if not operations:
            return
        one = wall_us / operations, cpu_us / operations
        self._measured.append(one)
        self._clear += not _is_serial(*self._told(*one), self._thresholds, self._threads, CLEARLY)
        self.are_enough = self._clear == len(self._measured) >= PILOTS_MIN

    def tell(self, known: Known) -> None:
        """Add the mean, without the slowest few, which may have been interrupted."""
        self._measured.sort()
        kept = self._measured[: len(self._measured) - len(self._measured) // 8]
        if kept:
            wall_us, cpu_us = (sum(each) / len(kept) for each in zip(*kept, strict=True))
            known.measured(*self._told(wall_us, cpu_us))

    def _told(self, wall_us: float, cpu_us: float) -> tuple[float, float]:
        """How long a function takes, and which share of that another thread could use.

        All of it if threads run Python code at once, else the time in which this one has waited.
        """
        share = 1.0 if threads_run_python_at_once() else max(1 - cpu_us / wall_us, 0.0)
        return max(wall_us - self._thresholds.serial_us, 0.0), share


def _is_serial(
    compute_us: float, share: float, thresholds: Thresholds, threads: int, times: float = 1.0
) -> bool:
    properties = Properties(compute_us=compute_us, parallel_share=share)
    return serial_is_fastest(properties, thresholds, threads, times)
