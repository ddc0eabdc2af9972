"""A bank in columns, killed at a point of a part's commit.

As a program, ``python -m tests.streams.programs.killed_columns`` with ``{"url": …, "point": …,
"count": …}`` as its argument, it is killed with SIGKILL when it comes to the named point for the
``count``-th time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import activedb as adb
from tests.streams.programs.column_bank import TELLING, open_bank

if TYPE_CHECKING:
    from tests.streams.programs.column_bank import OpenBank, Row

BATCHES = 5
_KINDS = ("DEPOSIT", "TRANSFER", "MEAN", "DEPOSIT", "SHARE", "SPREAD", "DEPOSIT", "UNKNOWN")


class Alone:
    """A place with one database, by its URL."""

    def __init__(self, url: str):
        self._url = url

    def open(self, **settings: Any) -> adb.Database:
        """Open it."""
        return adb.connect(self._url, **settings)


def batches() -> list[tuple[list[Row], float]]:
    """Batches of rows, each with a punctuation that leaves some to wait, or finds some late."""
    rows: list[Row] = [
        (_KINDS[n % 8], (n // 8) * 2 + (n * 5) % 4, None, n % 9, (n * 3) % 8, float(n % 11))
        for n in range(BATCHES * 8)
    ]
    # In the fourth batch the database refuses a row, so that goes row by row.
    rows[28] = ("DEPOSIT", 8.0, None, 7, 0, 1_013.0)
    return [(rows[n * 8 : n * 8 + 8], n * 2 + 2.5) for n in range(BATCHES)]


def apply_all(opened: OpenBank) -> None:
    """Hand over all batches, as Spark does after a crash with those that it has not marked."""
    for number, (rows, second) in enumerate(batches()):
        opened.apply(number, rows, second)
    opened.stream.run.finish()


def main(given: dict[str, Any]) -> None:
    reached = 0

    def trigger(point: str) -> None:
        nonlocal reached
        reached += point == given["point"]
        if reached == given["count"]:
            os.kill(os.getpid(), signal.SIGKILL)

    opened = open_bank(Alone(given["url"]), TELLING)
    _ = opened.stream.run
    print("ready", flush=True)
    sys.stdin.readline()
    opened.db._store.trigger = trigger
    apply_all(opened)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
