"""Locks of a transaction: on tables, rows, predicates and detectors, and the waits for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from activedb.errors import LockTimeout, SerializationConflict, TransactionStateError
from activedb.transactions._node import TransactionNode, current_transaction
from activedb.transactions._threads import (
    Standstill,
    falls_asleep,
    is_anybody_stalled,
    wait_is_over,
)
from lockmgr import Deadlock as LockDeadlock
from lockmgr import DeadlockReport, Edge, EdgeKind, Mode, Predicate, WaitCancelled
from lockmgr import LockTimeout as LockWaitTimeout

if TYPE_CHECKING:
    from activedb.store.sql import Row, TableSpec
    from activedb.transactions._forest import Forest

__all__ = [
    "declare",
    "lock",
    "lock_detector",
    "lock_free",
    "lock_predicate",
    "lock_table",
    "own_table",
    "will_declare",
]


def lock(
    t: TransactionNode, resource: tuple[object, ...], mode: Mode, *, everywhere: bool = False
) -> None:
    """Lock a table, or a part of it; wait if necessary.

    Under SERIALIZABLE only against the same hierarchy, but for rows to be written: of two
    hierarchies of this process that want to write a row, one waits here, and may take its snapshot
    later.

    Parameters
    ----------
    everywhere : bool
        Lock against all hierarchies anyway.

    Raises
    ------
    Deadlock
        If `t` is chosen as a deadlock victim; the message shows the cycle.
    LockTimeout
        After ``lock_timeout_ms``: the last resort against waits that cross the server.
    TransactionAborted
        If a superior was aborted during the wait.
    SelfDeadlock
        If only this thread itself could end the wait.
    TransactionStateError
        If an inferior is open on this thread, so that the thread would wait for itself.
    """
    space = t.hierarchy.space
    if space is not None and not everywhere:
        if mode is Mode.X and len(resource) > 1:
            lock(t, resource, mode, everywhere=True)
        resource = _placed(resource, space)
    t.check_usable()
    held = t.held.get(resource)
    if held is not None and _covers(held, mode):
        return
    if len(resource) > 1:
        of_table = t.held.get(resource[:1])
        if of_table is not None and _encloses(of_table, mode):
            return
    _acquire(t, resource, mode)
    t.held[resource] = mode
    if t.observer is not None:
        t.observer.granted(t, resource, mode)


def lock_free(t: TransactionNode, resource: tuple[object, ...], mode: Mode = Mode.X) -> bool:
    """Lock a row or table for writing if that needs no wait; return whether it was locked."""
    t.check_usable()
    for place in reversed(_places(t, resource)):  # a sibling in the way costs no other hierarchy
        held = t.held.get(place)
        if held is not None and _covers(held, mode):
            continue
        if not (t.is_enrolled and t.is_prepared):
            t.forest.prepare(t)
        try:
            t.forest.locks.acquire(t.id, place, mode, 0.0)
        except LockWaitTimeout:
            return False
        except WaitCancelled:
            raise t.rollback_error() from None
        t.held[place] = mode
    return True


def lock_table(t: TransactionNode, spec: TableSpec, mode: Mode) -> None:
    """Lock a whole table, in this process and on the server."""
    lock(t, (spec.name,), mode)
    if t.log is not None:
        t.log.operated(t, "read", spec.name)
    t.hierarchy.lock_table(spec)


def own_table(forest: Forest, spec: TableSpec) -> None:
    """Keep a table in the memory of this process, once no transaction here uses it.

    Raises
    ------
    TableOwned
        If another process owns or uses it.
    """

    def own(t: TransactionNode) -> None:
        lock_table(t, spec, Mode.X)
        forest.store.ownership.own(spec)

    forest.run(own)


def lock_detector(t: TransactionNode, rule: str) -> None:
    """Lock the detector of a rule against other hierarchies, until the end of this one.

    Raises
    ------
    SerializationConflict
        Under SERIALIZABLE, if another hierarchy has committed a change of the detector, which this
        one sees, after the snapshot from which this one reads. The next try locks the detector
        first.
    """
    lock(t, (f"detector of rule {rule}",), Mode.X, everywhere=True)
    hierarchy = t.hierarchy
    hierarchy.detectors.add(rule)
    if hierarchy.session.is_serializable and hierarchy.session.began_s is not None:
        changed_s = t.forest.detectors.get(rule)
        if changed_s is not None and changed_s >= hierarchy.session.began_s:
            hierarchy.run.detectors.add(rule)
            conflict = SerializationConflict(
                f"rule {rule}: another transaction has fed its detector after the snapshot of "
                f"{t.path}; retry the transaction"
            )
            t.top.mark_rollback_only(conflict)  # whoever catches it
            raise conflict


# -- predicates --------------------------------------------------------------------------------


def lock_predicate(t: TransactionNode, spec: TableSpec, predicate: Predicate, mode: Mode) -> None:
    """Lock the rows that satisfy a predicate, also those to come, in this process."""
    t.forest.asked.add(spec)  # before the lock, so that writers declare their rows
    if mode is Mode.S and spec in t.hierarchy.run.announced:
        mode = Mode.SIX
    if mode is Mode.SIX:
        will_declare(t, spec)
    lock(t, (spec.name, predicate), mode)


def will_declare(t: TransactionNode, spec: TableSpec) -> None:
    """Prepare to lock rows of a table for writing, if predicates have been asked for in it.

    A transaction that may write, and has declared nothing, meets all predicates.
    """
    if spec in t.forest.asked and spec not in t.declares:
        declare(t, spec, ())


def declare(t: TransactionNode, spec: TableSpec, rows: Sequence[Row] | None) -> None:
    """Declare rows that are about to be written, and lock the predicates that they satisfy.

    REQUIRES: predicates have been asked for in the table.
    """
    run = t.hierarchy.run
    if spec not in run.upgraded and t.hierarchy.has_answered(spec, rows):
        run.upgraded.add(spec)
    first = spec not in t.workspace.rows
    known = None if rows is None else [spec.certain(row) for row in rows]
    for table in _places(t, (spec.name,)):
        lock(t, table, Mode.IX, everywhere=True)
        while True:
            try:
                found = t.forest.locks.declare(t.id, table, known, first=first)
            except WaitCancelled:
                raise t.rollback_error() from None
            if found is None:
                break
            lock(t, (*table, found), Mode.IX, everywhere=True)
    t.declares.add(spec)


# -- requests to the lock manager --------------------------------------------------------------


def _acquire(t: TransactionNode, resource: tuple[object, ...], mode: Mode) -> None:
    """Request a lock from the lock manager; raises the errors of `lock`."""
    current = current_transaction()
    if current is not None and current is not t and t in current.line:
        raise TransactionStateError(
            f"transaction {t.path} has the open subtransaction {current.path} on this thread; use "
            f"that one until it ends"
        )
    forest = t.forest
    if not (t.is_enrolled and t.is_prepared):
        forest.prepare(t)
    timeout_s = forest.settings.lock_timeout_ms / 1_000
    until_s: float | None = None
    on_wait, on_sleep = t.on_wait, partial(falls_asleep, t)
    while True:
        try:
            forest.locks.acquire(t.id, resource, mode, timeout_s, on_wait, on_sleep)
            return
        except Standstill as stop:
            if not forest.dependencies.make_room(t, stop):
                raise stop.error_of(t) from None
        except LockDeadlock as error:
            if forest.dependencies.make_room(t, error):
                continue
            edge = _awaited_offer(t, error.report)
            until_s = until_s or time.monotonic() + timeout_s
            offered = edge is not None and forest.offers.await_one(
                t.kin, edge, lambda: t.is_rollback_only, until_s
            )
            timeout_s = until_s - time.monotonic()
            if not offered and (edge is None or timeout_s > 0):
                raise forest.deadlock(t, error) from error
            if timeout_s <= 0:
                raise LockTimeout(
                    f"{t.path} waited for longer than lock_timeout_ms for a superior to join its "
                    f"children: {error}"
                ) from error
        except LockWaitTimeout as error:
            raise LockTimeout(
                f"{t.path} waited for longer than lock_timeout_ms: {error}"
            ) from error
        except WaitCancelled:
            raise t.rollback_error() from None
        finally:
            if is_anybody_stalled():
                wait_is_over(t)


def _awaited_offer(t: TransactionNode, report: DeadlockReport) -> Edge | None:
    """Return the wait for a superior whose offer may resolve a deadlock; None if none may.

    The cycle must consist of a child and its superior: the child requests a lock that the superior
    holds, and the superior waits for the commit of the child, or of a transaction between them.
    O(depth).
    """
    first, *others = report.cycle
    is_line = first.waiter == t.id and first.kind is EdgeKind.HELD
    if not is_line or any(edge.kind is not EdgeKind.COMMIT for edge in others):
        return None
    # On the same thread, the superior would have offered its locks before `t` could run.
    is_beside = any(s.id == first.waited_for and s.thread != t.thread for s in t.line[1:])
    return first if is_beside else None


def _places(t: TransactionNode, resource: tuple[object, ...]) -> list[tuple[object, ...]]:
    """Return the places of a resource to be written: for all, and in its own space if any."""
    space = t.hierarchy.space
    return [resource] if space is None else [resource, _placed(resource, space)]


def _placed(resource: tuple[object, ...], space: str) -> tuple[object, ...]:
    """Return the resource in place of a table, or a part of it, in a hierarchy's own space."""
    return (f"{resource[0]}{space}", *resource[1:])


def _covers(held: Mode, mode: Mode) -> bool:
    """Return whether a held lock covers a request without asking the lock manager."""
    return held is mode or held is Mode.X or (held is Mode.SIX and mode in (Mode.S, Mode.IX))


def _encloses(held: Mode, mode: Mode) -> bool:
    """Return whether a lock held on a table covers a request for something inside it."""
    return held is Mode.X or (held in (Mode.S, Mode.SIX) and mode is Mode.S)
