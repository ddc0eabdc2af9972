"""Rules for threads that inline children share with their superiors.

A thread runs one transaction, the innermost. While that transaction waits, no call for another of
the thread's transactions can come from the thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr import _refusals as refusals

if TYPE_CHECKING:
    from lockmgr._structures import Transaction

__all__ = ["check_inline", "check_thread"]


def check_inline(tid: int, parent: Transaction | None) -> None:
    """Refuse an inline child `tid` if `parent` is None, waits, or has an inline child already."""
    if parent is None:
        raise refusals.inline_without_parent(tid)
    if parent.inline_child is not None:
        raise refusals.inline_beside_inline(tid, parent.inline_child)
    if parent.waiting is not None:
        raise refusals.is_waiting(refusals.BEGIN, parent)


def check_thread(transaction: Transaction, rule: str) -> None:
    """Refuse a wait of `transaction` while its thread sleeps for one of its inline inferiors."""
    inner = transaction.inline_child
    while inner is not None:
        if inner.waiting is not None:
            raise refusals.thread_sleeps(rule, transaction, inner)
        inner = inner.inline_child
