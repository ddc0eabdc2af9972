"""Transactions inside a caller's transaction: blocks over a connection that the caller commits.

The caller's transaction is the top-level transaction of a hierarchy. Each block is a child of it,
and so is each savepoint that the caller sets. The writes of a block are on the server when the
block ends, visible to the caller. The top-level transaction ends as the caller's does.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from activedb.config import Isolation
from activedb.errors import (
    ActiveDBError,
    ConfigurationError,
    TransactionAborted,
    TransactionStateError,
)
from activedb.store.session import ExternalSession, borrow, connection_of, listen_to
from activedb.transactions._deadlines import Limit
from activedb.transactions._hierarchy import Hierarchy
from activedb.transactions._node import TransactionNode
from activedb.transactions._run import Run
from activedb.transactions._states import State

if TYPE_CHECKING:
    from activedb.transactions._forest import Forest

__all__ = ["Joined"]


_LOG = logging.getLogger(__name__)
_LOOKS_MAX = 60
_LOOK_AGAIN_S = 0.5


class Joined:
    """Callers' transactions that a forest takes part in.

    Attributes
    ----------
    closing : threading.Event
        Set when waits for the ends of callers' transactions must stop.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self, forest: Forest):
        self.closing = threading.Event()
        self._forest = forest
        self._latch = threading.Lock()
        self._followers: WeakKeyDictionary[Any, _ConnectionFollower] = WeakKeyDictionary()
        self._waiting: dict[threading.Thread, _CallerTransaction] = {}

    def block(
        self, given: Any, isolation: Isolation | None = None, *, timeout: float | None = None
    ) -> TransactionNode:
        """Return a transaction inside that of the caller's connection or session, for one block.

        `isolation` is the setting's by default.

        Raises
        ------
        ConfigurationError
            If the connection cannot be used; see `activedb.store.session.borrow`.
        TransactionStateError
            If another block is open over the connection, or its transaction has failed.
        """
        limit = Limit.after(timeout)
        isolation = isolation or self._forest.settings.isolation
        connection = connection_of(given)
        with self._latch:
            follower = self._followers.get(connection)
        if follower is not None and follower.part is not None and follower.part.is_over:
            follower.rolled_back()  # no event was seen: the connection was lost
        if follower is None or follower.part is None:
            session = borrow(self._forest.store, connection, isolation)
            if follower is None:
                follower = _ConnectionFollower()
                listen_to(connection, follower)
                with self._latch:
                    self._followers[connection] = follower
            follower.part = _CallerTransaction(self, self._forest, session, isolation)
        return follower.part.block(limit, isolation)

    def top_of(self, connection: Any) -> TransactionNode | None:
        """Return the top-level transaction that ends with a connection's, if it has had a block."""
        with self._latch:
            follower = self._followers.get(connection)
        part = None if follower is None else follower.part
        return None if part is None else part.top

    def wait_beside(self, part: _CallerTransaction, number: str) -> None:
        """Have `part` end as the caller's commit does; wait for that on a new thread."""

        def wait() -> None:
            try:
                part.await_outcome(number)
            finally:
                with self._latch:
                    del self._waiting[thread]
                with self._forest.idle:
                    self._forest.idle.notify_all()

        thread = threading.Thread(target=wait, name="activedb-outcome", daemon=True)
        with self._latch:
            # Once the database object is closed, no thread may be started.
            is_waited_for = not self.closing.is_set()
            if is_waited_for:
                self._waiting[thread] = part
                try:
                    thread.start()
                except RuntimeError:  # there are too many
                    del self._waiting[thread]
                    is_waited_for = False
        if not is_waited_for:
            part.end(None)

    def unsettled(self) -> list[str]:
        """Return the paths of callers' transactions that have ended, but not yet here; O(commits).

        Callers that are still committing are left out.
        """
        with self._latch:
            parts = list(self._waiting.values())
        return [part.top.path for part in parts if part.callers_is_over]

    def close(self) -> None:
        """End the threads that wait for the outcome of callers' commits. Idempotent."""
        self.closing.set()
        with self._latch:
            waiting = list(self._waiting)
        for thread in waiting:
            thread.join()


