"""What transactions did, kept for the auditor: whole hierarchies, within a bound."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from activedb.config import Settings
from activedb.metrics import Counters
from activedb.store.sql import Key
from activedb.transactions import Log, Run, State, Transaction
from coupling import Coupling
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
"""Place in the order, what, the transaction, another one, a table, a key.

Of a child that begins the key is its priority and its group.
"""
_SPAWN = {Coupling[mode.name]: mode for mode in SpawnMode}


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

    A rule's own top-level transactions, its *firing*, are spawned by the transaction in which its
    event was raised. They have the name of the firing in common, so each try of it is one more
    transaction that was spawned there, whichever thread runs it. If none has ended here, the
    history has the spawn alone, of a transaction whose number is negative.

    Latch: ``_latch``; nothing is taken under it. It is held for each event, so what it orders is
    the order in which things took effect: an operation is logged after its lock is granted and
    before that can be given up, an end before the locks are passed on.

    Parameters
    ----------
    one_in : int
        Of how many top-level transactions one is recorded. A firing that a recorded transaction
        has spawned is recorded in any case, and not counted.
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
        # Firings by name, with the place of the event that spawned them last.
        self._spawned: dict[str, int] = {}

    def log(self, run: Run) -> Log | None:
        """The log of a hierarchy that begins, or None if it is not to be recorded."""
        with self._latch:
            spawned_at = self._spawned.get(run.name, 0)
            if not spawned_at:
                self._begun += 1
                if (self._begun - 1) % self._one_in:
                    return None
        return _HierarchyLog(self, spawned_at)

    def history(self) -> History:
        """What the hierarchies that have ended, and are still kept, did. O(n log n)."""
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
        """REQUIRES: ``_latch``."""
        self._kept -= len(log.entries)
        for firing, at in log.firings.items():
            if self._spawned.get(firing) == at:
                del self._spawned[firing]
        log.entries, log.firings = [], {}
        log.is_dropped = True


class _HierarchyLog:
    """What one hierarchy has done so far; its fields are guarded by the latch of the recording.

    Attributes
    ----------
    entries : list
    firings : dict of str to int
        Those that it has spawned, with the places of the events.
    spawned_at : int
        Place of the event that spawned it; 0 if it is no firing, or that is not known here.
    top : int
        The top-level transaction.
    """

    __slots__ = ("_recording", "entries", "firings", "is_dropped", "spawned_at", "top")

    def __init__(self, recording: Recording, spawned_at: int):
        self._recording = recording
        self.entries: list[_Entry] = []
        self.firings: dict[str, int] = {}
        self.is_dropped = False
        self.spawned_at = spawned_at
        self.top = 0

    def began(self, t: Transaction) -> None:
        """A transaction of the hierarchy begins."""
        if t.parent is None:
            self.top = t.id
            self._recording.add(self, "begin", t.id)
        else:
            mode = SpawnMode.DEFERRED if t.deferred else SpawnMode.IMMEDIATE
            place = (t.priority, t.group)
            self._recording.add(self, mode, t.parent.id, t.id, keys=(place,))

    def spawned(self, t: Transaction, firing: str, coupling: str) -> None:
        """A rule is to run in the top-level transactions of that name, because of `t`."""
        mode = _SPAWN[Coupling(coupling)]
        self._recording.add(self, mode, t.id, firing=firing)

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


def _events(entry: _Entry, tries: Mapping[int, Sequence[int]]) -> Iterator[Event]:
    """The events of an entry; `tries`: the firings' transactions by where they were spawned."""
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
        case SpawnMode.IMMEDIATE:
            assert key is not None
            yield Spawn(t, other, SpawnMode.IMMEDIATE, t, key[0], group=key[1])
        case SpawnMode.DEFERRED:
            assert key is not None
            yield Spawn(t, other, SpawnMode.DEFERRED, t, key[0], cycle=key[1])
        case SpawnMode():
            for child in tries.get(order, (-order,)):
                yield Spawn(t, child, what, parent=None)
        case _:
            yield Operation(t, order, OperationKind(what), (table, *map(str, key or ())))
