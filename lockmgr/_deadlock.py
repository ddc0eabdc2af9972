"""Breaking of cycles in the wait-for graph: reverse a soft edge, or deny a victim.

README, "Deadlock", explains why this terminates and why no other change needs a search.

A policy picks one of the blocked transactions of a cycle, given in order from the one whose request
closed the cycle. The victim is then the smallest subtransaction in the sphere of the transaction
picked whose abort breaks the cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from lockmgr._graph import Arc, arcs_of, cycle_through, stop_waiting
from lockmgr._refusals import unknown_policy
from lockmgr._replies import DeadlockReport, Denial, Edge, EdgeKind
from lockmgr._structures import Entry, LockOwner, Request

__all__ = [
    "POLICIES",
    "BrokenCycles",
    "Policy",
    "blocking_edge",
    "break_cycles",
    "choose_victim",
    "move_ahead",
    "move_to_front",
    "policy_named",
]


_NOT_BLOCKED: Final = (EdgeKind.COMMIT, EdgeKind.INLINE)

Policy: TypeAlias = "Callable[[list[LockOwner]], LockOwner]"


def _requester(blocked: list[LockOwner]) -> LockOwner:
    return blocked[0]


def _blocker(blocked: list[LockOwner]) -> LockOwner:
    return blocked[min(1, len(blocked) - 1)]


def _youngest(blocked: list[LockOwner]) -> LockOwner:
    return max(blocked, key=_serial)


def _smallest_hierarchy(blocked: list[LockOwner]) -> LockOwner:
    return min(blocked, key=_transactions_undone)


def _least_work(blocked: list[LockOwner]) -> LockOwner:
    return min(blocked, key=_locks_owned)


POLICIES: Final[dict[str, Policy]] = {
    "requester": _requester,
    "blocker": _blocker,
    "youngest": _youngest,
    "smallest hierarchy": _smallest_hierarchy,
    "least work": _least_work,
}
"""Victim policies by name, in the order of the README's table, "Victims".

They pick: the transaction whose request closed the cycle; the first blocked transaction that it
waits for; the transaction begun last; the transaction whose abort undoes the fewest transactions;
the transaction whose sphere owns the fewest locks. Ties go to the first in the cycle.
"""


def policy_named(name: str) -> Policy:
    """Return the policy of the given name.

    Raises
    ------
    LockUsageError
        If no policy has this name.
    """
    policy = POLICIES.get(name)
    if policy is None:
        raise unknown_policy(name, POLICIES)
    return policy


def choose_victim(cycle: list[Arc], policy: Policy) -> LockOwner:
    """Return the smallest subtransaction that breaks the cycle where `policy` wants it broken.

    A transaction that the cycle leaves by a commit or inline edge is not blocked by itself; it is
    the superior or the inferior of a blocked one. If an inferior of the transaction picked is
    blocked in the cycle too, the inferior is the victim: its abort breaks the cycle and undoes
    less. O(cycle x depth).
    """
    blocked = [arc.waiter for arc in cycle if arc.kind not in _NOT_BLOCKED]
    victim = policy(blocked)
    for candidate in blocked:
        if candidate.is_inferior_of(victim):
            victim = candidate
    return victim


def _serial(transaction: LockOwner) -> int:
    return transaction.serial


def _transactions_undone(transaction: LockOwner) -> int:
    """Count the transaction, its live inferiors, and all transactions committed into them."""
    return sum(1 + member.merged for member in transaction.sphere())


def _locks_owned(transaction: LockOwner) -> int:
    return sum(len(member.held) + len(member.retained) for member in transaction.sphere())


class BrokenCycles(NamedTuple):
    """Number of cycles broken, the denials made, and the queues that changed."""

    cycles: int
    denials: list[Denial]
    touched: list[Entry]


def break_cycles(pivot: LockOwner, policy: str, *, inherited: bool = False) -> BrokenCycles:
    """Break every cycle through `pivot`.

    New edges begin or end at the requester or, after an inheritance (`inherited`), end at the heir:
    that transaction is the pivot, and all cycles run through it. A cycle is broken by moving the
    waiter of one of its soft edges ahead; if no waiter can be moved, by rearranging the queues; and
    if there is a cycle of hard edges, by denying a victim. The policies then regard as the
    requester the pivot or, after an inheritance, the waiter whose edge now ends at it.
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
    return BrokenCycles(cycles, denials, touched)


