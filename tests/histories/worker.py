"""A process that works on lists: ``python -m tests.histories.worker '{"url": …}'``.

It says ``ready``, waits for a line, works, and ends; its events go to a file, one write each, so
that those before a SIGKILL are there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import activedb as adb
from tests.databases import in_thread
from tests.histories.history import Recorder
from tests.histories.lists import LISTS
from tests.histories.workload import Client
from tests.patience import PATIENCE_S

THREADS = 2


def main(given: dict[str, Any]) -> None:
    log = os.open(Path(given["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    recorder = Recorder(lambda line: os.write(log, f"{line}\n".encode()))
    with adb.connect(given["url"], lock_timeout_ms=2_000, isolation=given["isolation"]) as db:
        lists = LISTS[given["kind"]](db)
        print("ready", flush=True)
        sys.stdin.readline()
        workers = []
        for number in range(THREADS):
            name = f"{given['name']}{'st'[number]}"
            first = (given["number"] * THREADS + number + 1) * 1_000_000
            client = Client(db, lists, recorder, name, first)
            seed = given["seed"] * 100 + given["number"] * 10 + number
            workers.append(in_thread(client.work, seed, given["transactions"]))
        for worker in workers:
            worker.result(PATIENCE_S)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
