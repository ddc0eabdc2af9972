"""Cycles of transactions that would wait for each other's end."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from coupling._replies import DependencyCycle
from coupling._structures import Edge, Node

__all__ = ["refuse_cycle"]

T = TypeVar("T", bound=Hashable)


def refuse_cycle(new: Edge[T]) -> None:
    """Raise if waiting for the end of `new.on`'s line would be waiting for the dependent's.

    Breadth first, so that the cycle named is a shortest one. Whoever has a live child is
    somebody's dependency, so a transaction on which nobody depends ends no path.
    """
    start = new.dependent
    if start.because or not start.dependents:
        return  # it will not wait, or nobody for it
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
            continue  # it waits for nobody: all it can do is abort
        for edge in node.needs:
            if not edge.kind.waits:
                continue
            for follower in edge.line():
                if follower not in seen:
                    seen[follower] = None
                    came_by[follower] = edge
                    queue.append(follower)
