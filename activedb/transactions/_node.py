"""Node of the forest: life, children and versions of one transaction."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection
from contextvars import ContextVar, Token
from datetime import datetime
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar

from activedb.errors import (
    ActiveDBError,
    ConditionWrites,
    ConnectionLost,
    LockTimeout,
    StoreError,
    TransactionAborted,
    TransactionCancelled,
    TransactionStateError,
    WrongProcess,
    WrongThread,
)
from activedb.store.server import limited
from activedb.store.sql import Key, Row, TableSpec
from activedb.transactions._children import (
    Child,
    add_sibling_notes,
    await_all,
    raise_first,
)
from activedb.transactions._deadlines import Alarm, Limit
from activedb.transactions._hierarchy import Hierarchy, Kin, Workspace
from activedb.transactions._observers import Log, Observer
from activedb.transactions._states import State, checked_move
from activedb.transactions._threads import (
    OpenNodes,
    here,
    is_beside_others,
    sleeping_for_children,
)
from lockmgr import Edge, Mode

if TYPE_CHECKING:
    from activedb.transactions._forest import Forest
    from activedb.transactions._pool import PoolTask

__all__ = ["TransactionNode", "Version", "current_transaction"]

T = TypeVar("T")

Version = tuple[Key, Row | None, Row | None]
"""Written row: its key, old row and new row; None for no row."""

_INSIST_FIRST_S, _INSIST_S_MAX = 0.02, 1.0
_CUT_AFTER_S = 5.0  # by then a healthy server and network have ended a statement
_NO_VERSIONS = Workspace()
"""Workspace of every transaction that has ended, and so writes nothing more."""

_current: ContextVar[TransactionNode | None] = ContextVar("activedb_transaction", default=None)


def current_transaction() -> TransactionNode | None:
    """Return the innermost transaction open on this thread, or None."""
    t = _current.get()
    while t is not None and t._is_left:
        t = t.parent
    return t


class TransactionNode:
    """A transaction of the forest: its life, its children and the versions that it sees.

    Users have a `Transaction`, which is a handle of it. What it does is functions of it: see
    `_locking`, `_rows` and `_spawning`.

    Only the thread that runs its block or function may use a node. Other threads may call only
    `cancel`, and inside activedb `mark_rollback_only` and `interrupt`. No method recurses along a
    chain of superiors, which may be longer than a stack is deep.

    Attributes
    ----------
    id : int
        Unique in this process; later transactions have greater ids.
    parent : TransactionNode or None
        None for a top-level transaction.
    state : State
    rule : str or None
        Name of the rule that runs in this transaction.
    deferred : bool
        True if that rule runs in a deferred cycle of the parent.
    priority, group : int or None
        Priority of the rule, and number of the group of rules that run together: those of one
        deferred cycle of the parent, or of one event of the parent. For the recording only.
    condition_of : str or None
        Name of the rule whose condition is evaluated in it, or in a superior; makes it read-only.
    rollback_reason : ActiveDBError or None
        Why the transaction can only abort; see `mark_rollback_only`.
    kin : Kin
        Shared by all transactions of the hierarchy; its latch guards `inferiors`,
        `rollback_reason`, `is_enrolled`, `lent`, the end of `state` and the workspaces.
    running : object or None
        The work that the layer above runs in it.
    around : object or None
        The `running` of the nearest superior that has one.
    writer : str or None
        Its identity for tables that only certain transactions may write; see `Forest.writers`.
    children : list of Child
        Spawned and not joined yet.
    inferiors : dict of TransactionNode to None
        Live children, in the order of their begin.
    thread : int
        Identity of the thread that may use it.
    lent : frozenset of int
        Threads on which `run_in_parallel` runs its children.
    held : dict of resource to Mode
        The locks that it holds, so that a second read of a row needs no request; see `_locking`.
    declares : set of TableSpec
        Tables in which it has declared rows that it writes.
    is_enrolled : bool
        True if the lock manager knows it; changed under the latch. See `Forest.enrol`.
    is_prepared : bool
        True if its superiors on this thread have offered their locks since it began.
    """

    # CPython keeps at most 30 attributes without slots inline, and is slower beyond that.
    __slots__ = (
        "__weakref__",
        "_alarm",
        "_among",
        "_is_left",
        "_over_at_s",
        "_spawned",
        "_timestamp",
        "_token",
        "_waits",
        "around",
        "children",
        "condition_of",
        "declares",
        "deferred",
        "forest",
        "group",
        "held",
        "hierarchy",
        "id",
        "inferiors",
        "is_enrolled",
        "is_prepared",
        "kin",
        "label",
        "lent",
        "log",
        "observer",
        "parent",
        "priority",
        "rollback_reason",
        "rule",
        "running",
        "state",
        "thread",
        "workspace",
        "writer",
    )

    forest: Forest
    id: int
    kin: Kin
    state: State
    condition_of: str | None
    log: Log | None
    observer: Observer | None
    rollback_reason: ActiveDBError | None
    _over_at_s: float
    _timestamp: datetime | float | None

    def __init__(
        self,
        forest: Forest,
        hierarchy: Hierarchy,
        parent: TransactionNode | None,
        *,
        label: str,
        rule: str | None = None,
        deferred: bool = False,
        priority: int | None = None,
        group: int | None = None,
        timestamp: datetime | float | None = None,
        limit: Limit | None = None,
    ):
        self.around: Any = None
        if parent is None:
            self.kin = Kin()
            self.condition_of = self.log = self.rollback_reason = None
            self.observer = forest.observer  # observes the hierarchy to its end
            self._over_at_s = math.inf
        else:
            is_alive = parent.rollback_reason is None and parent.state is State.ACTIVE
            if not is_alive or hierarchy.session.failure is not None:
                parent._refuse()
            self.kin = parent.kin
            self.condition_of = parent.condition_of
            self.log, self.observer = parent.log, parent.observer
            self.around = parent.around if parent.running is None else parent.running
            self._over_at_s = parent._over_at_s
            if timestamp is None:
                timestamp = parent._timestamp
        self.forest = forest
        self.hierarchy = hierarchy
        self.parent = parent
        self.rule = rule
        self.deferred = deferred
        self.priority = priority
        self.group = group
        self.state = State.ACTIVE
        self.workspace = Workspace()
        self.label = label
        self._timestamp = timestamp
        self.children: list[Child[object]] = []
        self.inferiors: dict[TransactionNode, None] = {}
        self.held: dict[tuple[object, ...], Mode] = {}
        self.declares: set[TableSpec] = set()
        self.running: Any = None
        self.writer: str | None = None
        self.thread = get_ident()
        self.lent: frozenset[int] = frozenset()
        self.is_enrolled = self.is_prepared = False
        self._spawned = 0
        self._alarm: Alarm | None = None
        # True if its block has been left; the context variable may still refer to it.
        self._is_left = False
        self._token: Token[TransactionNode | None] | None = None
        self._waits: limited | None = None  # limits the waits of its block
        self._among: OpenNodes | None = None  # transactions open on its thread
        forest.begin(self)
        if self.log is not None:
            self.log.began(self)
        if self.observer is not None:
            self.observer.began(self)
        if limit is not None:
            self._over_at_s = min(self._over_at_s, limit.at_s)
            if parent is not None:
                hierarchy.session.read_beside()
            self._alarm = forest.deadlines.at(limit.at_s, lambda: self._time_is_up(limit))

    def __repr__(self) -> str:
        kind = f"rule {self.rule}" if self.rule else "transaction"
        return f"<{kind} {self.id} {self.path} {self.state}>"

    @property
    def path(self) -> str:
        """Place in the hierarchy, the same in every retry of the same work. O(depth)."""
        return "/".join([node.label for node in reversed(self.line)])

    @property
    def description(self) -> str:
        """Description of the transaction for messages to users."""
        return self.path

    @property
    def coupling(self) -> str | None:
        """Coupling mode of the rule that runs in the transaction; None without a rule."""
        if self.rule is None:
            return None
        if self.parent is None:
            return self.hierarchy.run.coupling
        return "deferred" if self.deferred else "immediate"

    @property
    def is_rollback_only(self) -> bool:
        """True if this transaction has to abort at its next step."""
        return self.rollback_reason is not None

    def spawns(self, firing: str, coupling: str) -> None:
        """Record that an event here has triggered a rule that runs in a top-level transaction.

        To be called before that transaction can begin.

        Parameters
        ----------
        firing : str
            Name of its `Run`, here or in another process.
        coupling : str
            The rule's coupling mode.
        """
        if self.log is not None:
            self.log.spawned(self, firing, coupling)
        if self.observer is not None:
            self.observer.spawned(self, firing, coupling)

    def origin(self) -> str | None:
        """Return the observers' data to store in the record of a firing triggered here."""
        if self.observer is None:
            return None
        return self.observer.carried(self)

    @property
    def line(self) -> list[TransactionNode]:
        """The transaction and its superiors, the top-level transaction last. O(depth)."""
        found = []
        node: TransactionNode | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        return found

    @property
    def top(self) -> TransactionNode:
        """Top-level transaction above it, or itself. O(depth)."""
        return self.line[-1]

    def sphere(self) -> list[TransactionNode]:
        """Return the transaction and its live inferiors, parents first. REQUIRES: `kin.latch`."""
        found = [self]
        for node in found:  # grows while it is walked
            found.extend(node.inferiors)
        return found

    @property
    def timestamp(self) -> datetime | float:
        """Time of the event being processed, for an s-transaction and its inferiors; else now."""
        return self.forest.clock.now() if self._timestamp is None else self._timestamp

    @property
    def has_event_time(self) -> bool:
        """True if `timestamp` is the time of an event, not of this try's clock."""
        return self._timestamp is not None

    # -- the block -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._token is not None or self.state is not State.ACTIVE:
            raise TransactionStateError(
                f"transaction {self.path} has been entered before or is {self.state}; open "
                f"another one"
            )
        if self.parent is None:
            self.thread = get_ident()
        else:
            self._check_thread()
        self._opened()
        if self.parent is None:
            try:
                self.forest.listener.began(self)
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._token is not None
        if self.thread != get_ident() and self.state is State.ACTIVE:
            self._end_elsewhere()
        try:
            if error is None:
                self.commit()
            else:
                self._abort(error)
                self._raise_rollback_reason_instead_of(error)
            return error is not None and self._is_own_abort(error)
        except TransactionAborted as aborted:
            if self._is_own_abort(aborted):
                return True
            raise
        finally:
            self._is_left = True
            self._closed()

    def _end_elsewhere(self) -> None:
        """Abort and raise `WrongThread`: the block ends on another thread than it began on.

        This happens to generators that are resumed elsewhere. No thread is left in the block.
        """
        wrong = self._wrong_thread()
        self.thread = get_ident()
        self._is_left = True
        self._token = None  # the other thread's
        if self._waits is not None:
            self._waits.void()
            self._waits = None
        try:
            self._abort(wrong)
        finally:
            self._closed()
        raise wrong

    def _is_own_abort(self, error: BaseException) -> bool:
        return isinstance(error, TransactionAborted) and error.transaction == self.id

    def call(self, function: Callable[[TransactionNode], T]) -> T:
        """Run `function` in this transaction and end it: commit, or abort on an error."""
        self._opened()
        try:
            if self.parent is None:
                self.forest.listener.began(self)
            result = function(self)
            self.commit()
        except BaseException as error:
            self._abort(error)
            self._raise_rollback_reason_instead_of(error)
            raise
        finally:
            self._closed()
        return result

    @property
    def on_wait(self) -> Callable[[tuple[Edge, ...]], None] | None:
        """Callback of the lock manager for a wait; None without an observer."""
        return None if self.observer is None else partial(self.observer.waits, self)

    def abandon(self, parent: int) -> None:
        """Make the transaction unusable here. REQUIRES: a forked child of its process."""
        self.rollback_reason = WrongProcess(
            f"transaction {self.path} belongs to process {parent}, which has forked this one, "
            f"{os.getpid()}, and continues there: begin one of its own in the child"
        )
        self.log = self.observer = self._alarm = None
        self._is_left = True
        self.children = []
        self.inferiors = {}
        self.state = State.ABORTED

    def _opened(self) -> None:
        """Open the transaction on this thread, where it must continue and end."""
        self._token = _current.set(self)
        if self._over_at_s < math.inf:
            self._waits = limited(self._over_at_s)
            self._waits.__enter__()
        self._among = here.nodes
        self._among.append(self)
        if self.observer is not None:
            self.observer.entered(self)

    def _closed(self) -> None:
        """Close it on this thread; transactions opened later may still be open."""
        if self.observer is not None:
            self.observer.left(self)
        if self._waits is not None:
            self._waits.__exit__(None, None, None)
        among, self._among = self._among, None
        if among is not None:
            if among and among[-1] is self:
                among.pop()
            elif self in among:  # not found in a forked child
                among.remove(self)
        token, self._token = self._token, None
        if token is not None:
            _current.reset(token)

    # -- locks and children -----------------------------------------------------------------

    def offer(self) -> None:
        """Downgrade all held locks to retained ones, so that inferiors may acquire them."""
        self.check_usable()
        self.offer_line()

    def offer_line(self) -> None:
        """Offer the locks of this transaction, and those of its superiors on this thread.

        While a transaction is open here, its superiors acquire no lock: so those of a transaction
        that `is_prepared` have nothing to offer. REQUIRES: this thread is the transaction's.
        """
        node = self
        while True:
            if node.held:
                node.held.clear()
                self.forest.locks.offer(node.id)
                with self.kin.latch:
                    self.kin.notify_all()  # a child may be waiting for one of them
            parent = node.parent
            if node.is_prepared or parent is None or parent.thread != node.thread:
                return
            node.is_prepared = True
            node = parent

    def await_child(self) -> None:
        """Offer the locks before a wait for a child. Raise `WrongThread` on another thread."""
        if self.state is State.ACTIVE:
            self._check_thread()
            self.offer_line()

    def wait_for(self, task: PoolTask[T]) -> None:
        """Wait for the task of a child. REQUIRES: this node's thread, with its locks offered."""
        if task.done or not is_beside_others(self):
            task.wait()
            return
        with sleeping_for_children(self) as sleeping:
            sleeping.look_again()
            task.wait()

    def join(self) -> None:
        """Wait for the spawned children; raise the first undelivered error."""
        if not self.children:
            return
        self._check_thread()
        self.offer_line()
        await_all(self.children)
        children, self.children = self.children, []
        raise_first(children)

    def next_label(self) -> str:
        """Return the label of the next child: its number among this transaction's children."""
        self._spawned += 1
        return str(self._spawned)

    # -- the end ---------------------------------------------------------------------------

    def abort(self, reason: str = "") -> Never:
        """Abort; see `Transaction.abort`."""
        if self.state is State.ACTIVE:
            self._check_thread()
        text = f"transaction {self.path} was aborted" + (f": {reason}" if reason else "")
        aborted = TransactionAborted(text, transaction=self.id)
        self._stop(aborted)
        raise aborted

    def cancel(self, reason: str = "") -> None:
        """Make it abort at its next step, from any thread; see `Transaction.cancel`."""
        cancelled = TransactionCancelled(
            f"transaction {self.path} was cancelled" + (f": {reason}" if reason else "")
        )
        if self.interrupt(cancelled):
            self.forest.counters.add("transactions_cancelled")

    def mark_rollback_only(self, reason: ActiveDBError) -> list[TransactionNode]:
        """Make this transaction and its live inferiors abort with this error, at the next step.

        May be called on any thread. A transaction that is rollback-only already keeps its first
        reason. Returns the newly marked transactions. O(inferiors that are not marked yet).
        """
        marked: list[TransactionNode] = []
        with self.kin.latch:
            found = [self]
            for node in found:  # grows while it is walked
                # Inferiors of a marked transaction are marked too: `Forest.begin` ensures it.
                if node.rollback_reason is None and not node.state.is_final:
                    node.rollback_reason = reason
                    marked.append(node)
                    found.extend(node.inferiors)
            if marked:
                self.kin.notify_all()
        for node in marked:
            self.forest.locks.cancel(node.id)
        return marked

    def _stop(self, reason: ActiveDBError) -> None:
        """Mark this transaction rollback-only; for a top-level one, end its statements, too.

        Not for a subtransaction, because a cancelled statement breaks the whole flat transaction.
        """
        if self.parent is None:
            self.interrupt(reason)
        else:
            self.mark_rollback_only(reason)

    def interrupt(self, reason: ActiveDBError) -> bool:
        """Mark this transaction rollback-only, and end its statements on the server; on any thread.

        Returns whether it was live and not marked yet.
        """
        is_news = bool(self.mark_rollback_only(reason))
        if is_news:
            self._interrupt_statements(_INSIST_FIRST_S, time.monotonic() + _CUT_AFTER_S)
        return is_news

    def _interrupt_statements(self, again_after_s: float, cut_at_s: float) -> None:
        """Cancel the statements of this sphere on the server, repeatedly while it is live.

        Repeated because a statement may not have reached the server at the first call. If the
        server does not react in time, the connections are cut.
        """
        with self.kin.latch:
            if self.state.is_final:
                return
            sphere = self.sphere()
        # Spare the statements of siblings: the thread of this transaction runs only its own
        # statements and those of its inferiors.
        threads = None if self.parent is None else {node.thread for node in sphere}
        try:
            self.hierarchy.session.cancel(threads, cut=time.monotonic() > cut_at_s)
        except ActiveDBError:
            # The server is gone; waiting calls get their own errors.
            self.forest.counters.add("cancels_failed")
        next_after_s = min(2 * again_after_s, _INSIST_S_MAX)
        self.forest.deadlines.at(
            time.monotonic() + again_after_s, lambda: self._interrupt_beside(next_after_s, cut_at_s)
        )

    def _interrupt_beside(self, again_after_s: float, cut_at_s: float) -> None:
        """Call `_interrupt_statements` on a new thread, so that other limits need not wait."""
        if self.state.is_final:  # the program may have ended, too, and allow no new thread
            return
        threading.Thread(
            target=self._interrupt_statements,
            args=(again_after_s, cut_at_s),
            name="activedb-interrupt",
            daemon=True,
        ).start()

    def _time_is_up(self, limit: Limit) -> None:
        if self.mark_rollback_only(limit.error(self.path)):
            self.forest.counters.add("transactions_timed_out")
            self._interrupt_beside(_INSIST_FIRST_S, time.monotonic() + _CUT_AFTER_S)

    def commit(self) -> None:
        """Commit: join the children, run the deferred rules, then delegate or flush.

        On any error the transaction aborts and the error is raised.
        """
        if self.thread != get_ident() and self.state is State.ACTIVE:
            raise self._wrong_thread()
        try:
            self.check_usable()
            if self.children:
                self.join()
            if self.inferiors:
                raise TransactionStateError(
                    f"transaction {self.path} has an open subtransaction; end that one first, at "
                    f"best by using it in a with block"
                )
            self.forest.listener.at_commit_point(self)
            if self.children:
                self.join()
            if self.id in self.forest.dependencies.nodes:
                self.forest.dependencies.await_leave(self)
            if (
                self.rollback_reason is not None
                or self.state is not State.ACTIVE
                or self.hierarchy.session.failure is not None
            ):
                self._refuse()  # since the check above
            self.state = State.COMMITTING  # allowed: it is active
            if self.observer is not None:
                self.observer.committing(self)
            if self.parent is None:
                self.hierarchy.commit(self.workspace)
            else:
                if self.hierarchy.run.careful and self.parent.parent is None:
                    self.hierarchy.check(self.workspace, self.parent.workspace)
                self._delegate(self.parent)
        except BaseException as error:
            self._abort(error)
            self._raise_rollback_reason_instead_of(error)
            raise
        self._end(State.COMMITTED)

    def _delegate(self, parent: TransactionNode) -> None:
        """Delegate the workspace to the parent, which is responsible for it from now on."""
        self.forest.store.trigger("during a child's commit")
        with self.kin.latch:
            parent.workspace.take(self.workspace)

    def _abort(self, cause: BaseException | None = None) -> None:
        """Abort with all live inferiors, whose own errors become notes of `cause`.

        Running children are marked rollback-only and joined, even if the wait is interrupted. Then
        the rest of the sphere, subtransactions left open on this thread, ends from the leaves up.
        """
        if self.state.is_final:
            return
        if self.observer is not None:
            why = cause if self.rollback_reason is None else self.rollback_reason
            self.observer.failing(self, why)
        interrupt: BaseException | None = None
        sphere = [self]
        for node in sphere:  # grows while it is walked
            children = node.children
            if node.inferiors or not all(child.is_done for child in children):
                reason = TransactionAborted(
                    f"the superior {self.path} was aborted", transaction=self.id
                )
                node._stop(reason)
            for child in children:
                while not child.is_done:
                    try:
                        child.join()
                    except BaseException as error:
                        interrupt = error
            node.children = []
            if cause is not None:
                add_sibling_notes(cause, children, node.rollback_reason)
            sphere.extend(node.inferiors)
        for node in reversed(sphere):
            node._end(State.ABORTED)
        if interrupt is not None:
            raise interrupt

    def _end(self, state: State) -> None:
        with self.kin.latch:
            self.state = checked_move(self.state, state)
            if state is State.COMMITTED:
                self.rollback_reason = None  # it came too late
        if self._alarm is not None:
            self._alarm.drop()
        self.workspace = _NO_VERSIONS
        self.forest.end(self)

    # -- checks ----------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise unless this thread may use the transaction now, as each step of it requires."""
        if self.thread != get_ident() and self.state is State.ACTIVE:
            raise self._wrong_thread()
        if (
            self.rollback_reason is not None
            or self.state is not State.ACTIVE
            or self.hierarchy.session.failure is not None
        ):
            self._refuse()

    def _refuse(self) -> Never:
        if self.rollback_reason is not None:
            raise self.rollback_error()
        failure = self.hierarchy.session.failure
        if failure is not None:
            raise failure.again() from failure
        raise TransactionStateError(f"transaction {self.path} is {self.state}; open another one")

    def rollback_error(self) -> ActiveDBError:
        """Return the error of a step or a wait that a rollback ends."""
        reason = self.rollback_reason or TransactionAborted(f"{self.path} was cancelled")
        return reason.again()

    def _check_thread(self) -> None:
        if self.thread != get_ident():
            raise self._wrong_thread()

    def _wrong_thread(self) -> WrongThread:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        owner = names.get(self.thread, "a thread that has ended")
        return WrongThread(
            f"transaction {self.path} runs on thread {owner!r} and was used by "
            f"{threading.current_thread().name!r}; give the work to a child with spawn(), and in "
            f"the function of a child use the transaction that it is called with"
        )

    def refuse_write(self, what: str) -> Never:
        """Raise `ConditionWrites`. REQUIRES: `condition_of`."""
        rule = self.condition_of
        raise ConditionWrites(
            f"rule {rule}: its condition (when=) may only read, and makes {what}; move that into "
            f"the action",
            rule=rule or "",
        )

    def _raise_rollback_reason_instead_of(self, error: BaseException) -> None:
        """Raise the reason of the rollback, if `error` is only the store's reaction to it."""
        reason = self.rollback_reason
        if isinstance(reason, TransactionAborted) and reason.transaction == self.id:
            return  # its own abort; `error` is the reason for it
        if isinstance(error, ConnectionLost) and error.committed is None:
            return  # it may have committed, which matters more
        is_stores = isinstance(error, StoreError | LockTimeout)
        if reason is not None and is_stores and type(error) is not type(reason):
            again = reason.again()
            if again.__cause__ is None:
                raise again from error
            raise again  # which has a cause of its own

    # -- versions --------------------------------------------------------------------------

    def version(self, spec: TableSpec, key: Key, otherwise: Row | None) -> Row | None:
        """Return the nearest version of a row in its own or a superior's workspace. O(depth)."""
        node: TransactionNode | None = self
        while node is not None:
            rows = node.workspace.rows.get(spec)
            if rows is not None and key in rows:
                return rows[key]
            node = node.parent
        return otherwise

    def dirty(self, spec: TableSpec, keys: Collection[Key] | None = None) -> dict[Key, Row | None]:
        """Return the nearest versions of a table's rows in this and its ancestors' workspaces.

        Complexity: O(versions), or O(depth * keys) if only those of some keys are wanted.
        """
        seen: dict[Key, Row | None] = {}
        with self.kin.latch:
            for node in self.line:
                rows = node.workspace.rows.get(spec, {})
                for key in rows if keys is None else [key for key in keys if key in rows]:
                    seen.setdefault(key, rows[key])
        return seen
