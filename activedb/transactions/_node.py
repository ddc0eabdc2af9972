"""A node of the forest: its place, its life, its end."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from datetime import datetime
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Protocol, Self, TypeVar

from activedb.errors import (
    ActiveDBError,
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
from activedb.transactions._children import Child, raise_first, told_of
from activedb.transactions._deadlines import Alarm, Limit
from activedb.transactions._hierarchy import Hierarchy, Workspace
from activedb.transactions._kin import Kin
from activedb.transactions._observers import Observer
from activedb.transactions._states import State, checked_move
from activedb.transactions._threads import (
    OpenNodes,
    Standstill,
    begins_wait,
    is_beside_others,
    is_soft,
    is_told_elsewhere,
    open_here,
    sleeping_for_children,
)
from lockmgr import Mode

if TYPE_CHECKING:
    from activedb.store.sql import Key
    from activedb.transactions._forest import Forest
    from activedb.transactions._pool import Task
    from activedb.transactions._transaction import Transaction

__all__ = ["Log", "Node", "current_transaction"]

P = ParamSpec("P")
T = TypeVar("T")

_INSIST_FIRST_S, _INSIST_S_MAX = 0.02, 1.0
_CUT_AFTER_S = 5.0  # a server that lives and a network that works have ended a statement by then
_NO_VERSIONS = Workspace()
"""That of every transaction that has ended, and so writes nothing more."""

_current: ContextVar[Transaction | None] = ContextVar("activedb_transaction", default=None)


def current_transaction() -> Transaction | None:
    """The innermost transaction open on this thread, or None."""
    t = _current.get()
    while t is not None and t._is_left:
        t = t.parent
    return t


class Log(Protocol):
    """Where what one hierarchy does is recorded; called at the moment that settles the order."""

    def began(self, t: Transaction) -> None:
        """`t` has begun and done nothing yet."""

    def spawned(self, t: Transaction, firing: str, coupling: str) -> None:
        """`t` has triggered a rule that is to run in the top-level transactions `firing`."""

    def operated(
        self, t: Transaction, kind: str, table: str, keys: Iterable[Key] | None = None
    ) -> None:
        """`t` reads, writes, inserts or deletes (`kind`) rows, or with None reads a table.

        It has the locks for it.
        """

    def ended(self, t: Transaction) -> None:
        """`t` has committed or aborted; it has its locks still."""


class Node:
    """Place and lifecycle; `Nesting` begins children, `Transaction` works on rows.

    One thread uses a node: the one that runs its block or function. Only `cancel`, and inside
    activedb `doom` and `interrupt`, may be called by others. No method recurses along a line of
    transactions, which may be longer than a stack is deep.

    Attributes
    ----------
    id : int
        Unique in this process; ids grow with time.
    parent : Transaction or None
        None for a top-level transaction.
    state : State
    rule : str or None
        Name of the rule that runs in this transaction.
    deferred : bool
        Whether that rule runs in a deferred cycle of the parent.
    priority, group : int or None
        That of the rule among those that run together: in one cycle of the parent, which `group`
        numbers, or at one event of the parent. For the recording only.
    condition_of : str or None
        Name of the rule whose condition is evaluated in it, or in a superior: it may only read.
    kin : Kin
        What it shares with the other transactions of its hierarchy; `_inferiors`, `_doom`,
        `_lent`, the end of `state` and the workspaces are guarded by its latch.
    """

    id: int
    _over_at_s: float
    _is_left = False
    """Whether its block has been left, which a thread may still take for its innermost one."""

    def __init__(
        self,
        forest: Forest,
        hierarchy: Hierarchy,
        parent: Transaction | None,
        *,
        label: str,
        rule: str | None = None,
        deferred: bool = False,
        priority: int | None = None,
        group: int | None = None,
        timestamp: datetime | float | None = None,
        limit: Limit | None = None,
    ):
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
        self.kin: Kin = Kin() if parent is None else parent.kin
        self.condition_of: str | None = None if parent is None else parent.condition_of
        self._timestamp = timestamp
        if timestamp is None and parent is not None:
            self._timestamp = parent._timestamp
        self._spawned = 0
        self._children: list[Child[object]] = []
        self._inferiors: dict[Node, None] = {}
        self._held: dict[tuple[object, ...], Mode] = {}
        self._doom: ActiveDBError | None = None
        self._thread = get_ident()
        self._lent: frozenset[int] = frozenset()
        self._token: Token[Transaction | None] | None = None
        self._alarm: Alarm | None = None
        self._over_at_s = math.inf if parent is None else parent._over_at_s
        self._waits: AbstractContextManager[None] | None = None  # those of its block, limited
        self._among: OpenNodes | None = None  # what is open on the thread that has entered it
        self._log: Log | None = None if parent is None else parent._log
        # Who watches when its hierarchy begins does so until that has ended.
        self._observer: Observer | None = forest.observer if parent is None else parent._observer
        forest.begin(self)
        if self._log is not None:
            self._log.began(self)  # type: ignore[arg-type]  # every node is a Transaction
        if self._observer is not None:
            self._observer.began(self)  # type: ignore[arg-type]  # every node is a Transaction
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
        """Place in the hierarchy, the same whenever the same work is tried again. O(depth)."""
        labels = []
        node: Node | None = self
        while node is not None:
            labels.append(node.label)
            node = node.parent
        return "/".join(reversed(labels))

    @property
    def told(self) -> str:
        """Its path, for messages to users."""
        return self.path

    @property
    def coupling(self) -> str | None:
        """The mode in which the rule that runs in it was triggered; None without a rule."""
        if self.rule is None:
            return None
        if self.parent is None:
            return self.hierarchy.run.coupling
        return "deferred" if self.deferred else "immediate"

    @property
    def is_doomed(self) -> bool:
        """Whether this transaction has to abort at its next step."""
        return self._doom is not None

    def spawns(self, firing: str, coupling: str) -> None:
        """Record that a rule is to run in a top-level transaction, because of an event here.

        To be called before that one can begin.

        Parameters
        ----------
        firing : str
            Name of the `Run` in which it will, here or in another process.
        coupling : str
            The rule's mode.
        """
        if self._log is not None:
            t: Transaction = self  # type: ignore[assignment]  # every node is a Transaction
            self._log.spawned(t, firing, coupling)
        if self._observer is not None:
            self._observer.spawned(self, firing, coupling)  # type: ignore[arg-type]  # as above

    def origin(self) -> str | None:
        """What the record of a firing that is triggered here carries for who watches."""
        if self._observer is None:
            return None
        return self._observer.carried(self)  # type: ignore[arg-type]  # every node is a Transaction

    def is_on_thread_of(self, other: Node) -> bool:
        """Whether the two share a thread, so that one waits while the other works."""
        return self._thread == other._thread

    @property
    def top(self) -> Transaction:
        """The top-level transaction above it, or itself. O(depth)."""
        node: Node = self
        while node.parent is not None:
            node = node.parent
        return node  # type: ignore[return-value]  # every node is a Transaction

    def is_inferior_of(self, other: Node) -> bool:
        """Whether `other` is a proper ancestor; O(depth)."""
        node = self.parent
        while node is not None and node is not other:
            node = node.parent
        return node is not None

    @property
    def timestamp(self) -> datetime | float:
        """Time of the event being processed, for an s-transaction and its inferiors; else now."""
        return self.forest.clock.now() if self._timestamp is None else self._timestamp

    @property
    def has_event_time(self) -> bool:
        """Return whether `timestamp` is that of an event, and not of this try's clock."""
        return self._timestamp is not None

    # -- the block -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._token is not None or self.state is not State.ACTIVE:
            raise TransactionStateError(
                f"transaction {self.path} has been entered before or is {self.state}; open "
                f"another one"
            )
        if self.parent is None:
            self._thread = get_ident()
        else:
            self._check_thread()
        self._token = _current.set(self)  # type: ignore[arg-type]  # every node is a Transaction
        if self._over_at_s < math.inf:
            self._waits = limited(self._over_at_s)
            self._waits.__enter__()
        self._opened()
        if self._observer is not None:
            self._observer.entered(self)  # type: ignore[arg-type]  # as above
        if self.parent is None:
            try:
                self.forest.listener.began(self)  # type: ignore[arg-type]  # as above
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
        if self._thread != get_ident() and self.state is State.ACTIVE:
            self._end_elsewhere()
        try:
            if error is None:
                self.commit()
                return False
            self._abort(error)
            if self._is_own_abort(error):
                return True
            self._raise_doom_instead_of(error)
            return False
        except TransactionAborted as aborted:
            if self._is_own_abort(aborted):
                return True
            raise
        finally:
            if self._observer is not None:
                self._observer.left(self)  # type: ignore[arg-type]  # every node is a Transaction
            if self._waits is not None:
                self._waits.__exit__(None, None, None)
            self._closed()
            self._is_left = True
            _current.reset(self._token)

    def _end_elsewhere(self) -> None:
        """Abort, and raise: the block ends on a thread on which it did not begin.

        That happens to generators that are resumed elsewhere. Nobody is left in the block.
        """
        wrong = self._wrong_thread()
        self._thread = get_ident()
        self._is_left = True
        try:
            self._abort(wrong)
        finally:
            self._closed()
            if self._observer is not None:
                self._observer.left(self)  # type: ignore[arg-type]  # every node is a Transaction
        raise wrong

    def _is_own_abort(self, error: BaseException) -> bool:
        return isinstance(error, TransactionAborted) and error.transaction == self.id

    def call(self, function: Callable[[Transaction], T]) -> T:
        """Run `function` in this transaction and end it: commit, or abort on an error."""
        if self._over_at_s == math.inf:
            return self._call(function)
        with limited(self._over_at_s):
            return self._call(function)

    def _call(self, function: Callable[[Transaction], T]) -> T:
        token = _current.set(self)  # type: ignore[arg-type]  # every node is a Transaction
        self._opened()
        if self._observer is not None:
            self._observer.entered(self)  # type: ignore[arg-type]  # as above
        try:
            if self.parent is None:
                self.forest.listener.began(self)  # type: ignore[arg-type]  # as below
            result = function(self)  # type: ignore[arg-type]  # every node is a Transaction
            self.commit()
        except BaseException as error:
            self._abort(error)
            self._raise_doom_instead_of(error)
            raise
        finally:
            if self._observer is not None:
                self._observer.left(self)  # type: ignore[arg-type]  # every node is a Transaction
            self._closed()
            _current.reset(token)
        return result

    def falls_asleep(self) -> None:
        """This thread is about to sleep in a wait of this transaction, which is queued.

        Raises
        ------
        Standstill
            If that can never end: the wait closes a cycle that runs through a thread.
        """
        steps = begins_wait(self)
        if steps is None:
            return
        if is_soft(steps) and self.forest.locks.overtake(self.id):
            return  # those ahead in the queue wait for this thread
        if not is_told_elsewhere(steps):
            raise Standstill(steps)

    def abandon(self, parent: int) -> None:
        """Let it be of no use here. REQUIRES: a forked child, of the process it belongs to."""
        self._doom = WrongProcess(
            f"transaction {self.path} belongs to process {parent}, which has forked this one, "
            f"{os.getpid()}, and goes on there: begin one of its own in the child"
        )
        self._log = self._observer = self._alarm = None
        self._is_left = True
        self._children = []
        self._inferiors = {}
        self.state = State.ABORTED

    def _opened(self) -> None:
        """Be open on this thread, where alone it goes on and ends."""
        self._among = open_here()
        self._among.append(self)

    def _closed(self) -> None:
        """Be open no longer; others may have been opened and not closed since."""
        among, self._among = self._among, None
        if among is not None:
            if among and among[-1] is self:
                among.pop()
            elif self in among:  # else a forked child has left it behind
                among.remove(self)

    # -- locks and children -----------------------------------------------------------------

    def offer(self) -> None:
        """Downgrade every lock held to none, retaining it, so that inferiors may use it."""
        self._check_usable()
        self._offer()

    def _offer(self) -> None:
        if self._held:
            self._held.clear()
            self.forest.locks.offer(self.id)
            with self.kin.latch:
                self.kin.rouse()  # a child may pause until it can have one of them

    def await_child(self) -> None:
        """Get ready to wait for a child: offer the locks. On the right thread only."""
        if self.state is State.ACTIVE:
            self._check_thread()
            self._offer()

    def wait_for(self, task: Task[T]) -> None:
        """Wait for the task of a child. REQUIRES: this node's thread, and its locks offered."""
        if task.done or not is_beside_others(self):
            task.wait()
            return
        with sleeping_for_children(self) as sleeping:
            sleeping.look()
            task.wait()

    def join(self) -> None:
        """Wait for the spawned children; raise the first error nobody has been given."""
        if not self._children:
            return
        self._check_thread()
        self._offer()
        self._await_all(self._children)
        children, self._children = self._children, []
        raise_first(children)

    def _await_all(self, children: list[Child[object]]) -> None:
        """Wait for children; no longer, if one was stopped by an interrupt, which is raised."""
        for child in children:
            child.join()
            error = child.unseen_error()
            if error is not None and not isinstance(error, Exception):
                raise error

    # -- the end ---------------------------------------------------------------------------

    def abort(self, reason: str = "") -> None:
        """Abort this transaction: its block ends here, and everything in its sphere is undone.

        Raises
        ------
        TransactionAborted
            Always; a ``with`` block of this transaction swallows it.
        WrongThread
            On another thread, where `cancel` is right.
        """
        if self.state is State.ACTIVE:
            self._check_thread()
        text = f"transaction {self.path} was aborted" + (f": {reason}" if reason else "")
        aborted = TransactionAborted(text, transaction=self.id)
        self._stop(aborted)
        raise aborted

    def cancel(self, reason: str = "") -> None:
        """Make this transaction and its inferiors abort at their next step; from any thread.

        Whatever it does then raises `TransactionCancelled`. A wait for a lock and a statement
        that runs at the server end at once. Nothing happens if it has ended; one that is about to
        commit may still do so.
        """
        cancelled = TransactionCancelled(
            f"transaction {self.path} was cancelled" + (f": {reason}" if reason else "")
        )
        if self.interrupt(cancelled):
            self.forest.counters.add("transactions_cancelled")

    def doom(self, reason: ActiveDBError) -> list[Node]:
        """Make this transaction and its live inferiors abort with this error, at the next step.

        From any thread. Who is doomed already stays so for its old reason. Returns whom this
        concerns. O(inferiors that are not doomed yet).
        """
        doomed: list[Node] = []
        with self.kin.latch:
            found: list[Node] = [self]
            for node in found:  # grows while it is walked
                # Inferiors of a doomed one are doomed too: `Forest.begin` sees to it.
                if node._doom is None and not node.state.is_final:
                    node._doom = reason
                    doomed.append(node)
                    found.extend(node._inferiors)
            if doomed:
                self.kin.rouse()
        for node in doomed:
            self.forest.locks.cancel(node.id)
        return doomed

    def _stop(self, reason: ActiveDBError) -> None:
        """Doom this transaction, which aborts; with a top-level one, end its statements, too.

        One that is cancelled at the server ends the whole flat transaction.
        """
        if self.parent is None:
            self.interrupt(reason)
        else:
            self.doom(reason)

    def interrupt(self, reason: ActiveDBError) -> bool:
        """Doom this transaction, and end what the server does for it; from any thread.

        Returns whether it was alive and not doomed yet.
        """
        is_news = bool(self.doom(reason))
        if is_news:
            self._interrupt_statements(_INSIST_FIRST_S, time.monotonic() + _CUT_AFTER_S)
        return is_news

    def _interrupt_statements(self, again_after_s: float, cut_at_s: float) -> None:
        """Cancel what the server does for this sphere; and again, as long as it lives.

        Its thread may have been on its way to the server. One that does not listen is left: then
        the connections are cut.
        """
        with self.kin.latch:
            if self.state.is_final:
                return
            sphere: list[Node] = [self]
            for node in sphere:  # grows while it is walked
                sphere.extend(node._inferiors)
        # Not those of siblings: what runs on the thread of a doomed one is its own or an
        # inferior's.
        threads = None if self.parent is None else {node._thread for node in sphere}
        try:
            self.hierarchy.session.cancel(threads, cut=time.monotonic() > cut_at_s)
        except ActiveDBError:
            # The server is gone: what waits for it will be told so.
            self.forest.counters.add("cancels_failed")
        next_after_s = min(2 * again_after_s, _INSIST_S_MAX)
        self.forest.deadlines.at(
            time.monotonic() + again_after_s, lambda: self._interrupt_beside(next_after_s, cut_at_s)
        )

    def _interrupt_beside(self, again_after_s: float, cut_at_s: float) -> None:
        """`_interrupt_statements` on a thread: other limits must not wait for the server."""
        threading.Thread(
            target=self._interrupt_statements,
            args=(again_after_s, cut_at_s),
            name="activedb-interrupt",
            daemon=True,
        ).start()

    def _time_is_up(self, limit: Limit) -> None:
        if self.doom(limit.error(self.path)):
            self.forest.counters.add("transactions_timed_out")
            self._interrupt_beside(_INSIST_FIRST_S, time.monotonic() + _CUT_AFTER_S)

    def commit(self) -> None:
        """Commit: join the children, run what is deferred, then delegate or flush.

        On any error the transaction is aborted and the error raised.
        """
        if self.state is State.ACTIVE:
            self._check_thread()
        try:
            self._check_usable()
            if self._children:
                self.join()
            if self._inferiors:
                self._refuse_open_child()
            self.forest.listener.at_commit_point(self)  # type: ignore[arg-type]
            if self._children:
                self.join()
            self.forest.dependencies.await_leave(self)  # type: ignore[arg-type]
            self._check_usable()
            self.state = checked_move(self.state, State.COMMITTING)
            if self._observer is not None:
                self._observer.committing(self)  # type: ignore[arg-type]  # as above
            if self.parent is None:
                self.hierarchy.commit(self.workspace)
            else:
                if self.hierarchy.run.careful and self.parent.parent is None:
                    self.hierarchy.check(self.workspace, self.parent.workspace)
                self._delegate(self.parent)
        except BaseException as error:
            self._abort(error)
            self._raise_doom_instead_of(error)
            raise
        self._end(State.COMMITTED)

    def _delegate(self, parent: Node) -> None:
        """Hand the workspace over to the parent, who is responsible for it from now on."""
        self.forest.store.trigger("during a child's commit")
        with self.kin.latch:
            parent.workspace.take(self.workspace)

    def _abort(self, cause: BaseException | None = None) -> None:
        """Abort with all live inferiors, whose own errors become notes of `cause`.

        Children that run are doomed and waited for, also if that is interrupted. Then what is
        left of the sphere, subtransactions left open on this thread, ends from the leaves up.
        """
        if self.state.is_final:
            return
        if self._observer is not None:
            why = cause if self._doom is None else self._doom
            self._observer.failing(self, why)  # type: ignore[arg-type]  # as above
        interrupt: BaseException | None = None
        sphere: list[Node] = [self]
        for node in sphere:  # grows while it is walked
            children = node._children
            if node._inferiors or not all(child.is_done for child in children):
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
            node._children = []
            if cause is not None:
                told_of(cause, children, node._doom)
            sphere.extend(node._inferiors)
        for node in reversed(sphere):
            node._end(State.ABORTED)
        if interrupt is not None:
            raise interrupt

    def _end(self, state: State) -> None:
        with self.kin.latch:
            self.state = checked_move(self.state, state)
            if state is State.COMMITTED:
                self._doom = None  # it came too late
        if self._alarm is not None:
            self._alarm.drop()
        self.workspace = _NO_VERSIONS
        self.forest.end(self)  # type: ignore[arg-type]  # every node is a Transaction

    # -- who may use it --------------------------------------------------------------------

    def _refuse_open_child(self) -> None:
        raise TransactionStateError(
            f"transaction {self.path} has an open subtransaction; end that one first, at best by "
            f"using it in a with block"
        )

    def check_usable(self) -> None:
        """Raise unless this thread may use it now, as each step of it does."""
        self._check_usable()

    def _check_usable(self) -> None:
        """Raise unless this thread may use it now; every public method begins with this."""
        if (
            self._thread != get_ident()
            or self._doom is not None
            or self.state is not State.ACTIVE
            or self.hierarchy.session.failure is not None
        ):
            self._refuse(get_ident())

    def _refuse(self, ident: int | None = None) -> None:
        if ident is not None and self.state is State.ACTIVE:
            self._check_thread()
        if self._doom is not None:
            raise self._doom.again()
        failure = self.hierarchy.session.failure
        if failure is not None:
            raise failure.again() from failure
        raise TransactionStateError(f"transaction {self.path} is {self.state}; open another one")

    def _check_thread(self) -> None:
        if self._thread != get_ident():
            raise self._wrong_thread()

    def _wrong_thread(self) -> WrongThread:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        owner = names.get(self._thread, "a thread that has ended")
        return WrongThread(
            f"transaction {self.path} runs on thread {owner!r} and was used by "
            f"{threading.current_thread().name!r}; give the work to a child with spawn(), and in "
            f"the function of a child use the transaction that it is called with"
        )

    def _raise_doom_instead_of(self, error: BaseException) -> None:
        """Raise why this transaction was to end, if `error` is only how the store put it."""
        doom = self._doom
        if isinstance(doom, TransactionAborted) and doom.transaction == self.id:
            return  # its own end, of which `error` is the reason
        if isinstance(error, ConnectionLost) and error.committed is None:
            return  # it may have committed, which matters more
        is_stores = isinstance(error, StoreError | LockTimeout)
        if doom is not None and is_stores and type(error) is not type(doom):
            raise doom.again() from error
