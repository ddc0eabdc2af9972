"""Ingestion of source batches, which are durable before any program runs on them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from activedb.errors import CheckpointMismatch
from activedb.firing import Launcher, Letter
from activedb.store.journals import Recorded
from activedb.streams import AtomicBatch
from activedb.transactions import Run, Transaction
from activedb.workflows._commits import Commits, Record
from activedb.workflows._rows import rows_of_micro_batch
from activedb.workflows._state import WorkflowState

__all__ = ["Taking"]


class Taking:
    """Ingestion of the source batches of one workflow, each in a separate transaction."""

    def __init__(self, commits: Commits, launcher: Launcher):
        self._commits = commits
        self._launcher = launcher

    def take(self, stream: str, rows: list[Any]) -> str:
        """Take a batch of encoded rows; return its id."""
        taken: list[str] = []

        def record(state: WorkflowState, recorded: Recorded) -> None:
            taken[:] = [state.arrive(recorded, stream, rows).id]

        self._commits.run(Run(), lambda t: record)
        return taken[0]

    def take_micro_batch(self, batch: AtomicBatch) -> str | None:
        """Take a micro-batch, unless it was taken before; see `BatchRun.apply`.

        Raises
        ------
        CheckpointMismatch
            If it does not continue the sequence taken from Spark before.
        """
        rows, bad = rows_of_micro_batch(batch)
        prefix = f"{batch.query_id}.{batch.batch_id}"
        letters = [
            asdict(Letter.of_event(batch.stream, f"{prefix}.{place}", payload, error))
            for place, payload, error in bad
        ]
        taken: list[str | None] = []

        def record(state: WorkflowState, recorded: Recorded) -> None:
            id = state.arrive(recorded, batch.stream, rows).id if rows else None
            state.origins[batch.stream] = [batch.query_id, batch.batch_id, id]
            taken[:] = [id]

        def work(t: Transaction) -> Record | None:
            last = self._commits.look(lambda state: state.origins.get(batch.stream))
            if last is not None and self._is_known(batch, last):
                taken[:] = [last[2] if last[1] == batch.batch_id else None]
                return None
            if letters:
                t.hierarchy.durable.append(
                    lambda connection: self._launcher.journal.write_letters(connection, letters)
                )
            return record

        self._commits.run(Run(), work)
        return taken[0]

    def _is_known(self, batch: AtomicBatch, last: list[Any]) -> bool:
        """Return whether a micro-batch was taken before, given the last one."""
        query_id, number, _ = last
        where = f"source {batch.stream} of workflow {self._commits.name}"
        if query_id != batch.query_id:
            raise CheckpointMismatch(
                f"{where} was fed by the query {query_id} up to its batch {number}, and "
                f"{batch.query_id} would begin anew: go on with that one's checkpoint, or feed a "
                "workflow of another name"
            )
        if batch.batch_id > number + 1:
            raise CheckpointMismatch(
                f"{where} has had batch {number} of query {query_id}, and now comes "
                f"{batch.batch_id}: those between are missing; use the checkpoint that belongs to "
                "this database"
            )
        return batch.batch_id <= int(number)
