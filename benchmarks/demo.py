"""Events per second of the demo and of the crisis run, each in a separate process.

Both include everything a user waits for after the database is open: Spark's start, reading, rules,
commits. No peer does the same work yet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._report import Metric, main

_REPOSITORY = Path(__file__).resolve().parents[1]
_EVENTS_WARM_UP = 1_000


def _run(*arguments: str | Path, schema: str | None = None) -> dict[str, Any]:
    """Run a command in a temporary folder; return its figures."""
    environment = dict(os.environ)
    if schema is not None:
        environment["ACTIVEDB_DB_SCHEMA"] = schema
    with tempfile.TemporaryDirectory(prefix="activedb-bench-") as folder:
        # As root, the embedded server runs as another user, which needs access.
        Path(folder).chmod(0o755)
        done = subprocess.run(  # noqa: S603  # our own command line
            [sys.executable, "-m", "activedb", *map(str, arguments), "--json"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _rates(results: Sequence[dict[str, Any]], name: str) -> dict[str, Metric]:
    return {
        f"{name}_events_per_s": Metric([r["events per second"] for r in results], "events/s"),
        f"{name}_seconds": Metric([r["seconds"] for r in results], "s"),
        f"{name}_rule_latency_p50_ms": Metric([r["rule latency p50 ms"] for r in results], "ms"),
        f"{name}_rule_latency_p99_ms": Metric([r["rule latency p99 ms"] for r in results], "ms"),
    }


def measure(runs: int) -> dict[str, Metric]:
    """Run the demo and, if its data exists, the crisis example."""
    _run("demo", "--events", str(_EVENTS_WARM_UP))
    metrics = _rates([_run("demo") for _ in range(runs)], "demo")
    data = Path(os.environ.get("ACTIVEDB_DATA") or _REPOSITORY.parent / "shared" / "data")
    tweets = data / "crisislex"
    if not tweets.is_dir():
        print(f"no crisis run: there is no {tweets}; set ACTIVEDB_DATA", file=sys.stderr)
        return metrics
    example = _REPOSITORY / "examples" / "crisis.py"
    results = []
    for number in range(runs):
        schema = f"activedb_bench_{os.getpid()}_{number}" if "ACTIVEDB_URL" in os.environ else None
        results.append(_run("run", example, "--input", tweets, schema=schema))
    return metrics | _rates(results, "crisis")


if __name__ == "__main__":
    main("demo and crisis run", measure)
