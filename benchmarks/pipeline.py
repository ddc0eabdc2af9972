"""Pipeline: Hygiene and Streaming Ledger, from Spark to committed rows in Postgres.

``python -m benchmarks.pipeline`` measures, in one run and in turn:

- ``sl_pipeline_per_s``, ``hygiene_pipeline_per_s``: events per second from Parquet files through
  Spark to committed rows, exactly-once, in the steady state: without the start of Spark and its
  first batches. At least 100,000 wanted. The peer is Spark's ``foreachBatch`` with one SQL
  transaction per event, each of them one prepared statement. The results of both are compared with
  a plain loop over the same events.
- ``pipeline_over_per_event_sql``: the smaller of the two ratios; at least 20 wanted.
- ``…_whole_per_s``: the same with the first batches and the end, Spark running already.
- ``…_batch_spark_ms``, ``…_python_ms``, ``…_postgres_ms``: parts of the time of a batch: from the
  end of one to the beginning of the next, in Spark; while it is applied, processor time of this
  process, and the rest, which is waiting for the server.
- ``…_replayed_batch_ms``: the cost of applying a batch that is in the ledger already; less than 50
  wanted. ``replayed_batch_ms`` is the larger one.
- ``…_e2e_p50_ms_half_load``, ``…_p99_…``: from when an event is due until its effects are
  committed, at half of the rate measured before, as `_pipeline_latency` describes.
  ``e2e_p99_ms_half_load``, the larger one, is to be less than 2,000.
- ``…_python_growth``, ``…_jvm_growth``, ``…_jvm_live_growth``: memory at the end over memory after
  two fifths of the events, of this process, of Spark's, and of the live part of Spark's after a
  garbage collection. ``--hour``: over an hour's worth of events, 3,600,000 of each workload.

``--part`` measures some parts only.

The server is that of ``ACTIVEDB_URL``, else an embedded one as activedb starts it, which waits for
the disk; the title of the table names it, with ``--json`` standard error does.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks._nested_parts import Part, measure_parts
from benchmarks._nested_rows import Server, open_server
from benchmarks._pipeline_hygiene import Hygiene
from benchmarks._pipeline_latency import HalfLoad, Latency
from benchmarks._pipeline_ledger import Ledger
from benchmarks._pipeline_memory import Kept, Memory
from benchmarks._pipeline_throughput import Load, Throughput
from benchmarks._pipeline_workload import Workload
from benchmarks._report import Metric, parser, show
from spark_bridge import session

__all__ = ["PARTS", "Sizes", "main", "measure", "with_worst"]

PARTS: Final = ("sl", "hygiene", "latency", "memory")
_HOUR: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amount of work in one run."""

    workloads: Sequence[Workload] = (Ledger(), Hygiene())
    loads: Mapping[str, Load] = field(default_factory=lambda: {"sl": Load(), "hygiene": Load()})
    half_load: HalfLoad = field(default=HalfLoad())
    kept: Kept = field(default=Kept())
    warm_up: bool = True


def measure(
    runs: int, parts: Sequence[str], server: Server, folder: Path, sizes: Sizes | None = None
) -> dict[str, Metric]:
    """Measure these parts, in the order of `PARTS`.

    Parameters
    ----------
    runs : int
    parts : sequence of str
    server : Server
    folder : Path
        Folder for inputs and checkpoints.
    sizes : Sizes, optional
    """
    sizes = sizes or Sizes()
    throughput = {
        w.name: Throughput(w, server, folder / w.name, sizes.loads[w.name]) for w in sizes.workloads
    }
    chosen: dict[str, Part] = {name: part for name, part in throughput.items() if name in parts}
    for w in sizes.workloads:
        through = throughput[w.name]
        if "latency" in parts:
            place = folder / f"{w.name}-latency"
            chosen[f"{w.name} at half load"] = Latency(
                w, server, place, sizes.half_load, through.last_per_s
            )
        if "memory" in parts:
            place = folder / f"{w.name}-memory"
            chosen[f"memory of {w.name}"] = Memory(w, server, place, sizes.kept)
    with session():
        return with_worst(measure_parts(chosen, runs, warm_up=sizes.warm_up))


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print table or JSON."""
    options = parser("from Spark to committed rows")
    options.add_argument(
        "--part", action="append", choices=PARTS, help="measure this part; may be repeated"
    )
    options.add_argument(
        "--hour", action="store_true", help="watch memory over an hour's worth of events"
    )
    chosen = options.parse_args(arguments)
    sizes = Sizes()
    if chosen.hour:
        sizes = replace(sizes, kept=replace(sizes.kept, events=_HOUR))
    with open_server() as server, tempfile.TemporaryDirectory(prefix="activedb-bench-") as folder:
        if chosen.json:
            print(server.description, file=sys.stderr)
        metrics = measure(chosen.runs, chosen.part or PARTS, server, Path(folder), sizes)
    show(f"from Spark to committed rows ({server.description})", metrics, as_json=chosen.json)


def with_worst(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics, with those of the worse workload."""
    found = dict(metrics)
    rates = [metrics[name] for name in metrics if name.endswith("_pipeline_per_s")]
    if rates:
        ratios = [
            [ours / peer for ours, peer in zip(m.values, m.peer_values, strict=True)] for m in rates
        ]
        found["pipeline_over_per_event_sql"] = Metric(
            [min(run) for run in zip(*ratios, strict=True)], "ratio"
        )
    for name in ("replayed_batch_ms", "e2e_p99_ms_half_load"):
        times = [metrics[each].values for each in metrics if each.endswith(f"_{name}")]
        if times:
            worst = [max(run) for run in zip(*times, strict=True)]
            found[name] = Metric(worst, "ms", smaller_is_better=True)
    return found


if __name__ == "__main__":
    main()
