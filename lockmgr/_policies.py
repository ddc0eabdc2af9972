"""Victim policies for deadlocks (Saygin, Ulusoy, Chakravarthy, section 4.2.2).

A policy picks one of the blocked transactions of a cycle, given in order from the one whose request
closed the cycle. The victim is then the smallest subtransaction in the sphere of the transaction
picked whose abort breaks the cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from lockmgr._refusals import unknown_policy
from lockmgr._replies import EdgeKind

if TYPE_CHECKING:
    from lockmgr._graph import Arc
    from lockmgr._structures import Transaction

__all__ = ["POLICIES", "Policy", "choose_victim", "policy_named"]

_NOT_BLOCKED: Final = (EdgeKind.COMMIT, EdgeKind.INLINE)

Policy: TypeAlias = "Callable[[list[Transaction]], Transaction]"


def _requester(blocked: list[Transaction]) -> Transaction:
    return blocked[0]


def _blocker(blocked: list[Transaction]) -> Transaction:
    return blocked[min(1, len(blocked) - 1)]


def _youngest(blocked: list[Transaction]) -> Transaction:
    return max(blocked, key=_serial)


def _smallest_hierarchy(blocked: list[Transaction]) -> Transaction:
    return min(blocked, key=_transactions_undone)


def _least_work(blocked: list[Transaction]) -> Transaction:
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


def choose_victim(cycle: list[Arc], policy: Policy) -> Transaction:
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


def _serial(transaction: Transaction) -> int:
    return transaction.serial


def _transactions_undone(transaction: Transaction) -> int:
    """Count the transaction, its live inferiors, and all transactions committed into them."""
    return sum(1 + member.merged for member in transaction.sphere())


def _locks_owned(transaction: Transaction) -> int:
    return sum(len(member.held) + len(member.retained) for member in transaction.sphere())
