"""Breaking cycles of the wait-for graph: turn a soft edge round, or deny a victim.

README, "Deadlock", has the argument why this ends and why nothing else needs a search.
"""

from __future__ import annotations

from typing import NamedTuple

from lockmgr._arrangement import arrange
from lockmgr._dependence import stop_waiting
from lockmgr._graph import Arc, cycle_through
from lockmgr._policies import POLICIES, choose_victim
from lockmgr._replies import DeadlockReport, Denial, Edge, EdgeKind
from lockmgr._structures import Entry, Request, Transaction

__all__ = [
    "Broken",
    "break_cycles",
    "edge_to_whom_it_must_not_pass",
    "move_ahead",
    "move_to_front",
]


class Broken(NamedTuple):
    """How many cycles there were, who was denied, and in which queues anything changed."""

    cycles: int
    denials: list[Denial]
    touched: list[Entry]


def break_cycles(pivot: Transaction, policy: str, *, inherited: bool = False) -> Broken:
    """Break every cycle through `pivot`.

    New edges begin or end at the requester, or else end at the transaction that inherited
    (`inherited`): that is the pivot, and all cycles run through it. A cycle is broken by moving
    ahead the waiter of one of its soft edges; where none can be moved, by arranging the queues
    anew; and where there is a cycle of hard edges, by denying the victim. The requester of the
    policies is then the pivot, or the waiter whose edge now ends at it.
    """
    cycles = 0
    denials: list[Denial] = []
    touched: list[Entry] = []
    while (cycle := _cycle_through(pivot)) is not None:
        cycles += 1
        if inherited:
            cycle = [cycle[-1], *cycle[:-1]]
        moved = next(filter(move_ahead, _soft_waiters(cycle)), None)
        if moved is not None:
            touched.append(moved.entry)
            continue
        hard = _cycle_through(pivot, only_hard=True)
        changed = arrange(pivot) if hard is None else None
        if changed:
            touched += changed
            continue
        if hard is not None:
            cycle = [hard[-1], *hard[:-1]] if inherited else hard
        victim = choose_victim(cycle, POLICIES[policy])
        first = next(place for place, arc in enumerate(cycle) if arc.waiter is victim)
        edges = tuple(arc.edge() for arc in (*cycle[first:], *cycle[:first]))
        waits = tuple(arc.edge() for arc in sorted(cycle, key=_since))
        if isinstance(victim.waiting, Request):
            touched.append(victim.waiting.entry)
        stop_waiting(victim)
        denials.append(Denial(victim.tid, DeadlockReport(edges, policy, waits)))
    return Broken(cycles, denials, touched)


def _cycle_through(transaction: Transaction, *, only_hard: bool = False) -> list[Arc] | None:
    """Return a cycle through a transaction, or through its wait if inline children share that."""
    cycle = cycle_through(transaction, only_hard=only_hard)
    wait = transaction.waiting
    if cycle is not None or wait is None or transaction.inline_child is None:
        return cycle
    return cycle_through(wait, only_hard=only_hard)


def move_ahead(request: Request) -> bool:
    """Move a request ahead until its transaction is on no cycle; if that cannot be, nowhere.

    It goes no further than needed: each time just ahead of the request behind which its wait
    closes a cycle. A cycle that leaves it by a hard edge is there wherever it stands. All edges
    that a move adds end at the mover, so a move that succeeds closes no other cycle.
    """
    queue = request.entry.queue
    place = queue.index(request)
    while (cycle := _cycle_through(request.transaction)) is not None:
        first = cycle[0]
        queue.remove(request)
        if first.kind is not EdgeKind.SOFT:
            queue.insert(place, request)
            return False
        queue.insert(queue.index(_waiting(first.waited_for)), request)
    return True


def move_to_front(request: Request) -> bool:
    """Move a request ahead of all others, unless its transaction is on a cycle there."""
    queue = request.entry.queue
    place = queue.index(request)
    queue.insert(0, queue.pop(place))
    if _cycle_through(request.transaction) is None:
        return True
    queue.insert(place, queue.pop(0))
    return False


def edge_to_whom_it_must_not_pass(request: Request) -> Edge:
    """Return why a request that rule 1 admits cannot be granted: a waiter that would deadlock.

    That is an inferior of the requester, or somebody for whom an inferior waits; it stands behind
    the request, but would have to be let through first.
    """
    transaction = request.transaction
    cycle = _cycle_through(transaction)
    assert cycle is not None
    other = _waiting(cycle[-1].waiter)
    return Edge(
        transaction.tid,
        other.transaction.tid,
        EdgeKind.SOFT,
        request.entry.resource,
        request.mode,
        other.mode,
    )


def _since(arc: Arc) -> int:
    """When the wait of an edge began, in the order of all begins and waits."""
    if arc.kind is EdgeKind.COMMIT:
        return arc.waited_for.serial
    wait = arc.waited_for.waiting if arc.kind is EdgeKind.INLINE else arc.waiter.waiting
    return 0 if wait is None else wait.serial


def _soft_waiters(cycle: list[Arc]) -> list[Request]:
    return [_waiting(arc.waiter) for arc in cycle if arc.kind is EdgeKind.SOFT]


def _waiting(transaction: Transaction) -> Request:
    request = transaction.waiting
    if not isinstance(request, Request):
        raise AssertionError(f"transaction {transaction.tid} has a lock edge but no request")
    return request
