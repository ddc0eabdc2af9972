"""Toll Processing: reports of cars change the average speed and the number of reports of a segment.

A report is an s-transaction of two writes: the average speed of its segment, and the number of its
reports. From their results, post-processing computes the toll, the program's output (after Linear
Road; Mao et al., section 8.1 and algorithm 1). There are 495,120 segments. A report with a negative
speed aborts.

* average: half of the previous average plus half of the speed; at first, the first report's speed,
* toll: nothing on a segment whose average speed is 40 or more, otherwise twice the square of the
  number of reports after the first. (Linear Road starts to count at 50 cars a minute, on far fewer
  segments.)

With ``--check``, a plain loop over the same events must give the same averages, numbers, aborts and
tolls.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from _columns import GeneratedEvents, Skewed, aborting, times
from _command import even_length, report, workload_parser
from _delays import delayed
from _running import exit_status
from _workload import Expected

from activedb.scheduling import Access, Outcome, Program, SharedTable

if TYPE_CHECKING:
    import argparse

SEGMENTS = 495_120
BATCH = 40_960  # events between two punctuations
LENGTH = 2  # writes of a report
SPEED_MAX = 100
FREE_SPEED = 40.0  # average speed from which there is no toll


# -- the program -----------------------------------------------------------------------------------


def program(segments: int = SEGMENTS, length: int = LENGTH, turns: int = 0) -> Program:
    """Return the program, with separate tables; outputs are the tolls of committed reports.

    Parameters
    ----------
    segments : int
        Number of segments.
    length : int
        Writes of a report, an even number: two for each of its segments.
    turns : int
        Iterations of the loop that slows each function down; see `delayed`.
    """
    speeds = SharedTable("speeds", initial=0, size=segments)
    counts = SharedTable("counts", initial=0, size=segments)
    tolls = Program("toll_processing", [speeds, counts])
    averages, counted = delayed(average, turns), delayed(one_more, turns)

    @tolls.on("REPORT")
    def reports(e: Mapping[str, Any], access: Access) -> None:
        for part in range(length // 2):
            segment = e[f"segment{part}"]
            access.write(speeds[segment], averages, e[f"speed{part}"])
            access.write(counts[segment], counted)

    @tolls.post_process
    def charges(type_: str, e: Mapping[str, Any], outcome: Outcome) -> float | None:
        if not outcome.committed:
            return None
        results = iter(outcome.results)
        return sum(toll(speed, count) for speed, count in zip(results, results, strict=True))

    return tolls


def average(before: float, speed: float) -> float | None:
    """Return the average speed after a report."""
    if speed < 0:
        return None
    if before == 0:
        return speed
    return (before + speed) / 2


def one_more(count: float) -> float:
    """Return the number of reports after one more."""
    return count + 1


def toll(speed: float, count: float) -> float:
    """Return the toll for a segment, or an array of tolls; branch-free, so that arrays work."""
    return 2 * (count - 1) ** 2 * (speed < FREE_SPEED)


# -- the events ------------------------------------------------------------------------------------


def columns(
    events: int,
    *,
    segments: int = SEGMENTS,
    length: int = LENGTH,
    skew: float = 0.2,
    aborts: float = 0.01,
    disorder: int = 0,
    seed: int = 1,
) -> GeneratedEvents:
    """Return generated events.

    Parameters
    ----------
    events : int
        Number of events.
    segments, length : int
        As for `program`; at least ``length / 2`` segments.
    skew : float
        Theta of the segments, see `Skewed`.
    aborts : float
        Share of reports with a negative speed.
    disorder : int
        Number of events that may overtake one.
    seed : int
        Seed of the generator.
    """
    rng = np.random.default_rng(seed)
    bad = aborting(rng, events, aborts)
    params: dict[str, Any] = {}
    for part, column in enumerate(Skewed(rng, segments, skew).distinct(events, length // 2)):
        params[f"segment{part}"] = column
        speeds = rng.integers(1, SPEED_MAX, events, endpoint=True).astype(np.float64)
        params[f"speed{part}"] = np.where(bad, -1.0, speeds)
    codes = np.zeros(events, np.int64)
    made = GeneratedEvents({"REPORT": tuple(params)}, codes, times(events), params)
    return made.late(rng, disorder)


# -- the check -------------------------------------------------------------------------------------


def replay(events: GeneratedEvents, segments: int = SEGMENTS) -> Expected:
    """Return the expected result of events, computed by a plain loop."""
    ordered = events.in_order()
    rows = {name: column.tolist() for name, column in ordered.params.items()}
    parts = range(len(rows) // 2)
    speeds, counts = [0.0] * segments, [0.0] * segments
    committed, outputs = [], []
    for row in range(len(ordered)):
        reported = [(rows[f"segment{part}"][row], rows[f"speed{part}"][row]) for part in parts]
        right = all(speed >= 0 for _, speed in reported)
        committed.append(right)
        if not right:
            continue
        paid = 0.0
        for segment, speed in reported:
            speeds[segment] = (speeds[segment] + speed) / 2 if speeds[segment] else speed
            counts[segment] += 1
            if speeds[segment] < 40:
                paid += 2 * (counts[segment] - 1) * (counts[segment] - 1)
        outputs.append(paid)
    totals = {"counts": float(sum(committed) * len(parts))}
    return Expected(committed, {"speeds": speeds, "counts": counts}, outputs, totals)


# -- the command -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    options = workload_parser(__doc__ or "", batch=BATCH)
    options.add_argument(
        "--length",
        type=even_length,
        default=LENGTH,
        metavar="N",
        help="writes of a report, 2, 4, 6, 8 or 10: two per segment (default: %(default)s)",
    )
    return exit_status(_command, options.parse_args(arguments))


def _command(options: argparse.Namespace) -> int:
    events = columns(
        options.events,
        length=options.length,
        skew=options.skew,
        aborts=options.aborts,
        disorder=options.disorder,
        seed=options.seed,
    )
    return report(options, program(length=options.length), events, replay)


if __name__ == "__main__":
    sys.exit(main())
