"""Schedulers with locks: one event at a time, strict two-phase, low-water marks. See README.md."""

from activedb.scheduling.locking._gate import Gate, TurnGate
from activedb.scheduling.locking._lock_table import (
    FIGURE_3_LWM,
    FIGURE_3_S2PL,
    AccessMode,
    Granularity,
    LockAnswer,
    ObjectLock,
    TimestampLockTable,
    locks_of,
    read_locks,
)
from activedb.scheduling.locking._schedulers import LWM, S2PL, SEI, PushBased

__all__ = [
    "FIGURE_3_LWM",
    "FIGURE_3_S2PL",
    "LWM",
    "S2PL",
    "SEI",
    "AccessMode",
    "Gate",
    "Granularity",
    "LockAnswer",
    "ObjectLock",
    "PushBased",
    "TimestampLockTable",
    "TurnGate",
    "locks_of",
    "read_locks",
]
