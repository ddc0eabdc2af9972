"""Firings of detached rules that a stream's batch has triggered."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from activedb.store import Journal
from activedb.transactions import Run

__all__ = ["FiringsOfBatches"]


class FiringsOfBatches:
    """What is known of them until it is all in the database.

    They are started at the event and not recorded there, as the batch is done again after a crash
    and gives them the same names. The commit of the batch records those whose outcome is not
    durable by then.

    Latch: ``_latch``; nothing is taken under it.
    """

    def __init__(self, journal: Journal):
        self._journal = journal
        self._latch = threading.Lock()
        # Those that doing the batch again must not start, and the rows of those whose outcome is
        # not durable yet.
        self._known: set[str] = set()
        self._unfinished: dict[str, dict[str, Any]] = {}
        # Those unfinished ones that a row stands for, because their batch has committed.
        self._settled: set[str] = set()

    def is_known(self, firing: str) -> bool:
        """Whether an earlier try at the batch has started a firing."""
        with self._latch:
            return firing in self._known

    def add(self, triggered: Iterable[str], rows: Mapping[str, dict[str, Any]]) -> None:
        """Take note of what a batch has triggered, and of the rows of what is to run."""
        with self._latch:
            self._known.update(triggered)
            self._unfinished.update(rows)

    def is_unfinished(self, firing: str) -> bool:
        """Whether a firing has no durable outcome yet."""
        with self._latch:
            return firing in self._unfinished

    def is_settled(self, firing: str) -> bool:
        """Whether a row stands for an unfinished firing: its batch will not trigger it again."""
        with self._latch:
            return firing in self._settled

    def is_durable(self, firing: str) -> None:
        """The outcome of a firing is in the database: its batch need not record it any more."""
        with self._latch:
            self._unfinished.pop(firing, None)
            self._settled.discard(firing)

    def remember_done(self, run_prefix: str) -> None:
        """Read which firings of a stream are done although their batch has not committed."""
        done = self._journal.done(run_prefix)
        with self._latch:
            self._known.update(done)

    def settle(self, connection: Any, run: Run) -> None:
        """Within the commit of a batch: record its unfinished firings, forget the done ones."""
        with self._latch:
            rows = [self._unfinished[name] for name in run.fired if name in self._unfinished]
        if self._journal.is_queued:
            # None has been started, so none needs to be found done by a try at the batch.
            rows = [row | {"keep": False} for row in rows]
        self._journal.record_on(connection, rows)
        self._journal.forget_done(connection, sorted(run.fired))

    def committed(self, run: Run) -> None:
        """Take note that a batch has committed and will not be done again."""
        with self._latch:
            self._known -= run.fired
            if self._journal.is_queued:
                for name in run.fired:
                    self._unfinished.pop(name, None)
            self._settled |= run.fired & self._unfinished.keys()

    def forget_done(self, run_prefix: str) -> None:
        """Delete the done firings of a stream's batches, all of which have committed."""
        self._journal.prune(run_prefix)
