"""Locks for parallel nested transactions: hold and retain, inheritance, deadlock detection.

After (Härder, Rothermel 1993) and (Saygin, Ulusoy, Chakravarthy, sections 3.1 and 4.2); standard
library only. `LockManager` blocks threads; `LockTable`, its core, has none and never blocks. The
README beside this file has the rules, the structures, the invariants and the algorithm.
"""

from __future__ import annotations

from lockmgr._core import LockTable
from lockmgr._errors import Deadlock, LockError, LockTimeout, LockUsageError, WaitCancelled
from lockmgr._manager import Counters, LockManager
from lockmgr._modes import Mode, intention
from lockmgr._replies import (
    Blocked,
    DeadlockReport,
    Denial,
    Denied,
    Edge,
    EdgeKind,
    Effects,
    Grant,
    Granted,
    Reply,
    Resource,
)
from lockmgr._verify import InvariantViolated, VerifyingLockTable
from lockmgr._waiter import ThreadWaiter, Waiter

__all__ = [
    "Blocked",
    "Counters",
    "Deadlock",
    "DeadlockReport",
    "Denial",
    "Denied",
    "Edge",
    "EdgeKind",
    "Effects",
    "Grant",
    "Granted",
    "InvariantViolated",
    "LockError",
    "LockManager",
    "LockTable",
    "LockTimeout",
    "LockUsageError",
    "Mode",
    "Reply",
    "Resource",
    "ThreadWaiter",
    "VerifyingLockTable",
    "WaitCancelled",
    "Waiter",
    "intention",
]
