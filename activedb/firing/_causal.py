"""Causally dependent rules, begun while the triggering transaction is live."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from activedb.firing._triggered import RecordedFiring
from activedb.transactions import Run, TransactionNode
from coupling import Coupling

if TYPE_CHECKING:
    from activedb.firing._queue import FiringQueue

__all__ = ["Causal"]


@dataclass(slots=True)
class _Early:
    """A firing that was begun early.

    Attributes
    ----------
    fired : set of str
        Names of the detached firings that it has triggered in any try.
    is_recorded : bool
        True if the triggering transaction has committed, with the firing's row.
    is_over : bool
        True if the early try has ended.
    is_done : bool
        True if the early try has committed, or is not wanted any more.
    """

    fired: set[str]
    is_recorded: bool = False
    is_over: bool = False
    is_done: bool = False


class Causal:
    """Launcher of causally dependent rules at the event, settled by the triggering commit.

    A rule gets one try beside the triggering transaction. If the try fails, the rule is started
    once more after the triggering commit, like a sequential rule: the reason may be outside the
    rule (a deadlock, say), or a value that the triggering transaction has changed before it has
    committed. When the triggering transaction aborts, the try has aborted with it and leaves no
    effects. The firing is over if the triggering work fails for good, or commits without triggering
    the rule again.

    Two kinds of triggering transaction do not begin rules early. The connection of a caller's
    transaction belongs to the caller. In the batch of a stream, no rule runs between events.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self, queue: FiringQueue):
        self._queue = queue
        self._latch = threading.Lock()
        self._early: dict[RecordedFiring, _Early] = {}
        # The firings begun by the tries of each unfinished run, with what they have triggered; and
        # the names of all.
        self._begun: dict[str, dict[str, set[str]]] = {}
        self._unsettled: set[str] = set()
        # What firings begun early have triggered: those that had to leave a row, and those done.
        self._staying: set[str] = set()
        self._done: dict[str, list[str]] = {}

    def begin(self, t: TransactionNode, firings: list[RecordedFiring]) -> None:
        """Begin those of the `firings` in `t` that are causal, on threads of the pool."""
        firings = [each for each in firings if each.triggered.rule.coupling is Coupling.CAUSAL]
        if not firings or t.hierarchy.run.is_batch or not t.hierarchy.lends:
            return
        t.offer()
        with self._latch:
            begun = self._begun.setdefault(t.hierarchy.run.name, {})
            for firing in firings:
                self._early[firing] = _Early(begun.setdefault(firing.name, set()))
                self._unsettled.add(firing.name)
        for firing in firings:
            t.forest.pool.submit(lambda firing=firing: self._run(firing, t))  # type: ignore[misc]

    def has_begun(self, run_name: str) -> bool:
        """Return whether tries of an unfinished run have begun rules early. O(1)."""
        return run_name in self._begun

    def begun(self, run_name: str) -> set[str]:
        """Return the names of the firings that an unfinished run has begun early in any try."""
        if not self.has_begun(run_name):
            return set()
        with self._latch:
            return set(self._begun.get(run_name, ()))

    def is_repeated(self, run: Run) -> bool:
        """Return whether a run is repeated after a crash: it is recorded, or covered by such a one.

        A firing begun early is unrecorded.
        """
        with self._latch:
            return run.is_covered or (run.is_detached and run.name not in self._unsettled)

    def is_unsettled(self, run: Run) -> bool:
        """Return whether a run is a firing begun early whose triggering run is unfinished. O(1)."""
        return run.is_detached and run.name in self._unsettled

    def must_stay(self, firing: str, run: str) -> bool:
        """Return whether a firing of `run` that ends now leaves a row: `run` may trigger it again.

        That is so while `run` is a firing begun early whose triggering run is unfinished.
        """
        with self._latch:
            stays = run in self._unsettled
            (self._staying.add if stays else self._staying.discard)(firing)
            return stays

    def is_durable(self, firing: str, run: str) -> None:
        """Note that the outcome of a firing of `run` is durable."""
        with self._latch:
            if firing not in self._staying:
                return
            self._staying.discard(firing)
            if run in self._unsettled:
                self._done.setdefault(run, []).append(firing)
                return
        self._queue.forget_done([firing])

    def committed(self, firings: list[RecordedFiring]) -> None:
        """Start `firings`, which the triggering commit has recorded, unless they run already."""
        due = []
        for firing in firings:
            with self._latch:
                early = self._early.get(firing)
                if early is not None and not early.is_over:
                    early.is_recorded = True
                    self._queue.expect(firing)
                    continue
                self._early.pop(firing, None)
            if early is not None:
                firing.fired.update(early.fired)
            if early is None or not early.is_done:
                due.append(firing)
        if due:
            self._queue.start(due)

    def aborted(self, firings: list[RecordedFiring]) -> None:
        """Forget the early tries of `firings`, which have aborted with what triggered them."""
        with self._latch:
            for firing in firings:
                self._early.pop(firing, None)

    def settle(self, run_name: str) -> set[str]:
        """Note that a run has ended; return the names of the firings it has begun early."""
        if not self.has_begun(run_name):
            return set()
        with self._latch:
            begun = set(self._begun.pop(run_name, ()))
            self._unsettled -= begun
            done = [firing for name in begun for firing in self._done.pop(name, ())]
        if done:
            self._queue.forget_done(done)
        return begun

    # -- inside ----------------------------------------------------------------------------

    def _run(self, firing: RecordedFiring, t: TransactionNode) -> None:
        is_done = False
        with self._latch:
            early = self._early.get(firing)
        if early is None:
            return  # the triggering transaction has aborted
        # If it fails, what it saw may not be what is committed: only the next try counts.
        with suppress(BaseException):
            is_done = self._queue.run_early(firing, t, early.fired)
        with self._latch:
            if firing not in self._early:
                return
            early.is_over, early.is_done = True, is_done
            if not early.is_recorded:
                return
            del self._early[firing]
        firing.fired.update(early.fired)
        self._queue.try_ended(firing, is_due=not is_done)
