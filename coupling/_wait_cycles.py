"""Detection of cycles of transactions that would wait for each other's end."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from coupling._replies import DependencyCycle
from coupling._structures import Edge, Node

__all__ = ["refuse_cycle"]

T = TypeVar("T", bound=Hashable)


def refuse_cycle(new: Edge[T]) -> None:
    """Raise `DependencyCycle` if an edge would make transactions wait for each other in a cycle.

    The search is breadth first, so the cycle reported is a shortest one. A live child depends on
    its parent, so a transaction without dependents has no live children, and no path leads to it.
    """
    start = new.dependent
    if start.because or not start.dependents:
        return  # it will never wait, or no transaction waits for it
    came_by: dict[Node[T], Edge[T]] = {}
    seen = dict.fromkeys(new.line())
    queue = list(seen)
    for node in queue:
        if node is start:
            path = []
            while node in came_by:
                path.append(came_by[node])
                node = came_by[node].dependent
            raise DependencyCycle(edge.shown() for edge in (new, *reversed(path)))
        if node.because:
            continue  # it will never wait, as it can only abort
        for edge in node.needs:
            if not edge.kind.waits:
                continue
            for follower in edge.line():
                if follower not in seen:
                    seen[follower] = None
                    came_by[follower] = edge
                    queue.append(follower)
