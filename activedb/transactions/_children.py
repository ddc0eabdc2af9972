"""Handles of parallel children."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from activedb.errors import ActiveDBError, TransactionCancelled

if TYPE_CHECKING:
    from activedb.transactions._node import Node

__all__ = ["Child", "raise_first", "told_of"]

T = TypeVar("T")


class Child(Generic[T]):
    """A child that runs in parallel with its parent; returned by ``spawn``.

    The thread of the parent asks for its result; any thread may cancel it.
    """

    __slots__ = ("_attempt", "_cancelled", "_label", "_parent", "_seen", "_task")

    def __init__(self, parent: Node, label: str, call: Callable[[Child[T]], T]):
        self._parent = parent
        self._label = label
        self._seen = False
        # Both guarded by the latch of the parent's kin.
        self._attempt: Node | None = None
        self._cancelled: TransactionCancelled | None = None
        self._task = parent.forest.pool.submit(lambda: call(self))

    def __repr__(self) -> str:
        state = "ended" if self.is_done else "running or queued"
        return f"<child {self.path} {state}>"

    @property
    def path(self) -> str:
        """Path of the child's transaction."""
        return f"{self._parent.path}/{self._label}"

    @property
    def is_done(self) -> bool:
        """Whether it has ended, with all tries at it."""
        return self._task.done

    def result(self) -> T:
        """Wait for the child and return its result, or raise what it raised.

        While it waits the parent offers its locks to the child.

        Raises
        ------
        WrongThread
            If it is not the parent's thread that asks.
        """
        self.wait()
        self._seen = True
        return self._task.result()

    def wait(self) -> None:
        """Wait until the child has ended, running it here if no thread has taken it.

        The parent offers its locks meanwhile. `WrongThread` as in `result`.
        """
        self._parent.await_child()
        self._parent.wait_for(self._task)

    def cancel(self, reason: str = "") -> None:
        """Make the child abort with `TransactionCancelled` at its next step; from any thread.

        A wait for a lock and a statement that runs at the server end at once. One that has not
        begun never calls its function. Nothing happens if the child has ended; one that is about
        to commit may still do so.
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
            kin.rouse()
        self._parent.forest.counters.add("transactions_cancelled")
        if attempt is not None:
            attempt.interrupt(cancelled)

    # -- what the parent does --------------------------------------------------------------

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called in time."""
        return self._cancelled is not None

    def began(self, attempt: Node) -> None:
        """Take note of the transaction in which the child is tried now."""
        with self._parent.kin.latch:
            self._attempt = attempt
            cancelled = self._cancelled
        if cancelled is not None:
            attempt.doom(cancelled)

    def check_not_cancelled(self) -> None:
        """Raise if the child is not to be tried any more."""
        if self._cancelled is not None:
            raise self._cancelled

    def join(self) -> None:
        """Wait until the child has ended. REQUIRES: its parent's thread, and locks offered."""
        self._parent.wait_for(self._task)

    def unseen_error(self) -> BaseException | None:
        """What the child raised, unless `result` has delivered it. REQUIRES: it has ended."""
        return None if self._seen else self._task.error


def raise_first(children: Sequence[Child[object]]) -> None:
    """Raise what nobody has been told of, if anything; REQUIRES: all have ended.

    That is the error of the child that was spawned first. The others are in its notes.
    """
    errors = [(child, error) for child in children if (error := child.unseen_error()) is not None]
    if errors:
        first = errors[0][1]
        told_of(first, children)
        raise first


def told_of(
    error: BaseException, children: Sequence[Child[object]], doom: ActiveDBError | None = None
) -> None:
    """Add to an error, as notes, what else went wrong in `children`, all of which have ended.

    Parameters
    ----------
    doom : ActiveDBError, optional
        What told the children to abort; it is no news when they raise it.
    """
    for child in children:
        other = child.unseen_error()
        if other is None or other is error or _is_again(other, doom):
            continue
        error.add_note(f"child {child.path} failed too: {type(other).__name__}: {other}")
        for note in list(getattr(other, "__notes__", ())):
            error.add_note(f"  {note}")


def _is_again(error: BaseException, doom: ActiveDBError | None) -> bool:
    return doom is not None and type(error) is type(doom) and error.args == doom.args
