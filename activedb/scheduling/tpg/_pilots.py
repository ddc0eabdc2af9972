"""Pilots: s-transactions that are run alone and measured before the decision about the rest."""

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
"""Maximum number of pilots: the earliest s-transactions of a part, run alone and measured."""

PILOTS_MIN = 3
"""Number of pilots that suffices if each of them clearly favours a TPG."""

CLEARLY = 4.0
"""Ratio of the threads' gain to the costs of planning and exploring that counts as clear."""

UNMEASURED_MAX = 128
"""Number of s-transactions between measurements while TPGs are best."""


def pilots_due(known: Known, count: int, thresholds: Thresholds, threads: int) -> int:
    """Return the maximum number of the next `count` s-transactions to measure.

    Where a TPG is best, pilots keep other threads idle, so they are rare. Where the serial order is
    best, they are run alone anyway.
    """
    if (
        known.compute_us is not None
        and known.unmeasured + count < UNMEASURED_MAX
        and not _is_serial(known.compute_us, known.parallel_share, thresholds, threads)
    ):
        return 0
    return min(PILOTS_MAX, (count + 3) // 4)


class Pilots:
    """Measurements of s-transactions that were run alone.

    Parameters
    ----------
    thresholds : Thresholds
    threads : int

    Attributes
    ----------
    are_enough : bool
        Whether all of them favour a TPG so clearly that no more are needed.
    """

    def __init__(self, thresholds: Thresholds, threads: int):
        self.are_enough = False
        self._thresholds = thresholds
        self._threads = threads
        self._measured: list[tuple[float, float]] = []
        self._clear = 0

    def add(self, operations: int, wall_us: float, cpu_us: float) -> None:
        """Record the wall-clock and CPU time of a pilot with this number of operations."""
        if not operations:
            return
        one = wall_us / operations, cpu_us / operations
        self._measured.append(one)
        self._clear += not _is_serial(*self._told(*one), self._thresholds, self._threads, CLEARLY)
        self.are_enough = self._clear == len(self._measured) >= PILOTS_MIN

    def tell(self, known: Known) -> None:
        """Add the mean to `known`, without the slowest few, which may have been interrupted."""
        self._measured.sort()
        kept = self._measured[: len(self._measured) - len(self._measured) // 8]
        if kept:
            wall_us, cpu_us = (sum(each) / len(kept) for each in zip(*kept, strict=True))
            known.measured(*self._told(wall_us, cpu_us))

    def _told(self, wall_us: float, cpu_us: float) -> tuple[float, float]:
        """Return the duration of a function, and the share of it that other threads could use.

        The share is 1 if threads run Python code in parallel, else that of the time spent waiting.
        """
        share = 1.0 if threads_run_python_at_once() else max(1 - cpu_us / wall_us, 0.0)
        return max(wall_us - self._thresholds.serial_us, 0.0), share


def _is_serial(
    compute_us: float, share: float, thresholds: Thresholds, threads: int, times: float = 1.0
) -> bool:
    properties = Properties(compute_us=compute_us, parallel_share=share)
    return serial_is_fastest(properties, thresholds, threads, times)
