"""Locks for parallel nested transactions: hold and retain, inheritance, deadlock detection.

After (Härder, Rothermel 1993) and (Saygin, Ulusoy, Chakravarthy, sections 3.1 and 4.2); standard
library only. `LockManager` blocks threads; its core, `LockTable`, has no threads and never blocks.
The README beside this file describes the rules, the structures, the invariants and the algorithm.
"""

from __future__ import annotations

from lockmgr._core import LockTable
from lockmgr._manager import LockManager
from lockmgr._modes import Mode, intention
from lockmgr._predicates import InRange, NullTest, OneOf, Predicate
from lockmgr._refusals import Deadlock, LockError, LockTimeout, LockUsageError, WaitCancelled
from lockmgr._replies import (
    Blocked,
    Busy,
    DeadlockReport,
    Denial,
    Denied,
    Edge,
    EdgeKind,
    Effects,
    Ended,
    Grant,
    Granted,
    Reply,
    Resource,
)
from lockmgr._snapshot import (
    Census,
    Counters,
    LockView,
    PartialSnapshot,
    RequestView,
    Snapshot,
    TransactionView,
)
from lockmgr._verify import InvariantViolated, VerifyingLockTable
from lockmgr._waiter import ThreadWaiter, Waiter

__all__ = [
    "Blocked",
    "Busy",
    "Census",
    "Counters",
    "Deadlock",
    "DeadlockReport",
    "Denial",
    "Denied",
    "Edge",
    "EdgeKind",
    "Effects",
    "Ended",
    "Grant",
    "Granted",
    "InRange",
    "InvariantViolated",
    "LockError",
    "LockManager",
    "LockTable",
    "LockTimeout",
    "LockUsageError",
    "LockView",
    "Mode",
    "NullTest",
    "OneOf",
    "PartialSnapshot",
    "Predicate",
    "Reply",
    "RequestView",
    "Resource",
    "Snapshot",
    "ThreadWaiter",
    "TransactionView",
    "VerifyingLockTable",
    "WaitCancelled",
    "Waiter",
    "intention",
]
