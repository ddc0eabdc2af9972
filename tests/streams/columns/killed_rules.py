"""Rules in columns, killed at a point of a part's commit.

As a program, ``python -m tests.streams.columns.killed_rules`` with ``{"url": …, "point": …,
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
from tests.ledger import event
from tests.streams.columns.watch import Spec, open_watch

if TYPE_CHECKING:
    from activedb import Occurrence
    from tests.streams.columns.watch import Watch

BATCHES = 5
SPECS = (
    Spec(
        adb.seq(adb.event("A"), ~adb.event("N"), adb.event("B")).same("j").within(6),
        raises_at=3,
        counts=True,
    ),
    Spec(
        adb.seq(adb.event("A"), adb.event("B")).within(8).context("chronicle"), writes_number=True
    ),
    Spec(adb.event("C"), coupling="deferred"),
)
"""One that fails, one that uses up events and that the server refuses, one on single events."""


class Alone:
    """A place with one database, by its URL."""

    def __init__(self, url: str):
        self._url = url

    def open(self, **settings: Any) -> adb.Database:
        """Open it."""
        return adb.connect(self._url, **settings)


def batches() -> list[tuple[list[Occurrence], float]]:
    """Batches of events, each with a punctuation that leaves some to wait, or finds some late."""
    events = [
        event(
            "ABACBNAB"[n % 8],
            (n // 8) * 2 + (n * 5) % 4,
            k="u",
            j=n % 2,
            x=n % 3,
            y=0.5,
            s="v",
            n=n,
        )
        for n in range(BATCHES * 8)
    ]
    return [(events[n * 8 : n * 8 + 8], n * 2 + 2) for n in range(BATCHES)]


def apply_all(watch: Watch) -> None:
    """Hand over all batches, as Spark does after a crash with those that it has not marked."""
    for number, (events, second) in enumerate(batches()):
        watch.apply(number, events, second)


def main(given: dict[str, Any]) -> None:
    """Apply all, and be killed."""
    reached = 0

    def trigger(point: str) -> None:
        nonlocal reached
        reached += point == given["point"]
        if reached == given["count"]:
            os.kill(os.getpid(), signal.SIGKILL)

    watch = open_watch(Alone(given["url"]), SPECS, columns=True, batch_events_max=2)
    _ = watch.stream.run
    print("ready", flush=True)
    sys.stdin.readline()
    watch.db._store.trigger = trigger
    apply_all(watch)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
