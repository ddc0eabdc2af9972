"""Construction of nodes from expressions."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from activedb.errors import PatternError
from activedb.events._expressions import (
    Conjunction,
    Disjunction,
    Expression,
    Negation,
    Periodic,
    Plus,
    Primitive,
    Query,
    Sequence,
    TimedOut,
)
from activedb.events.detection._combination import Children
from activedb.events.detection._conjunction import ConjunctionNode
from activedb.events.detection._network import SharedNode
from activedb.events.detection._primitive import DisjunctionNode, PrimitiveNode, QueryNode
from activedb.events.detection._sequence import SequenceNode
from activedb.events.detection._temporal import PeriodicNode, PlusNode, TimedOutNode
from activedb.events.detection._traits import lasting_us, primitives_of, window_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb.events.detection._network import Hub, Network
    from activedb.events.detection._node import DetectorNode, DetectorState

__all__ = ["Builder"]


class Builder:
    """Builder of nodes, numbered from the leaves up, in the order in which they are written."""

    def __init__(self, shared: DetectorState, network: Network | None = None):
        self._shared = shared
        self._network = network
        self._indices: Iterator[int] = count()

    def build(
        self, expression: Expression, bound_us: int | None = None, *, is_root: bool = False
    ) -> DetectorNode:
        """Return the node of an expression.

        Parameters
        ----------
        bound_us : int or None
            The longest duration of occurrences that the parent can use; None: unbounded.
        is_root : bool
            True for the whole expression. Only a network with `shares_whole` shares it, as its
            occurrences have the detector's name.
        """
        shared = self._shared
        if isinstance(expression, Primitive):
            return PrimitiveNode(expression, shared, next(self._indices))
        if isinstance(expression, Disjunction):
            parts = tuple(self.build(part, bound_us) for part in expression.parts)
            return DisjunctionNode(expression, parts, shared, next(self._indices))
        if isinstance(expression, Query):
            pattern = self.build(expression.pattern, bound_us)
            return QueryNode(expression, pattern, shared, next(self._indices))
        if isinstance(expression, Plus):
            operand = self.build(expression.operand, bound_us)
            return PlusNode(expression, operand, shared, next(self._indices))
        if isinstance(expression, Periodic):
            start, end = self.build(expression.start), self.build(expression.end)
            return PeriodicNode(expression, start, end, shared, next(self._indices))
        if isinstance(expression, TimedOut):
            sequence = expression.sequence
            children = self._children(sequence, sequence.window_us)
            horizon_us = window_of(sequence, None, times_out=True)
            return TimedOutNode(
                expression, sequence, children, shared, next(self._indices), horizon_us
            )
        if isinstance(expression, Sequence | Conjunction):
            horizon_us = window_of(expression, bound_us)
            network = self._network
            is_shared = network is not None and (network.shares_whole or not is_root)
            if is_shared and isinstance(expression, Sequence):
                hub = self._hub(expression, horizon_us)
                if hub is not None:
                    return SharedNode(hub, shared, next(self._indices), is_whole=is_root)
            children = self._children(expression, lasting_us(expression, bound_us))
            kind = SequenceNode if isinstance(expression, Sequence) else ConjunctionNode
            return kind(expression, children, shared, next(self._indices), horizon_us)  # type: ignore[arg-type]
        raise PatternError(
            f'a detector takes an event expression, such as event("EXIT"), not {expression!r}'
        )

    def _hub(self, sequence: Sequence, horizon_us: int | None) -> Hub | None:
        """Return the hub that evaluates a sequence for several detectors, or None if unshared."""
        assert self._network is not None

        def make(shared: DetectorState) -> SequenceNode:
            return SequenceNode(sequence, Children(), shared, 0, horizon_us)

        primitives = all(primitives_of((part,)) is not None for part in sequence.parts)
        timed = any(not part.keys for part in sequence.parts)
        if not primitives or timed or not make(self._shared).is_plain:
            return None
        return self._network.hub(sequence, horizon_us, make, self._shared)

    def _children(self, expression: Sequence | Conjunction, bound_us: int | None) -> Children:
        """Return the nodes and clock events of a combination, in the order of its parts."""
        found = Children()
        number = 0
        for part in expression.parts:
            primitives = primitives_of((part,))
            negated = isinstance(part, Negation)
            if primitives is None:
                found.nodes[number] = self.build(part, bound_us)
            else:
                for primitive in primitives:
                    if primitive.schedule is not None:
                        found.clocks[next(self._indices)] = (primitive, number, negated)
            number += not negated
        return found
