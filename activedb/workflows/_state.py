"""Where a workflow stands: its lineage, what waits to be formed, what is due."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activedb.batches import (
    Batch,
    BatchKind,
    CompensationPlan,
    Due,
    Forming,
    Lineage,
    Piece,
    Standing,
    State,
    Transaction,
    Workflow,
    standing,
)
from activedb.store.journals import Kept, Recorded
from activedb.workflows._forgetting import forgettable, without

__all__ = [
    "GIVEN_UP",
    "WHOLE",
    "WorkflowState",
    "compensation_name",
    "id_of",
    "lineage_of_kept",
    "run_name",
]

WHOLE = "whole"
"""The state of a batch that is recorded, and nothing of it dropped."""
GIVEN_UP = "given up"
"""The state of a transaction that has failed and will not be executed; it counts as compensated."""

_STATES = {
    Standing.DROPPED: "dropped",
    Standing.PARTIALLY_DROPPED: "partially dropped",
    Standing.WITHDRAWN: "withdrawn",
}


def id_of(due: Due) -> str:
    """The id that the transaction has, or will have."""
    return f"{due.program}#{due.number}"


def run_name(id: str) -> str:
    """What the run of a transaction is called within its workflow: names of runs have no ``#``."""
    return id.replace("#", "/")


def compensation_name(place: int) -> str:
    """The same of a compensation that begins when so much is recorded."""
    return f"compensation/{place}"


def lineage_of_kept(workflow: Workflow, nodes: Iterable[Mapping[str, Any]]) -> Lineage:
    """The lineage of what is recorded. O(rows)."""
    records: list[dict[str, Any]] = []
    for row in nodes:
        if "program" in row:
            state = State.COMPENSATED if row["state"] == GIVEN_UP else row["state"]
            records.append({**row, "transaction": row["id"], "state": state})
        else:
            records.append({**row, "batch": row["id"]})
    return Lineage.of(workflow, records)


