"""What transactions did, kept for the auditor: whole hierarchies, within a bound."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from activedb.config import Settings
from activedb.metrics import Counters
from activedb.store import Key
from activedb.transactions import Log, State, Transaction
from coupling.acta import (
    Abort,
    Begin,
    Commit,
    Delegate,
    Event,
    History,
    Operation,
    OperationKind,
    Spawn,
    SpawnMode,
)

__all__ = ["Recording", "open_recording"]

_Entry: TypeAlias = tuple[int, str, int, int, str, Key | None]
"""Place in the order, what, the transaction, another one, a table, a key."""


def open_recording(settings: Settings, counters: Counters) -> Recording | None:
    """What records as the settings say; None if nothing is recorded."""
    if settings.recording == "off":
        return None
    one_in = 1 if settings.recording == "full" else settings.recording_one_in
    return Recording(one_in, settings.recording_events_max, counters)


class Recording:
    """The logs of the hierarchies that are recorded.

    Who has ended stays until there is no room for it: then the oldest is dropped, whole. If there
    is none, the hierarchy that needs the room is dropped itself.

    Latch: ``_latch``; nothing is taken under it. It is held for each event, so what it orders is
    the order in which things took effect: an operation is logged after its lock is granted and
    before that can be given up, an end before the locks are passed on.

    Parameters
    ----------
    one_in : int
        Of how many top-level transactions one is recorded.
    events_max : int
        Events kept at most.
    counters : Counters
        Counts ``hierarchies_recorded`` and ``hierarchies_dropped``.
    """

    def __init__(self, one_in: int, events_max: int, counters: Counters):
        self._one_in = one_in
        self._events_max = events_max
        self._counters = counters
        self._latch = threading.Lock()
        self._begun = 0
        self._order = 0
        self._kept = 0
        self._ended: deque[_HierarchyLog] = deque()

    def log(self) -> Log | None:
        """The log of a hierarchy that begins, or None if it is not to be recorded."""
        with self._latch:
            self._begun += 1
            if (self._begun - 1) % self._one_in:
                return None
        return _HierarchyLog(self)

    def history(self) -> History:
        """What the hierarchies that have ended, and are still kept, did. O(n log n)."""
        with self._latch:
            entries = [entry for log in self._ended for entry in log.entries]
        entries.sort(key=lambda entry: entry[0])
        return History(tuple(event for entry in entries for event in _events(entry)))

    def add(
        self,
        log: _HierarchyLog,
        what: str,
        t: int,
        other: int = 0,
        table: str = "",
        keys: Iterable[Key | None] = (None,),
    ) -> None:
        """Add events of a hierarchy, one for each key."""
        dropped = 0
        with self._latch:
            for key in keys:
                if log.is_dropped:
                    break
                self._order += 1
                log.entries.append((self._order, what, t, other, table, key))
                self._kept += 1
                if self._kept > self._events_max:
                    self._drop(self._ended.popleft() if self._ended else log)
                    dropped += 1
        if dropped:
            self._counters.add("hierarchies_dropped", dropped)

    def end(self, log: _HierarchyLog) -> None:
        """Keep the log of a hierarchy that has ended."""
        with self._latch:
            if log.is_dropped:
                return
            self._ended.append(log)
        self._counters.add("hierarchies_recorded")

    def _drop(self, log: _HierarchyLog) -> None:
        """REQUIRES: ``_latch``."""
        self._kept -= len(log.entries)
        log.entries = []
        log.is_dropped = True


class _HierarchyLog:
    """What one hierarchy has done so far; its fields are guarded by the latch of the recording."""

    __slots__ = ("_recording", "entries", "is_dropped")

    def __init__(self, recording: Recording):
        self._recording = recording
        self.entries: list[_Entry] = []
        self.is_dropped = False

    def began(self, t: Transaction) -> None:
        """A transaction of the hierarchy begins."""
        if t.parent is None:
            self._recording.add(self, "begin", t.id)
        else:
            mode = SpawnMode.DEFERRED if t.deferred else SpawnMode.IMMEDIATE
            self._recording.add(self, mode.value, t.parent.id, t.id)

    def operated(
        self, t: Transaction, kind: str, table: str, keys: Iterable[Key] | None = None
    ) -> None:
        """`t` works on rows, or with None on a table, and has the locks for it."""
        self._recording.add(self, kind, t.id, table=table, keys=(None,) if keys is None else keys)

    def ended(self, t: Transaction) -> None:
        """`t` has ended; its locks are not passed on yet."""
        if t.state is not State.COMMITTED:
            self._recording.add(self, "abort", t.id)
        elif t.parent is None:
            self._recording.add(self, "commit", t.id)
        else:
            self._recording.add(self, "delegate", t.id, t.parent.id)
        if t.parent is None:
            self._recording.end(self)


def _events(entry: _Entry) -> Iterator[Event]:
    order, what, t, other, table, key = entry
    match what:
        case "begin":
            yield Begin(t)
        case "commit":
            yield Commit(t)
        case "abort":
            yield Abort(t)
        case "delegate":
            yield Delegate(t, other)
            yield Commit(t)
        case "spawn_imm" | "spawn_def":
            yield Spawn(t, other, SpawnMode(what), parent=t)
        case _:
            yield Operation(t, order, OperationKind(what), (table, *map(str, key or ())))
