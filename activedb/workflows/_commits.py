"""Commits of a workflow's transactions: what they record, and the state in memory, go together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from activedb.batches import Forming, Workflow
from activedb.errors import SerializationConflict
from activedb.firing import Launcher
from activedb.store.journals import Recorded, WorkflowJournal
from activedb.transactions import Forest, Run, Transaction
from activedb.workflows._definition import check_unchanged, described
from activedb.workflows._state import WorkflowState, compensation_name, run_name

__all__ = ["WORKFLOW_RUN", "Commits", "Record"]

T = TypeVar("T")

WORKFLOW_RUN = "workflow/"
"""What the names of the runs of workflows' transactions begin with."""

_DETACHED_MAX = 10_000

Record = Callable[[WorkflowState, Recorded], object]
"""What a transaction does to the state of its workflow, within its commit."""


class Commits:
    """The state of one workflow in memory, which follows what commits.

    ```
      body of the transaction, beside others ──► Record, or None
      commit: flush ──► the workflow's row is locked ──► latch ──► Record changes the state
                    ──► its rows are written ──► durable ──► latch is let go
                                                        └── ended badly: the state is read anew
    ```

    Commits of one workflow come one after another, in the order of ``place``; so the order in
    which batches are formed is that in which they are recorded, also where programs run in
    parallel.

    Latch: ``_latch``, taken by the thread that commits, after the workflow's row is locked and
    beneath everything else, until the commit has ended; nothing is read from the database under it.
    """

    def __init__(
        self,
        name: str,
        workflow: Workflow,
        *,
        forest: Forest,
        launcher: Launcher,
        journal: WorkflowJournal,
    ):
        self.name = name
        self._workflow = workflow
        self._forest = forest
        self._launcher = launcher
        self._journal = journal
        self._latch = threading.RLock()
        self._is_stale = True
        self._state: WorkflowState
        self._begin()

    def _begin(self) -> None:
        definition = described(self._workflow)
        self._journal.begin(definition, Forming(self._workflow).state())
        kept = self._journal.load()
        assert kept is not None
        check_unchanged(self.name, kept.definition, definition)
        if kept.definition != definition:
            self._journal.redefine(definition)
        self._launcher.of_batches.remember_done(f"{WORKFLOW_RUN}{self.name}/", self._redoable)
        self.refresh()

    def _redoable(self) -> set[str]:
        """The names of the runs that may be done again after a crash."""
        names = self.look(lambda state: [compensation_name(state.place), *map(run_name, state.due)])
        return {self.redone(name).name for name in names}

    def refresh(self) -> None:
        """Read the state anew, if it may not be what is recorded. O(rows) then."""
        while self._is_stale:
            kept = self._journal.load()
            assert kept is not None
            with self._latch:
                if self._is_stale:
                    self._state = WorkflowState.of(self._workflow, kept)
                    self._is_stale = False

    def look(self, question: Callable[[WorkflowState], T]) -> T:
        """Ask the state something, while nothing commits."""
        while True:
            self.refresh()
            with self._latch:
                if not self._is_stale:
                    return question(self._state)

    def redone(self, name: str) -> Run:
        """A run that is done again after a crash, under the same name."""
        return Run(name=f"{WORKFLOW_RUN}{self.name}/{name}", is_batch=True)

    def run(self, run: Run, work: Callable[[Transaction], Record | None]) -> None:
        """Run a transaction of the workflow, tried again as any other.

        Parameters
        ----------
        run : Run
        work : callable ``(t)``
            Returns what is to be recorded with its commit; None: nothing was done.
        """
        self._launcher.join_running(running_max=_DETACHED_MAX)
        commit = _Commit(self, run)
        try:
            self._forest.run(lambda t: commit.body(t, work), run)
            commit.ended(well=True)
        finally:
            commit.ended(well=False)
        of_batches = self._launcher.of_batches
        if run.is_batch:
            of_batches.committed(run)
        for given_up in commit.given_up:
            of_batches.committed(given_up)
            of_batches.forget_done(given_up.name)
            self._launcher.triggering.given_up(given_up.name)


class _Commit:
    """One transaction on its way, with all its tries. Used by one thread.

    Attributes
    ----------
    given_up : list of Run
        Those of transactions that are not due any more, and were not executed: what they have
        triggered and is independent of them is recorded, as that of one which commits; so is what
        waits for them to come to nothing.
    """

    def __init__(self, commits: Commits, run: Run):
        self.given_up: list[Run] = []
        self._commits = commits
        self._run = run
        self._has_latch = False
        self._was_late = False

    def body(self, t: Transaction, work: Callable[[Transaction], Record | None]) -> None:
        commits = self._commits
        self.ended(well=False)  # an earlier try
        if self._was_late:  # so that it cannot be again
            t.get(commits._journal.table, commits.name, for_update=True)
        commits.refresh()
        record = work(t)
        if record is not None:
            t.hierarchy.durable.append(lambda connection: self._write(connection, record))

    def _write(self, connection: Any, record: Record) -> None:
        commits = self._commits
        assert not self._has_latch
        place = commits._journal.lock(connection)
        commits._latch.acquire()
        self._has_latch = True
        if commits._is_stale or commits._state.place != place:
            self._was_late = True
            raise SerializationConflict(
                f"another transaction of workflow {commits.name} came in between: what is recorded "
                "is read anew, and this is tried again"
            )
        state, recorded = commits._state, Recorded()
        due = list(state.due)
        record(state, recorded)
        if state.place == place:
            state.place += 1  # it has recorded nothing new, but changed something
        commits._journal.write(
            connection,
            state.place,
            recorded,
            forming=state.forming.state(),
            due=state.due_record(),
            origins=state.origins,
        )
        of_batches = commits._launcher.of_batches
        over = (commits.redone(run_name(id)).name for id in due if id not in state.due)
        self.given_up = [of_batches.left_by(name) for name in over if name != self._run.name]
        if self._run.is_batch:
            of_batches.settle(connection, self._run)
        for run in self.given_up:
            of_batches.settle(connection, run)
            commits._launcher.triggering.giving_up(connection, run.name)

    def ended(self, *, well: bool) -> None:
        """Let go of the latch; the state is what is recorded only if it has ended well."""
        if self._has_latch:
            self._has_latch = False
            if not well:
                self._commits._is_stale = True
            self._commits._latch.release()
