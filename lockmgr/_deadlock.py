"""Breaking cycles of the wait-for graph: turn a soft edge round, or deny a victim.

README, "Deadlock", has the argument why this ends and why nothing else needs a search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr._graph import Arc, cycle_through
from lockmgr._replies import DeadlockReport, Denial, EdgeKind

if TYPE_CHECKING:
    from lockmgr._structures import Entry, Request, Transaction

__all__ = ["break_cycles"]


def break_cycles(
    pivot: Transaction, *, inherited: bool = False
) -> tuple[list[Denial], list[Entry]]:
    """Break every cycle through `pivot`; return the denials and the entries whose queue changed.

    New edges begin or end at the requester, or else end at the transaction that inherited
    (`inherited`): that is the pivot, and all cycles run through it. A cycle is broken by moving
    ahead the waiter of one of its soft edges; where none can be moved, by denying the victim:
    the requester, or the waiter whose edge now ends at the inheritor.
    """
    denials: list[Denial] = []
    touched: list[Entry] = []
    while (cycle := cycle_through(pivot)) is not None:
        if inherited:
            cycle = [cycle[-1], *cycle[:-1]]
        request = next(filter(_move_ahead, _soft_waiters(cycle)), None)
        if request is None:
            victim = cycle[0].waiter
            request = _waiting(victim)
            report = DeadlockReport(tuple(arc.edge() for arc in cycle))
            request.entry.withdraw(request)
            denials.append(Denial(victim.tid, report))
        touched.append(request.entry)
    return denials, touched


def _move_ahead(request: Request) -> bool:
    """Move a request ahead until its transaction is on no cycle; if that cannot be, nowhere.

    It goes no further than needed: each time just ahead of the request behind which its wait
    closes a cycle. A cycle that leaves it by a hard edge is there wherever it stands. All edges
    that a move adds end at the mover, so a move that succeeds closes no other cycle.
    """
    queue = request.entry.queue
    place = queue.index(request)
    while (cycle := cycle_through(request.transaction)) is not None:
        first = cycle[0]
        queue.remove(request)
        if first.kind is not EdgeKind.SOFT:
            queue.insert(place, request)
            return False
        queue.insert(queue.index(_waiting(first.waited_for)), request)
    return True


def _soft_waiters(cycle: list[Arc]) -> list[Request]:
    return [_waiting(arc.waiter) for arc in cycle if arc.kind is EdgeKind.SOFT]


def _waiting(transaction: Transaction) -> Request:
    request = transaction.waiting
    if request is None:
        raise AssertionError(f"transaction {transaction.tid} has a lock edge but no request")
    return request
