"""Time spent by the threads of a run, by phase."""

from __future__ import annotations

from dataclasses import dataclass, fields
from time import perf_counter

__all__ = ["PhaseTimes", "Stopwatch"]


@dataclass(slots=True)
class PhaseTimes:
    """Time spent by all threads of a run, by phase (Mao et al., section 8.3.1).

    Wall-clock seconds. Under a global interpreter lock, each phase includes the time spent waiting
    for that lock.

    Attributes
    ----------
    plan_s : float
        Sorting, building TPGs, deciding, and taking TPGs apart; includes planning in `add`.
    run_s : float
        Running operations, including runs that failed or were redone later; `PartReport.runs` is
        their number.
    explore_s : float
        Taking operations, resolving their dependents, waiting for the latch of the TPG meanwhile,
        setting outcomes.
    abort_s : float
        Aborting, rolling back, and running the s-transactions given up in the serial order.
    wait_s : float
        Waiting of threads while all remaining operations depended on running ones.
    """

    plan_s: float = 0.0
    run_s: float = 0.0
    explore_s: float = 0.0
    abort_s: float = 0.0
    wait_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Sum of all phases: at most the time of planning and run times the number of threads."""
        return self.plan_s + self.run_s + self.explore_s + self.abort_s + self.wait_s

    def add(self, other: PhaseTimes) -> None:
        """Add the times of another thread."""
        for phase in fields(self):
            setattr(self, phase.name, getattr(self, phase.name) + getattr(other, phase.name))


class Stopwatch:
    """Stopwatch of one thread: each lap is the time of one phase."""

    __slots__ = ("_since_s",)

    def __init__(self) -> None:
        self._since_s = perf_counter()

    def lap_s(self) -> float:
        """Return the seconds since the last call, or since creation."""
        now_s = perf_counter()
        lap_s = now_s - self._since_s
        self._since_s = now_s
        return lap_s
