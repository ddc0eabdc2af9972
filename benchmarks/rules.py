"""Rules on Postgres against triggers in plpgsql and a job queue.

``python -m benchmarks.rules`` measures, all in one run and in turn:

- ``immediate_rule_per_s``: a transaction that updates a row and has one immediate rule, which
  updates the row of another table, against BEGIN, UPDATE, COMMIT in psycopg on a table whose
  plpgsql trigger does the same; ``…_ratio_to_trigger`` is our rate over the trigger's, at least 0.7
  wanted. ``immediate_audit_…``: rule and trigger insert a row.
- ``parallel_rules_k_ms``: an update with k immediate rules, the condition of each a query of 5 ms,
  against k triggers with that query, which the server runs one after another;
  ``parallel_rules_speedup_k`` is the ratio of the times, at least 3 wanted at k = 4.
- ``dispatch_per_s_N_rules``: events signalled in one transaction, with N registered rules of which
  one listens and runs; ``dispatch_flatness``, (max - min) / median over N, at most 0.2 wanted.
- ``detached_per_s``, ``sequential_per_s``: such rules enqueued and executed, against jobs of
  procrastinate, if it is installed, with as many workers; at least the same wanted.
  ``sequential_batch_per_s``: all enqueued by one transaction.

The server is that of ``ACTIVEDB_URL``, else an embedded one as activedb starts it, which waits for
the disk; the title of the table names it, with ``--json`` standard error does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from benchmarks._nested_parts import Part, measure_parts
from benchmarks._nested_rows import Server, open_server
from benchmarks._report import Metric, parser, show
from benchmarks._rules_detached import WORKERS, DetachedRules
from benchmarks._rules_dispatch import Dispatch
from benchmarks._rules_immediate import OneRule
from benchmarks._rules_parallel import ParallelRules
from benchmarks._rules_procrastinate import Procrastinate

__all__ = ["Sizes", "main", "measure"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amount of work in one run."""

    immediate: int = 1_000
    parallel: int = 30
    registered: tuple[int, ...] = (1, 100, 10_000)
    events: int = 2_000
    firings: int = 300


def measure(runs: int, server: Server, sizes: Sizes | None = None) -> dict[str, Metric]:
    """Measure on `server`."""
    sizes = sizes or Sizes()
    with ExitStack() as opened:
        peer = Procrastinate.open(server, WORKERS)
        if peer is not None:
            opened.callback(peer.close)
        parts: dict[str, Part] = {
            "one rule": opened.enter_context(closing(OneRule(server, sizes.immediate))),
            "parallel rules": opened.enter_context(closing(ParallelRules(server, sizes.parallel))),
            "dispatch": opened.enter_context(
                closing(Dispatch(server, sizes.registered, sizes.events))
            ),
            "detached rules": opened.enter_context(
                closing(DetachedRules(server, sizes.firings, peer))
            ),
        }
        return measure_parts(parts, runs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print table or JSON."""
    options = parser("rules").parse_args(arguments)
    with open_server() as server:
        if options.json:
            print(server.description, file=sys.stderr)
        metrics = measure(options.runs, server)
    show(f"rules ({server.description})", metrics, as_json=options.json)


if __name__ == "__main__":
    main()
