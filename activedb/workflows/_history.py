"""Read-only view of a recorded workflow, which needs none of its programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from activedb.batches import (
    BatchKind,
    CompensationPlan,
    Cover,
    Mode,
    draw_svg,
    independent_scover,
    plan_compensation,
)
from activedb.errors import ConfigurationError, NotRecorded
from activedb.spelling import did_you_mean
from activedb.store.journals import LineageRow, WorkflowJournal, workflow_names
from activedb.store.session import Store
from activedb.workflows._definition import workflow_of
from activedb.workflows._state import lineage_of_kept

__all__ = ["BatchHistory", "RecordedBatch", "RecordedLineage"]


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """Recorded source batch or output batch.

    Attributes
    ----------
    id, stream, kind : str
    number : int
    state : {"whole", "partially dropped", "dropped", "withdrawn"}
    transaction : str
        The transaction that produced an output batch.
    failed : dict of str to str
        Failed transactions triggered by the batch, with the reasons.
    """

    id: str
    stream: str
    kind: str
    number: int
    state: str
    transaction: str
    failed: dict[str, str]

    def record(self) -> dict[str, Any]:
        """Return the batch as a JSON-serialisable dict."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class RecordedLineage:
    """Recorded ancestors and descendants of a batch or transaction.

    Attributes
    ----------
    id, state : str
    sources : tuple of str
        The source batches from which it is derived: its scover.
    before, after : tuple of LineageRow
        Ancestors and descendants in the order of recording, without the item itself.
    """

    id: str
    state: str
    sources: tuple[str, ...]
    before: tuple[LineageRow, ...]
    after: tuple[LineageRow, ...]

    def record(self) -> dict[str, Any]:
        """Return the lineage as a JSON-serialisable dict."""

        def plain(row: LineageRow) -> dict[str, Any]:
            return {
                "id": row.id,
                "kind": row.kind,
                "of": row.name,
                "number": row.number,
                "state": row.state,
            }

        return {
            "id": self.id,
            "state": self.state,
            "sources": list(self.sources),
            "before": [plain(row) for row in self.before],
            "after": [plain(row) for row in self.after],
        }


class BatchHistory:
    """Recorded batches of a workflow, as of the creation of this object.

    Attributes
    ----------
    workflow : Workflow
    lineage : Lineage
        The whole lineage, for the functions of `activedb.batches`.

    Raises
    ------
    ConfigurationError
        If no workflow is recorded under that name.
    """

    def __init__(self, store: Store, name: str):
        self.name = name
        self._journal = WorkflowJournal(store, name)
        kept = self._journal.load()
        if kept is None:
            raise ConfigurationError(
                f"no batches of a workflow {name!r} are recorded; "
                + did_you_mean(name, workflow_names(store))
            )
        self.workflow = workflow_of(kept.definition)
        self.lineage = lineage_of_kept(self.workflow, kept.nodes)
        self._states = {row["id"]: row["state"] for row in kept.nodes}
        self._reasons = {row["id"]: row.get("reason") for row in kept.nodes}

    def batches(self) -> list[RecordedBatch]:
        """Return all source and output batches, in the order of recording. O(rows)."""
        failed: dict[str, dict[str, str]] = {}
        for transaction in self.lineage.transactions():
            reason = self._reasons[transaction.id]
            if reason is not None:
                for id in self.lineage.ancestors(transaction.id):
                    failed.setdefault(id, {})[transaction.id] = reason
        return [
            RecordedBatch(
                batch.id,
                batch.stream,
                str(batch.kind),
                batch.number,
                self._states[batch.id],
                batch.producer,
                failed.get(batch.id, {}),
            )
            for batch in self.lineage.batches()
            if batch.kind is not BatchKind.INPUT
        ]

    def trace(self, id: str) -> RecordedLineage:
        """Return the ancestors and descendants of a batch or transaction, by one recursive query.

        Raises
        ------
        NotRecorded
            If no batch or transaction has this id.
        """
        rows = self._journal.lineage(id)
        own = next((row for row in rows if row.id == id), None)
        if own is None:
            raise NotRecorded(
                f"no batch or transaction {id!r} of workflow {self.name} is recorded; "
                + did_you_mean(id, self._states)
            )
        before = tuple(row for row in rows if row.is_before)
        return RecordedLineage(
            id,
            own.state,
            tuple(row.id for row in before if row.kind == BatchKind.SOURCE),
            tuple(row for row in before if row.id != id),
            tuple(row for row in rows if not row.is_before and row.id != id),
        )

    def cover(self, id: str, *, consecutive: bool = False, rounds: int | None = None) -> Cover:
        """Return the least independent cover of a batch; see `independent_scover`."""
        return independent_scover(self.lineage, id, consecutive=consecutive, rounds=rounds)

    def plan(
        self,
        id: str,
        mode: Mode | str = Mode.FULL,
        *,
        consecutive: bool = False,
        rounds: int | None = None,
    ) -> CompensationPlan:
        """Return the plan for a compensation, without executing it; see `plan_compensation`."""
        return plan_compensation(self.lineage, id, mode, consecutive=consecutive, rounds=rounds)

    def draw_svg(self, id: str | None = None, *, plan: CompensationPlan | None = None) -> str:
        """Return a drawing of all batches, or those connected with one; see `activedb.batches`."""
        return draw_svg(self.lineage, id, plan=plan)
