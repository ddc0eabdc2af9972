"""Firings of detached rules that a stream's batch has triggered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from activedb.errors import SerializationConflict
from activedb.firing._firings import is_lazy
from activedb.store.journals import Journal
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
        # Those that doing the batch again must not start, with the names of their runs; and the
        # rows of those that have not ended.
        self._known: dict[str, str] = {}
        self._refused: set[str] = set()  # of the known ones: those that could not be recorded
        self._unfinished: dict[str, dict[str, Any]] = {}
        # Those unfinished ones that a row stands for, because their batch has committed.
        self._settled: set[str] = set()
        # Those that were to leave a row when done, and those of them that nobody needs any more.
        self._staying: set[str] = set()
        self._left_over: set[str] = set()
        self._going: dict[str, set[str]] = {}  # rows that the commit of a run deletes

    def is_known(self, firing: str) -> bool:
        """Whether an earlier try at the batch has started a firing."""
        with self._latch:
            return firing in self._known

    def add(self, run: Run, triggered: Iterable[str], rows: Mapping[str, dict[str, Any]]) -> None:
        """Take note of what a batch has triggered, and of the rows of what is to run.

        Of what has no row there is a letter.
        """
        with self._latch:
            for firing in triggered:
                self._known[firing] = run.name
                if firing not in rows:
                    self._refused.add(firing)
            self._unfinished.update(rows)

    def is_unfinished(self, firing: str) -> bool:
        """Whether a firing has no durable outcome yet."""
        with self._latch:
            return firing in self._unfinished

    def must_stay(self, firing: str) -> bool:
        """Whether a firing that ends now leaves a row: its batch may trigger it again."""
        with self._latch:
            stays = firing not in self._settled
            (self._staying.add if stays else self._staying.discard)(firing)
            return stays

    def is_durable(self, firing: str) -> None:
        """The outcome of a firing is in the database: its batch need not record it any more."""
        with self._latch:
            self._unfinished.pop(firing, None)
            if firing in self._settled:
                self._settled.discard(firing)
                self._leave_over({firing})

    def _leave_over(self, firings: set[str]) -> None:
        """Of firings whose batch has committed and whose outcome is durable: what rows stayed.

        A firing that ends while its batch commits cannot know whether it will be triggered again,
        so its row stays, and goes with a later commit.
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
            The runs that may be done again, by name; what others have left is forgotten later. It
            is called after the rows were read, so that a run which begins meanwhile is no harm.
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
        """Within the commit of a batch: record its unfinished firings, forget the done ones.

        A firing of a stream does not wait for the disk when it commits, as its batch's commit sees
        to that. So if the server crashes in between and this process lives on, its outcome may be
        lost. It has left a row, which must be there.

        Raises
        ------
        SerializationConflict
            If one is lost: the batch is to be done again, and starts it again.
        """
        with self._latch:
            rows = [self._unfinished[name] for name in run.fired if name in self._unfinished]
            ended = run.fired - self._unfinished.keys()
            self._staying -= ended  # their rows go now
            gone = self._going[run.name] = ended | self._left_over
            needed = (ended & self._known.keys()) - self._refused
        if self._journal.is_queued:
            # None has been started, so none needs to be found done by a try at the batch.
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
        """A run that is given up, with what it has triggered and is not done. O(unfinished)."""
        with self._latch:
            fired = {name for name, row in self._unfinished.items() if row["run"] == run}
        return Run(name=run, is_batch=True, fired=fired)

    def committed(self, run: Run, *, is_whole: bool = True) -> None:
        """Take note that a run has committed and will not be done again.

        Parameters
        ----------
        is_whole : bool
            Whether nothing is left of its batch: then what earlier tries have done, and this one
            has not triggered again, is needed no more.
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
        """Delete the done firings of runs of this name, unless one is to be done again."""
        with self._latch:
            if run in self._known.values():
                return
        self._journal.prune(run)
