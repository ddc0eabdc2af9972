"""Composite transactions, their graphs, and the standing of a batch (sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import networkx as nx

from activedb.batches._lineage import Lineage
from activedb.batches._records import Batch, State
from activedb.batches._workflow import Requirement
from activedb.spelling import listed

__all__ = [
    "BatchLineage",
    "Standing",
    "batch_graph",
    "composite",
    "control_edges",
    "edges_among",
    "followers",
    "lineage_of",
    "producers_of",
    "standing",
    "transaction_graph",
]


def composite(lineage: Lineage, ids: str | Iterable[str]) -> tuple[str, ...]:
    """Return the batch composite transaction: all that batches trigger, directly or indirectly.

    T(b) of the paper, for source, derived and input batches; for several batches, the union. For a
    transaction: itself and all that it triggers. Compensated and failed transactions are included.

    Control order triggers within one composite transaction only: a transaction that merely
    comes after another one belongs to the composite transaction of a batch if it has a source in
    common with that batch.

    Returns
    -------
    tuple of str
        In an order consistent with the transaction graph.

    Raises
    ------
    NotRecorded
        If there is no such batch or transaction.

    Notes
    -----
    O(edges of all that follows from the batches), and with control order O(those edges · sources).
    """
    given = [ids] if isinstance(ids, str) else list(ids)
    found = {id for id in lineage.descendants(given) if lineage.is_transaction(id)}
    if lineage.workflow.has_control_order:
        _add_controlled(lineage, given, found)
    return lineage.in_transaction_order(found)


def control_edges(lineage: Lineage, transactions: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of transactions where the second follows the first in control order.

    The program of the second is `after` that of the first, and both transactions belong to the
    composite transaction of one source batch. O(edges above each of them, and pairs).
    """
    by_program: dict[str, list[str]] = {}
    for id in lineage.in_transaction_order(transactions):
        by_program.setdefault(lineage.transaction(id).program, []).append(id)
    for name, program in lineage.workflow.programs.items():
        for above in sorted(program.after) if name in by_program else ():
            by_source: dict[str, list[str]] = {}
            for first in by_program.get(above, ()):
                for source in lineage.sources_of(first):
                    by_source.setdefault(source, []).append(first)
            for second in by_program[name] if by_source else ():
                sources = lineage.sources_of(second)
                firsts = {first: None for source in sources for first in by_source.get(source, ())}
                for first in firsts:
                    yield first, second


def followers(
    lineage: Lineage, ids: str | Iterable[str], *, without: Collection[str] = ()
) -> set[str]:
    """Return all nodes that must go with some batches and transactions to keep a prefix.

    These are their descendants. If a transaction stands and follows, in control order, one that
    goes, it goes too, with its descendants, unless its program relaxes monotonic execution. Nodes
    in `without` are not searched again.

    Notes
    -----
    O(edges of the descendants), and with control order, for each iteration that adds nodes,
    O(edges · sources) of the transactions that share a source with them.
    """
    found = new = lineage.descendants(ids, without=without)
    if not lineage.workflow.has_control_order:
        return found
    while new:
        gone = {id for id in new if lineage.is_transaction(id) and lineage.transaction(id).is_live}
        below = lineage.descendants(lineage.sources_of(gone))
        behind = {
            second
            for first, second in control_edges(lineage, filter(lineage.is_transaction, below))
            if first in gone and _stands_monotonically(lineage, second)
        }
        new = lineage.descendants(behind, without={*found, *without})
        found |= new
    return found


def transaction_graph(
    lineage: Lineage, ids: str | Iterable[str] | None = None, *, batch_order: bool = False
) -> nx.DiGraph:
    """Return the transaction graph of the composite transactions of batches, or of all.

    Parameters
    ----------
    lineage : Lineage
    ids : str, iterable of str or None
        Batches, see `composite`; None: all that are recorded.
    batch_order : bool
        Whether to add edges between the transactions of a program, in the order of its input
        batches. The paper draws them, but they trigger nothing.

    Returns
    -------
    networkx.DiGraph
        Nodes have ``program``, ``number`` and ``state``; edges have ``kind``: stream, trigger,
        control or batch order.
    """
    if ids is None:
        chosen = lineage.in_transaction_order(each.id for each in lineage.transactions())
    else:
        chosen = composite(lineage, ids)
    graph = nx.DiGraph()
    for id in chosen:
        found = lineage.transaction(id)
        graph.add_node(id, program=found.program, number=found.number, state=str(found.state))
    if batch_order:
        graph.add_edges_from(_in_batch_order(lineage, chosen), kind="batch order")
    for first, second, kind in edges_among(lineage, chosen):
        graph.add_edge(first, second, kind=kind)
    return graph


