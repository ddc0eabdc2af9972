"""Lock manager against Berkeley DB: rates, times, bytes, and the figures of its paper.

``python -m benchmarks.locks`` measures `LockManager`, as applications use it, on one thread except
for the hand-over, and deadlock detection through its core, `LockTable`. Berkeley DB, if it is
installed, does the same in the same run, in turn. It is C behind a thin binding, so the runs
without contention compare Python with C. With ``--compiled DIR``, a folder with a compiled
`lockmgr` (``ACTIVEDB_COMPILE=1 pip install --no-deps --no-build-isolation --target DIR .``), that
build is measured too, in a separate process.

Detection:

- ``detect_ms_at_N``: a request at the head of a chain of N waiting transactions traverses all of
  it. Berkeley DB's waiters are blocked threads, so the two are compared at 200; 10,000 of them are
  out of reach. Its detector runs when called, ours with every request that waits.
- ``deadlock_ms_at_N``: the same request closes a ring, which is reported and denied.
- ``detect_queue_ms_at_N``: the newcomer stands behind N writers of one row.
- ``detect_unreached_ms_at_N``: it waits for a running transaction while N others wait elsewhere.

``predicate_lock_per_s`` counts predicates that are locked and released, ``declared_write_per_s``
row writes that are compared with predicates; Berkeley DB has none.

``commit_growth`` is the time of a commit of ten locks among 200,000 locks of others over that among
100. ``bytes_per_lock`` is without the path, which the caller has anyway, ``..._and_path`` with it;
allocation is reproducible, so these are measured once.

``--figures DIR`` draws figures 11 and 12 instead: see `benchmarks._figures`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _detection, _figures, _lockmgr
from benchmarks._berkeley import Berkeley
from benchmarks._report import Measurement, Metric, measure_in_turn, parser, show

__all__ = ["Sizes", "main", "measure", "measurements"]

_REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amount of work in one run; part of a metric's name if the metric depends on it."""

    acquired: int = 100_000
    nested: int = 30_000
    inherited: int = 1_000
    predicates: int = 20_000
    handovers: int = 2_000
    detected: tuple[int, ...] = (10, 100, 1_000, 10_000)
    detected_by_both: int = 200
    queued: int = 1_000
    others: tuple[int, int] = (100, 200_000)
    weighed: int = 100_000


def measure(
    runs: int, sizes: Sizes | None = None, compiled: Path | None = None
) -> dict[str, Metric]:
    """Measure the lock manager, and Berkeley DB and the compiled build if available."""
    sizes = sizes or Sizes()
    peer = Berkeley.open()
    try:
        metrics = measure_in_turn(measurements(sizes, peer, compiled), runs, Berkeley.name)
    finally:
        if peer is not None:
            peer.close()
    few, many = (metrics[f"commit_10_us_among_{others}"].values for others in sizes.others)
    growth = [after / before for before, after in zip(few, many, strict=True)]
    alone, with_path = _lockmgr.bytes_per_lock(sizes.weighed)
    return metrics | {
        "commit_growth": Metric(growth, "times", smaller_is_better=True),
        "bytes_per_lock": Metric([alone], "bytes", smaller_is_better=True),
        "bytes_per_lock_and_path": Metric([with_path], "bytes", smaller_is_better=True),
    }


def measurements(
    sizes: Sizes, peer: Berkeley | None = None, compiled: Path | None = None
) -> list[Measurement]:
    """Return the measurements in the order in which they are taken."""
    return [
        *_uncontended(sizes, peer, "", _here),
        *_compiled(sizes, peer, compiled),
        *_contended(sizes, peer),
        *_commits(sizes),
    ]


def _here(name: str, size: int) -> float:
    measured: float = getattr(_lockmgr, name)(size)
    return measured


