"""Shared parts of the programs in this folder: options, schedulers, data, progress, exit statuses.

========== ======================================================
status     meaning
========== ======================================================
0          done
1          the run failed, or its result is not the expected one
2          wrong usage, or missing data
130        interrupted
========== ======================================================
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from activedb.errors import ActiveDBError, ConfigurationError, StreamError
from activedb.scheduling import SerialOrder

if TYPE_CHECKING:
    from activedb.scheduling import Results, Scheduler, STransaction

__all__ = [
    "SCHEDULERS",
    "check_whole",
    "data_folder",
    "exit_status",
    "parser",
    "progress",
    "scheduler",
]

SCHEDULERS = ("serial", "sei", "s2pl", "lwm", "tpg")

_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
_SILENT_S = 2.0


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all programs have.

    Parameters
    ----------
    description : str
        Docstring of the program's module.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--scheduler",
        choices=SCHEDULERS,
        default="serial",
        help="what orders the s-transactions (default: %(default)s); the results are the same",
    )
    made.add_argument(
        "--threads",
        type=_count,
        default=2,
        metavar="N",
        help="threads of a scheduler that has some (default: %(default)s)",
    )
    made.add_argument("--json", action="store_true", help="print one JSON object, no table")
    return made


def scheduler(name: str, threads: int) -> Scheduler:
    """Return a scheduler by its name, one of `SCHEDULERS`."""
    if name == "sei":
        from activedb.scheduling.locking import SEI

        return SEI()
    if name == "s2pl":
        from activedb.scheduling.locking import S2PL

        return S2PL(threads=threads)
    if name == "lwm":
        from activedb.scheduling.locking import LWM

        return LWM(threads=threads)
    if name == "tpg":
        from activedb.scheduling.tpg import TPG

        return TPG(threads=threads)
    return SerialOrder()


def check_whole(results: Results) -> list[STransaction]:
    """Return the s-transactions that aborted, after checking that nothing else failed.

    Raises
    ------
    StreamError
        If an event was refused, or post-processing failed.
    """
    for refusal in results.refused:
        raise StreamError(f"event {refusal.event.id} was refused: {refusal.reason}")
    for failed in results.failed_outputs:
        raise StreamError(f"{failed.transaction!r} has no output: {failed.error!r}")
    return [t for t in results.transactions if t.outcome is None or not t.outcome.committed]


def data_folder(given: Path | None, name: str) -> Path:
    """Return the folder of a data set.

    Parameters
    ----------
    given : Path or None
        Folder that contains all data sets; None: the one in ``ACTIVEDB_DATA``, or
        ``../shared/data`` beside the repository.
    name : str
        Name of the data set's folder.

    Raises
    ------
    ConfigurationError
        If the folder does not exist.
    """
    folder = given or Path(os.environ.get("ACTIVEDB_DATA") or _DATA)
    if not (folder / name).is_dir():
        raise ConfigurationError(
            f"there is no folder {name} in {folder}; name the folder that has it with --data, or "
            "set ACTIVEDB_DATA to it"
        )
    return folder / name


@contextmanager
def progress(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that reports further progress, shown on standard error.

    The progress is a bar on a terminal, otherwise a line every two seconds.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(doing, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda more: bar.advance(task, more)


def exit_status(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a program and return its exit status; errors are printed to standard error."""
    try:
        return run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except ActiveDBError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    except OSError as error:  # an unreadable file
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _lines(doing: str, total: int) -> Callable[[int], None]:
    done = 0
    said_s = time.monotonic()

    def advance(more: int) -> None:
        nonlocal done, said_s
        done += more
        now_s = time.monotonic()
        if now_s - said_s >= _SILENT_S:
            print(f"{doing}: {done:,} of {total:,}", file=sys.stderr)
            said_s = now_s

    return advance
