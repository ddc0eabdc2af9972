"""A bank fed batch by batch, killed at a point of a part's commit.

As a program, ``python -m tests.streams.programs.killed '{"url": …, "point": …, "count": …,
"scheduler": …, "of_query": …}'``, it is killed with SIGKILL when it comes to the named point for
the ``count``-th time. The events come from Python, or in batches of a query, as from Spark.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import activedb as adb
from tests.ledger import Rows, at, event
from tests.streams.programs.bank import events_of, open_bank

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from activedb import Occurrence
    from tests.streams.programs.bank import OpenBank

PART_EVENTS = 4
BATCH_EVENTS = 9
_DRAWN = [
    (kind, second // 2, second % 3, (second * 7) % 3, second % 11)
    for second, kind in enumerate(
        ["DEPOSIT", "DEPOSIT", "TRANSFER", "ENTER", "RECENT", "DEPOSIT", "TRANSFER", "CLOSE"] * 5
    )
]


def events() -> list[Occurrence]:
    """Five batches of events, and a few more."""
    return events_of(_DRAWN)


def feed_from(opened: OpenBank, batch: int) -> None:
    """Feed the batches from this number on, and end the stream."""
    for number, part, punctuation in _batches():
        if number >= batch:
            opened.stream.feed(part, punctuation=punctuation)
    opened.stream.run.finish()


def apply_all(opened: OpenBank) -> None:
    """Hand over all batches, as Spark does after a crash with those that it has not marked."""
    run = opened.stream.run
    for number, part, punctuation in _batches():
        until_us = event("punctuation", 0).us + round((punctuation - at(0)).total_seconds() * 1e6)
        rows = Rows(part, ("k", "to", "n"))
        run.apply(adb.AtomicBatch(opened.stream.name, "query", number, rows, until_us))
    run.finish()


def _batches() -> Iterator[tuple[int, list[Occurrence], datetime]]:
    """Number, events and punctuation of each."""
    found = events()
    for number, start in enumerate(range(0, len(found), BATCH_EVENTS)):
        newest = max(second for _, second, *_ in _DRAWN[: start + BATCH_EVENTS])
        yield number, found[start : start + BATCH_EVENTS], at(newest - 1)


def main(given: dict[str, Any]) -> None:
    reached = 0

    def trigger(point: str) -> None:
        nonlocal reached
        reached += point == given["point"]
        if reached == given["count"]:
            os.kill(os.getpid(), signal.SIGKILL)

    with adb.connect(given["url"], batch_events_max=PART_EVENTS) as db:
        opened = open_bank(db, given["scheduler"])
        _ = opened.stream.run
        print("ready", flush=True)
        sys.stdin.readline()
        db._store.trigger = trigger
        if given["of_query"]:
            apply_all(opened)
        else:
            feed_from(opened, 0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