def _elsewhere(folder: Path, name: str, size: int) -> float:
    """Measure the compiled `lockmgr` in `folder`, in a process that finds it before any other."""
    done = subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-P", "-m", "benchmarks._lockmgr", name, str(size)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(folder.resolve()), str(_REPOSITORY))),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"--compiled {folder}: it cannot be measured:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if not answer["compiled"]:
        raise SystemExit(
            f"--compiled {folder}: no compiled lockmgr there; make one with ACTIVEDB_COMPILE=1 "
            f"pip install --no-deps --no-build-isolation --target {folder} ."
        )
    return float(answer["value"])


def _uncontended(
    sizes: Sizes, peer: Berkeley | None, build: str, ours: Callable[[str, int], float]
) -> list[Measurement]:
    def one(measured: str, size: int, name: str, unit: str) -> Measurement:
        own = getattr(peer, measured, None)
        theirs = None if own is None else partial(own, size)
        return Measurement(name, unit, partial(ours, measured, size), theirs, unit == "ms")

    return [
        one("acquire_release_per_s", sizes.acquired, f"acquire_release{build}_per_s", "locks/s"),
        one("nested_per_s", sizes.nested, f"nested{build}_per_s", "transactions/s"),
        one("inherit_ms", sizes.inherited, f"inherit_{sizes.inherited}{build}_ms", "ms"),
        one("predicate_lock_per_s", sizes.predicates, f"predicate_lock{build}_per_s", "locks/s"),
        one("declared_write_per_s", sizes.predicates, f"declared_write{build}_per_s", "writes/s"),
    ]


def _compiled(sizes: Sizes, peer: Berkeley | None, folder: Path | None) -> list[Measurement]:
    if folder is not None:
        return _uncontended(sizes, peer, "_compiled", partial(_elsewhere, folder))
    if _lockmgr.is_compiled():
        return _uncontended(sizes, peer, "_compiled", _here)
    print("no compiled lockmgr, so no nested_compiled_per_s: see --compiled", file=sys.stderr)
    return []


def _contended(sizes: Sizes, peer: Berkeley | None) -> list[Measurement]:
    def one(
        name: str, ours: Callable[[int], float], size: int, theirs: str | None = None
    ) -> Measurement:
        unit = "us" if name.endswith("_us") else "ms"
        compared = None if peer is None or theirs is None else partial(getattr(peer, theirs), size)
        return Measurement(name, unit, partial(ours, size), compared, smaller_is_better=True)

    both, queued, most = sizes.detected_by_both, sizes.queued, max(sizes.detected)
    return [
        one("handover_us", _lockmgr.handover_us, sizes.handovers, "handover_us"),
        *(one(f"detect_ms_at_{n}", _detection.detect_ms, n) for n in sizes.detected if n != both),
        one(f"detect_ms_at_{both}", _detection.detect_ms, both, "detect_ms"),
        one(f"deadlock_ms_at_{most}", _detection.deadlock_ms, most),
        one(f"detect_queue_ms_at_{queued}", _detection.detect_queue_ms, queued),
        one(f"detect_unreached_ms_at_{most}", _detection.detect_unreached_ms, most),
    ]


def _commits(sizes: Sizes) -> list[Measurement]:
    return [
        Measurement(
            f"commit_10_us_among_{others}",
            "us",
            partial(_lockmgr.commit_us, others),
            smaller_is_better=True,
        )
        for others in sizes.others
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print table or JSON."""
    line = parser("lock manager")
    line.add_argument("--compiled", metavar="DIR", type=Path, help="measure the build there, too")
    line.add_argument("--figures", metavar="DIR", type=Path, help="draw figures 11 and 12 instead")
    options = line.parse_args(arguments)
    if options.figures is not None:
        metrics = _figures.draw(options.figures, options.runs)
        show("CPU time of a transaction hierarchy", metrics, as_json=options.json)
        return
    show("lock manager", measure(options.runs, compiled=options.compiled), as_json=options.json)


if __name__ == "__main__":
    main()
