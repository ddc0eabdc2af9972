"""The nodes and edges of the dependency graph, and how edges are tied, untied and moved."""

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
        self.begin_held = self.commit_held = 0  # how many of `needs` do so
        self.because: list[Dependency[T]] = []  # what makes it abort

    def line(self) -> Iterator[Node[T]]:
        """Yield the transaction, its parent and so on up."""
        node: Node[T] | None = self
        while node is not None:
            yield node
            node = node.parent


class Edge(Generic[T]):
    """A dependency; it ends with `on`, or goes to the parent of `on`, up to `last`."""

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
        """Yield those for whose end the dependent waits, or comes to: `on`, and up to `last`."""
        for node in self.on.line():
            yield node
            if node is self.last or node.because:  # what must abort is not handed over
                return


def holding(node: Node[T]) -> Iterator[Edge[T]]:
    """Yield the edges for which a waiting transaction waits."""
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
    """Take an edge from its dependent; `on` has ended and forgets it with itself."""
    dependent = edge.dependent
    del dependent.needs[edge]
    dependent.begin_held -= edge.kind.holds_begin
    dependent.commit_held -= edge.kind.holds_commit


def hand_over(edge: Edge[T]) -> bool:
    """Make an edge to a committed subtransaction one to its parent; False if there is one."""
    parent = edge.on.parent
    assert parent is not None, "an edge is handed over up to `last`, which is a superior"
    key = (edge.dependent.name, edge.kind)
    if key in parent.dependents:
        untie(edge)  # the other one holds the dependent as long, and says the same
        return False
    edge.on = parent
    parent.dependents[key] = edge
    return True
