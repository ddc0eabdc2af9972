"""Outcomes of the s-transactions of a TPG that was run."""

from __future__ import annotations

from activedb.scheduling._operations import Writes, check_distinct
from activedb.scheduling._s_transactions import Outcome
from activedb.scheduling._state import State
from activedb.scheduling.tpg._vertex import Node, Vertex

__all__ = ["outcome_of"]


def outcome_of(node: Node, state: State) -> Outcome:
    """Return the outcome of an s-transaction in the serial order.

    REQUIRES: the state has the versions of all earlier s-transactions, and is not changed.
    """
    if not node.failures:
        effects = [vertex.effect for vertex in node.vertices]
        assert None not in effects
        return Outcome(tuple(effect.result for effect in effects if effect is not None))
    error = _first_error(node, state)
    assert error is not None
    return Outcome.of_error(error)


def _first_error(node: Node, state: State) -> Exception | None:
    """Return the error of the first operation, in statement order, that fails.

    Operations that were not run because a later one had failed are run now; their writes are
    discarded.
    """
    read = state.reader(node.transaction.at)
    writes: Writes = []
    failed: Exception | None = None
    for vertex in node.vertices:
        if vertex.failure is not None and not node.clash:
            return vertex.failure
        if vertex.passed and not node.clash:
            continue
        failed = failed or vertex.failure
        assert vertex.operation is not None
        try:
            writes += vertex.operation.evaluate(read).writes
        except Exception as error:  # any error of the user's functions
            return error
    try:
        check_distinct(writes)
    except Exception as error:
        return error
    return failed or _any_failure(node.vertices)


def _any_failure(vertices: list[Vertex]) -> Exception | None:
    return next((vertex.failure for vertex in vertices if vertex.failure is not None), None)
