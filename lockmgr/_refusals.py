"""Errors of the lock manager, and the calls that the protocol does not allow, rule by rule.

::

    LockError
    ├── LockUsageError    a call that the protocol does not allow: a mistake in the caller
    ├── Deadlock          chosen as the victim; abort and retry
    ├── LockTimeout       not granted in time; the transaction may continue or abort
    └── WaitCancelled     another thread ended the wait; abort
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockmgr._modes import Mode
from lockmgr._replies import resource_text
from lockmgr._structures import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockmgr._replies import DeadlockReport, Resource
    from lockmgr._structures import LockOwner

__all__ = [
    "ABORT",
    "BEGIN",
    "COMMIT",
    "DEPENDENCE",
    "DOWNGRADE",
    "ESCALATION",
    "GRANT",
    "PATHS",
    "SUB_COMMIT",
    "TOP_COMMIT",
    "VICTIM",
    "Deadlock",
    "LockError",
    "LockTimeout",
    "LockUsageError",
    "WaitCancelled",
    "child_with_causes",
    "declares_without_lock",
    "has_begun",
    "has_causes",
    "has_children",
    "has_dependents",
    "inline_beside_inline",
    "inline_without_parent",
    "is_waiting",
    "needed_inside",
    "neither_path_nor_mode",
    "no_intention",
    "no_number",
    "no_number_of_locks",
    "no_path",
    "no_superior",
    "not_held",
    "not_live",
    "not_weaker",
    "own_end",
    "thread_sleeps",
    "unknown_policy",
]


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


BEGIN: Final = "begin"
GRANT: Final = "rule 1 (grant)"
COMMIT: Final = "rules 2 and 3 (commit)"
SUB_COMMIT: Final = "rule 2 (subtransaction commit)"
TOP_COMMIT: Final = "rule 3 (top-level commit)"
ABORT: Final = "rule 4 (abort)"
DOWNGRADE: Final = "rule 5 (downgrade)"
DEPENDENCE: Final = "causal dependence"
ESCALATION: Final = "escalation"
PATHS: Final = "paths"
VICTIM: Final = "victim policy"


def unknown_policy(name: str, known: Iterable[str]) -> LockUsageError:
    return LockUsageError(VICTIM, None, f"there is no {name!r}; choose from {', '.join(known)}")


def no_number_of_locks(number: int) -> LockUsageError:
    return LockUsageError(ESCALATION, None, f"{number} is not a number of locks; give 1 or more")


def not_live(rule: str, tid: int) -> LockUsageError:
    return LockUsageError(rule, tid, f"transaction {tid} has not begun, or has ended")


def no_number(tid: object) -> LockUsageError:
    return LockUsageError(BEGIN, None, f"{tid!r} is not an integer; transaction ids are integers")


def has_begun(tid: int) -> LockUsageError:
    return LockUsageError(BEGIN, tid, f"transaction {tid} has begun already; use a new number")


def inline_without_parent(tid: int) -> LockUsageError:
    return LockUsageError(
        BEGIN, tid, f"transaction {tid} has no parent on whose thread it could run inline"
    )


def inline_beside_inline(tid: int, sibling: LockOwner) -> LockUsageError:
    return LockUsageError(
        BEGIN,
        tid,
        f"transaction {tid} cannot run inline beside {sibling.tid}, which has the thread; begin it "
        f"inside that one, or when that one has ended",
    )


def thread_sleeps(rule: str, transaction: LockOwner, inner: LockOwner) -> LockUsageError:
    return LockUsageError(
        rule,
        transaction.tid,
        f"transaction {transaction.tid} cannot wait on the thread that waits for its inline "
        f"inferior {inner.tid}; begin that one without inline if it has a thread of its own",
    )


def child_with_causes(tid: int, parent: int | None) -> LockUsageError:
    return LockUsageError(
        DEPENDENCE,
        tid,
        f"transaction {tid} is a child of {parent}; only top-level transactions have causes",
    )


def is_waiting(rule: str, transaction: LockOwner) -> LockUsageError:
    wait = transaction.waiting
    assert wait is not None
    if isinstance(wait, Request):
        what = resource_text(wait.entry.resource)
    else:
        what = f"the end of {wait.awaited.tid}"
    return LockUsageError(
        rule,
        transaction.tid,
        f"transaction {transaction.tid} waits for {what}; it can do nothing before that is "
        "granted, denied or cancelled",
    )


def has_children(rule: str, transaction: LockOwner) -> LockUsageError:
    return LockUsageError(
        rule,
        transaction.tid,
        f"transaction {transaction.tid} has live children, which must end first: "
        f"{sorted(transaction.children or ())}",
    )


def has_causes(transaction: LockOwner) -> LockUsageError:
    return LockUsageError(
        DEPENDENCE,
        transaction.tid,
        f"transaction {transaction.tid} commits after those on which it depends, of which "
        f"{sorted(transaction.causes or ())} live; await their end first",
    )


def has_dependents(transaction: LockOwner) -> LockUsageError:
    return LockUsageError(
        DEPENDENCE,
        transaction.tid,
        f"transaction {transaction.tid} has live dependents, which must abort first: "
        f"{sorted(transaction.dependents or ())}",
    )


def no_superior(heir: int | None, tid: int) -> LockUsageError:
    return LockUsageError(
        ABORT, tid, f"transaction {heir} is not a superior of {tid} and inherits nothing"
    )


def own_end(tid: int) -> LockUsageError:
    return LockUsageError(DEPENDENCE, tid, f"transaction {tid} cannot wait for its own end")


def declares_without_lock(tid: int, table: Resource) -> LockUsageError:
    return LockUsageError(
        PATHS,
        tid,
        f"transaction {tid} must hold IX on {resource_text(table)} before it declares rows in it",
    )


def no_intention(tid: int, resource: Resource, needed: Mode) -> LockUsageError:
    return LockUsageError(
        PATHS,
        tid,
        f"transaction {tid} must hold {needed.name} on {resource_text(resource[:-1])} before it "
        f"asks for {resource_text(resource)}",
    )


def no_path(tid: int) -> LockUsageError:
    return LockUsageError(
        PATHS, tid, f"transaction {tid} asks for an empty path; a resource has at least one part"
    )


def neither_path_nor_mode(rule: str, tid: int, resource: object, mode: object) -> LockUsageError:
    if not isinstance(mode, Mode):
        return LockUsageError(
            rule,
            tid,
            f"transaction {tid} names {mode!r}, which is not a lock mode; see lockmgr.Mode",
        )
    if resource == ():
        return no_path(tid)
    return LockUsageError(
        PATHS, tid, f"transaction {tid} names {resource!r}; a resource is a tuple, its path"
    )


def not_held(tid: int, resource: Resource) -> LockUsageError:
    return LockUsageError(
        DOWNGRADE, tid, f"transaction {tid} does not hold {resource_text(resource)}"
    )


def not_weaker(tid: int, resource: Resource, held: Mode, mode: Mode) -> LockUsageError:
    return LockUsageError(
        DOWNGRADE,
        tid,
        f"transaction {tid} holds {held.name} on {resource_text(resource)}; "
        f"{mode.name} is not weaker",
    )


def needed_inside(
    tid: int, resource: Resource, needed: Mode, inner: Resource, held: Mode
) -> LockUsageError:
    return LockUsageError(
        DOWNGRADE,
        tid,
        f"transaction {tid} holds {held.name} on {resource_text(inner)}, which needs "
        f"{needed.name} on {resource_text(resource)}; downgrade that first",
    )
