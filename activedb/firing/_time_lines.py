"""Assignment of rules to time lines: the time of a stream, or the clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from activedb.firing._due_times import DueTimes
from activedb.rules import Subscription

__all__ = ["TimeLines"]


class _Stream(Protocol):
    """Declared stream, reduced to the events that decide which rules follow its time."""

    @property
    def name(self) -> str: ...

    @property
    def types(self) -> Collection[str]: ...


class TimeLines:
    """Assignment of rules to streams, with a queue of due rules per stream.

    A rule follows the time of a stream if all its events are events of that stream, late ones
    included, or clock events beside them. All other rules follow the clock: rules on data changes,
    on signals, on events of several streams, or on clock events alone.

    Parameters
    ----------
    streams : mapping of str to stream
        The declared streams; more may be added.
    on_clock : callable ``(subscription)``
        Called when the due time of a rule that follows the clock may have changed.
    """

    def __init__(self, streams: Mapping[str, _Stream], on_clock: Callable[[Subscription], object]):
        self._streams = streams
        self._known = -1  # number of streams for which _by_keys is valid
        self._by_keys: dict[frozenset[tuple[str, str]], str | None] = {}
        self._due: dict[str, DueTimes] = {}
        self._on_clock = on_clock

    def stream_of(self, subscription: Subscription) -> str | None:
        """Return the stream whose time a rule follows; None for the clock. O(keys) once."""
        if self._known != len(self._streams):
            self._by_keys = {}
            self._known = len(self._streams)
        keys = subscription.keys
        if keys not in self._by_keys:
            self._by_keys[keys] = self._found(keys)
        return self._by_keys[keys]

    def due_in(self, stream: str) -> DueTimes:
        """Return the due times of the rules that follow a stream's time."""
        return self._due.setdefault(stream, DueTimes())

    def moved(self, subscription: Subscription) -> None:
        """Update when a subscription is due, after it was fed or advanced."""
        stream = self.stream_of(subscription)
        if stream is None:
            self._on_clock(subscription)
        else:
            self.due_in(stream).set(subscription, subscription.due_us)

    def _found(self, keys: frozenset[tuple[str, str]]) -> str | None:
        found: set[str] = set()
        for kind, name in keys:
            if kind == "late":
                found.add(name)
            elif kind == "event":
                streams = [s.name for s in list(self._streams.values()) if name in s.types]
                if len(streams) != 1:
                    return None
                found.add(streams[0])
            else:
                return None
        return found.pop() if len(found) == 1 and found <= self._streams.keys() else None
