"""Detection of patterns: events per second, one at a time and in columns, and memory.

``python -m benchmarks.events`` measures, all in one run and in turn, in events per second of
processor time unless otherwise noted, so per core, ours and the peers':

- ``seq3_columnar_per_s``: a sequence of three steps by key, with a negation and a window, in
  batches of columns, against DuckDB's join of the same table; at least 2,000,000 wanted.
- ``seq3_single_per_s``: the same, one event at a time through a `Detector`, against a loop written
  by hand for this pattern alone; at least 100,000 wanted. ``seq3_next_single_per_s``: selecting
  next, against BoboCEP.
- ``kleene_per_s``, ``kleene_columnar_per_s``: with a Kleene step, against a loop written by hand.
- ``patterns_N_per_s``: N registered patterns over one stream, through the catalog of the rules;
  ``patterns_by_constant_N_per_s``: N on one event type, each on another constant.
- ``context_<name>_per_s``, ``context_<name>_columnar_per_s``: the three steps in each context.
- ``skip_<name>_us_after_N``: processor time per event once N events were fed that make matches in
  one window, with each skip and unrestricted (``none``), against a loop written by hand; it must
  not grow with N.
- ``peak_rss_mb_50m``: the peak memory of a separate process that has taken 50 million events;
  ``peak_rss_mb_5m`` that after the first tenth of them. Measured once.

``--part`` measures some parts only. Peers that are not installed are left out, with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks._events_bobocep import BesideBoboCEP
from benchmarks._events_columnar import ContextsInColumns, InColumns
from benchmarks._events_memory import Memory
from benchmarks._events_registered import Registered
from benchmarks._events_single import Contexts, Single
from benchmarks._events_skips import Skips
from benchmarks._events_streams import Events
from benchmarks._nested_parts import Part, measure_parts
from benchmarks._report import Metric, parser, show

__all__ = ["PARTS", "Sizes", "main", "measure"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Number of events and workers of one run."""

    columnar: Events = field(default=Events(2_000_000, 10_000))
    contexts_columnar: Events = field(default=Events(1_000_000, 10_000))
    batch: int = 100_000
    single: Events = field(default=Events(100_000, 1_000))
    contexts: Events = field(default=Events(30_000, 1_000))
    bobocep: Events = field(default=Events(10_000, 20))
    registered: tuple[int, ...] = (1, 100, 1_000)
    stream: Events = field(default=Events(100_000, 1_000))
    skips: Events = field(default=Events(50_000, 1))
    memory: int = 50_000_000


def _columnar(sizes: Sizes, opened: ExitStack) -> Part:
    part = InColumns(sizes.columnar, sizes.batch)
    opened.callback(part.close)
    return part


PARTS: dict[str, Callable[[Sizes, ExitStack], Part]] = {
    "columnar": _columnar,
    "single": lambda sizes, opened: Single(sizes.single),
    "bobocep": lambda sizes, opened: BesideBoboCEP(sizes.bobocep),
    "patterns": lambda sizes, opened: Registered(sizes.registered, sizes.stream),
    "contexts": lambda sizes, opened: Contexts(sizes.contexts),
    "contexts_columnar": lambda sizes, opened: ContextsInColumns(
        sizes.contexts_columnar, sizes.batch
    ),
    "skips": lambda sizes, opened: Skips(sizes.skips),
    "memory": lambda sizes, opened: Memory(sizes.memory, sizes.batch),
}


def measure(runs: int, parts: Sequence[str], sizes: Sizes | None = None) -> dict[str, Metric]:
    """Measure these parts, in the order of `PARTS`."""
    sizes = sizes or Sizes()
    with ExitStack() as opened:
        chosen = {name: make(sizes, opened) for name, make in PARTS.items() if name in parts}
        return measure_parts(chosen, runs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print table or JSON."""
    options = parser("events")
    options.add_argument(
        "--part", action="append", choices=tuple(PARTS), help="measure this part; may be repeated"
    )
    chosen = options.parse_args(arguments)
    metrics = measure(chosen.runs, chosen.part or tuple(PARTS))
    show("events", metrics, as_json=chosen.json)


if __name__ == "__main__":
    main()
