"""What is recorded of a workflow, for who looks at it: no program of it is needed."""

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
    """A source batch or output.

    Attributes
    ----------
    id, stream, kind : str
    number : int
    state : {"whole", "partially dropped", "dropped", "withdrawn"}
    transaction : str
        Of an output: the transaction that gave it out.
    failed : dict of str to str
        Transactions that it has triggered and that have failed, with the reasons.
    """

    id: str
    stream: str
    kind: str
    number: int
    state: str
    transaction: str
    failed: dict[str, str]

    def record(self) -> dict[str, Any]:
        """It, as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class RecordedLineage:
    """Where a batch or transaction comes from, and what comes from it.

    Attributes
    ----------
    id, state : str
    sources : tuple of str
        The source batches that it is derived from: its scover.
    before, after : tuple of LineageRow
        In the order of recording; not the one asked about.
    """

    id: str
    state: str
    sources: tuple[str, ...]
    before: tuple[LineageRow, ...]
    after: tuple[LineageRow, ...]

    def record(self) -> dict[str, Any]:
        """It, as plain data."""

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
    """The recorded batches of a workflow, as of the moment of opening it.

    Attributes
    ----------
    workflow : Workflow
    lineage : Lineage
        All of it, for the functions of `activedb.batches`.

    Raises
    ------
    ConfigurationError
        If nothing is recorded under that name.
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
        """All source batches and outputs, in the order of recording. O(rows)."""
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
        """Where a batch or transaction comes from and goes to, by one recursive query.

        Raises
        ------
        NotRecorded
            If there is none of this id.
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
        """The least independent cover of a batch; see `activedb.batches.independent_scover`."""
        return independent_scover(self.lineage, id, consecutive=consecutive, rounds=rounds)

    def plan(
        self,
        id: str,
        mode: Mode | str = Mode.FULL,
        *,
        consecutive: bool = False,
        rounds: int | None = None,
    ) -> CompensationPlan:
        """What the compensation of a batch would be; nothing is done. See `plan_compensation`."""
        return plan_compensation(self.lineage, id, mode, consecutive=consecutive, rounds=rounds)

    def draw_svg(self, id: str | None = None, *, plan: CompensationPlan | None = None) -> str:
        """A drawing, of all or of what hangs together with a batch; see `activedb.batches`."""
        return draw_svg(self.lineage, id, plan=plan)
