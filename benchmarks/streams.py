"""Stream transactions: throughput, comparison of schedulers, memory; and the papers' figures.

``python -m benchmarks.streams`` measures, in one run and in turn:

- ``sl_compiled_per_s``, ``gs_…``, ``tp_…``: input events per second of Streaming Ledger, GrepSum
  and Toll Processing at the defaults of (Mao et al., table 6), C = 0, compiled functions, wall
  clock from batches in columns in memory to the committed state in memory, planning included;
  5,000,000 wanted. The peer is a plain loop over dicts, written by hand for the program alone. Two
  threads may be used, if the scheduler decides so; ``…_1_thread_…``: one; ``…_in_parallel_…``: two
  are used.
- ``sl_c10_share_of_bound``, …: C = 10 µs per operation, on two threads: the share of the bound,
  two cores / (operations x C), that is reached; at least 0.9 wanted. ``…_share_of_cpu``: that of
  the processor time that was taken. `_streams_busy` says how C is measured.
- ``sl_python_per_s``: with functions in Python; at least 300,000 wanted.
- ``lwm_over_s2pl_table_read6``, ``s2pl_over_sei_table_read6``: ratios of schedulers' throughput,
  for rules whose conditions wait 1 ms at each read; 2.5 and 1 wanted. Also by rows, and with fewer
  reads.
- ``gs_1ms_tpg_<decision>_per_s``, …: points of the TPG's decision space on four threads, where
  each function waits 1 ms, against the serial order.
- ``bytes_per_operation``: of a batch's plan, outcomes and versions, at most 200 wanted; over
  columns in parallel, serially, in Python, and of the TPG's and LWM's objects.
  ``rss_growth_100_batches``: memory of the process after 100 batches over that after 10; 1 is flat.

``--part`` measures some parts only. ``--plots FOLDER`` draws the papers' figures instead, of which
``--figure`` chooses some: each picture, and its data as JSON. Figures measured by others on other
machines are below the table, and dotted in the pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import _streams_figures_decisions as decisions
from benchmarks import _streams_figures_latency as latency
from benchmarks import _streams_figures_locks as locks
from benchmarks import _streams_figures_overhead as overhead
from benchmarks import _streams_figures_workloads as workloads
from benchmarks._nested_parts import Part, measure_parts
from benchmarks._progress import progress
from benchmarks._report import Metric, parser, show
from benchmarks._streams_busy import Busy
from benchmarks._streams_compiled import Compiled, InPython, Load
from benchmarks._streams_loads import APPLICATIONS
from benchmarks._streams_locks import Locks
from benchmarks._streams_memory import BatchMemory
from benchmarks._streams_plots import Drawing, draw, matplotlib_figure
from benchmarks._streams_rules import RuleLoad
from benchmarks._streams_tpg import GrepSumWaiting

__all__ = ["FIGURES", "PARTS", "Sizes", "draw_figures", "main", "measure"]

_MODULES: Final = (locks, latency, workloads, overhead, decisions)
FIGURES: Final[dict[str, Drawing]] = {
    name: drawing for module in _MODULES for name, drawing in module.FIGURES.items()
}
TITLES: Final = {name: title for module in _MODULES for name, title in module.TITLES.items()}

ELSEWHERE: Final = {
    f"{name}_compiled_per_s": {"MorphStream, two cores": application.morphstream_per_s}
    for name, application in APPLICATIONS.items()
}
"""Reference throughput with C = 0 and two threads. S-Store came to 160,000 to 290,000 there."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amount of work in one run."""

    compiled: Mapping[str, Load] = field(
        default_factory=lambda: {"sl": Load(40), "gs": Load(40), "tp": Load(10)}
    )
    busy: Mapping[str, Load] = field(
        default_factory=lambda: {"sl": Load(2), "gs": Load(4), "tp": Load(1)}
    )
    python: Load = field(default=Load(10))
    rules: RuleLoad = field(default=RuleLoad())
    reads: tuple[int, ...] = (1, 6)
    waiting: dict[str, Any] = field(
        default_factory=lambda: {
            "batches": 2,
            "batch": 256,
            "threads": 4,
            "waits_ms": (0.1, 1.0),
            "keys": 12_288,
        }
    )
    memory: tuple[int, int, int, int] = (10_240, 100, 122_880, 2_048)


PARTS: Final[dict[str, Callable[[Sizes], Part]]] = {
    "compiled": lambda sizes: Compiled(sizes.compiled),
    "busy": lambda sizes: Busy(sizes.busy),
    "python": lambda sizes: InPython(sizes.python),
    "locks": lambda sizes: Locks(sizes.rules, sizes.reads),
    "tpg": lambda sizes: GrepSumWaiting(**sizes.waiting),
    "memory": lambda sizes: BatchMemory(*sizes.memory),
}


def measure(runs: int, parts: Sequence[str], sizes: Sizes | None = None) -> dict[str, Metric]:
    """Measure these parts, in the order of `PARTS`."""
    sizes = sizes or Sizes()
    chosen = {name: make(sizes) for name, make in PARTS.items() if name in parts}
    return measure_parts(chosen, runs)


def draw_figures(folder: Path, names: Sequence[str], scale: float = 1.0) -> None:
    """Measure and draw these figures, each into a picture and its data.

    Parameters
    ----------
    folder : Path
        Created if missing.
    names : sequence of str
        Names in `FIGURES`.
    scale : float
        Less than 1: fewer events, at fewer places.
    """
    matplotlib_figure()  # fail before the measurements, not after
    with progress(len(names)) as step:
        for name in names:
            step(f"{name}: {TITLES[name]}")
            draw(folder, name, TITLES[name], FIGURES[name](scale))


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line; measure and print table or JSON, or draw."""
    options = parser("stream transactions")
    options.add_argument(
        "--part", action="append", choices=tuple(PARTS), help="measure this part; may be repeated"
    )
    options.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="draw the papers' figures into it, instead"
    )
    options.add_argument(
        "--figure", action="append", choices=tuple(FIGURES), help="this one; may be repeated"
    )
    chosen = options.parse_args(arguments)
    if chosen.figure and chosen.plots is None:
        options.error("--figure is one of those that --plots FOLDER draws")
    if chosen.plots is not None:
        draw_figures(chosen.plots, chosen.figure or tuple(FIGURES))
        return
    metrics = measure(chosen.runs, chosen.part or tuple(PARTS))
    show("stream transactions", metrics, as_json=chosen.json, elsewhere=ELSEWHERE)


if __name__ == "__main__":
    main()
