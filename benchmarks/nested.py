"""Nested transactions: in memory against Berkeley DB, on Postgres against psycopg and plain SQL.

``python -m benchmarks.nested`` measures, all in one run and in turn:

- ``memory_nested_per_s``: begin, a child, one row written, commit, commit, on ``memory://``. The
  peer is Berkeley DB, if it is installed, with a B-tree in memory: C below a thin layer of Python,
  and its rows are bytes that are not validated.
- ``pg_one_row_…``: a transaction with one child that updates a row, against BEGIN, UPDATE, COMMIT
  in psycopg on a connection kept open. ``…_ratio_to_psycopg`` is the ratio of the median times, at
  most 1.5 wanted; ``…_ratio_to_locking`` is that to psycopg with a SELECT … FOR UPDATE of the row
  before the UPDATE. ``pg_plain_commit_p50_us`` is the disk's part of each.
- ``parallel_children_speedup_k``: k children, each running a query of 20 ms, on eight threads,
  against the same one after another; at least 0.8 k wanted. ``parallel_readers_…``: their queries
  read a table in which the parent has changed a row.
- ``flush_rows_per_s``: the commit of a transaction with 10,000 new rows, against a binary COPY into
  a temporary table and INSERT … ON CONFLICT by hand; ``flush_updates_per_s``: of one that changed
  them all. At least 0.8 of the peer's rate wanted.
- ``query_overhead_N_dirty``: `Transaction.query` over a table of which the transaction has changed
  N rows, against the plain statement: the ratio of the median times of an aggregate over the whole
  table; ``query_point_…``: that of finding one row by its key.

The server is that of ``ACTIVEDB_URL``, else an embedded one as activedb starts it, which waits for
the disk; the title of the table names it, with ``--json`` standard error does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from benchmarks._flush import Flush
from benchmarks._nested_memory import BerkeleyRows, NestedInMemory
from benchmarks._nested_one_row import OneRow
from benchmarks._nested_overlay import QueryOverhead
from benchmarks._nested_parallel import ParallelChildren
from benchmarks._nested_parts import Part, measure_parts
from benchmarks._nested_rows import Server, open_server
from benchmarks._report import Metric, parser, show

__all__ = ["Sizes", "main", "measure"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amount of work in one run."""

    in_memory: int = 5_000
    one_row: int = 1_000
    parallel: int = 5
    flushed: int = 10_000
    flush_rounds: int = 5
    queried_rows: int = 10_000
    queries: int = 30


def measure(runs: int, server: Server, sizes: Sizes | None = None) -> dict[str, Metric]:
    """Measure in memory and on `server`."""
    sizes = sizes or Sizes()
    with ExitStack() as opened:
        peer = BerkeleyRows.open()
        if peer is not None:
            assert isinstance(peer, BerkeleyRows)
            opened.callback(peer.close)
        parts: dict[str, Part] = {
            "in memory": opened.enter_context(closing(NestedInMemory(sizes.in_memory, peer))),
            "one row": opened.enter_context(closing(OneRow(server, sizes.one_row))),
            "parallel children": opened.enter_context(
                closing(ParallelChildren(server, sizes.parallel))
            ),
            "flush": opened.enter_context(
                closing(Flush(server, sizes.flushed, sizes.flush_rounds))
            ),
            "dirty rows": opened.enter_context(
                closing(QueryOverhead(server, sizes.queried_rows, sizes.queries))
            ),
        }
        return measure_parts(parts, runs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print table or JSON."""
    options = parser("nested transactions").parse_args(arguments)
    with open_server() as server:
        if options.json:
            print(server.description, file=sys.stderr)
        metrics = measure(options.runs, server)
    show(f"nested transactions ({server.description})", metrics, as_json=options.json)


if __name__ == "__main__":
    main()
