"""A node of the forest: its place, its life, its children."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar

from activedb.errors import ActiveDBError, TransactionAborted, TransactionStateError
from activedb.transactions._children import Child
from activedb.transactions._hierarchy import Hierarchy, Workspace
from activedb.transactions._states import State, checked_move
from lockmgr import Mode

if TYPE_CHECKING:
    from activedb.transactions._forest import Forest
    from activedb.transactions._transaction import Transaction

__all__ = ["Node", "current_transaction"]

P = ParamSpec("P")
T = TypeVar("T")

_current: ContextVar[Transaction | None] = ContextVar("activedb_transaction", default=None)


def current_transaction() -> Transaction | None:
    """The innermost transaction open on this thread, or None."""
    return _current.get()


class Node:
    """Lifecycle and nesting; what a transaction does to rows is in its subclass.

    One thread at a time uses a node: the one that runs its block or function. Only `doom` may
    be called by others.

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
    """

    def __init__(
        self,
        forest: Forest,
        hierarchy: Hierarchy,
        parent: Transaction | None,
        *,
        label: str,
        rule: str | None = None,
        deferred: bool = False,
        timestamp: datetime | float | None = None,
    ):
        self.forest = forest
        self.hierarchy = hierarchy
        self.parent = parent
        self.rule = rule
        self.deferred = deferred
        self.state = State.ACTIVE
        self.workspace = Workspace()
        self.label = label
        self._timestamp = timestamp
        self._spawned = 0
        self._children: list[Child[object]] = []
        self._inferiors: set[Node] = set()
        self._held: dict[tuple[object, ...], Mode] = {}
        self._doom: ActiveDBError | None = None
        self._token: Token[Transaction | None] | None = None
        self.id = forest.begin(self)

    def __repr__(self) -> str:
        kind = f"rule {self.rule}" if self.rule else "transaction"
        return f"<{kind} {self.id} {self.path} {self.state}>"

    @property
    def path(self) -> str:
        """Place in the hierarchy, the same whenever the same work is tried again."""
        return self.label if self.parent is None else f"{self.parent.path}/{self.label}"

    @property
    def is_doomed(self) -> bool:
        """Whether this transaction has to abort at its next step."""
        return self._doom is not None

    def is_inferior_of(self, other: Node) -> bool:
        """Whether `other` is a proper ancestor; O(depth)."""
        node = self.parent
        while node is not None and node is not other:
            node = node.parent
        return node is not None

    @property
    def timestamp(self) -> datetime | float:
        """Time of the event being processed, for an s-transaction and its inferiors; else now."""
        node: Node | None = self
        while node is not None:
            if node._timestamp is not None:
                return node._timestamp
            node = node.parent
        return self.forest.clock.now()

    # -- the block -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._token = _current.set(self)  # type: ignore[arg-type]  # every node is a Transaction
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._token is not None
        try:
            if error is None:
                self.commit()
                return False
            self._abort()
            return self._is_own_abort(error)
        except TransactionAborted as aborted:
            if self._is_own_abort(aborted):
                return True
            raise
        finally:
            _current.reset(self._token)

    def _is_own_abort(self, error: BaseException) -> bool:
        return isinstance(error, TransactionAborted) and error.transaction == self.id

    # -- nesting ---------------------------------------------------------------------------

    def subtransaction(self) -> Transaction:
        """A sequential child, used as ``with t.subtransaction() as s:`` on this thread.

        The parent's locks are offered to the child, and the parent is not to be used until the
        block ends.
        """
        return self.new_child(self.next_label())

    def spawn(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Child[T]:
        """Run ``function(s, *args)`` as a parallel child and go on.

        The child is joined at the latest by this transaction's commit, which raises what the
        child raised unless ``result()`` has delivered it. A child that is chosen as a deadlock
        victim is retried. The locks this transaction holds are offered to the child.
        """
        self._check_usable()
        label = self.next_label()
        self.offer()
        child: Child[T] = Child(
            self, lambda: self.run_child(lambda s: function(s, *args, **kwargs), label=label)
        )
        self._children.append(child)  # type: ignore[arg-type]  # results are read by type T only
        return child

    def run_child(
        self,
        function: Callable[[Transaction], T],
        *,
        label: str,
        rule: str | None = None,
        deferred: bool = False,
        timestamp: datetime | float | None = None,
    ) -> T:
        """Run `function` in a child on this thread, retried when it is a deadlock's victim."""

        def attempt() -> T:
            child = self.new_child(label, rule=rule, deferred=deferred, timestamp=timestamp)
            return child.call(function)

        return self.forest.retrying(attempt, within=self.hierarchy)

    def run_in_parallel(self, calls: Iterable[Callable[[], None]]) -> None:
        """Make `calls`, each of which runs children of this transaction, on the pool's threads.

        Waits for all of them, then raises the first error.
        """
        self._check_usable()
        self.offer()
        children = [Child(self, call) for call in calls]
        for child in children:
            child.wait()
        for child in children:
            child.raise_if_unseen()

    def call(self, function: Callable[[Transaction], T]) -> T:
        """Run `function` in this transaction and end it: commit, or abort on an error."""
        token = _current.set(self)  # type: ignore[arg-type]  # every node is a Transaction
        try:
            result = function(self)  # type: ignore[arg-type]  # every node is a Transaction
            self.commit()
        except BaseException:
            self._abort()
            raise
        finally:
            _current.reset(token)
        return result

    def new_child(
        self,
        label: str,
        *,
        rule: str | None = None,
        deferred: bool = False,
        timestamp: datetime | float | None = None,
    ) -> Transaction:
        """A child that has begun; this transaction's locks are offered to it."""
        self._check_usable()
        self.offer()
        return self.forest.transaction_class(
            self.forest,
            self.hierarchy,
            self,  # type: ignore[arg-type]  # every node is a Transaction
            label=label,
            rule=rule,
            deferred=deferred,
            timestamp=timestamp,
        )

    def next_label(self) -> str:
        """Label of the next child: its number among the children of this transaction."""
        self._spawned += 1
        return str(self._spawned)

    def offer(self) -> None:
        """Downgrade every lock held to none, retaining it, so that inferiors may use it."""
        if self._held:
            self._held.clear()
            self.forest.locks.offer(self.id)

    def join(self) -> None:
        """Wait for the spawned children; raise the first error nobody has been given."""
        if not self._children:
            return
        self.offer()
        children, self._children = self._children, []
        for child in children:
            child.wait()
        for child in children:
            child.raise_if_unseen()

    # -- the end ---------------------------------------------------------------------------

    def abort(self, reason: str = "") -> None:
        """Abort this transaction: its block ends here, and everything in its sphere is undone.

        Raises
        ------
        TransactionAborted
            Always; a ``with`` block of this transaction swallows it.
        """
        text = f"transaction {self.path} was aborted" + (f": {reason}" if reason else "")
        aborted = TransactionAborted(text, transaction=self.id)
        if self.state is State.ACTIVE:
            self.doom(aborted)
        raise aborted

    def doom(self, reason: ActiveDBError) -> None:
        """Make this transaction and its live inferiors abort with this error, at the next step."""
        with self.hierarchy.latch:
            self._doom = self._doom or reason
            inferiors = list(self._inferiors)
        self.forest.locks.cancel(self.id)
        for inferior in inferiors:
            inferior.doom(reason)

    def commit(self) -> None:
        """Commit: join the children, run what is deferred, then delegate or flush.

        On any error the transaction is aborted and the error raised.
        """
        try:
            self._check_usable()
            self.join()
            self._check_no_open_child()
            self.forest.listener.at_commit_point(self)  # type: ignore[arg-type]
            self.join()
            self._check_usable()
            self.state = checked_move(self.state, State.COMMITTING)
            if self.parent is None:
                self.hierarchy.commit(self.workspace)
            else:
                if self.hierarchy.run.careful and self.parent.parent is None:
                    self.hierarchy.check(self.workspace, self.parent.workspace)
                self._delegate(self.parent)
        except BaseException:
            self._abort()
            raise
        self._end(State.COMMITTED)

    def _delegate(self, parent: Node) -> None:
        """Hand the workspace over to the parent, who is responsible for it from now on."""
        with self.hierarchy.latch:
            self.forest.store.trigger("during a child's commit")
            parent.workspace.take(self.workspace)

    def _abort(self) -> None:
        if self.state in (State.ABORTED, State.COMMITTED):
            return
        if self._children:
            self.doom(
                TransactionAborted(f"the superior {self.path} was aborted", transaction=self.id)
            )
            children, self._children = self._children, []
            for child in children:
                child.wait()
        for inferior in list(self._inferiors):  # subtransactions left open on this thread
            inferior._abort()
        self._end(State.ABORTED)

    def _end(self, state: State) -> None:
        self.state = checked_move(self.state, state)
        self.workspace = Workspace()
        self.forest.end(self)  # type: ignore[arg-type]  # every node is a Transaction

    def _check_no_open_child(self) -> None:
        if self._inferiors:
            raise TransactionStateError(
                f"transaction {self.path} has an open subtransaction; end that one first, at best "
                f"by using it in a with block"
            )

    def _check_usable(self) -> None:
        if self._doom is not None:
            raise self._doom
        if self.hierarchy.broken is not None:
            raise self.hierarchy.broken
        if self.state is not State.ACTIVE:
            raise TransactionStateError(
                f"transaction {self.path} is {self.state}; open another one"
            )
