"""Firings of detached rules that a stream's batch has triggered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from activedb.errors import SerializationConflict
from activedb.firing._firings import is_lazy
from activedb.store.journals import Journal
from activedb.transactions import Run

__all__ = ["BatchFirings"]


class BatchFirings:
    """Bookkeeping of the firings of batches, until all of it is in the database.

    A batch starts its firings at the event and does not record them there, because after a crash
    the batch is repeated and gives them the same names. The commit of the batch records the
    firings whose outcome is not durable by then.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self, journal: Journal):
        self._journal = journal
        self._latch = threading.Lock()
        # Firings that a repeated batch must not start, with the names of their runs; and the rows
        # of the firings that have not ended.
        self._known: dict[str, str] = {}
        self._refused: set[str] = set()  # known firings that were not recordable
        self._unfinished: dict[str, dict[str, Any]] = {}
        # Unfinished firings that have a row, because their batch has committed.
        self._settled: set[str] = set()
        # Firings that had to leave a row when done; and the rows no longer needed.
        self._staying: set[str] = set()
        self._left_over: set[str] = set()
        self._going: dict[str, set[str]] = {}  # rows that the commit of a run deletes

    def is_known(self, firing: str) -> bool:
        """Return whether an earlier try at the batch has started a firing."""
        with self._latch:
            return firing in self._known

    def add(self, run: Run, triggered: Iterable[str], rows: Mapping[str, dict[str, Any]]) -> None:
        """Note what a batch has triggered, and the rows of the firings that are to run.

        A firing without a row has a dead letter.
        """
        with self._latch:
            for firing in triggered:
                self._known[firing] = run.name
                if firing not in rows:
                    self._refused.add(firing)
            self._unfinished.update(rows)

    def is_unfinished(self, firing: str) -> bool:
        """Return whether a firing has no durable outcome yet."""
        with self._latch:
            return firing in self._unfinished

    def must_stay(self, firing: str) -> bool:
        """Return whether a firing that ends now leaves a row: its batch may trigger it again."""
        with self._latch:
            stays = firing not in self._settled
            (self._staying.add if stays else self._staying.discard)(firing)
            return stays

    def is_durable(self, firing: str) -> None:
        """Note that the outcome of a firing is durable: its batch need not record it any more."""
        with self._latch:
            self._unfinished.pop(firing, None)
            if firing in self._settled:
                self._settled.discard(firing)
                self._leave_over({firing})

    def _leave_over(self, firings: set[str]) -> None:
        """Schedule the leftover rows of firings for deletion with a later commit.

        The batch of the firings has committed and their outcome is durable. A firing that ends
        while its batch commits cannot know whether it will be triggered again, so its row stays
        until then.
        """
        staying = firings & self._staying
        self._staying -= staying
        self._left_over |= staying

    def remember_done(
        self, run_prefix: str, redoable: Callable[[], Collection[str]] | None = None
    ) -> None:
        """Read which firings are done although their batch has not committed.

        Parameters
        ----------
        run_prefix : str
        redoable : callable, optional
            Return the names of the runs that may be repeated; the rows of other runs are deleted
            later. Called after the rows were read, so that a run may safely begin meanwhile.
        """
        done = self._journal.done(run_prefix)
        over: dict[str, str] = {}
        if done and redoable is not None:
            names = redoable()
            over = {firing: run for firing, run in done.items() if run not in names}
        with self._latch:
            self._known |= {firing: run for firing, run in done.items() if firing not in over}
            self._left_over |= over.keys()

    def settle(self, connection: Any, run: Run) -> None:
        """Record the unfinished firings of a batch within its commit, and forget the done ones.

        The commit of a stream's firing does not wait for the disk, because the commit of its batch
        makes it durable. If the server crashes in between and this process survives, the outcome of
        the firing may be lost. The firing has left a row, so a missing row shows the loss.

        Raises
        ------
        SerializationConflict
            If a firing is lost: the batch has to be repeated, and starts it again.
        """
        with self._latch:
            rows = [self._unfinished[name] for name in run.fired if name in self._unfinished]
            ended = run.fired - self._unfinished.keys()
            self._staying -= ended  # their rows go now
            gone = self._going[run.name] = ended | self._left_over
            needed = (ended & self._known.keys()) - self._refused
        if self._journal.is_queued:
            # No firing has been started, so a repeated batch need not find any done.
            rows = [row | {"keep": False} for row in rows]
        self._journal.record_on(connection, rows)
        lost = needed - self._journal.forget_done(connection, sorted(gone))
        if lost and self._journal.is_shared and is_lazy(run.name):
            with self._latch:
                for firing in lost:
                    self._known.pop(firing, None)
            raise SerializationConflict(
                f"{run.name}: the server has crashed and lost {len(lost)} of the rules that the "
                "batch has triggered; they run again"
            )

    def left_by(self, run: str) -> Run:
        """Return a run that is given up, with its unfinished firings. O(unfinished)."""
        with self._latch:
            fired = {name for name, row in self._unfinished.items() if row["run"] == run}
        return Run(name=run, is_batch=True, fired=fired)

    def committed(self, run: Run, *, is_whole: bool = True) -> None:
        """Note that a run has committed and will not be repeated.

        Parameters
        ----------
        is_whole : bool
            True if nothing is left of its batch: then firings of earlier tries that this try has
            not triggered again are no longer needed.
        """
        with self._latch:
            of_run = {firing for firing, name in self._known.items() if name == run.name}
            over = of_run - run.fired - self._unfinished.keys() if is_whole else set()
            for firing in run.fired | over:
                self._known.pop(firing, None)
                self._refused.discard(firing)
            self._left_over |= over
            if self._journal.is_queued:
                for name in run.fired:
                    self._unfinished.pop(name, None)
            self._left_over -= self._going.pop(run.name, set())
            unfinished = run.fired & self._unfinished.keys()
            self._settled |= unfinished
            self._leave_over(run.fired - unfinished)

    def forget_done(self, run: str) -> None:
        """Delete the done firings of runs of this name, unless a run is to be repeated."""
        with self._latch:
            if run in self._known.values():
                return
        self._journal.prune(run)
