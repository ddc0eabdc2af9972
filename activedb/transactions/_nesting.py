"""Begin of child transactions, one after the other or in parallel on threads."""

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
    """Node that begins children.

    Every method that begins a child offers it the parent's locks, on the thread of the parent.
    """

    def subtransaction(self, *, timeout: float | None = None) -> Transaction:
        """Return a sequential child, used as ``with t.subtransaction() as s:`` on this thread.

        The parent's locks are offered to the child, and the parent must not be used until the
        block ends.

        Parameters
        ----------
        timeout : float, optional
            Seconds from now after which the child, and its inferiors, abort with
            `TransactionTimeout`. The parent may catch that and go on, unless the child was waiting
            on the server: then the flat transaction of the whole hierarchy is broken.
        """
        self._check_usable()
        limit = Limit.after(timeout)
        self._offer()
        return self._begin_child(self.next_label(), limit=limit)

    def spawn(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Child[T]:
        """Run ``function(s, *args)`` as a parallel child and go on.

        This transaction's commit joins the child at the latest, and raises the child's error
        unless ``result()`` has raised it. A child that is chosen as a deadlock victim is retried.
        The locks of this transaction are offered to the child. For a time limit, use
        ``t.with_timeout(seconds).spawn(function, …)``.
        """
        return self.spawn_limited(calling(function, "spawn()", args, kwargs))

    def with_timeout(self, timeout: float) -> TimedSpawns:
        """Return an object to spawn children with a time limit: ``t.with_timeout(5).spawn(f, …)``.

        The limit is in seconds. When it is over, the child and its inferiors abort with
        `TransactionTimeout`, and are not retried.

        Raises
        ------
        ConfigurationError
            If `timeout` is not a positive number.
        """
        return TimedSpawns(self, timeout)  # type: ignore[arg-type]  # every node is a Transaction

    def spawn_limited(
        self, function: Callable[[Transaction], T], *, timeout: float | None = None
    ) -> Child[T]:
        """Spawn a child as `spawn` does, for a function of the child alone, with a time limit."""
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
        """Run a spawned child, with its retries, on the thread that has taken it."""

        def attempt() -> T:
            handle.check_not_cancelled()
            if limit is not None and limit.left_s <= 0:
                raise limit.error(handle.path)
            # The parent works on its own thread meanwhile, so its locks are not offered here.
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
        """Run `function` in a child on this thread, retried when it is a deadlock victim.

        Also allowed on a thread of `run_in_parallel`. `priority` and `group` are those of `Node`.
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
        """Run `function` in a child on this thread, without a retry if it is a deadlock victim.

        REQUIRES: this thread runs a call of `run_in_parallel`, which has offered the locks.
        """
        return self._begin_child(label).call(function)

    def run_in_parallel(self, calls: Iterable[Callable[[], None]]) -> None:
        """Make `calls`, each of which runs children of this transaction, on the pool's threads.

        Waits for all of them, then raises the first error, with the others as notes.
        """
        self._run_lent((self.next_label(), call) for call in calls)

    def run_on_fresh_stack(self, call: Callable[[], None]) -> None:
        """Make a call, which runs children of this transaction, on a pool thread."""
        self._run_lent([("", call)])  # no number: paths must not depend on the stack's depth

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
        """Wrap `call` so that this transaction may run children in it on another thread."""

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
        """Begin and return a child, on any thread that runs children of this transaction."""
        is_alive = self.rollback_reason is None and self.state is State.ACTIVE
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
        """Return the label of the next child: its number among this transaction's children."""
        self._spawned += 1
        return str(self._spawned)
