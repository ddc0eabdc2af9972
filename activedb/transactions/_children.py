"""Handles of children that run in parallel with their parent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from activedb.errors import ActiveDBError, TransactionCancelled

if TYPE_CHECKING:
    from activedb.metrics import NamedCounters
    from activedb.transactions._hierarchy import Kin
    from activedb.transactions._pool import Pool, PoolTask

__all__ = ["Child", "add_sibling_notes", "await_all", "is_again", "raise_first"]


T = TypeVar("T")


class Parent(Protocol):
    """Transaction that spawns children, as they see it."""

    @property
    def path(self) -> str: ...

    @property
    def kin(self) -> Kin: ...

    def await_child(self) -> None:
        """Offer the locks before a wait for a child."""

    def wait_for(self, task: PoolTask[T]) -> None:
        """Wait for the task of a child."""


class Attempt(Protocol):
    """Transaction of one try of a child."""

    def interrupt(self, reason: ActiveDBError) -> object:
        """Mark it rollback-only, and end its statements on the server."""

    def mark_rollback_only(self, reason: ActiveDBError) -> object:
        """Make it abort at its next step, for `reason`."""


class Child(Generic[T]):
    """Handle of a child that runs in parallel with its parent; returned by ``spawn``.

    The parent's thread asks for the result; any thread may cancel the child.
    """

    __slots__ = ("_attempt", "_cancelled", "_counters", "_label", "_parent", "_seen", "_task")

    def __init__(
        self,
        parent: Parent,
        label: str,
        call: Callable[[Child[T]], T],
        pool: Pool,
        counters: NamedCounters,
    ):
        self._parent = parent
        self._counters = counters
        self._label = label
        self._seen = False
        # Both guarded by the latch of the parent's `Kin`.
        self._attempt: Attempt | None = None
        self._cancelled: TransactionCancelled | None = None
        self._task = pool.submit(lambda: call(self))

    def __repr__(self) -> str:
        state = "ended" if self.is_done else "running or queued"
        return f"<child {self.path} {state}>"

    @property
    def path(self) -> str:
        """Path of the child's transaction."""
        return f"{self._parent.path}/{self._label}"

    @property
    def is_done(self) -> bool:
        """True if the child has ended, including all retries."""
        return self._task.done

    def result(self) -> T:
        """Wait for the child and return its result, or raise its error.

        The parent offers its locks to the child during the wait.

        Raises
        ------
        WrongThread
            If called on another thread than the parent's.
        """
        self.wait()
        self._seen = True
        return self._task.result()

    def wait(self) -> None:
        """Wait until the child has ended; run it on this thread if none has taken it.

        The parent offers its locks meanwhile. Raises `WrongThread` as `result` does.
        """
        self._parent.await_child()
        self._parent.wait_for(self._task)

    def cancel(self, reason: str = "") -> None:
        """Make the child abort with `TransactionCancelled` at its next step; from any thread.

        A wait for a lock and a running statement on the server end at once. A child that has not
        begun never calls its function. The call has no effect if the child has ended; a child
        that is about to commit may still do so.
        """
        if self.is_done:
            return
        cancelled = TransactionCancelled(
            f"transaction {self.path} was cancelled" + (f": {reason}" if reason else "")
        )
        kin = self._parent.kin
        with kin.latch:
            if self._cancelled is not None:
                return
            self._cancelled = cancelled
            attempt = self._attempt
            kin.notify_all()
        self._counters.add("transactions_cancelled")
        if attempt is not None:
            attempt.interrupt(cancelled)

    # -- called by the parent --------------------------------------------------------------

    @property
    def is_cancelled(self) -> bool:
        """True if `cancel` was called before the child ended."""
        return self._cancelled is not None

    def began(self, attempt: Attempt) -> None:
        """Note the transaction of the child's present try."""
        with self._parent.kin.latch:
            self._attempt = attempt
            cancelled = self._cancelled
        if cancelled is not None:
            attempt.mark_rollback_only(cancelled)

    def check_not_cancelled(self) -> None:
        """Raise if the child was cancelled, so that it is not retried."""
        if self._cancelled is not None:
            raise self._cancelled

    def join(self) -> None:
        """Wait until the child has ended. REQUIRES: the parent's thread, and its locks offered."""
        self._parent.wait_for(self._task)

    def unseen_error(self) -> BaseException | None:
        """Return the child's error, unless `result` has raised it. REQUIRES: it has ended."""
        return None if self._seen else self._task.error


def await_all(children: Sequence[Child[object]]) -> None:
    """Wait for children; stop and raise if one was ended by an interrupt.

    REQUIRES: the parent's thread, and its locks offered.
    """
    for child in children:
        child.join()
        error = child.unseen_error()
        if error is not None and not isinstance(error, Exception):
            raise error


def raise_first(children: Sequence[Child[object]]) -> None:
    """Raise the first undelivered error of `children`, if any. REQUIRES: all have ended.

    The first is that of the child spawned first. The other errors become its notes.
    """
    errors = [(child, error) for child in children if (error := child.unseen_error()) is not None]
    if errors:
        first = errors[0][1]
        add_sibling_notes(first, children)
        raise first


def add_sibling_notes(
    error: BaseException,
    children: Sequence[Child[object]],
    own: ActiveDBError | None = None,
) -> None:
    """Add the other errors of `children`, all of which have ended, to an error as notes.

    Parameters
    ----------
    own : ActiveDBError, optional
        The reason for which the children were marked rollback-only; repetitions of it are left out.
    """
    for child in children:
        other = child.unseen_error()
        if other is None or other is error or is_again(other, own):
            continue
        error.add_note(f"child {child.path} failed too: {type(other).__name__}: {other}")
        for note in list(getattr(other, "__notes__", ())):
            error.add_note(f"  {note}")


def is_again(error: BaseException, own: ActiveDBError | None) -> bool:
    """Return whether `error` only repeats `own`, the reason why transactions are rolled back."""
    return own is not None and type(error) is type(own) and error.args == own.args
