"""Cycles in graphs whose edges have kinds."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Graph: TypeAlias = "Mapping[str, Mapping[str, set[str]]]"
"""Successors by node, each with the kinds of the edges to it."""
Edge: TypeAlias = tuple[str, str, str]
"""Edge as its source, its target and its kind."""


def part(graph: Mapping[str, Mapping[str, set[str]]], kinds: set[str]) -> Graph:
    """Return the edges of some kinds."""
    return {
        a: {b: edge & kinds for b, edge in after.items() if edge & kinds}
        for a, after in graph.items()
    }


def path_between(graph: Graph, start: str, goal: str, kinds: tuple[str, ...]) -> list[Edge] | None:
    """A shortest path, each step with the first of `kinds` that it has."""
    came: dict[str, str] = {start: start}
    queue = deque([start])
    while queue and goal not in came:
        a = queue.popleft()
        for b in graph.get(a, ()):
            if b not in came:
                came[b] = a
                queue.append(b)
    if goal not in came:
        return None
    path = []
    while goal != start:
        before = came[goal]
        kind = next(kind for kind in kinds if kind in graph[before][goal])
        path.append((before, goal, kind))
        goal = before
    return path[::-1]


def components(graph: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Strongly connected components of more than one node (Tarjan 1972), O(nodes + edges)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[set[str]] = []
    work: list[tuple[str, Iterator[str]]] = []

    def enter(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        work.append((node, iter(graph.get(node, ()))))

    for root in graph:
        if root in index:
            continue
        enter(root)
        while work:
            node, after = work[-1]
            for successor in after:
                if successor not in index:
                    enter(successor)
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: set[str] = set()
                    while node not in component:
                        component.add(stack.pop())
                    on_stack -= component
                    if len(component) > 1:
                        found.append(component)
    return found
