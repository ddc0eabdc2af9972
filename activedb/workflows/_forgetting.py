"""What of the history of a workflow nobody needs any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from activedb.batches import BatchKind, Due, Lineage, State

__all__ = ["forgettable", "without"]


def forgettable(lineage: Lineage, due: Iterable[Due], old: Collection[str]) -> set[str]:
    """Batches and transactions that can be forgotten without changing what is to come.

    Kept is what is not old; what is still due or has failed, with all that its source batches have
    triggered; the last of each stream and program, after which the next one is numbered; and all
    that comes before something that is kept, so that it can be told where that comes from. Of
    overlapping batches the old ones go in this way, though they all hang together.

    Parameters
    ----------
    lineage : Lineage
    due : iterable of Due
        What is due and not executed.
    old : collection of str
        Ids of what may be forgotten at all.

    Notes
    -----
    O(edges) for each round; another round is needed for each step at which what is kept would
    look as if more were to come.
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
    """A lineage in which some batches and transactions, and what follows, never were. O(rows)."""
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
    """What has the highest number of its stream, program, or input batches."""
    last: dict[object, tuple[int, str]] = {}
    for batch in lineage.batches():
        is_input = batch.kind is BatchKind.INPUT
        sequence = (batch.reader, batch.stream) if is_input else batch.stream
        last[sequence] = max(last.get(sequence, (0, "")), (batch.number, batch.id))
    for transaction in lineage.transactions():
        sequence = ("transactions", transaction.program)
        last[sequence] = max(last.get(sequence, (0, "")), (transaction.number, transaction.id))
    return {id for _, id in last.values()}
