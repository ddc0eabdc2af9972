"""S-transactions of the running examples, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from activedb.scheduling import Abort, At, Operation, Ref, SharedTable, STransaction
from activedb.scheduling._operations import Read, Write
from activedb.scheduling.tpg._planning import TaskGraph
from activedb.scheduling.tpg._vertex import Vertex

SECOND_US = 1_000_000


def s_transaction(us: int, *operations: Operation) -> STransaction:
    """One at a time; the operations in the order of statements."""
    return STransaction(At(us, "", us), "example", {}, operations)


def write(
    target: Ref, *sources: Ref, function: Callable[..., Any] | None = None, args: Any = ()
) -> Write:
    """WRITE; without a function the sum of the sources, and 1."""
    return Write(target, sources or (target,), function or _sum, tuple(args))


def read(*sources: Ref) -> Read:
    return Read(sources, None, ())


def deposit(us: int, account: Ref, amount: int) -> STransaction:
    return s_transaction(us, write(account, function=_plus, args=(amount,)))


def transfer(us: int, sender: Ref, receiver: Ref, amount: int) -> STransaction:
    """Figure 1: the amount goes from one account to the other, if there is more than that."""
    return s_transaction(
        us,
        write(sender, function=_less, args=(amount,)),
        write(receiver, receiver, sender, function=_plus_if_covered, args=(amount,)),
    )


def streaming_ledger(accounts: SharedTable) -> list[STransaction]:
    """Figure 1: O1; O2 and O3; O4 and O5."""
    a, b = accounts["A"], accounts["B"]
    return [deposit(1, a, 100), transfer(2, a, b, 30), transfer(3, b, a, 20)]


def operations(graph: TaskGraph) -> list[Vertex]:
    """Return the vertices that are not virtual: O1, O2, ... from the first on."""
    return [vertex for vertex in graph.vertices if vertex.operation is not None]


def edges(graph: TaskGraph) -> set[tuple[int, int]]:
    """Return the dependencies, as in the figures: (1, 2) is the edge from O1 to O2.

    A path through a virtual operation of a whole table counts as an edge without it.
    """
    number = {vertex: n for n, vertex in enumerate(operations(graph), 1)}
    found = set()
    for vertex in number:
        reached = list(vertex.children)
        for child in reached:  # grows
            if child.operation is None:
                reached += child.children
            else:
                found.add((number[vertex], number[child]))
    return found


def _sum(*values: Any) -> int:
    return 1 + sum(sum(value) if isinstance(value, list) else value for value in values)


def _plus(value: int, amount: int) -> int:
    return value + amount


def _less(value: int, amount: int) -> int:
    if value <= amount:
        raise Abort("not covered")
    return value - amount


def _plus_if_covered(value: int, sender: int, amount: int) -> int:
    if sender <= amount:
        raise Abort("not covered")
    return value + amount
