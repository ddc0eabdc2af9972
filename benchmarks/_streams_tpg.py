"""Points of the TPG's decision space on GrepSum whose functions wait, so that threads matter."""

from __future__ import annotations

from typing import Any, Final

from activedb.scheduling import SerialOrder
from activedb.scheduling.tpg import TPG, Decision
from activedb.scheduling.tpg._model import Abort, Explore, Unit
from benchmarks._nested_parts import Figure
from benchmarks._streams_driver import drive
from benchmarks._streams_loads import APPLICATIONS

__all__ = ["DECISIONS", "GrepSumWaiting"]

_EXPLORE: Final[dict[str, Explore]] = {
    "ns": "non-structured",
    "bfs": "breadth-first",
    "dfs": "depth-first",
}
_UNITS: Final[dict[str, Unit]] = {"op": "operation", "group": "group"}
_ABORTS: Final[tuple[Abort, ...]] = ("eager", "lazy")

DECISIONS: Final = {
    f"{explore}_{unit}_{abort}": Decision(_EXPLORE[explore], _UNITS[unit], abort)
    for explore in _EXPLORE
    for unit in _UNITS
    for abort in _ABORTS
}


class GrepSumWaiting:
    """One run: every decision, and the model's, on several threads, beside the serial order.

    Parameters
    ----------
    batches, batch : int
        Number of batches, and of events in each.
    threads : int
    waits_ms : tuple of float
        Waiting times of each function, as for I/O.
    keys : int
    """

    def __init__(
        self, batches: int, batch: int, threads: int, waits_ms: tuple[float, ...], keys: int
    ):
        module = APPLICATIONS["gs"].module
        self._waits_ms = waits_ms
        self._threads = threads
        self._program: Any = module.program(keys=keys)
        events = module.columns(batches * batch, keys=keys)
        self._parts = [part for part, _ in events.batches(batch)]

    def __call__(self) -> dict[str, Figure]:
        figures = {}
        for wait_ms in self._waits_ms:
            serial = self._per_s(SerialOrder(), wait_ms)
            decisions: dict[str, Decision | None] = {"model": None, **DECISIONS}
            for name, decision in decisions.items():
                rate = self._per_s(TPG(self._threads, decision), wait_ms)
                metric = f"gs_{wait_ms:g}ms_tpg_{name}_per_s"
                figures[metric] = Figure(rate, "1/s", "serial", serial)
        return figures

    def _per_s(self, scheduler: Any, wait_ms: float) -> float:
        return drive(self._program, self._parts, scheduler, wait_s=wait_ms / 1_000).per_s
