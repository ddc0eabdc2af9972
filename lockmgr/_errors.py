"""Errors of the lock manager.

::

    LockError
    ├── LockUsageError    a call that the protocol does not allow: a mistake in the caller
    ├── Deadlock          chosen as the victim; abort and retry
    ├── LockTimeout       not granted in time; the transaction may go on or abort
    └── WaitCancelled     another thread ended the wait; abort
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockmgr._replies import DeadlockReport

__all__ = ["Deadlock", "LockError", "LockTimeout", "LockUsageError", "WaitCancelled"]


class LockError(Exception):
    """Base class of all errors that the lock manager raises deliberately."""


class LockUsageError(LockError):
    """Call that the locking protocol does not allow; it changed nothing.

    Attributes
    ----------
    rule : str
        Rule that the call violates, such as ``rule 5 (downgrade)``.
    tid : int or None
        Transaction that the call was made for.
    """

    def __init__(self, rule: str, tid: int | None, text: str):
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.tid = tid


class Deadlock(LockError):
    """The transaction was chosen as the victim of a deadlock; its request is withdrawn.

    The transaction keeps its locks until it aborts; until then, no other transaction of the cycle
    can proceed. Retrying it is safe.

    Attributes
    ----------
    report : DeadlockReport
        The cycle, beginning with the victim.
    """

    def __init__(self, report: DeadlockReport):
        super().__init__(report.text())
        self.report = report


class LockTimeout(LockError):
    """The lock was not granted in time; the request is withdrawn."""


class WaitCancelled(LockError):
    """The wait was ended by `LockManager.cancel`; the transaction can only abort now."""