@dataclass(slots=True)
class WorkflowState:
    """A workflow between two of its transactions.

    Each method is what one transaction does to it, and fills in what that one records. They are
    called within its commit; if that comes to nothing, the state is read anew.

    Attributes
    ----------
    workflow : Workflow
    lineage : Lineage
    forming : Forming
    due : dict of str to Due
        By the ids of the transactions.
    place : int
        How much has been recorded.
    origins : dict of str to list
        By source stream: query id and number of the last micro-batch from Spark, and its batch.
    cut : set of str
        What is recorded, though something that followed from it, and stands, was forgotten.
    """

    workflow: Workflow
    lineage: Lineage
    forming: Forming
    due: dict[str, Due] = field(default_factory=dict)
    place: int = 0
    origins: dict[str, Any] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, workflow: Workflow, kept: Kept) -> WorkflowState:
        """As it was recorded. O(rows)."""
        due = [
            Due(program, number, tuple(tuple(Piece(*p) for p in pieces) for pieces in inputs))
            for program, number, inputs in kept.due
        ]
        return cls(
            workflow,
            lineage_of_kept(workflow, kept.nodes),
            Forming(workflow, kept.forming),
            {id_of(each): each for each in due},
            kept.place,
            dict(kept.origins),
            kept.cut,
        )

    def due_record(self) -> list[Any]:
        """What is due, as plain data."""
        return [
            [each.program, each.number, [[list(piece) for piece in ps] for ps in each.inputs]]
            for each in self.due.values()
        ]

    def next_due(self) -> Due | None:
        """What is to be executed first: by program, then by number. O(due)."""
        rank = self.workflow.rank
        return min(self.due.values(), key=lambda d: (rank(d.program), d.number), default=None)

    def is_usable(self, piece: Piece) -> bool:
        """Whether what a transaction is due with is still there."""
        batch = self.lineage.batch(piece.batch)
        if batch.is_withdrawn:
            return False
        return not batch.producer or self.lineage.transaction(batch.producer).is_live

    # -- what transactions do to it ----------------------------------------------------------

    def arrive(self, recorded: Recorded, stream: str, rows: list[Any]) -> Batch:
        """A source batch has come."""
        batch = self.lineage.arrive(stream)
        self._add_batch(recorded, batch, rows)
        self._offered(self.forming.offer(batch))
        return batch

    def executed(self, recorded: Recorded, due: Due, rows: list[Any] | None) -> Transaction:
        """A transaction that was due was executed, and has given out rows, or nothing."""
        id, output = id_of(due), None if rows is not None else ""
        del self.due[id]
        if id in self.lineage:  # it has failed before
            transaction = self.lineage.succeed(id, output=output)
            changed = {"state": str(State.EXECUTED), "reason": None, "output": transaction.output}
            recorded.of_transactions[id] = changed
        else:
            transaction = self.lineage.execute(
                due.program, due.inputs, number=due.number, output=output
            )
            self._add_transaction(recorded, transaction)
        self._give_out(recorded, transaction, rows)
        return transaction

    def called(
        self,
        recorded: Recorded,
        program: str,
        triggered_by: Sequence[str],
        arguments: Any,
        rows: list[Any] | None,
    ) -> Transaction:
        """An OLTP program was executed."""
        transaction = self.lineage.execute(
            program, output=None if rows is not None else "", triggered_by=triggered_by
        )
        self._add_transaction(recorded, transaction, arguments=arguments)
        self._give_out(recorded, transaction, rows)
        return transaction

    def failed(self, recorded: Recorded, due: Due, reason: str) -> None:
        """A transaction that was due has failed; it stays due."""
        id = id_of(due)
        if id in self.lineage:
            recorded.of_transactions[id] = {"reason": reason}
            return
        transaction = self.lineage.fail(due.program, due.inputs, number=due.number)
        self._add_transaction(recorded, transaction, reason=reason)

    def give_up(self, recorded: Recorded, due: Due, reason: str) -> None:
        """A transaction that was due has failed, and nobody's completion depends on it."""
        id = id_of(due)
        self.failed(recorded, due, reason)
        self.lineage.compensate([id])
        for row in (*recorded.transactions, *recorded.of_transactions.values()):
            row["state"] = GIVEN_UP
        del self.due[id]
        self._offered(self.forming.skip(due.program, due.number))
        self._restate(recorded, self.lineage.sources_of(id))

    def compensated(self, recorded: Recorded, plan: CompensationPlan) -> None:
        """A plan was carried out. O(edges of what it is about, and due)."""
        lineage = self.lineage
        lineage.compensate(plan.transactions)
        lineage.withdraw(plan.to_withdraw)
        self.forming.withdraw(plan.to_withdraw)
        for id in plan.order:
            recorded.of_transactions[id] = {"state": str(State.COMPENSATED)}
        for id in plan.never_executed:
            recorded.of_transactions[id] = {"state": GIVEN_UP}
        for id in plan.to_withdraw:
            recorded.of_batches[id] = {"is_withdrawn": True}
        self._undue(set(plan.transactions), set(plan.to_withdraw))
        affected = (*plan.asked, *plan.dropped, *plan.partially_dropped, *plan.withdrawn)
        others = (each.batch for each in plan.interference)
        self._restate(recorded, dict.fromkeys((*affected, *others)))

    def forget(self, recorded: Recorded, old: Collection[str]) -> None:
        """Forget what of `old` nobody needs. See `forgettable`."""
        gone = forgettable(self.lineage, self.due.values(), old)
        standing = self._leading_to_what_stands(gone)
        before = {id for gone_id in standing for id in self.lineage.previous_of(gone_id)}
        self.cut = (self.cut | before) - gone
        self.lineage = without(self.lineage, gone)
        recorded.forgotten, recorded.forgotten_undone = gone, gone - standing

    # -- inside ----------------------------------------------------------------------------

    def _leading_to_what_stands(self, ids: set[str]) -> set[str]:
        """Those of `ids` that are not compensated, or from which one such has followed."""
        stand = {id for id in ids if id in self.cut or self._stands(id)}
        return ids & self.lineage.ancestors(stand)

    def _stands(self, id: str) -> bool:
        """Whether it is a transaction, or the output of one, that is not compensated."""
        maker = id if self.lineage.is_transaction(id) else self.lineage.batch(id).producer
        return bool(maker) and self.lineage.transaction(maker).is_live

    def _undue(self, transactions: set[str], withdrawn: set[str]) -> None:
        """Take away what is not due any more, or is due with less."""
        for id, due in list(self.due.items()):
            if id in transactions:
                is_over = True
            elif id in self.lineage:
                continue  # it has failed, and keeps the input with which it did
            else:
                inputs = tuple(
                    tuple(piece for piece in pieces if piece.batch not in withdrawn)
                    for pieces in due.inputs
                )
                is_over = not any(inputs)
                self.due[id] = Due(due.program, due.number, inputs)
            if is_over:
                del self.due[id]
                self._offered(self.forming.skip(due.program, due.number))

    def _restate(self, recorded: Recorded, ids: Iterable[str]) -> None:
        """Record what became of batches."""
        for id in ids:
            if not self.lineage.is_transaction(id):
                is_cut = not self.cut.isdisjoint(self.lineage.descendants(id))
                found = standing(self.lineage, id)
                if found is Standing.DROPPED and is_cut:
                    found = Standing.PARTIALLY_DROPPED
                state = _STATES.get(found, WHOLE)
                recorded.of_batches.setdefault(id, {})["state"] = state

    def _give_out(
        self, recorded: Recorded, transaction: Transaction, rows: list[Any] | None
    ) -> None:
        if rows is None:
            self._offered(self.forming.skip(transaction.program, transaction.number))
            return
        batch = self.lineage.batch(transaction.output)
        self._add_batch(recorded, batch, rows)
        self._offered(self.forming.offer(batch))

    def _offered(self, found: Iterable[Due]) -> None:
        self.due |= {id_of(each): each for each in found}

    def _add_transaction(
        self,
        recorded: Recorded,
        transaction: Transaction,
        *,
        reason: str | None = None,
        arguments: Any = None,
    ) -> None:
        for id in transaction.inputs:
            batch = self.lineage.batch(id)
            if batch.kind is BatchKind.INPUT:
                self._add_batch(recorded, batch, None)
        row = transaction.record()
        row["id"] = row.pop("transaction")
        self.place += 1
        row |= {"place": self.place, "reason": reason, "arguments": arguments}
        recorded.transactions.append(row)
        self._add_edges(recorded, transaction.id)

    def _add_batch(self, recorded: Recorded, batch: Batch, rows: list[Any] | None) -> None:
        row = batch.record()
        row["id"] = row.pop("batch")
        self.place += 1
        row |= {"place": self.place, "rows": rows, "state": WHOLE}
        recorded.batches.append(row)
        self._add_edges(recorded, batch.id)

    def _add_edges(self, recorded: Recorded, id: str) -> None:
        recorded.edges += [(other, id) for other in self.lineage.previous_of(id)]
