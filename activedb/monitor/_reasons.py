"""Reasons for aborts, as sentences that quote no values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from activedb.errors import (
    ConditionWrites,
    ConnectionLost,
    ConstraintViolation,
    CycleLimitExceeded,
    Deadlock,
    LockNotAvailable,
    LockTimeout,
    RuleFailed,
    RuleInQuarantine,
    SerializationConflict,
    TransactionAborted,
    TransactionCancelled,
    TransactionTimeout,
    WrongThread,
)

if TYPE_CHECKING:
    from activedb.transactions import Node

__all__ = ["came_from", "reason"]

_SENTENCES: tuple[tuple[type[BaseException], str], ...] = (
    (LockNotAvailable, "A lock was not free at once, and it had said not to wait (nowait)."),
    (LockTimeout, "It waited for a lock for longer than lock_timeout_ms allows."),
    (TransactionTimeout, "Its limit of time was over."),
    (TransactionCancelled, "It was cancelled from outside."),
    (SerializationConflict, "The server gave it up, because something it had seen has changed."),
    (ConnectionLost, "The connection to the server was lost."),
    (ConstraintViolation, "A constraint of the database refused a row that it wrote."),
    (CycleLimitExceeded, "Rules kept triggering rules beyond the bound that is set."),
    (ConditionWrites, "The condition of its rule wrote something; a condition may only read."),
    (WrongThread, "It was used by a thread on which it does not run."),
    (KeyboardInterrupt, "The program was interrupted."),
    (SystemExit, "The program ended."),
    (GeneratorExit, "The generator in which its block stood was closed."),
)

_TOLD = (TransactionAborted, TransactionCancelled, TransactionTimeout)
"""Errors that are raised in many transactions at once, and that come from no inferior."""


def reason(
    t: Node,
    error: BaseException | None,
    deadlock: int | None,
    is_below: Callable[[int], bool],
) -> str:
    """Explain why `t` aborts.

    Parameters
    ----------
    error : BaseException or None
        The error that aborts `t`, if known.
    deadlock : int or None
        Number of the last deadlock in which `t` itself was the victim.
    is_below : callable
        Returns whether a transaction is an inferior of `t`.
    """
    if error is not None and _is_taken_along(t, error):
        assert t.parent is not None
        return f"Its superior {t.parent.id} had to abort, and takes it along."
    said = _said(t, error, deadlock)
    origin = came_from(t, error)
    if origin is None or not is_below(origin):
        return said
    return f"{said} The error came from transaction {origin} below it."


def came_from(t: Node, error: BaseException | None) -> int | None:
    """Return the transaction in which an error was first seen, if that is not `t`.

    The error object is marked, as two errors that look alike can't be told apart otherwise.
    """
    if error is None or isinstance(error, _TOLD):
        return None
    first = getattr(error, "_activedb_failed_in", None)
    if first is None:
        try:
            error._activedb_failed_in = t.id  # type: ignore[attr-defined]  # if it accepts attributes
        except Exception:  # whatever a class of the application raises
            return None
        return None
    return first if isinstance(first, int) and first != t.id else None


def _is_taken_along(t: Node, error: BaseException) -> bool:
    """Return whether the parent has to abort with the same error, which names no transaction."""
    if t.parent is None or error is not t.rollback_reason or error is not t.parent.rollback_reason:
        return False
    return not (isinstance(error, TransactionAborted) and error.transaction)


def _said(t: Node, error: BaseException | None, deadlock: int | None) -> str:
    if error is None:
        return "It was not told why."
    if isinstance(error, Deadlock):
        if deadlock is None:
            return "A transaction below it was the victim of a deadlock, and could not go on alone."
        return f"It was the victim of deadlock {deadlock}, so that the others could proceed."
    if isinstance(error, RuleInQuarantine):
        return f"Rule {error.rule} is in quarantine, so it is not run."
    if isinstance(error, RuleFailed):
        cause = "" if error.__cause__ is None else f" with {type(error.__cause__).__name__}"
        return (
            f"Rule {error.rule}, which was triggered in it, failed{cause}, and takes what "
            f"triggered it along."
        )
    if isinstance(error, TransactionTimeout | TransactionCancelled):
        return _of_kind(error) or ""
    if isinstance(error, TransactionAborted):
        if error.transaction == t.id:
            return "Its own code aborted it."
        other = error.transaction
        if not other:
            return "It had to abort with another transaction."
        if other > t.id:  # ids grow, so it began later
            return f"Transaction {other} below it was aborted, and no caller caught the error."
        return f"Transaction {other}, whose fate it shares, was aborted."
    known = _of_kind(error)
    if known is not None:
        return known
    if t.rule is not None:
        return f"Rule {t.rule} raised {type(error).__name__}."
    return f"Its code raised {type(error).__name__}."


def _of_kind(error: BaseException) -> str | None:
    found = (sentence for kind, sentence in _SENTENCES if isinstance(error, kind))
    return next(found, None)
