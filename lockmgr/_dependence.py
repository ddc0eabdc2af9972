"""Ties between transactions other than parent and child: causes, and waits for an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr._replies import Effects, Ended
from lockmgr._structures import EndWait, Request

if TYPE_CHECKING:
    from lockmgr._structures import Transaction

__all__ = ["await_end", "depend", "stop_waiting", "succeed"]


def depend(dependent: Transaction, causes: dict[int, Transaction]) -> None:
    """Make a new transaction causally dependent on `causes`."""
    dependent.causes = causes
    for cause in causes.values():
        _add_dependent(cause, dependent)


def await_end(transaction: Transaction, awaited: Transaction, serial: int) -> None:
    """Make `transaction` wait until `awaited` has ended; `serial` orders the begin of the wait."""
    transaction.waiting = EndWait(transaction, awaited, serial)
    if awaited.awaited_by is None:
        awaited.awaited_by = {}
    awaited.awaited_by[transaction.tid] = transaction


def stop_waiting(transaction: Transaction) -> None:
    """Withdraw the wait of a transaction, whether for a lock or for the end of another."""
    wait = transaction.waiting
    if isinstance(wait, Request):
        wait.entry.withdraw(wait)
    elif wait is not None:
        if wait.awaited.awaited_by is not None:
            del wait.awaited.awaited_by[transaction.tid]
        transaction.waiting = None


def succeed(ended: Transaction, successor: Transaction | None) -> Effects:
    """Move the waiters and dependents of `ended` to `successor`, or release them if it is None.

    The successor of a committed subtransaction is its parent, whose fate it shares from then on. A
    waiter goes on if there is no successor, or if it shares that fate too, as the parent and its
    inferiors do; the effects list these waiters.
    """
    _forget_causes(ended)
    for dependent in (ended.dependents or {}).values():
        causes = dependent.causes or {}
        del causes[ended.tid]
        if successor is not None:
            causes[successor.tid] = successor
            _add_dependent(successor, dependent)
    effects: list[Ended] = []
    for waiter in (ended.awaited_by or {}).values():
        wait = waiter.waiting
        if successor is None or waiter is successor or waiter.is_inferior_of(successor):
            waiter.waiting = None
            effects.append(Ended(waiter.tid, ended.tid))
        else:
            await_end(waiter, successor, 0 if wait is None else wait.serial)
    ended.causes = ended.dependents = ended.awaited_by = None
    return tuple(effects)


def _forget_causes(dependent: Transaction) -> None:
    for cause in (dependent.causes or {}).values():
        if cause.dependents is not None:
            del cause.dependents[dependent.tid]


def _add_dependent(cause: Transaction, dependent: Transaction) -> None:
    if cause.dependents is None:
        cause.dependents = {}
    cause.dependents[dependent.tid] = dependent
