"""Figures 16 and 17 of (Mao et al., section 8.3): cost of scheduling, in time and memory.

Streaming Ledger, for figure 16 while its workload changes. Figure 17 of the paper is about the Java
heap; here it shows the cost of cleaning up, that is trimming versions that no reader can need, and
its savings.
"""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from activedb.scheduling import (
    At,
    Program,
    Scheduler,
    SharedState,
    STransaction,
    build_s_transaction,
)
from benchmarks._streams_breakdown import PHASES, SCHEDULERS, Measured, scheduler_of
from benchmarks._streams_collector import frozen
from benchmarks._streams_comparison import ROUNDS
from benchmarks._streams_figures_workloads import THREADS, WAIT_S, changing_ledger
from benchmarks._streams_loads import APPLICATIONS
from benchmarks._streams_plots import Drawing, Panel

__all__ = ["FIGURES", "TITLES"]

_MB: Final = 1_000_000
_FEW: Final = 256  # accounts, each written often
_TRIMS: Final = {"cleaned up": True, "kept": False}
_SL: Any = APPLICATIONS["sl"].module


def breakdown(scale: float) -> list[Panel]:
    """Draw figure 16: breakdown of the threads' time, and the peak memory of each batch."""
    program, parts, spans = changing_ledger(scale)
    panels = [
        _time_panel(program, parts, "each operation waits 0.1 ms", WAIT_S),
        _time_panel(program, parts, "C = 0", 0.0),
    ]
    memory = Panel("C = 0, versions are kept", "batch", "memory, MB", spans=spans)
    for name in ("serial order", "S2PL", "LWM", "TPG, always a graph"):
        for number, megabytes in enumerate(_most_mb(program, parts, name, trims=False), 1):
            memory.add(name, number, megabytes)
    return [*panels, memory]


def _time_panel(program: Program, parts: list[Any], title: str, wait_s: float) -> Panel:
    label = "time of threads per event, ms"
    panel = Panel(title, "", label, bars=True, stacked=True)
    rounds: dict[str, list[Counter[str]]] = {name: [] for name in SCHEDULERS}
    for _ in range(ROUNDS):
        for name, found in rounds.items():
            found.append(_phases(program, parts, Measured(name, THREADS, wait_s)))
    events = sum(len(part) for part in parts)
    for name, found in rounds.items():
        middle = sorted(found, key=lambda phases: phases.total())[len(found) // 2]
        for phase in PHASES:
            panel.add(phase, name, 1_000 * middle[phase] / events)
    return panel


def _phases(program: Program, parts: list[Any], measured: Measured) -> Counter[str]:
    """Return the seconds by phase, of all batches."""
    state, phases = SharedState(program.tables), Counter[str]()
    with frozen():
        for transactions, punctuation in _batches(program, parts):
            phases.update(measured.run(transactions, state))
            state.trim(punctuation)
    return phases


def _batches(program: Program, parts: list[Any]) -> Iterator[tuple[list[STransaction], At]]:
    """Yield the s-transactions of each batch, and the place behind them."""
    arrived = 0
    for part in parts:
        yield _transactions(program, part, arrived), At(int(part.us.max()) + 1, "", 0)
        arrived += len(part)


def _transactions(program: Program, part: Any, arrived: int) -> list[STransaction]:
    transactions = []
    for arrival, event in enumerate(part.occurrences(), arrived + 1):
        made = build_s_transaction(program, event, At(event.us, "", arrival))
        assert isinstance(made, STransaction), "the generator made an event that is refused"
        transactions.append(made)
    return transactions


def _most_mb(program: Program, parts: list[Any], name: str, *, trims: bool) -> list[float]:
    """Return the peak memory in each batch, of Python objects that are made in the run."""
    scheduler, state, found = scheduler_of(name, THREADS), SharedState(program.tables), []
    with frozen():
        tracemalloc.start()
        try:
            for transactions, punctuation in _batches(program, parts):
                _run(scheduler, transactions, state)
                del transactions
                if trims:
                    state.trim(punctuation)
                found.append(tracemalloc.get_traced_memory()[1] / _MB)
                tracemalloc.reset_peak()
        finally:
            tracemalloc.stop()
    return found


def clean_up(scale: float) -> list[Panel]:
    """Draw figure 17: throughput and memory, with versions trimmed per batch or all kept."""
    batch = max(round(200 * scale), 20)
    events = _SL.columns(batch * (20 if scale >= 1 else 4), accounts=_FEW, aborts=0.0)
    program = _SL.program(accounts=_FEW)
    parts = [part for part, _ in events.batches(batch)]
    rates = Panel("C = 0", "", "events per second", bars=True)
    memory = Panel("the most memory of each batch", "batch", "memory, MB")
    for name in ("LWM", "TPG, always a graph"):
        taken: dict[str, list[float]] = {label: [] for label in _TRIMS}
        for _ in range(ROUNDS):
            for label, trims in _TRIMS.items():
                taken[label].append(_seconds(program, parts, name, trims))
        for label, trims in _TRIMS.items():
            rates.add(label, name, len(events) / median(taken[label]))
            for number, megabytes in enumerate(_most_mb(program, parts, name, trims=trims), 1):
                memory.add(f"{name}, {label}", number, megabytes)
    return [rates, memory]


def _seconds(program: Program, parts: list[Any], name: str, trims: bool) -> float:
    scheduler, state = scheduler_of(name, THREADS), SharedState(program.tables)
    with frozen():
        began_s = time.perf_counter()
        for transactions, punctuation in _batches(program, parts):
            _run(scheduler, transactions, state)
            if trims:
                state.trim(punctuation)
        return time.perf_counter() - began_s


def _run(scheduler: Scheduler, transactions: list[STransaction], state: SharedState) -> None:
    for transaction in transactions:
        scheduler.add(transaction)
    scheduler.run(state)


FIGURES: Final[dict[str, Drawing]] = {"mao_16": breakdown, "mao_17": clean_up}
TITLES: Final = {
    "mao_16": "Where time and memory go",
    "mao_17": "Cleaning up versions",
}
