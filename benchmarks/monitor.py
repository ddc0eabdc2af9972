"""Cost of the monitor: transactions per second with the monitor off, on, and polled.

``python -m benchmarks.monitor`` measures, all in one run and in turn, how many times a second
``db.run`` updates a row, which triggers an immediate rule whose condition reads it and is true
every second time:

- ``memory_on_per_s``: on ``memory://`` with the monitor on; the peer is the same with it off, so
  the ratio is the remaining share of the rate. At least 0.7 wanted: there is no server that would
  take most of the time, and each transaction has a child, two locks, an event and a rule to be
  recorded.
- ``memory_polled_per_s``: while another process requests the whole state twice a second.
- ``pg_on_per_s``, ``pg_polled_per_s``: the same on Postgres, where most of the time is the
  server's and the disk's; at least 0.95 wanted.
- ``look_ms``: one whole state, in the observed process, with 500 live transactions, 500 locks, and
  the last 500 that have ended.

The server is the one of ``ACTIVEDB_URL``, else an embedded one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import activedb
from activedb.transactions import TransactionNode, begin_subtransaction, current_transaction
from benchmarks._nested_rows import Server, open_server, rows_of
from benchmarks._report import Measurement, Metric, measure_in_turn, parser, show

__all__ = ["Sizes", "main", "measure"]

_ROWS = 100
_POLLER = """
import sys, time
from activedb.monitor import RemoteMonitor
source, since = RemoteMonitor(sys.argv[1]), 0
while True:
    since = source.state(since)["last_seq"]
    print("looked", flush=True)
    time.sleep(0.5)
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Number of transactions, and of looks, in one run."""

    in_memory: int = 2_000
    on_postgres: int = 500
    looks: int = 20


class Workload:
    """A database with a rule, in which one row after the other is updated.

    Parameters
    ----------
    url : str
    name : str
        Name of the table.
    watched : bool
        Whether the monitor is on.
    """

    def __init__(self, url: str, name: str, *, watched: bool, schema: str | None = None):
        self._folder = tempfile.TemporaryDirectory(prefix="activedb-monitor-")
        self.db = activedb.connect(
            url, db_schema=schema, monitor="on" if watched else "off", folder=self._folder.name
        )
        self._rows = rows_of(self.db, name, _ROWS)
        self._made = 0
        self._poller: subprocess.Popen[bytes] | None = None
        rows = self._rows

        def is_even(t: activedb.Transaction, o: activedb.Occurrence) -> bool:
            row = t.get(rows, o.new["id"])
            return row is not None and row["balance"] % 2 == 0

        @self.db.rule(on=activedb.updated(rows, "balance"), when=is_even, name=f"even {name}")
        def even(t: activedb.Transaction, o: activedb.Occurrence) -> None: ...

    def per_s(self, count: int) -> float:
        """Run `count` transactions; return how many there were per second."""
        began = time.perf_counter()
        for _ in range(count):
            self._made += 1
            self.db.run(self._update, self._made % _ROWS, self._made)
        return count / (time.perf_counter() - began)

    def _update(self, t: activedb.Transaction, key: int, balance: int) -> None:
        t.update(self._rows, key, balance=balance)

    def be_polled(self) -> None:
        """Let another process poll the monitor twice a second from now on."""
        monitoring = self.db._monitoring
        assert monitoring is not None
        self._poller = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-c", _POLLER, monitoring.server.url], stdout=subprocess.PIPE
        )
        assert self._poller.stdout is not None
        self._poller.stdout.readline()

    def look_ms(self, count: int) -> float:
        """Look `count` times at 500 live transactions; return the milliseconds of each."""
        monitor = self.db.admin.monitor
        assert monitor is not None
        with ExitStack() as stack:
            top = stack.enter_context(self.db.transaction())
            current = current_transaction()
            assert current is not None
            for _ in range(499):
                stack.enter_context(closing(_Child(current)))
            top.get_many(self._rows, range(_ROWS))
            began = time.perf_counter()
            for _ in range(count):
                monitor.state()
            return 1_000 * (time.perf_counter() - began) / count

    def close(self) -> None:
        """End the poller and close the database."""
        if self._poller is not None:
            self._poller.kill()
            self._poller.wait()
            assert self._poller.stdout is not None
            self._poller.stdout.close()
        self.db.close()
        self._folder.cleanup()


class _Child:
    """A live child that does nothing."""

    def __init__(self, parent: TransactionNode):
        self._child = begin_subtransaction(parent)

    def close(self) -> None:
        self._child._abort()


def measure(runs: int, server: Server, sizes: Sizes | None = None) -> dict[str, Metric]:
    """Measure in memory and on `server`."""
    sizes = sizes or Sizes()
    with ExitStack() as opened:

        def workload(url: str, name: str, *, watched: bool, schema: str | None = None) -> Workload:
            made = Workload(url, name, watched=watched, schema=schema)
            return opened.enter_context(closing(made))

        places: dict[str, tuple[str, str | None, int]] = {
            "memory": ("memory://", None, sizes.in_memory),
            "pg": (server.url, server.schema, sizes.on_postgres),
        }
        measurements = []
        for place, (url, schema, count) in places.items():
            off = workload(url, f"{place}_off", watched=False, schema=schema)
            on = workload(url, f"{place}_on", watched=True, schema=schema)
            polled = workload(url, f"{place}_polled", watched=True, schema=schema)
            polled.be_polled()
            for what, ours in (("on", on), ("polled", polled)):
                measurements.append(
                    Measurement(
                        f"{place}_{what}_per_s",
                        "transactions/s",
                        ours=lambda ours=ours, count=count: ours.per_s(count),  # type: ignore[misc]
                        peer=lambda off=off, count=count: off.per_s(count),  # type: ignore[misc]
                    )
                )
            if place == "memory":
                measurements.append(
                    Measurement(
                        "look_ms",
                        "ms",
                        ours=lambda on=on: on.look_ms(sizes.looks),  # type: ignore[misc]
                        smaller_is_better=True,
                    )
                )
        return measure_in_turn(measurements, runs, "monitor off")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print table or JSON."""
    options = parser("the monitor").parse_args(arguments)
    with open_server() as server:
        if options.json:
            print(server.description, file=sys.stderr)
        metrics = measure(options.runs, server)
    show(f"the monitor ({server.description})", metrics, as_json=options.json)


if __name__ == "__main__":
    main()
