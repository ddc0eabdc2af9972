"""State of a workflow: its lineage, the waiting batches, the due transactions."""

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
from activedb.errors import SerializationConflict
from activedb.store.journals import RecordedWorkflow, WorkflowChanges

__all__ = [
    "GIVEN_UP",
    "WHOLE",
    "WorkflowState",
    "id_of",
    "lineage_of_kept",
    "run_name",
]

WHOLE = "whole"
"""State of a recorded batch of which nothing is dropped."""
GIVEN_UP = "given up"
"""State of a transaction that has failed for good; it counts as compensated."""

_STATES = {
    Standing.DROPPED: "dropped",
    Standing.PARTIALLY_DROPPED: "partially dropped",
    Standing.WITHDRAWN: "withdrawn",
}


def id_of(due: Due) -> str:
    """Return the id that the transaction of `due` has, or will have."""
    return f"{due.program}#{due.number}"


def run_name(id: str) -> str:
    """Return the name of a transaction's run in its workflow; names of runs have no ``#``."""
    return id.replace("#", "/")


def lineage_of_kept(workflow: Workflow, nodes: Iterable[Mapping[str, Any]]) -> Lineage:
    """Return the recorded lineage. O(rows)."""
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
    """State of a workflow between two of its transactions.

    Each method applies the effect of one kind of transaction, and adds its records. Methods are
    called within the commit; if the commit fails, the state is read again.

    Attributes
    ----------
    workflow : Workflow
    lineage : Lineage
    forming : Forming
    due : dict of str to Due
        Due transactions by id.
    place : int
        Sequence number of the last record.
    origins : dict of str to list
        Query id and number of the last micro-batch from Spark, and its batch, by source stream.
    cut : set of str
        Ids of recorded items that have a standing descendant which was forgotten.
    """

    workflow: Workflow
    lineage: Lineage
    forming: Forming
    due: dict[str, Due] = field(default_factory=dict)
    place: int = 0
    origins: dict[str, Any] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, workflow: Workflow, kept: RecordedWorkflow) -> WorkflowState:
        """Build the state from its records. O(rows)."""
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
        """Return the due transactions as JSON-serialisable data."""
        return [
            [each.program, each.number, [[list(piece) for piece in ps] for ps in each.inputs]]
            for each in self.due.values()
        ]

    def next_due(self) -> Due | None:
        """Return the due transaction to execute first, by program, then by number. O(due)."""
        rank = self.workflow.rank
        return min(self.due.values(), key=lambda d: (rank(d.program), d.number), default=None)

    def is_usable(self, piece: Piece) -> bool:
        """Return whether an input piece of a due transaction is still valid."""
        batch = self.lineage.batch(piece.batch)
        if batch.is_withdrawn:
            return False
        return not batch.producer or self.lineage.transaction(batch.producer).is_live

    # -- effects of transactions --------------------------------------------------------------

    def arrive(self, recorded: WorkflowChanges, stream: str, rows: list[Any]) -> Batch:
        """Add a source batch."""
        batch = self.lineage.arrive(stream)
        self._add_batch(recorded, batch, rows)
        self._offered(self.forming.offer(batch))
        return batch

    def executed(self, recorded: WorkflowChanges, due: Due, rows: list[Any] | None) -> Transaction:
        """Mark a due transaction as executed, with its output rows or None."""
        self._check_due(due)
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
        recorded: WorkflowChanges,
        program: str,
        triggered_by: Sequence[str],
        arguments: Any,
        rows: list[Any] | None,
    ) -> Transaction:
        """Add the execution of an OLTP program."""
        transaction = self.lineage.execute(
            program, output=None if rows is not None else "", triggered_by=triggered_by
        )
        self._add_transaction(recorded, transaction, arguments=arguments)
        self._give_out(recorded, transaction, rows)
        return transaction

    def failed(self, recorded: WorkflowChanges, due: Due, reason: str) -> None:
        """Mark a due transaction as failed; it stays due."""
        self._check_due(due)
        id = id_of(due)
        if id in self.lineage:
            recorded.of_transactions[id] = {"reason": reason}
            return
        transaction = self.lineage.fail(due.program, due.inputs, number=due.number)
        self._add_transaction(recorded, transaction, reason=reason)

    def give_up(self, recorded: WorkflowChanges, due: Due, reason: str) -> None:
        """Give up a failed due transaction whose completion is optional."""
        id = id_of(due)
        self.failed(recorded, due, reason)
        self.lineage.compensate([id])
        for row in (*recorded.transactions, *recorded.of_transactions.values()):
            row["state"] = GIVEN_UP
        del self.due[id]
        self._offered(self.forming.skip(due.program, due.number))
        self._restate(recorded, self.lineage.in_order(self.lineage.ancestors(id)))

    def compensated(self, recorded: WorkflowChanges, plan: CompensationPlan) -> None:
        """Apply an executed compensation plan. O(edges of its batches + due transactions)."""
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

    def forget(self, recorded: WorkflowChanges, old: Collection[str]) -> None:
        """Forget the unneeded items of `old`. See `forgettable`."""
        gone = forgettable(self.lineage, self.due.values(), old)
        standing = self._leading_to_what_stands(gone)
        before = {id for gone_id in standing for id in self.lineage.previous_of(gone_id)}
        self.cut = (self.cut | before) - gone
        self.lineage = without(self.lineage, gone)
        recorded.forgotten, recorded.forgotten_undone = gone, gone - standing

    # -- inside ----------------------------------------------------------------------------

    def _check_due(self, due: Due) -> None:
        """Raise `SerializationConflict` if a transaction is no longer due with the same input."""
        if self.due.get(id_of(due)) != due:
            raise SerializationConflict(
                f"{id_of(due)} was executed, compensated or changed by another process meanwhile: "
                "this is retried"
            )

    def _leading_to_what_stands(self, ids: set[str]) -> set[str]:
        """Return the `ids` that stand uncompensated, or have a descendant in `ids` that does."""
        stand = {id for id in ids if id in self.cut or self._stands(id)}
        return ids & self.lineage.ancestors(stand)

    def _stands(self, id: str) -> bool:
        """Return whether an id is an uncompensated transaction, or the output of one."""
        maker = id if self.lineage.is_transaction(id) else self.lineage.batch(id).producer
        return bool(maker) and self.lineage.transaction(maker).is_live

    def _undue(self, transactions: set[str], withdrawn: set[str]) -> None:
        """Remove transactions that are no longer due, and withdrawn inputs of the others."""
        for id, due in list(self.due.items()):
            if id in transactions:
                is_over = True
            elif id in self.lineage:
                continue  # it has failed, and keeps the input of that try
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

    def _restate(self, recorded: WorkflowChanges, ids: Iterable[str]) -> None:
        """Record the present states of batches."""
        for id in ids:
            if not self.lineage.is_transaction(id):
                is_cut = not self.cut.isdisjoint(self.lineage.descendants(id))
                found = standing(self.lineage, id)
                if found is Standing.DROPPED and is_cut:
                    found = Standing.PARTIALLY_DROPPED
                state = _STATES.get(found, WHOLE)
                recorded.of_batches.setdefault(id, {})["state"] = state

    def _give_out(
        self, recorded: WorkflowChanges, transaction: Transaction, rows: list[Any] | None
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
        recorded: WorkflowChanges,
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

    def _add_batch(self, recorded: WorkflowChanges, batch: Batch, rows: list[Any] | None) -> None:
        row = batch.record()
        row["id"] = row.pop("batch")
        self.place += 1
        row |= {"place": self.place, "rows": rows, "state": WHOLE}
        recorded.batches.append(row)
        self._add_edges(recorded, batch.id)

    def _add_edges(self, recorded: WorkflowChanges, id: str) -> None:
        recorded.edges += [(other, id) for other in self.lineage.previous_of(id)]


# -- selection of unneeded history of a workflow ---------------------------------------------------


def forgettable(lineage: Lineage, due: Iterable[Due], old: Collection[str]) -> set[str]:
    """Return batches and transactions that can be forgotten without changing later results.

    The following are kept: all that are not old; those that are still due or have failed, with all
    descendants of their source batches; the last of each stream and program, which determines the
    next number; and all ancestors of a kept one, so that its lineage is complete. In this way old
    ones among overlapping batches are forgotten, although all of them are connected.

    Parameters
    ----------
    lineage : Lineage
    due : iterable of Due
        Transactions that are due and not executed.
    old : collection of str
        Ids of the batches and transactions that may be forgotten.

    Notes
    -----
    O(edges) for each round; another round is needed whenever a kept batch would look as if it were
    still due.
    """
    every = [batch.id for batch in lineage.batches()]
    every += [transaction.id for transaction in lineage.transactions()]
    at_work = {piece.batch for each in due for pieces in each.inputs for piece in pieces}
    at_work |= {id for id in every if _is_at_work(lineage, id)}
    keep = {id for id in every if id not in old} | _last_ones(lineage) | at_work
    keep |= lineage.descendants(lineage.sources_of(at_work))
    while True:
        keep |= lineage.ancestors(keep)
        part = without(lineage, set(every) - keep)
        more = {
            user
            for batch in part.batches()
            if part.is_still_due(batch.id) and not lineage.is_still_due(batch.id)
            for user in lineage.descendants(batch.id)
        }
        if more <= keep:
            return set(every) - keep
        keep |= more


def without(lineage: Lineage, ids: Collection[str]) -> Lineage:
    """Return a lineage without some batches and transactions and their edges. O(rows)."""
    records = [
        record
        for record in lineage.records()
        if (record["batch"] if "batch" in record else record["transaction"]) not in ids
    ]
    return Lineage.of(lineage.workflow, records)


def _is_at_work(lineage: Lineage, id: str) -> bool:
    if lineage.is_transaction(id):
        return lineage.transaction(id).state is State.FAILED
    return lineage.is_still_due(id)


def _last_ones(lineage: Lineage) -> set[str]:
    """Return the ids with the highest number of each stream, program and input sequence."""
    last: dict[object, tuple[int, str]] = {}
    for batch in lineage.batches():
        is_input = batch.kind is BatchKind.INPUT
        sequence = (batch.reader, batch.stream) if is_input else batch.stream
        last[sequence] = max(last.get(sequence, (0, "")), (batch.number, batch.id))
    for transaction in lineage.transactions():
        sequence = ("transactions", transaction.program)
        last[sequence] = max(last.get(sequence, (0, "")), (transaction.number, transaction.id))
    return {id for _, id in last.values()}
