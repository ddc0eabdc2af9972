"""Memory of batches, in a separate process.

``python -m benchmarks._streams_memory BATCH BATCHES KEYS GENERAL`` prints a JSON object. For a
batch of Streaming Ledger it has, per operation, the peak memory of Python and numpy beyond the
events themselves and the tables before the batch: plans, versions, outcomes. For schedulers that
take s-transactions one by one these exist beforehand, and a batch has GENERAL of them. It also has
the factor by which the memory of the whole process has grown after all batches, relative to a tenth
of them.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from activedb.columns.program._run import ColumnRun
from activedb.scheduling import (
    At,
    ProgramRun,
    Scheduler,
    SharedState,
    STransaction,
    build_s_transaction,
)
from activedb.scheduling.locking import LWM
from activedb.scheduling.tpg import TPG, Decision
from benchmarks._events_memory import peak_mb
from benchmarks._nested_parts import Figure
from benchmarks._progress import progress
from benchmarks._streams_loads import APPLICATIONS, batches_of

__all__ = ["BatchMemory", "resident_mb"]

_MB: Final = 1_000_000
_LEDGER: Any = APPLICATIONS["sl"].module


class BatchMemory:
    """One run: the measurements of a separate process; measured once."""

    def __init__(self, batch: int, batches: int, keys: int, general_batch: int):
        self._sizes = (batch, batches, keys, general_batch)
        self._figures: dict[str, Figure] | None = None

    def __call__(self) -> dict[str, Figure]:
        """Do the run, or return the figures of the first one, as memory hardly varies."""
        if self._figures is None:
            command = [sys.executable, "-m", __name__, *map(str, self._sizes)]
            root = Path(__file__).parent.parent
            done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True)  # noqa: S603
            self._figures = {
                name: Figure(value, unit, smaller_is_better=True)
                for name, (value, unit) in json.loads(done.stdout).items()
            }
        return self._figures


def resident_mb() -> float:
    """Return the present memory of this process, in MB; if it is not available, the peak."""
    status = Path("/proc/self/status")
    if not status.exists():
        return peak_mb()
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1_024 / _MB


def _measured(batch: int, batches: int, keys: int, general_batch: int) -> dict[str, Any]:
    program = _LEDGER.program(accounts=keys)  # one: compiled once
    found: dict[str, tuple[float, str]] = {}
    with progress(7) as step:
        for suffix, decision in (("", "parallel"), ("_serial", "serial"), ("_python", "python")):
            step(f"bytes per operation, {decision}")
            found[f"bytes_per_operation{suffix}"] = (
                _in_columns(program, keys, batch, decision),
                "bytes",
            )
        for name, scheduler in (("tpg", TPG(2, Decision())), ("lwm", LWM("row"))):
            step(f"bytes per operation, {name}")
            taken = _of_scheduler(program, scheduler, keys, general_batch)
            found[f"bytes_per_operation_{name}"] = taken, "bytes"
        step(f"growth over {batches} batches")
        found[f"rss_growth_{batches}_batches"] = _growth(program, keys, batch, batches), "ratio"
        step(f"growth over {batches} batches of a TPG")
        growth = _growth_of_scheduler(program, TPG(2, Decision()), keys, general_batch, batches)
        found[f"rss_growth_{batches}_batches_tpg"] = growth, "ratio"
    return found


def _peak(work: Callable[[], object]) -> int:
    """Return the peak of bytes allocated by a call, beyond those allocated before."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    work()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most - before


def _in_columns(program: Any, keys: int, batch: int, decision: str) -> float:
    events = _LEDGER.columns(3 * batch, accounts=keys)
    run = ColumnRun(program, 2, decision)
    first, second, _ = batches_of(events, batch)
    run.feed(*first)  # compiled code
    operations = int(np.array(run.layout.widths)[second[0].codes].sum())
    return _peak(lambda: run.feed(*second)) / operations


def _of_scheduler(program: Any, scheduler: Scheduler, keys: int, batch: int) -> float:
    state = SharedState(program.tables)
    transactions = []
    for number, event in enumerate(_LEDGER.columns(batch, accounts=keys).occurrences(), 1):
        made = build_s_transaction(program, event, At(event.us, "", number))
        assert isinstance(made, STransaction), "the generator made an event that is refused"
        transactions.append(made)

    def work() -> None:
        for transaction in transactions:
            scheduler.add(transaction)
        scheduler.run(state)

    return _peak(work) / sum(len(transaction.operations) for transaction in transactions)


def _growth(program: Any, keys: int, batch: int, batches: int) -> float:
    """Return the process's memory after all batches, over that after the first tenth of them."""
    fed = batches_of(_LEDGER.columns(batch, accounts=keys), batch)[0][0]
    run = ColumnRun(program, 2, "parallel")
    tenth_mb = 0.0
    for number in range(1, batches + 1):
        # The same events again, later.
        later = replace(fed, us=fed.us + number * batch * 1_000)
        run.feed(later, int(later.us[-1]) + 1)
        if number == max(batches // 10, 1):
            tenth_mb = resident_mb()
    return resident_mb() / tenth_mb


def _growth_of_scheduler(
    program: Any, scheduler: Scheduler, keys: int, batch: int, batches: int
) -> float:
    events = _LEDGER.columns(batch, accounts=keys)
    run = ProgramRun(program, scheduler)
    tenth_mb = 0.0
    for number in range(1, batches + 1):
        later = replace(events, us=events.us + number * batch * 1_000)
        run.feed(later.occurrences(), int(later.us[-1]) + 1)
        if number == max(batches // 10, 1):
            tenth_mb = resident_mb()
    return resident_mb() / tenth_mb


if __name__ == "__main__":
    print(json.dumps(_measured(*map(int, sys.argv[1:]))))
