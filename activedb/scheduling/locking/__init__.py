"""Schedulers with locks: one event at a time, strict two-phase, low-water marks. See README.md."""

from activedb.scheduling.locking._gate import Gate, TurnGate
from activedb.scheduling.locking._insertion import Granularity, Lock, locks_of, read_locks
from activedb.scheduling.locking._lock_table import LockTable
from activedb.scheduling.locking._lwm import LWM
from activedb.scheduling.locking._modes import FIGURE_3_LWM, FIGURE_3_S2PL, Answer, Mode
from activedb.scheduling.locking._push_based import PushBased
from activedb.scheduling.locking._s2pl import S2PL
from activedb.scheduling.locking._sei import SEI

__all__ = [
    "FIGURE_3_LWM",
    "FIGURE_3_S2PL",
    "LWM",
    "S2PL",
    "SEI",
    "Answer",
    "Gate",
    "Granularity",
    "Lock",
    "LockTable",
    "Mode",
    "PushBased",
    "TurnGate",
    "locks_of",
    "read_locks",
]
