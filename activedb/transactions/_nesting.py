"""How a transaction begins children: one after the other, or in parallel on threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from threading import get_ident
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from activedb.functions import calling
from activedb.transactions._children import Child, raise_first
from activedb.transactions._deadlines import Limit
from activedb.transactions._node import Node
from activedb.transactions._states import State
from activedb.transactions._timed import TimedSpawns

if TYPE_CHECKING:
    from activedb.transactions._transaction import Transaction

__all__ = ["Nesting"]

P = ParamSpec("P")
T = TypeVar("T")


class Nesting(Node):
    """A node that has children.

    Whatever begins a child offers it the locks held, on the thread of the parent.
    """

    def subtransaction(self, *, timeout: float | None = None) -> Transaction:
        """A sequential child, used as ``with t.subtransaction() as s:`` on this thread.

        The parent's locks are offered to the child, and the parent is not to be used until the
        block ends.

        Parameters
        ----------
        timeout : float, optional
            Seconds from now after which the child, and its inferiors, abort with
            `TransactionTimeout`; the parent may catch that and go on, unless the child was waiting
            at the server, which then takes no more of the whole hierarchy.
        """
        self._check_usable()
        limit = Limit.after(timeout)
        self._offer()
        return self._begin_child(self.next_label(), limit=limit)

    def spawn(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Child[T]:
        """Run ``function(s, *args)`` as a parallel child and go on.

        The child is joined at the latest by this transaction's commit, which raises what the
        child raised unless ``result()`` has delivered it. A child that is chosen as a deadlock
        victim is retried. The locks this transaction holds are offered to the child. For a limit
        of time: ``t.with_timeout(seconds).spawn(function, …)``.
        """
        return self.spawn_limited(calling(function, "spawn()", args, kwargs))

    def with_timeout(self, timeout: float) -> TimedSpawns:
        """What can be done with a limit of time, in seconds: ``t.with_timeout(5).spawn(f, …)``.

        When it is over, the child and its inferiors abort with `TransactionTimeout`, and are not
        tried again.

        Raises
        ------
        ConfigurationError
            If `timeout` is no positive number.
        """
        return TimedSpawns(self, timeout)  # type: ignore[arg-type]  # every node is a Transaction

    def spawn_limited(
        self, function: Callable[[Transaction], T], *, timeout: float | None = None
    ) -> Child[T]:
        """As `spawn`, for a function of the child alone, with a limit of time in seconds."""
        self._check_usable()
        limit = Limit.after(timeout)
        label = self.next_label()
        self._offer()
        child: Child[T] = Child(
            self, label, lambda handle: self._try_child(function, label, limit, handle)
        )
        self._children.append(child)  # type: ignore[arg-type]  # results are read by type T only
        return child

    def _try_child(
        self,
        function: Callable[[Transaction], T],
        label: str,
        limit: Limit | None,
        handle: Child[T],
    ) -> T:
        """Run a spawned child, on whatever thread has taken it, until it has ended."""

        def attempt() -> T:
            handle.check_not_cancelled()
            if limit is not None and limit.left_s <= 0:
                raise limit.error(handle.path)
            # This transaction goes on meanwhile on its own thread, so nobody offers its locks.
            child = self._begin_child(label, limit=limit)
            handle.began(child)
            return child.call(function)

        return self.forest.retries.run(
            attempt,
            name=lambda: f"transaction {handle.path}",
            within=self,
            limit=limit,
            stopped=lambda: handle.is_cancelled,
        )

    def run_child(
        self,
        function: Callable[[Transaction], T],
        *,
        label: str,
        rule: str | None = None,
        deferred: bool = False,
        priority: int | None = None,
        group: int | None = None,
        timestamp: datetime | float | None = None,
    ) -> T:
        """Run `function` in a child on this thread, retried when it is a deadlock's victim.

        On a thread of `run_in_parallel` too. `priority` and `group` are those of `Node`.
        """
        if get_ident() not in self._lent:
            self._check_usable()

        def attempt() -> T:
            if get_ident() == self._thread:
                self._offer()
            child = self._begin_child(
                label,
                rule=rule,
                deferred=deferred,
                priority=priority,
                group=group,
                timestamp=timestamp,
            )
            return child.call(function)

        return self.forest.retries.run(
            attempt, name=lambda: f"transaction {self.path}/{label}", within=self
        )

    def try_child(self, function: Callable[[Transaction], T], *, label: str) -> T:
        """Run `function` in a child on this thread, once: not again if it is a deadlock's victim.

        REQUIRES: this thread runs a call of `run_in_parallel`, which has offered the locks.
        """
        return self._begin_child(label).call(function)

    def run_in_parallel(self, calls: Iterable[Callable[[], None]]) -> None:
        """Make `calls`, each of which runs children of this transaction, on the pool's threads.

        Waits for all of them, then raises the first error, the others in its notes.
        """
        self._run_lent((self.next_label(), call) for call in calls)

    def run_on_fresh_stack(self, call: Callable[[], None]) -> None:
        """Make a call, which runs children of this transaction, on a thread of the pool."""
        self._run_lent([("", call)])  # without a number: paths do not tell how deep a stack was

    def _run_lent(self, calls: Iterable[tuple[str, Callable[[], None]]]) -> None:
        self._check_usable()
        self._offer()
        before = len(self._children)
        for label, call in calls:
            self._children.append(Child(self, label, self._lent_to(call)))
        children = self._children[before:]
        self._await_all(children)
        del self._children[before:]
        raise_first(children)

    def _lent_to(self, call: Callable[[], None]) -> Callable[[Child[object]], None]:
        """`call` as one in which this transaction may run children on another thread."""

        def lent(_: Child[object]) -> None:
            ident = get_ident()
            if ident == self._thread:
                call()
                return
            with self.kin.latch:
                self._lent |= {ident}
            try:
                call()
            finally:
                with self.kin.latch:
                    self._lent -= {ident}

        return lent

    def _begin_child(
        self,
        label: str,
        *,
        rule: str | None = None,
        deferred: bool = False,
        priority: int | None = None,
        group: int | None = None,
        timestamp: datetime | float | None = None,
        limit: Limit | None = None,
    ) -> Transaction:
        """A child that has begun; on any thread that runs children of this transaction."""
        is_alive = self._doom is None and self.state is State.ACTIVE
        if not is_alive or self.hierarchy.session.failure is not None:
            self._refuse()
        return self.forest.transaction_class(
            self.forest,
            self.hierarchy,
            self,  # type: ignore[arg-type]  # every node is a Transaction
            label=label,
            rule=rule,
            deferred=deferred,
            priority=priority,
            group=group,
            timestamp=timestamp,
            limit=limit,
        )

    def next_label(self) -> str:
        """Label of the next child: its number among the children of this transaction."""
        self._spawned += 1
        return str(self._spawned)
