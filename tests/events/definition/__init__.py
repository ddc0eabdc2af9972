"""The nodes of the `Reference`: the definitions of `activedb/events/README.md`, one by one."""

from __future__ import annotations

from .combinations import Candidate, CombinationNode
from .history import History, Made, primitive
from .nodes import Node, Step, node_of
from .sequences import SequenceNode
from .time import PeriodicNode, PlusNode, TimedOutNode

__all__ = [
    "Candidate",
    "CombinationNode",
    "History",
    "Made",
    "Node",
    "PeriodicNode",
    "PlusNode",
    "SequenceNode",
    "Step",
    "TimedOutNode",
    "node_of",
    "primitive",
]