class _ConnectionFollower:
    """Follower of a caller's connection, which forwards its events to our part in it."""

    def __init__(self) -> None:
        self.part: _CallerTransaction | None = None
        self._ending: _CallerTransaction | None = None

    @property
    def is_open(self) -> bool:
        """True if we have a part in the caller's current transaction."""
        return self.part is not None

    def committing(self) -> None:
        part, self.part = self.part, None
        if part is not None:
            self._ending = part
            part.committing()

    def rolled_back(self) -> None:
        part, self.part = self.part, None
        ending, self._ending = self._ending, None
        if part is not None:
            part.rolled_back()
        elif ending is not None:
            ending.commit_failed()

    def savepoint(self, name: str) -> None:
        if self.part is not None:
            self.part.savepoint(name)

    def released(self, name: str) -> None:
        if self.part is not None:
            self.part.released(name)

    def rolled_back_to_savepoint(self, name: str) -> None:
        if self.part is not None and not self.part.rolled_back_to_savepoint(name):
            self.rolled_back()  # the savepoint is older than our part, which is undone as a whole


class _CallerTransaction:
    """Our part in one transaction of a caller, from the first block to the transaction's end."""

    def __init__(
        self, joined: Joined, forest: Forest, session: ExternalSession, isolation: Isolation
    ):
        self._joined = joined
        self._session = session
        run = Run(isolation=isolation)
        self._hierarchy = Hierarchy(session, run, lends=False)
        label = f"caller {run.name}"  # firings are named after it
        self.top = _CallersTransaction(forest, self._hierarchy, None, label=label)
        self._savepoints: list[tuple[str, _CallerNode]] = []
        self._block: TransactionNode | None = None
        self._has_failed = threading.Event()

    @property
    def is_over(self) -> bool:
        return self.top.state is not State.ACTIVE or self._session.is_over

    @property
    def callers_is_over(self) -> bool:
        """True if the caller's own transaction has ended, or its commit has failed."""
        return self._session.is_over or self._has_failed.is_set()

    def block(self, limit: Limit | None, isolation: Isolation) -> TransactionNode:
        self._check_no_open_block("open another one")
        had = self._hierarchy.run.isolation
        if had != isolation:
            raise ConfigurationError(
                f"the connection's transaction has had blocks with isolation={had!r}; all of them "
                f"need the same one"
            )
        self._hierarchy.forget()  # the caller may have written anything since
        self._block = self._innermost().begin_inside(_Block, limit)
        return self._block

    def _innermost(self) -> _CallerNode:
        node: _CallerNode = self._savepoints[-1][1] if self._savepoints else self.top
        node.adopt()
        return node

    def _check_no_open_block(self, what: str) -> None:
        block = self._block
        if block is not None and not block.state.is_final:
            raise TransactionStateError(
                f"transaction {block.path} is open over this connection: end it before you "
                f"{what}. Inside it use its own subtransactions, and flush sessions before it"
            )

    # -- events of the caller's connection -------------------------------------------------

    def committing(self) -> None:
        try:
            self._hierarchy.forget()
            self.top.adopt()
            self._release_down_to(0)
            number = self._session.number()
            self.top.commit()
        except BaseException as error:
            self._session.roll_back()
            self.give_up(f"the caller's commit was refused: {error}")
            raise
        self._joined.wait_beside(self, number)

    def commit_failed(self) -> None:
        """Note that the caller's commit failed and was rolled back, unless it has ended before."""
        if not self._session.is_over:
            self._has_failed.set()

    def rolled_back(self) -> None:
        self.give_up("the caller rolled its transaction back")

    def give_up(self, reason: str) -> None:
        self.top.adopt()
        self.top.give_up(TransactionAborted(reason))

    def savepoint(self, name: str) -> None:
        self._check_no_open_block("set a savepoint")
        self._savepoints.append((name, self._innermost().begin_inside(_CallerNode)))

    def released(self, name: str) -> None:
        place = self._place_of(name)
        if place is not None:
            self._release_down_to(place)

    def rolled_back_to_savepoint(self, name: str) -> bool:
        """Roll back to a savepoint; return whether it belongs to this part."""
        place = self._place_of(name)
        if place is None:
            return False
        while len(self._savepoints) > place:
            _, node = self._savepoints.pop()
            node.adopt()
            node.give_up(TransactionAborted("the caller went back to a savepoint"))
        self._hierarchy.forget(locks=True)
        if self.top.is_active:
            self._savepoints.append((name, self._innermost().begin_inside(_CallerNode)))
        return True

    # -- inside ----------------------------------------------------------------------------

    def _place_of(self, name: str) -> int | None:
        names = [named for named, _ in self._savepoints]
        return len(names) - 1 - names[::-1].index(name) if name in names else None

    def _release_down_to(self, place: int) -> None:
        while len(self._savepoints) > place:
            _, node = self._savepoints.pop()
            node.adopt()
            node.commit()

    def await_outcome(self, number: str) -> None:
        """Poll the server for the outcome of the caller's commit, and end this part accordingly."""
        closing, has_failed = self._joined.closing, self._has_failed
        committed: bool | None = None
        try:
            self._session.await_end(lambda: closing.is_set() or has_failed.is_set())
            for _ in range(_LOOKS_MAX):
                if has_failed.is_set():
                    committed = False
                elif self._session.is_over:
                    committed = self._session.outcome(number)
                if committed is not None or closing.wait(_LOOK_AGAIN_S):
                    break
        except Exception:
            _LOG.exception("cannot tell whether the caller's transaction %s committed", number)
        finally:
            self.end(committed)

    def end(self, committed: bool | None) -> None:
        """End as the caller's transaction has ended; None if its outcome is unknown."""
        self._session.settle(committed)
        self.top.end_as(State.COMMITTED if committed else State.ABORTED)