def edges_among(lineage: Lineage, transactions: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the edges of the transaction graph between some transactions, each with its kind.

    O(inputs), and with control order as `control_edges`. Among several edges between the same two
    transactions, an edge of kind stream comes last.
    """
    chosen = set(transactions)
    if lineage.workflow.has_control_order:
        for first, second in control_edges(lineage, chosen):
            yield first, second, "control"
    for id in lineage.in_transaction_order(chosen):
        for other in lineage.transaction(id).triggered_by:
            if other in chosen:
                yield other, id, "trigger"
        for other in producers_of(lineage, id):
            if other in chosen:
                yield other, id, "stream"


def producers_of(lineage: Lineage, transaction: str) -> tuple[str, ...]:
    """Return the transactions whose output a transaction has used. O(pieces)."""
    batches = [lineage.batch(id) for id in lineage.transaction(transaction).inputs]
    batches += [lineage.batch(piece.batch) for batch in batches for piece in batch.pieces]
    return tuple(dict.fromkeys(batch.producer for batch in batches if batch.producer))


def batch_graph(lineage: Lineage) -> nx.DiGraph:
    """Return a graph with an edge from each batch to the batches made directly from it.

    O(edges).
    """
    graph = nx.DiGraph()
    for batch in lineage.batches():
        graph.add_node(batch.id, kind=str(batch.kind), stream=batch.stream, number=batch.number)
    for batch in lineage.batches():
        graph.add_edges_from((piece.batch, batch.id) for piece in batch.pieces)
        if batch.producer:
            inputs = lineage.transaction(batch.producer).inputs
            graph.add_edges_from((used, batch.id) for used in inputs)
    return graph


def _add_controlled(lineage: Lineage, given: list[str], found: set[str]) -> None:
    """Add the transactions that follow in control order and share a source batch."""
    below = lineage.descendants(lineage.sources_of(given))
    whole = {id for id in below if lineage.is_transaction(id)} | found
    if len(whole) == len(found):
        return
    after: dict[str, list[str]] = {}
    for first, second in control_edges(lineage, whole):
        after.setdefault(first, []).append(second)
    waiting = list(found)
    while waiting:
        for second in after.get(waiting.pop(), ()):
            new = lineage.descendants(second, without=found)
            new = {id for id in new if lineage.is_transaction(id)}
            found |= new
            waiting += new


def _stands_monotonically(lineage: Lineage, transaction: str) -> bool:
    found = lineage.transaction(transaction)
    program = lineage.workflow.programs[found.program]
    return found.state is State.EXECUTED and program.requires(Requirement.MONOTONIC_EXECUTION)


def _in_batch_order(lineage: Lineage, chosen: Iterable[str]) -> Iterator[tuple[str, str]]:
    last: dict[str, str] = {}
    for id in chosen:
        program = lineage.transaction(id).program
        if program in last:
            yield last[program], id
        last[program] = id


# -- standing of a batch, and its derivation in both directions, as one value ----------------------


class Standing(StrEnum):
    """Recorded standing of a batch."""

    WAITING = "waiting"
    """No transaction has used it yet."""
    IN_PROCESS = "in process"
    """All transactions that it has triggered stand, and more are to come."""
    COMPLETE = "complete"
    """All transactions that it triggers stand."""
    FAILED = "failed"
    """A transaction that it has triggered failed, and none was compensated."""
    PARTIALLY_DROPPED = "partially dropped"
    """Some transactions that it has triggered are compensated, others stand or are to come."""
    DROPPED = "dropped"
    """All transactions that it has triggered are compensated."""
    WITHDRAWN = "withdrawn"
    """The transaction that produced it is compensated."""


@dataclass(frozen=True, slots=True)
class BatchLineage:
    """Derivation of a batch: its ancestors and its descendants.

    Attributes
    ----------
    batch : Batch
    standing : Standing
    sources : tuple of str
        Source batches that it is derived from.
    made_of, made_by : tuple of str
        All batches, and all transactions, before it.
    triggered : tuple of str
        Its composite transaction.
    derived : tuple of str
        All batches after it.
    """

    batch: Batch
    standing: Standing
    sources: tuple[str, ...]
    made_of: tuple[str, ...]
    made_by: tuple[str, ...]
    triggered: tuple[str, ...]
    derived: tuple[str, ...]

    def explain(self) -> list[str]:
        """Return the lineage as human-readable sentences."""
        lines = [f"{self.batch.id} is {self.standing}; it is derived from {listed(self.sources)}."]
        if self.batch.pieces:
            lines.append(f"It is formed of {listed(map(str, self.batch.pieces))}.")
        if self.made_by:
            lines.append(f"Made by {listed(self.made_by)}.")
        lines.append(f"It has triggered {listed(self.triggered)}.")
        if self.derived:
            lines.append(f"Derived from it: {listed(self.derived)}.")
        return lines

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            **self.batch.record(),
            "standing": str(self.standing),
            "sources": list(self.sources),
            "made_of": list(self.made_of),
            "made_by": list(self.made_by),
            "triggered": list(self.triggered),
            "derived": list(self.derived),
        }


def lineage_of(lineage: Lineage, id: str) -> BatchLineage:
    """Return the derivation of a batch; raise `NotRecorded` if there is none.

    O(edges found).
    """
    batch = lineage.batch(id)
    above = lineage.ancestors(id) - {id}
    return BatchLineage(
        batch,
        standing(lineage, id),
        lineage.sources_of(id),
        lineage.in_order(other for other in above if not lineage.is_transaction(other)),
        lineage.in_transaction_order(other for other in above if lineage.is_transaction(other)),
        composite(lineage, id),
        lineage.derived_from(id),
    )


def standing(lineage: Lineage, id: str) -> Standing:
    """Return the standing of a batch; raise `NotRecorded` if there is none.

    O(edges of all that follows from it).
    """
    batch = lineage.batch(id)
    if batch.producer and not lineage.transaction(batch.producer).is_live:
        return Standing.WITHDRAWN
    states = {lineage.transaction(each).state for each in composite(lineage, id)}
    after = (other for other in lineage.descendants(id) if not lineage.is_transaction(other))
    more = any(map(lineage.is_still_due, after))
    if State.COMPENSATED in states or batch.is_withdrawn:
        is_all = states <= {State.COMPENSATED} and not more
        return Standing.DROPPED if is_all else Standing.PARTIALLY_DROPPED
    if State.FAILED in states:
        return Standing.FAILED
    if not more:
        return Standing.COMPLETE
    return Standing.IN_PROCESS if states else Standing.WAITING
