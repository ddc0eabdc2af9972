"""A program that follows changes, and is killed at a named point of a step.

``python -m tests.changes.follow_program '{"url": …, "point": …, "count": …}'`` is killed with
SIGKILL when its steps come to the point for the ``count``-th time; without a point it follows until
SIGTERM.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from typing import Any

import activedb as adb
from tests.changes.following import hear
from tests.ledger import open_ledger


def main(given: dict[str, Any]) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    left = itertools.count(given.get("count", 0) - 1, -1)

    def trigger(point: str) -> None:
        if point == given.get("point") and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with adb.connect(given["url"]) as db:
        hear(open_ledger(db))
        print("ready", flush=True)
        sys.stdin.readline()
        db._store.trigger = trigger
        db.changes.follow(stop=stop, poll_s=0.02, whole_rows=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
