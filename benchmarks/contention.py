"""Transactions that meet on few rows, in one process and in two, beside plain psycopg.

``python -m benchmarks.contention`` measures, in one run and in turn, transactions that each read
two rows and then change them, in the ways in which users write it:

- ``key_query_update``: a query by key, then an update; at least 0.8 of the better peer wanted;
- ``predicate_query_update``: a query by another column, which has an index, then an update;
- ``for_update_query``: the same query with ``with_for_update()``; at least 0.8 wanted;
- ``shared_get_update``: ``t.get``, then an update; at least 0.5 wanted;
- ``get_for_update``: ``t.get(for_update=True)``, then an update; at least 1 wanted;
- ``one_row``: the last one with one row per transaction; at least 0.8 wanted;
- ``serializable_…``: a way under ``isolation="serializable"``.

``…_1x8`` is one process with eight threads and 200 rows, ``…_2x4`` two processes with four threads
and 20 rows. The peers are psycopg with SELECT … FOR UPDATE, and with SERIALIZABLE; both are retried
until they succeed. The better one counts. ``…_failed_share`` is the share of our transactions that
failed although `Database.run` retried them; at most 0.001 wanted. Each run checks that no addition
is lost.

The server is that of ``ACTIVEDB_URL``, else an embedded one as activedb starts it, which waits for
the disk; the title of the table names it, with ``--json`` standard error does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from activedb.config import Isolation
from benchmarks._contention_workers import Load, contended, ours, peers, rate_of
from benchmarks._nested_parts import Figure, Part, measure_parts
from benchmarks._nested_rows import Server, open_server
from benchmarks._report import Metric, parser, show

__all__ = ["Shape", "main", "measure"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Processes, threads and rows of a measurement."""

    processes: int
    threads: int
    rows: int

    @property
    def name(self) -> str:
        """Name in a metric."""
        return f"{self.processes}x{self.threads}"


_SERIALIZABLE = ("key_query_update", "predicate_query_update", "shared_get_update")
SHAPES = (Shape(1, 8, 200), Shape(2, 4, 20))


def measure(
    runs: int, server: Server, seconds: float, shapes: Sequence[Shape]
) -> dict[str, Metric]:
    """Measure all ways in all shapes, for some seconds each."""
    with closing(server.database(threads=1)) as db:
        rows = contended(db)
        db.create_all()
        with db.transaction() as t:
            for number in range(max(shape.rows for shape in shapes)):
                t.insert(rows, {"id": number, "place": number, "balance": 0})
    parts: dict[str, Part] = {}
    for shape in shapes:
        for metric, way, at_once in [*((w, w, 2) for w in ours), ("one_row", "get_for_update", 1)]:
            parts[f"{metric}, {shape.name}"] = _Meeting(
                server, f"{metric}_{shape.name}", way, shape, at_once, seconds
            )
        for way in _SERIALIZABLE:
            parts[f"serializable {way}, {shape.name}"] = _Meeting(
                server, f"serializable_{way}_{shape.name}", way, shape, 2, seconds, "serializable"
            )
    return measure_parts(parts, runs, warm_up=False)


class _Meeting:
    """One way in one shape, beside the peers."""

    def __init__(
        self,
        server: Server,
        metric: str,
        way: str,
        shape: Shape,
        at_once: int,
        seconds: float,
        isolation: Isolation = "locks",
    ):
        self._server = server
        self._metric = metric
        by = "place" if way == "predicate_query_update" else "id"
        self._loads = [
            Load(each, shape.processes, shape.threads, shape.rows, at_once, seconds, by, isolation)
            for each in (way, *peers)
        ]

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        own, *others = [rate_of(self._server, load) for load in self._loads]
        best = max(zip(others, peers, strict=True), key=lambda pair: pair[0].per_s)
        return {
            f"{self._metric}_per_s": Figure(own.per_s, "1/s", f"psycopg, {best[1]}", best[0].per_s),
            f"{self._metric}_failed_share": Figure(own.failed, "", smaller_is_better=True),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print table or JSON."""
    line = parser("transactions that meet")
    line.add_argument("--seconds", type=float, default=3.0, help="of each load")
    options = line.parse_args(arguments)
    with open_server() as server:
        if options.json:
            print(server.description, file=sys.stderr)
        metrics = measure(options.runs, server, options.seconds, SHAPES)
    show(f"transactions that meet ({server.description})", metrics, as_json=options.json)


if __name__ == "__main__":
    main()
