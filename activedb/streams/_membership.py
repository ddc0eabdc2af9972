"""Membership of a stream's producers, stored with the stream's parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from activedb.clock import Clock, in_microseconds
from activedb.errors import BadEvent, ConfigurationError, ProducerSilent
from activedb.events import AccuracyInterval, Occurrence, Producers
from activedb.metrics import NamedCounters
from activedb.store.journals import StreamJournal
from activedb.store.sql import is_storable
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._future import FutureLimit

__all__ = ["Changes", "Membership", "require_producer"]

_LOG = logging.getLogger(__name__)

Changes = Mapping[str, tuple[int, Mapping[str, Any] | None]]
"""Producers to be written, by name: the place and the record; None: removed."""

_NAME_MAX = 200  # characters of the column


class Membership:
    """Producers of one stream: the members, their sync points, and the records written.

    Sync points are written with the parts of the stream. After a restart, those reported since the
    last part are lost, so more events wait, never fewer.

    Not thread-safe: used only by the thread that feeds the stream.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        *,
        journal: StreamJournal,
        clock: Clock,
        future: FutureLimit,
        counters: NamedCounters,
    ):
        assert stream.membership is not None
        self._stream = stream
        self._journal = journal
        self._clock = clock
        self._future = future
        self._counters = counters
        self._producers = Producers(
            stream.membership, silent_after_us=stream.silent_after_us, on_silent=self._tell
        )
        self._written: dict[str, tuple[int, Mapping[str, Any]]] = {}
        # Errors that the next calls of `look` raise, as there is no `on_silent` to call.
        self._found: dict[str, ProducerSilent] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Members, in the order in which they joined."""
        return tuple(self._producers)

    @property
    def declared_us(self) -> int | None:
        """Time before which all events have been declared stable; None: not yet."""
        us = self._producers.stable_us
        return None if us == Producers.NOT_YET_US else us

    # -- messages of producers -------------------------------------------------------------

    def look(self, heard: Iterable[str | None]) -> None:
        """Check for silent producers; producers in `heard` count as heard just now.

        Raises
        ------
        ProducerSilent
            If a producer is silent and the stream has no `on_silent`.
        """
        for name in heard:
            self._producers.note_heard(name)
            if name is not None:
                self._found.pop(name, None)
        self.find_silent()
        if self._found:
            raise self._found.pop(next(iter(self._found)))

    def find_silent(self) -> None:
        """Check for silent producers; report each once until it is heard again.

        Without `on_silent` the next calls of `look` raise the errors.
        """
        self._producers.timeouts(self._now_us())

    def silent_from_us(self) -> int | None:
        """Return the time at which `find_silent` will find a silent producer; None: never."""
        return self._producers.silent_from_us()

    def heard(self) -> None:
        """Start the silence of the producers heard since the last check."""
        self._producers.note_time(self._now_us())

    def observe(self, o: Occurrence) -> None:
        """Observe an event; raise `BadEvent` if it does not come from a member."""
        if o.stamp is None:
            raise BadEvent(
                f"event {o.name!r} has no stamp: give it node.stamp() of its producer for a "
                "timestamp"
            )
        _check_name(o.stamp.node)
        self._producers.observe(o)

    def heartbeat(self, stamp: AccuracyInterval) -> bool:
        """Observe a heartbeat; return whether it has discovered a producer."""
        _check_name(stamp.node)
        self._future.check("a heartbeat", stamp.lower_us)
        before = len(self._producers)
        self._producers.heartbeat(stamp)
        self.heard()
        return len(self._producers) > before

    def sync(self, name: str, us: int) -> bool:
        """Observe a punctuation of one producer; return whether it has discovered the producer."""
        require_producer(name)
        before = len(self._producers)
        self._producers.sync(name, us)
        self.heard()
        return len(self._producers) > before

    # -- members ---------------------------------------------------------------------------

    def register(
        self, name: str, types: Iterable[str] | None, silent_after_us: int | None, in_order: bool
    ) -> None:
        """Add a producer."""
        try:
            require_producer(name)
        except BadEvent as error:
            raise ConfigurationError(str(error)) from None
        keys = None
        if types is not None:
            if not isinstance(types, Iterable):
                raise ConfigurationError(f"types must be names of event types, not {types!r}")
            names = [types] if isinstance(types, str) else list(types)
            declared = tuple(self._stream.types)
            unknown = [t for t in names if t not in declared]
            if unknown:
                raise ConfigurationError(
                    f"stream {self._stream.name} has no event types "
                    f"{', '.join(map(repr, unknown))}, but {', '.join(declared)}"
                )
            keys = [("event", t) for t in names]
        self._producers.register(name, keys, in_order=in_order, silent_after_us=silent_after_us)
        self.heard()

    def remove(self, name: str) -> None:
        """Remove a producer."""
        self._producers.remove(name)
        self._found.pop(name, None)

    # -- stability -------------------------------------------------------------------------

    def stable_us(self, ends: Callable[[], int | None]) -> int | None:
        """Return the time that no future event precedes; None if unknown.

        Parameters
        ----------
        ends : callable
            Return the end of the latest known event, None if there is none. Without any producer
            left, all events up to there are stable.
        """
        us = self._producers.sync_us()
        if us >= Producers.NEVER_US:
            ends_us = ends()
            return None if ends_us is None else ends_us + 1
        return None if us == Producers.NOT_YET_US else us

    def declared(self, us: int | None) -> None:
        """Record that all events before this time have been declared stable durably."""
        if us is not None:
            self._producers.note_stable(us)

    def _tell(self, error: ProducerSilent) -> object:
        self._counters.add("producers_silent", 1)
        if self._stream.on_silent is not None:
            return self._stream.on_silent(error)
        _LOG.warning("stream %s: %s", self._stream.name, error)
        self._found[error.producer] = error
        return None

    def _now_us(self) -> int:
        return in_microseconds(self._clock.now())

    # -- state -----------------------------------------------------------------------------

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the current state, for `take_back`."""
        return self._producers.records()

    def take_back(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore an earlier state; later messages count as not received."""
        self._producers.restore(records)

    def load(self) -> None:
        """Restore the state that is stored."""
        records = self._journal.producers()
        self._written = {
            name: (place, record) for place, (name, record) in enumerate(records.items())
        }
        self._producers.restore(records)
        self.heard()  # silence counts from now on

    def changes(self) -> Changes:
        """Return the records to be written with a part; O(producers)."""
        now = self._producers.records()
        found: dict[str, tuple[int, Mapping[str, Any] | None]] = {}
        for place, (name, record) in enumerate(now.items()):
            if self._written.get(name) != (place, record):
                found[name] = (place, record)
        for name in self._written.keys() - now.keys():
            found[name] = (0, None)
        return found

    def committed(self, changes: Changes) -> None:
        """Record that the part that writes these changes has committed."""
        for name, (place, record) in changes.items():
            if record is None:
                del self._written[name]
            else:
                self._written[name] = (place, record)


def _check_name(name: str | None) -> None:
    if name is not None:
        require_producer(name)


def require_producer(name: object) -> None:
    """Check that a value can be the name of a producer."""
    if not (isinstance(name, str) and 0 < len(name) <= _NAME_MAX and is_storable(name)):
        raise BadEvent(
            f"{name!r} is not a name for a producer: use a text of at most {_NAME_MAX} characters "
            "that a database can keep"
        )