def _cycle_through(transaction: LockOwner, *, only_hard: bool = False) -> list[Arc] | None:
    """Return a cycle through a transaction, or through its wait if it has an inline child."""
    cycle = cycle_through(transaction, only_hard=only_hard)
    wait = transaction.waiting
    if cycle is not None or wait is None or transaction.inline_child is None:
        return cycle
    return cycle_through(wait, only_hard=only_hard)


def move_ahead(request: Request) -> bool:
    """Move a request ahead until its transaction is on no cycle; if impossible, leave it in place.

    The request moves no further than needed: each time to just before the request behind which its
    wait closes a cycle. A cycle that leaves it by a hard edge exists at every place. All edges that
    a move adds end at the mover, so a successful move closes no other cycle.
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
    """Move a request to the head of its queue, unless its transaction would be on a cycle there."""
    queue = request.entry.queue
    place = queue.index(request)
    queue.insert(0, queue.pop(place))
    if _cycle_through(request.transaction) is None:
        return True
    queue.insert(place, queue.pop(0))
    return False


def blocking_edge(request: Request) -> Edge:
    """Return the edge from a request, admitted by rule 1, to the waiter that it would deadlock.

    The waiter is an inferior of the requester, or a transaction that an inferior waits for; it
    stands behind the request, but would have to be granted first.
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
    """Return when the wait of an edge began, in the order of all begins and waits."""
    if arc.kind is EdgeKind.COMMIT:
        return arc.waited_for.serial
    wait = arc.waited_for.waiting if arc.kind is EdgeKind.INLINE else arc.waiter.waiting
    return 0 if wait is None else wait.serial


def _soft_waiters(cycle: list[Arc]) -> list[Request]:
    return [_waiting(arc.waiter) for arc in cycle if arc.kind is EdgeKind.SOFT]


def _waiting(transaction: LockOwner) -> Request:
    request = transaction.waiting
    if not isinstance(request, Request):
        raise AssertionError(f"transaction {transaction.tid} has a lock edge but no request")
    return request


# -- reordering of queues so that no cycle is left: the last resort before a victim ----------------


def arrange(pivot: LockOwner) -> list[Entry] | None:
    """Reorder the queues of all transactions that `pivot` reaches; return the queues that changed.

    Return None, and change nothing, if an inline child is among the transactions concerned: it
    waits for its superior's wait, which has no place of its own in such an order. REQUIRES: no
    cycle of hard edges. Every queue concerned may change, not only the queues on a cycle.
    O(transactions concerned x edges of each).
    """
    concerned = _concerned(pivot)
    if any(transaction.inline for transaction in concerned):
        return None
    waits = [transaction.waiting for transaction in concerned]
    contested = {wait.entry: None for wait in waits if isinstance(wait, Request)}
    ranks = _ranks([request.transaction for entry in contested for request in entry.queue])
    changed: list[Entry] = []
    for entry in contested:
        ordered = sorted(entry.queue, key=lambda request: ranks[request.transaction])
        if ordered != entry.queue:
            entry.queue[:] = ordered
            changed.append(entry)
    return changed


def _concerned(pivot: LockOwner) -> list[LockOwner]:
    """Return all transactions reachable from `pivot`, counting members of a queue as connected."""
    found: dict[LockOwner, None] = {pivot: None}
    frontier = [pivot]
    for transaction in frontier:  # the list grows during the iteration
        targets = [arc.waited_for for arc in arcs_of(transaction)]
        request = transaction.waiting
        if isinstance(request, Request):
            targets += [other.transaction for other in request.entry.queue]
        for target in targets:
            if target not in found:
                found[target] = None
                frontier.append(target)
    return frontier


def _ranks(transactions: list[LockOwner]) -> dict[LockOwner, int]:
    """Number all transactions reachable by hard edges, each after the targets of its hard edges.

    Ties are resolved by the order of `transactions`.
    """
    ranks: dict[LockOwner, int] = {}
    seen: set[LockOwner] = set()
    for first in transactions:
        stack = [(first, False)]
        while stack:
            transaction, expanded = stack.pop()
            if expanded:
                ranks[transaction] = len(ranks)
            elif transaction not in seen:
                seen.add(transaction)
                stack.append((transaction, True))
                hard = [
                    arc.waited_for for arc in arcs_of(transaction) if arc.kind is not EdgeKind.SOFT
                ]
                stack.extend((other, False) for other in reversed(hard) if other not in seen)
    return ranks
