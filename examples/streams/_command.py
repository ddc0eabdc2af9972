"""Shared command line and report of the programs over generated events."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from _running import SCHEDULERS, parser, progress
from _workload import COLUMNS, Expected, differences, run
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from _columns import GeneratedEvents

    from activedb.scheduling import Program

__all__ = ["even_length", "positive", "ratio", "report", "up_to_ten", "workload_parser"]

N = TypeVar("N", int, float)


def workload_parser(description: str, batch: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all programs over generated events have.

    Parameters
    ----------
    description : str
        Docstring of the program's module.
    batch : int
        Default number of events between two punctuations.
    """
    made = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[parser(description)],
        add_help=False,  # the parent parser has it
        conflict_handler="resolve",  # --scheduler accepts another value
    )
    made.add_argument(
        "--scheduler",
        choices=(*SCHEDULERS, COLUMNS),
        default="serial",
        help="what orders the s-transactions; columns: whole batches, compiled "
        "(default: %(default)s); the results are the same",
    )
    made.add_argument(
        "--events",
        type=_count,
        default=20_000,
        metavar="N",
        help="how many events there are (default: %(default)s)",
    )
    made.add_argument(
        "--skew",
        type=_skew,
        default=0.2,
        metavar="THETA",
        help="how unlike the keys are in use: 0, not at all, to 2 (default: %(default)s)",
    )
    made.add_argument(
        "--aborts",
        type=ratio,
        default=0.01,
        metavar="RATIO",
        help="the share of events that cannot but abort (default: %(default)s)",
    )
    made.add_argument(
        "--disorder",
        type=_count_or_none,
        default=0,
        metavar="N",
        help="how many events may overtake one on their way (default: %(default)s)",
    )
    made.add_argument(
        "--batch",
        type=_count,
        default=batch,
        metavar="N",
        help="arrivals between two punctuations (default: %(default)s)",
    )
    made.add_argument(
        "--seed",
        type=_count_or_none,
        default=1,
        metavar="N",
        help="of the events; the same number, the same events (default: %(default)s)",
    )
    made.add_argument(
        "--check", action="store_true", help="run a plain loop, too; exit with 1 if it differs"
    )
    return made


def report(
    options: argparse.Namespace,
    program: Program,
    events: GeneratedEvents,
    replay: Callable[[GeneratedEvents], Expected],
) -> int:
    """Run a program as the options say, print the result, and return the exit status."""
    if options.scheduler == COLUMNS:
        print("compiling the program", file=sys.stderr)
    with progress("events", len(events)) as advance:
        found = run(
            program,
            events,
            options.scheduler,
            threads=options.threads,
            batch=options.batch,
            advance=advance,
        )
    wrong = []
    if options.check:
        print("checking", file=sys.stderr)
        wrong = differences(found, replay(events))
    committed = sum(found.committed)
    figures: dict[str, Any] = {
        "program": program.name,
        "scheduler": options.scheduler,
        "threads": options.threads,
        "events": len(events),
        "events_per_s": round(len(events) / found.seconds),
        "seconds": round(found.seconds, 3),
        "compiling_s": round(found.compiling_s, 3),
        "committed": committed,
        "aborted": len(found.committed) - committed,
        "outputs": len(found.outputs),
        "check": ("wrong" if wrong else "right") if options.check else "not asked for",
    }
    if options.json:
        print(json.dumps(figures | {"differences": wrong}))
    else:
        _show(figures)
    for text in wrong:
        print(f"error: {text}", file=sys.stderr)
    return 1 if wrong else 0


def _show(figures: Mapping[str, Any]) -> None:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in figures.items():
        is_number = isinstance(value, int | float)
        table.add_row(name.replace("_", " "), f"{value:,}" if is_number else value)
    Console().print(table)


# -- values of options -----------------------------------------------------------------------------


def ratio(text: str) -> float:
    """Return a number from 0 to 1."""
    return _between(float(text), 0, 1)


def positive(text: str) -> float:
    """Return a number above 0 and not above a million."""
    return _between(float(text), 1e-6, 1e6)


def up_to_ten(text: str) -> int:
    """Return a whole number from 1 to 10."""
    return _between(int(text), 1, 10)


def even_length(text: str) -> int:
    """Return an even number from 2 to 10."""
    number = _between(int(text), 2, 10)
    if number % 2:
        raise argparse.ArgumentTypeError("an even number")
    return number


def _skew(text: str) -> float:
    return _between(float(text), 0, 2)


def _count(text: str) -> int:
    return _between(int(text), 1, sys.maxsize)


def _count_or_none(text: str) -> int:
    return _between(int(text), 0, sys.maxsize)


def _between(number: N, low: float, high: float) -> N:
    if not low <= number <= high:  # false for NaN, too
        raise argparse.ArgumentTypeError(f"from {low} to {high}, not {number}")
    return number
