"""Where the time of a run's threads goes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from time import perf_counter

__all__ = ["PhaseTimes", "Stopwatch"]


@dataclass(slots=True)
class PhaseTimes:
    """Where the time of all threads of a run went (Mao et al., section 8.3.1); wall clock, seconds.

    Under a global interpreter lock it has in it, in each phase, what the thread has waited for
    that lock.

    Attributes
    ----------
    plan_s : float
        Sorting, building TPGs, deciding, and taking TPGs apart; what was planned by `add`, too.
    run_s : float
        In operations, those among them that failed or were redone later; `PartReport.runs` tells
        how many there were.
    explore_s : float
        Taking operations, telling what depends on them, waiting for the latch of the TPG meanwhile,
        setting outcomes.
    abort_s : float
        Aborting, rolling back, and running in the serial order what was given up.
    wait_s : float
        In which threads had nothing to take, as all that was left depended on what others ran.
    """

    plan_s: float = 0.0
    run_s: float = 0.0
    explore_s: float = 0.0
    abort_s: float = 0.0
    wait_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it: at most the time of the run, and of planning before it, of all threads."""
        return self.plan_s + self.run_s + self.explore_s + self.abort_s + self.wait_s

    def add(self, other: PhaseTimes) -> None:
        """Take the times of another thread."""
        for phase in fields(self):
            setattr(self, phase.name, getattr(self, phase.name) + getattr(other, phase.name))


class Stopwatch:
    """Gives each moment of one thread to one phase: that which ends with the next `lap_s`."""

    __slots__ = ("_since_s",)

    def __init__(self) -> None:
        self._since_s = perf_counter()

    def lap_s(self) -> float:
        """Seconds since it was asked last, or made."""
        now_s = perf_counter()
        lap_s = now_s - self._since_s
        self._since_s = now_s
        return lap_s
