"""Bounded record of transactions for the auditor, in whole hierarchies."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from activedb.config import Settings
from activedb.metrics import NamedCounters
from activedb.store.sql import Key
from activedb.transactions import Log, Run, State, TransactionNode
from coupling import Coupling
from coupling.acta import (
    AbortEvent,
    BeginEvent,
    CommitEvent,
    DelegateEvent,
    Event,
    History,
    ObjectOperation,
    OperationKind,
    SpawnEvent,
    SpawnMode,
)

__all__ = ["Recording", "open_recording"]

_Entry: TypeAlias = tuple[int, str, int, int, str, Key | None]
"""Place in the order, kind, transaction, another transaction, table, key.

For a child that begins, the key is its priority and group.
"""
_SPAWN = {Coupling[mode.name]: mode for mode in SpawnMode}


def open_recording(settings: Settings, counters: NamedCounters) -> Recording | None:
    """Return a recording as the settings require; None if nothing is recorded."""
    if settings.recording == "off":
        return None
    one_in = 1 if settings.recording == "full" else settings.recording_one_in
    return Recording(one_in, settings.recording_events_max, counters)


class Recording:
    """Logs of the recorded hierarchies.

    The log of a hierarchy that has ended is kept until its room is needed. Then the oldest log is
    dropped, as a whole. If there is none, the hierarchy that needs the room is dropped.

    A rule's separate top-level transactions, its *firing*, are spawned by the transaction in which
    the event was raised. They share the name of the firing, so each try is one more spawned
    transaction, whichever thread runs it. If none has ended in this process, the history contains
    only the spawn, of a transaction with a negative number.

    Latch: ``_latch``; no other latch is taken under it. It is held for each event, and therefore
    orders the events as they take effect: an operation is logged after its lock is granted and
    before the lock can be released, and an end is logged before the locks are passed on.

    Parameters
    ----------
    one_in : int
        Sampling: one top-level transaction in this many is recorded. A firing that a recorded
        transaction has spawned is always recorded, and not counted.
    events_max : int
        Upper bound on the events kept.
    counters : NamedCounters
        Counts ``hierarchies_recorded`` and ``hierarchies_dropped``.
    """

    def __init__(self, one_in: int, events_max: int, counters: NamedCounters):
        self._one_in = one_in
        self._events_max = events_max
        self._counters = counters
        self._latch = threading.Lock()
        self._begun = 0
        self._order = 0
        self._kept = 0
        self._ended: deque[_HierarchyLog] = deque()
        # Place of the event that last spawned a firing, by the firing's name.
        self._spawned: dict[str, int] = {}

    def log(self, run: Run) -> Log | None:
        """Return the log for a new hierarchy, or None if it is not to be recorded."""
        with self._latch:
            spawned_at = self._spawned.get(run.name, 0)
            if not spawned_at:
                self._begun += 1
                if (self._begun - 1) % self._one_in:
                    return None
        return _HierarchyLog(self, spawned_at)

    def history(self) -> History:
        """Return the history of the ended hierarchies that are still kept. O(n log n)."""
        with self._latch:
            entries = [entry for log in self._ended for entry in log.entries]
            tries: dict[int, list[int]] = defaultdict(list)
            for log in self._ended:
                tries[log.spawned_at].append(log.top)
        entries.sort(key=lambda entry: entry[0])
        return History(tuple(event for entry in entries for event in _events(entry, tries)))

    def add(
        self,
        log: _HierarchyLog,
        what: str,
        t: int,
        other: int = 0,
        table: str = "",
        keys: Iterable[Key | None] = (None,),
        firing: str = "",
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
                if firing:
                    self._spawned[firing] = log.firings[firing] = self._order
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
        """Drop the log of a hierarchy. REQUIRES: ``_latch``."""
        self._kept -= len(log.entries)
        for firing, at in log.firings.items():
            if self._spawned.get(firing) == at:
                del self._spawned[firing]
        log.entries, log.firings = [], {}
        log.is_dropped = True


class _HierarchyLog:
    """Log of one hierarchy; the latch of the recording guards its fields.

    Attributes
    ----------
    entries : list
    firings : dict of str to int
        Firings that the hierarchy has spawned, with the places of the events.
    spawned_at : int
        Place of the event that spawned the hierarchy; 0 if it is not a firing, or unknown.
    top : int
        Number of the top-level transaction.
    """

    __slots__ = ("_recording", "entries", "firings", "is_dropped", "spawned_at", "top")

    def __init__(self, recording: Recording, spawned_at: int):
        self._recording = recording
        self.entries: list[_Entry] = []
        self.firings: dict[str, int] = {}
        self.is_dropped = False
        self.spawned_at = spawned_at
        self.top = 0

    def began(self, t: TransactionNode) -> None:
        """Log that a transaction of the hierarchy begins."""
        if t.parent is None:
            self.top = t.id
            self._recording.add(self, "begin", t.id)
        else:
            mode = SpawnMode.DEFERRED if t.deferred else SpawnMode.IMMEDIATE
            place = (t.priority, t.group)
            self._recording.add(self, mode, t.parent.id, t.id, keys=(place,))

    def spawned(self, t: TransactionNode, firing: str, coupling: str) -> None:
        """Log that `t` spawns a firing: a rule's separate top-level transactions of that name."""
        mode = _SPAWN[Coupling(coupling)]
        self._recording.add(self, mode, t.id, firing=firing)

    def operated(
        self, t: TransactionNode, kind: str, table: str, keys: Iterable[Key] | None = None
    ) -> None:
        """Log that `t` works on rows, or on a table if `keys` is None; the locks are granted."""
        self._recording.add(self, kind, t.id, table=table, keys=(None,) if keys is None else keys)

    def ended(self, t: TransactionNode) -> None:
        """Log that `t` has ended; its locks are not passed on yet."""
        if t.state is not State.COMMITTED:
            self._recording.add(self, "abort", t.id)
        elif t.parent is None:
            self._recording.add(self, "commit", t.id)
        else:
            self._recording.add(self, "delegate", t.id, t.parent.id)
        if t.parent is None:
            self._recording.end(self)


def _events(entry: _Entry, tries: Mapping[int, Sequence[int]]) -> Iterator[Event]:
    """Yield the events of an entry.

    Parameters
    ----------
    tries : mapping of int to sequence of int
        Top-level transactions of the firings, by the place at which they were spawned.
    """
    order, what, t, other, table, key = entry
    match what:
        case "begin":
            yield BeginEvent(t)
        case "commit":
            yield CommitEvent(t)
        case "abort":
            yield AbortEvent(t)
        case "delegate":
            yield DelegateEvent(t, other)
            yield CommitEvent(t)
        case SpawnMode.IMMEDIATE:
            assert key is not None
            yield SpawnEvent(t, other, SpawnMode.IMMEDIATE, t, key[0], group=key[1])
        case SpawnMode.DEFERRED:
            assert key is not None
            yield SpawnEvent(t, other, SpawnMode.DEFERRED, t, key[0], cycle=key[1])
        case SpawnMode():
            for child in tries.get(order, (-order,)):
                yield SpawnEvent(t, child, what, parent=None)
        case _:
            yield ObjectOperation(t, order, OperationKind(what), (table, *map(str, key or ())))
