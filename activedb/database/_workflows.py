"""The workflows of a database: their definitions, runs and recorded batches."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError, DefinitionError
from activedb.firing import Launcher
from activedb.spelling import did_you_mean
from activedb.store import Store
from activedb.store.journals import WorkflowJournal, workflow_names
from activedb.transactions import Forest

if TYPE_CHECKING:
    from activedb.workflows import BatchHistory, BatchRun, WorkflowDefinition

__all__ = ["Workflows"]


class Workflows:
    """Workflows, which process atomic batches; `activedb.workflows` is imported on first use."""

    def __init__(self, store: Store, forest: Forest, launcher: Launcher):
        self._store = store
        self._forest = forest
        self._launcher = launcher
        self._defined: dict[str, WorkflowDefinition] = {}
        self._runs: dict[str, BatchRun] = {}
        self._opening = threading.Lock()

    def take_over(self, before: Workflows) -> None:
        """Take the definitions over from before a fork."""
        self._defined.update(before._defined)

    def define(
        self,
        name: str,
        /,
        *,
        sources: str | Iterable[str],
        on_failure: str = "stop",
        mode: str = "full",
        allow_interference: bool = False,
    ) -> WorkflowDefinition:
        """Define a workflow; see `Database.workflow`."""
        from activedb.workflows import WorkflowDefinition  # imports networkx, which is slow

        if name in self._defined:
            raise DefinitionError(f"there is a workflow named {name!r} already")
        definition = WorkflowDefinition(
            name,
            sources=sources,
            on_failure=on_failure,
            mode=mode,
            allow_interference=allow_interference,
        )
        self._defined[definition.name] = definition
        return definition

    def open(self, workflow: WorkflowDefinition | str) -> BatchRun:
        """Return the run of a workflow, which takes its batches and resumes where it stopped.

        There is one run per workflow. Define all programs first. Work left by a crash is done by
        the run's ``resume``, or before its next batch.

        Raises
        ------
        ConfigurationError
            If no such workflow is defined here.
        WorkflowError
            If its programs do not form a valid workflow.
        WorkflowChanged
            If the definition differs from the one under which batches were recorded.
        """
        from activedb.workflows import BatchRun

        name = workflow if isinstance(workflow, str) else workflow.name
        definition = self._defined.get(name)
        if definition is None or workflow not in (name, definition):
            raise ConfigurationError(
                f"no workflow {name!r} is defined here: define it with db.workflow(…), or read its "
                f"records with db.workflows.history(…); {did_you_mean(name, self._defined)}"
            )
        with self._opening:
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = BatchRun(
                    definition,
                    forest=self._forest,
                    launcher=self._launcher,
                    journal=WorkflowJournal(self._store, name),
                )
        return run

    def history(self, workflow: str) -> BatchHistory:
        """Return the recorded batches of a workflow, as of now. O(rows).

        The workflow need not be defined here.

        Raises
        ------
        ConfigurationError
            If no batches of the workflow are recorded.
        """
        from activedb.workflows import BatchHistory

        return BatchHistory(self._store, workflow)

    def recorded(self) -> list[str]:
        """Return the names of the workflows with recorded batches."""
        return workflow_names(self._store)
