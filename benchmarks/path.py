"""Length of the way through the code: calls, files, changes of room and time of three journeys.

``python -m benchmarks.path`` follows what users' plain code does, in memory:

``update_rule``
    An update in an open transaction, with an immediate rule whose action does nothing.
``feed_sequence``
    ``stream.feed`` of two events, of which the second completes a sequence; a rule updates a row.
``feed_many``
    The same, per event, in a feed of 200 events.
``program_event``
    An event of a program under TPG, in a batch of 200.

A call is the entry into a Python function of the project, on any thread; generators count each
time they go on. A room is a folder, and a change of room is a call from one folder into another.
Counts are taken after a warm-up, and are the same in each run of one commit;
times are medians over rounds, without counting.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from sqlalchemy import Column, Integer, Table

import activedb
from activedb.events import Occurrence, event, occurrence, seq
from activedb.scheduling import TPG, Decision, Program, ProgramRun, SharedTable
from benchmarks._nested_parts import p50
from benchmarks._report import Metric, parser, show

__all__ = ["Counted", "main", "measure"]

_REPOSITORY: Final = Path(__file__).resolve().parents[1]
_ROOMS: Final = tuple(str(_REPOSITORY / name) for name in ("activedb", "lockmgr", "coupling"))
_ROUNDS: Final = 200
_MANY: Final = 200


@dataclass
class Counted:
    """Counter of the calls of one journey.

    Attributes
    ----------
    calls : Counter
        Number of entries by (file, function).
    changes : int
        Calls whose caller is in another folder.
    """

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: int = 0

    @property
    def files(self) -> int:
        """Number of files that the journey enters."""
        return len({file for file, _ in self.calls})

    def add(self, frame: FrameType) -> None:
        """Count the entry into `frame`, if it is the project's."""
        file = frame.f_code.co_filename
        if not file.startswith(_ROOMS):
            return
        self.calls[file, frame.f_code.co_qualname] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(_ROOMS):
            caller = caller.f_back
        if caller is not None and _room(caller) != _room(frame):
            self.changes += 1


def _room(frame: FrameType) -> str:
    return frame.f_code.co_filename.rpartition("/")[0]


class _Meter:
    """Counter of calls on this thread and on all threads that start later."""

    def __init__(self) -> None:
        self._counted: Counted | None = None
        threading.setprofile(self._hear)

    def _hear(self, frame: FrameType, event: str, argument: Any) -> None:
        counted = self._counted
        if counted is not None and event == "call":
            counted.add(frame)

    @contextmanager
    def counting(self) -> Iterator[Counted]:
        self._counted = counted = Counted()
        sys.setprofile(self._hear)
        try:
            yield counted
        finally:
            sys.setprofile(None)
            self._counted = None


_Journey = Callable[[int], object]
"""One journey; called with another number each time."""


@contextmanager
def _update_rule() -> Iterator[_Journey]:
    with closing(activedb.connect("memory://")) as db:
        account = _account(db)

        @db.rule(on=activedb.updated(account))
        def nothing(t: activedb.Transaction, o: Occurrence) -> None:
            pass

        with db.transaction() as t:
            yield lambda number: t.update(account, 1, balance=number)


@contextmanager
def _feed(events: int) -> Iterator[_Journey]:
    with closing(activedb.connect("memory://")) as db:
        account = _account(db)
        stream = db.stream("payments", types={"A": ("key",), "B": ("key",)})

        @db.rule(on=seq(event("A"), event("B")).same("key"))
        def paid(t: activedb.Transaction, o: Occurrence) -> None:
            t.update(account, 1, balance=o.params["key"])

        def feed(number: int) -> None:
            first = number * events
            stream.feed(
                [
                    occurrence("AB"[i % 2], timestamp=(first + i) / 1_000, key=(first + i) // 2)
                    for i in range(events)
                ]
            )

        yield feed


@contextmanager
def _program_event() -> Iterator[_Journey]:
    totals = SharedTable("totals", key=int, initial=0)
    program = Program("totals", [totals])

    @program.on("ADD")
    def add(e: Any, access: Any) -> None:
        access.write(totals[e["key"]], lambda total, n: total + n, e["n"])

    run = ProgramRun(program, TPG(2, Decision()))

    def feed(number: int) -> None:
        first = number * _MANY
        run.feed(
            [occurrence("ADD", timestamp=first + i, key=i % 20, n=i) for i in range(_MANY)],
            (first + _MANY) * 1_000_000,
        )

    yield feed


def _account(db: activedb.Database) -> Table:
    account = Table(
        "account",
        db.metadata,
        Column("number", Integer, primary_key=True),
        Column("balance", Integer, nullable=False),
    )
    db.create_all()
    with db.transaction() as t:
        t.insert(account, {"number": 1, "balance": 0})
    return account


_JOURNEYS: Final = {
    "update_rule": (_update_rule, 1),
    "feed_sequence": (lambda: _feed(2), 1),
    "feed_many": (lambda: _feed(_MANY), _MANY),
    "program_event": (_program_event, _MANY),
}


def measure(runs: int) -> tuple[dict[str, Metric], dict[str, Counted]]:
    """Follow each journey; return its metrics, and its calls by function."""
    meter = _Meter()
    metrics: dict[str, Metric] = {}
    found: dict[str, Counted] = {}
    for name, (opened, events) in _JOURNEYS.items():
        with opened() as journey:
            numbers = iter(range(1, 1_000_000))
            for _ in range(5):
                journey(next(numbers))
            with meter.counting() as counted:
                journey(next(numbers))
            rounds = max(5, _ROUNDS // events)
            times = [[_seconds(journey, next(numbers)) for _ in range(rounds)] for _ in range(runs)]
        found[name] = counted
        metrics |= {
            f"{name}_calls": Metric(
                [counted.calls.total() / events], "calls", smaller_is_better=True
            ),
            f"{name}_rooms": Metric([counted.changes / events], "changes", smaller_is_better=True),
            f"{name}_files": Metric([counted.files], "files", smaller_is_better=True),
            f"{name}_us": Metric(
                [p50(taken) / events * 1e6 for taken in times], "us", smaller_is_better=True
            ),
        }
    threading.setprofile(None)
    return metrics, found


def _seconds(journey: _Journey, number: int) -> float:
    started_s = time.perf_counter()
    journey(number)
    return time.perf_counter() - started_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print table or JSON."""
    line = parser("length of the way")
    line.add_argument("--calls", metavar="JOURNEY", choices=_JOURNEYS, help="list its functions")
    options = line.parse_args(arguments)
    metrics, found = measure(options.runs)
    if options.calls:
        for (file, function), count in found[options.calls].calls.most_common():
            print(f"{count:6} {Path(file).relative_to(_REPOSITORY)} {function}")
        return
    show("length of the way", metrics, as_json=options.json)


if __name__ == "__main__":
    main()
