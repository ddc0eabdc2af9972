"""Who sends the events of a stream, kept with its parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from activedb.clock import Clock, in_microseconds
from activedb.errors import BadEvent, ConfigurationError, ProducerSilent
from activedb.events import AccuracyInterval, Occurrence, Producers
from activedb.metrics import Counters
from activedb.store.journals import StreamJournal
from activedb.store.sql import is_storable
from activedb.streams._declaration import Stream
from activedb.streams._future import FutureLimit

__all__ = ["Changes", "Membership"]

_LOG = logging.getLogger(__name__)

Changes = Mapping[str, tuple[int, Mapping[str, Any] | None]]
"""Producers to be written, by name: the place, and what is known; None: it has gone."""

_NAME_MAX = 200  # characters of the column


class Membership:
    """The producers of one stream: who counts, their sync points, and what is written of them.

    Sync points are written with the parts of the stream. What was told since the last part is not
    known any more after a restart, so that more waits, never less.

    Not thread-safe: used by the one thread that feeds the stream.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        journal: StreamJournal,
        clock: Clock,
        future: FutureLimit,
        counters: Counters,
    ):
        assert stream.membership is not None
        self._stream = stream
        self._journal = journal
        self._clock = clock
        self._future = future
        self._counters = counters
        self._producers = Producers(
            stream.membership, silent_after_us=stream.silent_after_us, on_silent=stream.on_silent
        )
        self._written: dict[str, tuple[int, Mapping[str, Any]]] = {}
        # Producers found silent while the stream was not fed: those that `find_silent` has
        # reported since they were heard, and the errors that the next look raises, as there was no
        # `on_silent` to call.
        self._told: set[str] = set()
        self._found: dict[str, ProducerSilent] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The producers that count, in the order in which they joined."""
        return tuple(self._producers)

    @property
    def declared_us(self) -> int | None:
        """The moment before which all has been declared stable; None: nothing has."""
        us = self._producers.stable_us
        return None if us == Producers.NOT_YET_US else us

    # -- what is heard ---------------------------------------------------------------------

    def look(self, heard: Iterable[str | None]) -> None:
        """Look for silent producers; those in `heard` are not, as they are heard just now.

        Raises
        ------
        ProducerSilent
            If there is one, and the stream has no `on_silent`.
        """
        for name in heard:
            self._producers.note_heard(name)
            if name is not None:
                self._forget_silence(name)
        if self._found:
            raise self._found.pop(next(iter(self._found)))
        try:
            silent = len(self._producers.timeouts(self._now_us()))
        except ProducerSilent:
            silent = 1
            raise
        finally:
            self._counters.add("producers_silent", silent)

    def find_silent(self) -> None:
        """Look for silent producers while the stream is not fed; report each once per silence.

        Without `on_silent` the next `look` raises it.
        """
        now_us, found = self._now_us(), []
        try:
            while True:
                try:
                    found += self._producers.timeouts(now_us)
                    return
                except ProducerSilent as error:
                    found.append(error.producer)
                    self._found[error.producer] = error
                    _LOG.warning("stream %s: %s", self._stream.name, error)
        finally:
            self._told.update(found)
            self._counters.add("producers_silent", len(found))

    def silent_from_us(self) -> int | None:
        """Time at which `find_silent` will find a silent producer; None: never."""
        return self._producers.silent_from_us(self._told)

    def heard(self) -> None:
        """Let those be silent from now on that have been heard."""
        self._producers.note_time(self._now_us())

    def observe(self, o: Occurrence) -> None:
        """Take note of an event; `BadEvent` if it is none of a producer that counts."""
        if o.stamp is None:
            raise BadEvent(
                f"event {o.name!r} has no stamp: give it node.stamp() of its producer for a "
                "timestamp"
            )
        _check_name(o.stamp.node)
        self._producers.observe(o)

    def heartbeat(self, stamp: AccuracyInterval) -> bool:
        """Take note of a heartbeat; whether it has discovered a producer."""
        _check_name(stamp.node)
        self._future.check("a heartbeat", stamp.lower_us)
        before = len(self._producers)
        self._producers.heartbeat(stamp)
        self.heard()
        return len(self._producers) > before

    def sync(self, name: str, us: int) -> bool:
        """Take note of a punctuation of one producer; whether it has discovered one."""
        _check_name(name)
        before = len(self._producers)
        self._producers.sync(name, us)
        self.heard()
        return len(self._producers) > before

    # -- who counts ------------------------------------------------------------------------

    def register(
        self, name: str, types: Iterable[str] | None, silent_after_us: int | None, in_order: bool
    ) -> None:
        """Let a producer join."""
        try:
            _check_name(name)
        except BadEvent as error:
            raise ConfigurationError(str(error)) from None
        keys = None
        if types is not None:
            names = [types] if isinstance(types, str) else list(types)
            unknown = [t for t in names if t not in self._stream.types]
            if unknown:
                raise ConfigurationError(
                    f"stream {self._stream.name} has no event types "
                    f"{', '.join(map(repr, unknown))}, but {', '.join(self._stream.types)}"
                )
            keys = [("event", t) for t in names]
        self._producers.register(name, keys, in_order=in_order, silent_after_us=silent_after_us)
        self.heard()

    def remove(self, name: str) -> None:
        """Let a producer go."""
        self._producers.remove(name)
        self._forget_silence(name)

    # -- what is stable --------------------------------------------------------------------

    def stable_us(self, ends: Callable[[], int | None]) -> int | None:
        """The moment that nothing still to come reaches; None: nothing is known.

        Parameters
        ----------
        ends : callable
            Returns where the last event ends that there is, None if there is none: if nobody is
            left to send, that is stable.
        """
        us = self._producers.sync_us()
        if us >= Producers.NEVER_US:
            ends_us = ends()
            return None if ends_us is None else ends_us + 1
        return None if us == Producers.NOT_YET_US else us

    def declared(self, us: int | None) -> None:
        """Take note that all before this moment has been declared stable, durably."""
        if us is not None:
            self._producers.note_stable(us)

    def _forget_silence(self, name: str) -> None:
        self._told.discard(name)
        self._found.pop(name, None)

    def _now_us(self) -> int:
        return in_microseconds(self._clock.now())

    # -- state -----------------------------------------------------------------------------

    def records(self) -> dict[str, dict[str, Any]]:
        """What is known now, for `take_back`."""
        return self._producers.records()

    def take_back(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Go back to what was known: what was told since is not taken."""
        self._producers.restore(records)

    def load(self) -> None:
        """Go back to what is written."""
        records = self._journal.producers()
        self._written = {
            name: (place, record) for place, (name, record) in enumerate(records.items())
        }
        self._producers.restore(records)
        self.heard()  # silence counts from now on

    def changes(self) -> Changes:
        """What is to be written with a part; O(producers)."""
        now = self._producers.records()
        found: dict[str, tuple[int, Mapping[str, Any] | None]] = {}
        for place, (name, record) in enumerate(now.items()):
            if self._written.get(name) != (place, record):
                found[name] = (place, record)
        for name in self._written.keys() - now.keys():
            found[name] = (0, None)
        return found

    def committed(self, changes: Changes) -> None:
        """The part that was to write these has committed."""
        for name, (place, record) in changes.items():
            if record is None:
                del self._written[name]
            else:
                self._written[name] = (place, record)


def _check_name(name: str | None) -> None:
    if name is not None and not (0 < len(name) <= _NAME_MAX and is_storable(name)):
        raise BadEvent(
            f"{name!r} is no name for a producer: use at most {_NAME_MAX} characters that a "
            "database can keep"
        )
