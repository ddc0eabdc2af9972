"""Nodes and edges of the dependency graph, and operations that tie, untie and move edges."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import Enum
from typing import Generic, TypeVar

from coupling._kinds import DependencyKind
from coupling._replies import Dependency

__all__ = ["Edge", "Node", "Phase", "hand_over", "holding", "tie", "untie"]

T = TypeVar("T", bound=Hashable)


class Phase(Enum):
    NEW = "has not begun"
    BEGINNING = "waits to begin"
    ACTIVE = "is active"
    COMMITTING = "waits to commit"
    LEAVING = "may commit"


class Node(Generic[T]):
    """A live transaction."""

    __slots__ = (
        "because",
        "begin_held",
        "commit_held",
        "dependents",
        "name",
        "needs",
        "parent",
        "phase",
    )

    def __init__(self, name: T, parent: Node[T] | None):
        self.name = name
        self.parent = parent
        self.phase = Phase.NEW
        self.needs: dict[Edge[T], None] = {}
        self.dependents: dict[tuple[T, DependencyKind], Edge[T]] = {}
        self.begin_held = self.commit_held = 0  # number of `needs` that hold
        self.because: list[Dependency[T]] = []  # reasons why it must abort

    def line(self) -> Iterator[Node[T]]:
        """Yield the transaction and its superiors, upwards."""
        node: Node[T] | None = self
        while node is not None:
            yield node
            node = node.parent


class Edge(Generic[T]):
    """A dependency; at a commit of `on` it moves to the parent of `on`, up to `last`."""

    __slots__ = ("dependent", "kind", "last", "on")

    def __init__(self, dependent: Node[T], kind: DependencyKind, on: Node[T]):
        self.dependent = dependent
        self.kind = kind
        self.on = on
        over = {id(node) for node in dependent.line()}
        self.last = on
        while self.last.parent is not None and id(self.last.parent) not in over:
            self.last = self.last.parent

    def shown(self) -> Dependency[T]:
        return Dependency(self.dependent.name, self.kind, self.on.name)

    def line(self) -> Iterator[Node[T]]:
        """Yield the transactions for whose end the dependent waits, now or after handing over.

        These are `on` and its superiors up to `last`.
        """
        for node in self.on.line():
            yield node
            if node is self.last or node.because:  # no handing over after an abort
                return


def holding(node: Node[T]) -> Iterator[Edge[T]]:
    """Yield the edges that block a waiting transaction."""
    for edge in node.needs:
        if edge.kind.holds_begin if node.phase is Phase.BEGINNING else edge.kind.holds_commit:
            yield edge


def tie(edge: Edge[T]) -> None:
    dependent = edge.dependent
    edge.on.dependents[dependent.name, edge.kind] = edge
    dependent.needs[edge] = None
    dependent.begin_held += edge.kind.holds_begin
    dependent.commit_held += edge.kind.holds_commit


def untie(edge: Edge[T]) -> None:
    """Remove an edge from its dependent; `on` has ended, and its edges go with it."""
    dependent = edge.dependent
    del dependent.needs[edge]
    dependent.begin_held -= edge.kind.holds_begin
    dependent.commit_held -= edge.kind.holds_commit


def hand_over(edge: Edge[T]) -> bool:
    """Move an edge from a committed subtransaction to its parent.

    Return False if the parent already has such an edge.
    """
    parent = edge.on.parent
    assert parent is not None, "an edge is handed over up to `last`, which is a superior"
    key = (edge.dependent.name, edge.kind)
    if key in parent.dependents:
        untie(edge)  # the other edge holds the dependent for as long and for the same reason
        return False
    edge.on = parent
    parent.dependents[key] = edge
    return True
