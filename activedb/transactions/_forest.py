"""The forest of transactions of one database: who lives, who waits, who tries again."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from activedb.clock import Clock
from activedb.config import Settings
from activedb.errors import (
    ActiveDBError,
    Deadlock,
    LockTimeout,
    SerializationConflict,
    TransactionAborted,
    TransactionStateError,
)
from activedb.metrics import Counters
from activedb.store import Row, Store, Tables, TableSpec
from activedb.transactions._hierarchy import Hierarchy, Run
from activedb.transactions._node import Node, current_transaction
from activedb.transactions._pool import Pool
from activedb.transactions._states import State
from activedb.transactions._transaction import Transaction
from lockmgr import Deadlock as LockDeadlock
from lockmgr import LockManager, LockTable, Mode, WaitCancelled
from lockmgr import LockTimeout as LockWaitTimeout

__all__ = ["Forest", "Listener"]

T = TypeVar("T")


class Listener(Protocol):
    """What the layer above wants to hear; called on the thread of the transaction."""

    def changed(self, t: Transaction, spec: TableSpec, old: Row | None, new: Row | None) -> None:
        """A row was inserted (`old` is None), updated, or deleted (`new` is None) by `t`."""

    def at_commit_point(self, t: Transaction) -> None:
        """`t` is about to commit; its children have ended."""

    def ended(self, t: Transaction) -> None:
        """`t` has committed or aborted; its locks are passed on already."""


class Forest:
    """All transactions of one database object, and what they share.

    Latch order: a hierarchy's, then its session's; the lock manager's is taken last.
    """

    transaction_class = Transaction

    def __init__(self, store: Store, settings: Settings, clock: Clock, listener: Listener):
        self.store = store
        self.settings = settings
        self.clock = clock
        self.listener = listener
        self.tables = Tables()
        self.locks = LockManager(LockTable(settings.victim_policy, settings.lock_escalation))
        self.pool = Pool(settings.threads)
        self.counters = Counters()
        self._ids = itertools.count(1)
        self._jitter = random.Random()  # noqa: S311  # spreads retries, no secret
        self._pause = threading.Event()

    # -- top-level transactions ------------------------------------------------------------

    def top_level(self, run: Run | None = None) -> Transaction:
        """A new top-level transaction, used as ``with forest.top_level() as t:``."""
        run = run or Run()
        return Transaction(self, Hierarchy(self.store.session(), run), None, label=run.name)

    def run(self, function: Callable[[Transaction], T], run: Run | None = None) -> T:
        """Run `function` in a top-level transaction, tried again when that is safe.

        Raises
        ------
        TransactionAborted
            If `function` aborts it.
        Deadlock, LockTimeout, SerializationConflict
            When it has been tried ``retries_max`` times more.
        """
        run = run or Run()
        return self.retrying(lambda: self.top_level(run).call(function))

    def retrying(self, attempt: Callable[[], T], within: Hierarchy | None = None) -> T:
        """Make `attempt`, again when it fails in a way that makes that safe.

        Parameters
        ----------
        within : Hierarchy, optional
            The hierarchy that the attempt is part of. If that is broken, or the attempt has
            been made as often as allowed, the error is left to its superiors.
        """
        tries = self.settings.retries_max
        for number in itertools.count():
            try:
                return attempt()
            except (Deadlock, LockTimeout, SerializationConflict) as error:
                # Inside a hierarchy only a deadlock is worth another try: a lock that was not
                # granted in time will not be, as long as the superiors keep what they have.
                inside = within is not None
                spent = inside and (not isinstance(error, Deadlock) or error.exhausted)
                if spent or number >= tries or (within is not None and within.broken is not None):
                    if isinstance(error, Deadlock):
                        error.exhausted = True
                    raise
                self.counters.add("transactions_retried")
                self._pause.wait(self._jitter.uniform(0, 0.001 * 2 ** min(number, 8)))
        raise AssertionError("unreachable")

    # -- what nodes ask for ----------------------------------------------------------------

    def begin(self, node: Node) -> int:
        """Register a new node and return its id."""
        number = next(self._ids)
        parent = node.parent
        if parent is None:
            self.locks.begin(number)
            node.hierarchy.top_id = number
            node.hierarchy.members.add(number)
            return number
        with node.hierarchy.latch:
            parent._inferiors.add(node)
            node.hierarchy.members.add(number)
            node._doom = parent._doom
        self.locks.begin(number, parent.id)
        return number

    def acquire(self, node: Node, resource: tuple[object, ...], mode: Mode) -> None:
        """Acquire a lock for `node`, waiting if need be.

        Raises
        ------
        Deadlock
            If `node` is the victim of a deadlock; the message shows the cycle.
        LockTimeout
            After ``lock_timeout_ms``: the last resort against waits that cross the server.
        TransactionAborted
            If a superior was aborted while it waited.
        TransactionStateError
            If an inferior is open on this thread, which would wait for itself.
        """
        current = current_transaction()
        if current is not None and current is not node and current.is_inferior_of(node):
            raise TransactionStateError(
                f"transaction {node.path} has the open subtransaction {current.path} on this "
                f"thread; use that one until it ends"
            )
        try:
            self.locks.acquire(node.id, resource, mode, self.settings.lock_timeout_ms / 1_000)
        except LockDeadlock as error:
            deadlock = Deadlock(f"deadlock, and {node.path} is its victim: {error}")
            # Only the abort of a whole hierarchy gives up locks that another one waits for.
            with node.hierarchy.latch:
                members = node.hierarchy.members
                deadlock.exhausted = any(edge.waiter not in members for edge in error.report.cycle)
            raise deadlock from error
        except LockWaitTimeout as error:
            raise LockTimeout(
                f"{node.path} waited for longer than lock_timeout_ms: {error}"
            ) from error
        except WaitCancelled:
            raise node._doom or TransactionAborted(f"{node.path} was cancelled") from None

    def end(self, node: Transaction) -> None:
        """Pass on or release the locks of a node that has ended, and count it."""
        committed = node.state is State.COMMITTED
        parent = node.parent
        if parent is not None:
            with node.hierarchy.latch:
                parent._inferiors.discard(node)
                node.hierarchy.members.discard(node.id)
        try:
            if committed:
                self.locks.commit(node.id)
            else:
                # The server keeps the row locks of the flat transaction, and the hierarchy what
                # it has read under them: so the locks stay with the top-level transaction.
                self.locks.abort(node.id, node.hierarchy.top_id if parent is not None else None)
        finally:
            if parent is None and not committed:
                self._close_session(node.hierarchy)
            kind = "transactions" if parent is None else "subtransactions"
            self.counters.add(f"{kind}_{node.state}")
            self.listener.ended(node)

    def _close_session(self, hierarchy: Hierarchy) -> None:
        try:
            hierarchy.session.close()
        except ActiveDBError:
            # The connection is gone, and with it the server's side of the transaction.
            self.counters.add("sessions_lost")
