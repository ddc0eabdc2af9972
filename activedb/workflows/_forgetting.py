"""Selection of unneeded history of a workflow."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from activedb.batches import BatchKind, Due, Lineage, State

__all__ = ["forgettable", "without"]


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