K = TypeVar("K", bound=TransactionNode)


class _CallerNode(TransactionNode):
    """Transaction that follows the caller's actions, on any thread."""

    __slots__ = ()

    @property
    def is_active(self) -> bool:
        """True if it can have children: it has not ended and is not rollback-only."""
        return self.state is State.ACTIVE and not self.is_rollback_only

    def adopt(self) -> None:
        """Make the calling thread the one that may use the transaction."""
        self.thread = threading.get_ident()

    def begin_inside(self, kind: type[K], limit: Limit | None = None) -> K:
        """Begin and return a child of this kind."""
        self.check_usable()
        self.offer_line()
        return kind(self.forest, self.hierarchy, self, label=self.next_label(), limit=limit)

    def give_up(self, reason: ActiveDBError) -> None:
        """Abort, with all open inferiors."""
        self.mark_rollback_only(reason)
        self._abort(reason)


class _Block(TransactionNode):
    """Block in a caller's transaction; its commit flushes it, and a refusal undoes it alone."""

    __slots__ = ()

    def _delegate(self, parent: TransactionNode) -> None:
        with self.hierarchy.undoing():
            self.hierarchy.check(self.workspace, parent.workspace)
        super()._delegate(parent)


class _CallersTransaction(_CallerNode):
    """Caller's transaction; once ready to commit, it waits for the caller's own commit."""

    __slots__ = ()

    @property
    def description(self) -> str:
        return f"the transaction of the connection ({self.path})"

    def _end(self, state: State) -> None:
        if state is not State.COMMITTED:
            super()._end(state)

    def end_as(self, state: State) -> None:
        """End as the caller's transaction has ended."""
        super()._end(state)
