"""Commits of a workflow's transactions, which keep records and the state in memory in step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from activedb.batches import Forming, Workflow
from activedb.errors import SerializationConflict
from activedb.firing import Launcher
from activedb.store.journals import Recorded, WorkflowJournal
from activedb.transactions import Forest, Node, Run, Transaction
from activedb.workflows._definition import check_unchanged, described
from activedb.workflows._state import WorkflowState, compensation_name, run_name

__all__ = ["WORKFLOW_RUN", "Commits", "Record"]

T = TypeVar("T")

WORKFLOW_RUN = "workflow/"
"""Prefix of the names of the runs of workflows' transactions."""

_DETACHED_MAX = 10_000

Record = Callable[[WorkflowState, Recorded], object]
"""Effect of a transaction on the state of its workflow, applied within its commit."""


class Commits:
    """State of one workflow in memory, updated by the commits of its transactions.

    ```
      body of the transaction, beside others ──► Record, or None
      commit: flush ──► the workflow's row is locked ──► latch ──► Record changes the state
                    ──► its rows are written ──► durable ──► latch is released
                                                        └── failed: the state is read again
    ```

    Commits of one workflow are serialised, in the order of ``place``, so batches are formed in the
    order in which they are recorded, even if programs run in parallel.

    Latch: ``_latch``, taken by the committing thread, after the workflow's row is locked and after
    all other latches, until the commit has ended; no thread reads from the database under it.
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
        self._launcher.batch_firings.remember_done(f"{WORKFLOW_RUN}{self.name}/", self._redoable)
        self.refresh()

    def _redoable(self) -> set[str]:
        """Return the names of the runs that may be repeated after a crash."""
        names = self.look(lambda state: [compensation_name(state.place), *map(run_name, state.due)])
        return {self.redone(name).name for name in names}

    def refresh(self) -> None:
        """Read the state again, if it may differ from the records; O(rows) then."""
        while self._is_stale:
            kept = self._journal.load()
            assert kept is not None
            with self._latch:
                if self._is_stale:
                    self._state = WorkflowState.of(self._workflow, kept)
                    self._is_stale = False

    def look(self, question: Callable[[WorkflowState], T]) -> T:
        """Return the answer of a function of the state, while no commit changes it."""
        while True:
            self.refresh()
            with self._latch:
                if not self._is_stale:
                    return question(self._state)

    def redone(self, name: str) -> Run:
        """Return a run that is repeated after a crash, under the same name."""
        return Run(name=f"{WORKFLOW_RUN}{self.name}/{name}", is_batch=True)

    def run(self, run: Run, work: Callable[[Node], Record | None]) -> None:
        """Run a transaction of the workflow, with the usual retries.

        Parameters
        ----------
        run : Run
        work : callable ``(t)``
            Returns the record to write with its commit; None if nothing was done.
        """
        self._launcher.join_running(running_max=_DETACHED_MAX)
        commit = _Commit(self, run)
        try:
            self._forest.run(lambda t: commit.body(t, work), run)
            commit.ended(well=True)
        finally:
            commit.ended(well=False)
        batch_firings = self._launcher.batch_firings
        if run.is_batch:
            batch_firings.committed(run)
        for given_up in commit.given_up:
            batch_firings.committed(given_up)
            batch_firings.forget_done(given_up.name)
            self._launcher.triggering.exclusive.given_up(given_up.name)


class _Commit:
    """Commit in progress of one transaction, across all its tries. Used by one thread.

    Attributes
    ----------
    given_up : list of Run
        Runs of transactions that are no longer due and were not executed. The independent firings
        that they have triggered are recorded, as for a commit; so are their exclusive rules.
    """

    def __init__(self, commits: Commits, run: Run):
        self.given_up: list[Run] = []
        self._commits = commits
        self._run = run
        self._has_latch = False
        self._was_late = False

    def body(self, t: Node, work: Callable[[Node], Record | None]) -> None:
        commits = self._commits
        self.ended(well=False)  # after an earlier try
        if self._was_late:  # so that it cannot be late again
            Transaction(t).get(commits._journal.table, commits.name, for_update=True)
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
            state.place += 1  # no new rows, but a change
        commits._journal.write(
            connection,
            state.place,
            recorded,
            forming=state.forming.state(),
            due=state.due_record(),
            origins=state.origins,
        )
        batch_firings = commits._launcher.batch_firings
        over = (commits.redone(run_name(id)).name for id in due if id not in state.due)
        self.given_up = [batch_firings.left_by(name) for name in over if name != self._run.name]
        if self._run.is_batch:
            batch_firings.settle(connection, self._run)
        for run in self.given_up:
            batch_firings.settle(connection, run)
            commits._launcher.triggering.exclusive.giving_up(connection, run.name)

    def ended(self, *, well: bool) -> None:
        """Release the latch; unless `well`, mark the state as stale."""
        if self._has_latch:
            self._has_latch = False
            if not well:
                self._commits._is_stale = True
            self._commits._latch.release()
