"""Work in children of a transaction: on its thread or in parallel, retried or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from threading import get_ident
from typing import TypeVar

from activedb.transactions._children import Child, await_all, raise_first
from activedb.transactions._deadlines import Limit
from activedb.transactions._node import TransactionNode

__all__ = [
    "begin_subtransaction",
    "run_child",
    "run_in_parallel",
    "run_on_fresh_stack",
    "spawn",
    "try_child",
]

T = TypeVar("T")


def begin_subtransaction(t: TransactionNode, timeout: float | None = None) -> TransactionNode:
    """Begin and return a sequential child, which has at most `timeout` seconds."""
    t.check_usable()
    limit = Limit.after(timeout)
    if t.children:
        t.offer_line()  # else they are offered when the child requests a lock
    return TransactionNode(t.forest, t.hierarchy, t, label=t.next_label(), limit=limit)


def spawn(
    t: TransactionNode, function: Callable[[TransactionNode], T], *, timeout: float | None = None
) -> Child[T]:
    """Run `function` in a parallel child, with retries; see `Transaction.spawn`."""
    t.check_usable()
    limit = Limit.after(timeout)
    label = t.next_label()
    t.hierarchy.is_parallel = True
    t.offer_line()

    def call(handle: Child[T]) -> T:
        def attempt() -> T:
            handle.check_not_cancelled()
            if limit is not None and limit.left_s <= 0:
                raise limit.error(handle.path)
            # The parent works on its own thread meanwhile, so its locks are not offered here.
            child = TransactionNode(t.forest, t.hierarchy, t, label=label, limit=limit)
            handle.began(child)
            return child.call(function)

        return t.forest.retries.run(
            attempt,
            name=lambda: f"transaction {handle.path}",
            within=t,
            limit=limit,
            stopped=lambda: handle.is_cancelled,
        )

    child: Child[T] = Child(t, label, call, t.forest.pool, t.forest.counters)
    t.children.append(child)  # type: ignore[arg-type]  # results are read by type T only
    return child


def run_child(
    t: TransactionNode,
    function: Callable[[TransactionNode], T],
    *,
    label: str,
    rule: str | None = None,
    deferred: bool = False,
    priority: int | None = None,
    group: int | None = None,
    timestamp: datetime | float | None = None,
) -> T:
    """Run `function` in a child on this thread, retried when it is a deadlock victim.

    Also allowed on a thread of `run_in_parallel`. `priority` and `group` are those of
    `TransactionNode`.
    """
    if get_ident() not in t.lent:
        t.check_usable()

    def attempt() -> T:
        if t.children and get_ident() == t.thread:
            t.offer_line()  # else they are offered when the child requests a lock
        child = TransactionNode(
            t.forest,
            t.hierarchy,
            t,
            label=label,
            rule=rule,
            deferred=deferred,
            priority=priority,
            group=group,
            timestamp=timestamp,
        )
        return child.call(function)

    return t.forest.retries.run(attempt, name=lambda: f"transaction {t.path}/{label}", within=t)


def try_child(t: TransactionNode, function: Callable[[TransactionNode], T], *, label: str) -> T:
    """Run `function` in a child on this thread, without a retry if it is a deadlock victim.

    REQUIRES: this thread runs a call of `run_in_parallel`, which has offered the locks.
    """
    return TransactionNode(t.forest, t.hierarchy, t, label=label).call(function)


def run_in_parallel(t: TransactionNode, calls: Iterable[Callable[[], None]]) -> None:
    """Make `calls`, each of which runs children of `t`, on the pool's threads.

    Waits for all of them, then raises the first error, with the others as notes.
    """
    t.hierarchy.is_parallel = True
    _run_lent(t, ((t.next_label(), call) for call in calls))


def run_on_fresh_stack(t: TransactionNode, call: Callable[[], None]) -> None:
    """Make a call, which runs children of `t`, on a pool thread."""
    _run_lent(t, [("", call)])  # no number: paths must not depend on the stack's depth


def _run_lent(t: TransactionNode, calls: Iterable[tuple[str, Callable[[], None]]]) -> None:
    """Make labelled calls on threads that may run children of `t` meanwhile."""

    def lent(call: Callable[[], None], _: Child[object]) -> None:
        ident = get_ident()
        if ident == t.thread:
            call()
            return
        with t.kin.latch:
            t.lent |= {ident}
        try:
            call()
        finally:
            with t.kin.latch:
                t.lent -= {ident}

    t.check_usable()
    t.offer_line()
    before = len(t.children)
    for label, call in calls:
        run = partial(lent, call)
        t.children.append(Child(t, label, run, t.forest.pool, t.forest.counters))
    children = t.children[before:]
    await_all(children)
    del t.children[before:]
    raise_first(children)
