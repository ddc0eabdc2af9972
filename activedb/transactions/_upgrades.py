"""Functions that read rows before they write them, learned from deadlocks and conflicts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from activedb.errors import Deadlock, SerializationConflict

if TYPE_CHECKING:
    from activedb.store.sql import TableSpec
    from activedb.transactions._run import Run

__all__ = ["Upgrades"]

ANNOUNCED_MIN = 256
"""Transactions of a function that announce its writes after its first failure."""
_ANNOUNCED_MAX = 65_536
_FUNCTIONS_MAX = 1_024
"""Upper bound on the functions remembered; beyond it the oldest is forgotten."""


class Upgrades:
    """Tables of which a function reads rows by key before it writes them, learned from failures.

    Two transactions that have read a row and then both want to write it are in a deadlock, or under
    SERIALIZABLE in a conflict, and so are the next two. After one, the function's next transactions
    lock such rows for writing when they read them, as update locks do (Gray and Reuter 1993), but
    exclusively: at first 256 of them, after each further failure twice as many.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._known: dict[object, _Announced] = {}

    def begin(self, run: Run) -> None:
        """Let a work announce what is known of its function. O(1)."""
        known = self._known.get(run.code or run.rule)
        if known is not None:
            with self._latch:
                known.left -= 1
                if known.left >= 0:
                    run.announced = known.tables
                    run.detectors |= known.detectors

    def failed(self, run: Run, error: BaseException) -> None:
        """Learn from a try that has failed; the next one announces what this one has upgraded."""
        is_serializable = run.isolation == "serializable"
        races = (Deadlock, SerializationConflict) if is_serializable else (Deadlock,)
        if not (isinstance(error, races) and (run.upgraded or run.detectors)):
            return
        run.announced |= run.upgraded
        work = run.code or run.rule
        if work is None:
            return
        with self._latch:
            known = self._known.setdefault(work, _Announced())
            known.tables |= run.upgraded
            known.detectors |= run.detectors
            if known.left <= 0:
                known.count = min(2 * known.count, _ANNOUNCED_MAX)
                known.left = known.count
            if len(self._known) > _FUNCTIONS_MAX:
                del self._known[next(iter(self._known))]


class _Announced:
    """Tables that a function announces, and for how many more of its transactions.

    Under SERIALIZABLE, also rules whose detectors it locks first.
    """

    __slots__ = ("count", "detectors", "left", "tables")

    def __init__(self) -> None:
        self.tables: frozenset[TableSpec] = frozenset()
        self.detectors: frozenset[str] = frozenset()
        self.count = ANNOUNCED_MIN // 2
        self.left = 0
