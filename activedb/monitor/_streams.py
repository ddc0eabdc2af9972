"""State of the streams, read without blocking the caller on the database."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from activedb.streams import StreamDeclaration

__all__ = ["Totals", "stream_rows"]

_LOG = logging.getLogger(__name__)
_EVERY_S = 2.0
_FIRST_LOOK_S = 1.0
_LAST_LOOK_S = 5.0


class Totals:
    """Recorded totals of each stream since it began: events, late and dead ones, open decisions.

    They are read on a separate thread, at most every two seconds and only while some client asks,
    as the database may be slow; in the meantime the previous totals are returned.

    Latch: ``_latch``; no other latch or lock is taken under it.
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._known: dict[str, dict[str, int]] = {}
        self._read_at_s = -_EVERY_S
        self._is_reading = False
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Wait for the thread that reads the database, if there is one."""
        with self._latch:
            thread = self._thread
        if thread is not None:
            thread.join(_LAST_LOOK_S)

    def of(self, runs: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """Return the totals by stream. The first call waits at most a second for the database."""
        with self._latch:
            is_due = time.monotonic() - self._read_at_s >= _EVERY_S and not self._is_reading
            is_due = is_due and bool(runs)
            self._is_reading |= is_due
            is_first = runs.keys() > self._known.keys()
        if is_due:
            thread = threading.Thread(
                target=self._read, args=(dict(runs),), name="activedb-totals", daemon=True
            )
            with self._latch:  # so that close() finds a thread that has begun
                self._thread = thread
                thread.start()
            if is_first:
                thread.join(_FIRST_LOOK_S)
        with self._latch:
            return dict(self._known)

    def _read(self, runs: Mapping[str, Any]) -> None:
        found: dict[str, dict[str, int]] = {}
        try:
            for name, run in runs.items():
                found[name] = {**run.totals(), "undecided": run.undecided()}
        except Exception:
            # The server may be away, or the database closed; the previous totals are returned then.
            _LOG.debug("cannot read the totals of streams", exc_info=True)
        finally:
            with self._latch:
                self._known.update(found)
                self._read_at_s = time.monotonic()
                self._is_reading = False


def stream_rows(
    streams: Mapping[str, StreamDeclaration],
    runs: Mapping[str, Any],
    totals: Mapping[str, Mapping[str, int]],
    now_s: float,
) -> list[dict[str, Any]]:
    """Return the state of each stream; O(streams)."""
    rows = []
    for name in list(streams):
        run, total = runs.get(name), totals.get(name, {})
        # Read while another thread feeds the stream: an entry of the ledger does not change.
        last = None if run is None else run.last
        punctuation_s = None
        if last is not None and last.punctuation_us is not None:
            punctuation_s = last.punctuation_us / 1e6
        rows.append(
            {
                "name": name,
                "events": total.get("events", 0),
                "late": total.get("late", 0),
                "dead": total.get("dead", 0),
                "undecided": total.get("undecided", 0),
                "waiting": 0 if run is None else run.waiting,
                "batches": 0 if last is None else last.batch_id + 1,
                "punctuation_s": punctuation_s,
                "behind_s": None if punctuation_s is None else max(0.0, now_s - punctuation_s),
            }
        )
    return rows
