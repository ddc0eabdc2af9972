"""Serial execution of the rest of a TPG that was given up."""

from __future__ import annotations

from activedb.scheduling._operations import Writes
from activedb.scheduling._s_transactions import At, STransaction
from activedb.scheduling._scheduler import evaluate
from activedb.scheduling.tpg._execution import Execution
from activedb.scheduling.tpg._vertex import Node

__all__ = ["run_rest"]


def run_rest(execution: Execution, written: list[tuple[At, Writes]]) -> int:
    """Run the s-transactions unsettled when an execution gave up, and set their outcomes.

    s-transactions that have ended before all unsettled ones stay as they are: in the serial order,
    later ones do not change them. From the earliest unsettled s-transaction on, all versions are
    removed, and the s-transactions are run one after the other: each operation once.

    Parameters
    ----------
    execution : Execution
        At its end: no worker runs any of its operations.
    written : list
        The writes are appended to it.

    Returns
    -------
    int
        Number of s-transactions that were run, the latest ones; 0 if the execution did not give up.
    """
    rest = _unsettled(execution.graph.nodes) if execution.gave_up else []
    for node in rest:
        for vertex in node.vertices:
            execution.take_back(vertex)
    state = execution.state
    for node in rest:
        transaction = node.transaction
        at = transaction.at
        writes, transaction.outcome = evaluate(_planned(node), state.reader(at))
        written.append((at, writes))
        state.write(writes, at)
    return len(rest)


def _unsettled(nodes: list[Node]) -> list[Node]:
    """Return the s-transactions from the earliest one on that has not ended."""
    for number, node in enumerate(nodes):
        if not node.has_ended:
            return nodes[number:]
    return []


def _planned(node: Node) -> STransaction:
    """Return an s-transaction with the planned operations, whose computed keys are recorded."""
    transaction = node.transaction
    operations = tuple(v.operation for v in node.vertices if v.operation is not None)
    return STransaction(transaction.at, transaction.type, transaction.params, operations)
