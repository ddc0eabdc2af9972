"""CPU time of a transaction hierarchy: figures 11 and 12 of (Saygin, Ulusoy, Chakravarthy).

As in their section 5, the transactions of a hierarchy access 100,000 objects in all, each gets an
equal part, and 20% of the accesses are writes, the rest reads. The objects are drawn at random and
no two transactions share one: there are no hot spots, no transaction waits, and the figures measure
the overhead of the protocol.

The hierarchy is filled level by level with the given fan-out. A transaction acquires its objects,
offers them to its children if it has any, runs these, and commits. As in the paper each is a real
nested transaction on a separate thread; but a parent starts the next child after the previous one
has ended. When all children run at once, they contend for the interpreter's lock and the manager's
latch: the same hierarchies then take up to three times the CPU time, with as much variation between
runs, which reflects the interpreter rather than the protocol.

The lists of accesses are made beforehand and kept from the garbage collector, which is enabled.
"""

from __future__ import annotations

import gc
import importlib
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from benchmarks._report import Measurement, Metric, measure_in_turn
from lockmgr import LockManager, Mode, Resource

__all__ = ["draw"]

_WRITES = 0.2
_SEED = 11

_Accesses: TypeAlias = list[tuple[Resource, Mode]]


def _generate(transactions: int, objects: int) -> list[_Accesses]:
    """Return the accesses of each transaction, in order."""
    chance = random.Random(_SEED)  # noqa: S311  # repeatable, not secret
    names = chance.sample(range(10 * objects), objects)
    modes = [Mode.X if place < _WRITES * objects else Mode.S for place in range(objects)]
    chance.shuffle(modes)
    accesses: _Accesses = [
        (("objects", name), mode) for name, mode in zip(names, modes, strict=True)
    ]
    return [accesses[first::transactions] for first in range(transactions)]


def _cpu_s(transactions: int, fanout: int, objects: int) -> float:
    """Run a hierarchy; return the CPU time of all its threads."""
    hierarchy = _generate(transactions, objects)
    gc.collect()
    gc.freeze()
    try:
        return _run(hierarchy, fanout)
    finally:
        gc.unfreeze()


def _run(hierarchy: list[_Accesses], fanout: int) -> float:
    manager = LockManager()
    committed: list[int] = []

    def run(place: int) -> None:
        tid = place + 1
        for resource, mode in hierarchy[place]:
            manager.acquire(tid, resource, mode)
        first = place * fanout + 1
        children = range(first, min(first + fanout, len(hierarchy)))
        if children:
            manager.offer(tid)
        for child in children:
            manager.begin(child + 1, parent=tid)
            spawn(child)
        manager.commit(tid)
        committed.append(tid)

    def spawn(place: int) -> None:
        thread = threading.Thread(target=run, args=(place,))
        thread.start()
        thread.join()

    started_s = time.process_time()
    manager.begin(1)
    spawn(0)
    taken_s = time.process_time() - started_s
    assert len(committed) == len(hierarchy), "a transaction failed"
    return taken_s


def draw(
    folder: Path,
    runs: int,
    *,
    objects: int = 100_000,
    fanouts: Sequence[int] = (1, 2, 3, 4, 5),
    transactions: Sequence[int] = (5, 10, 20, 30, 40, 50, 60, 70),
) -> dict[str, Metric]:
    """Write ``figure_11.svg`` and ``figure_12.svg`` to `folder`; return the points and flatness.

    Figure 11 varies the fan-out of the largest number of transactions, figure 12 the number of
    transactions at fan-out 3. Flatness is (max - min) / median over the points of one figure, of
    their medians or of the best of their runs, to which a noisy machine has added least.
    """
    figure = _matplotlib_figure()  # fail before a minute of measuring, not after
    shapes = {f"fanout_{fanout}_cpu_s": (max(transactions), fanout) for fanout in fanouts}
    shapes |= {f"transactions_{number}_cpu_s": (number, 3) for number in transactions}
    measurements = [
        Measurement(name, "s", partial(_cpu_s, number, fanout, objects))
        for name, (number, fanout) in shapes.items()
    ]
    metrics = measure_in_turn(measurements, runs, "")
    folder.mkdir(parents=True, exist_ok=True)
    for number, prefix, places, label in (
        (11, "fanout", fanouts, f"fan-out of {max(transactions)} transactions"),
        (12, "transactions", transactions, "transactions, fan-out 3"),
    ):
        points = {place: metrics[f"{prefix}_{place}_cpu_s"] for place in places}
        metrics[f"figure_{number}_flatness"] = flatness = _flatness(points.values())
        metrics[f"figure_{number}_flatness_of_best"] = _flatness(points.values(), of=min)
        _plot(figure, folder / f"figure_{number}.svg", label, points, flatness)
    return metrics


def _flatness(
    points: Iterable[Metric], of: Callable[[list[float]], float] = statistics.median
) -> Metric:
    figures = [of(point.values) for point in points]
    flatness = (max(figures) - min(figures)) / statistics.median(figures)
    return Metric([flatness], "ratio", smaller_is_better=True)


def _plot(
    figure: ModuleType, path: Path, label: str, points: Mapping[int, Metric], flatness: Metric
) -> None:
    """Draw the median of each point, from 0 up, with its extremes as a bar."""
    medians = [statistics.median(point.values) for point in points.values()]
    below = [median - min(p.values) for median, p in zip(medians, points.values(), strict=True)]
    above = [max(p.values) - median for median, p in zip(medians, points.values(), strict=True)]
    drawing = figure.Figure(figsize=(6, 3.6), layout="constrained")
    axes = drawing.subplots()
    axes.errorbar(list(points), medians, yerr=(below, above), marker="o", capsize=3, color="black")
    axes.set_ylim(bottom=0, top=1.1 * max(map(sum, zip(medians, above, strict=True))))
    axes.set_xticks(list(points))
    axes.set_xlabel(label)
    axes.set_ylabel("CPU time of the hierarchy, s")
    axes.set_title(f"(max − min) / median = {flatness.values[0]:.0%}", fontsize="medium")
    axes.grid(axis="y", alpha=0.3)
    drawing.savefig(path, metadata={"Date": None})


def _matplotlib_figure() -> ModuleType:
    try:
        return importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise SystemExit(
            "the figures are drawn by matplotlib; install it: pip install '.[bench]'"
        ) from None
