"""Interface of an application to the producers of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from activedb.errors import BadEvent, ConfigurationError, DefinitionError
from activedb.events import AccuracyInterval, Occurrence
from activedb.streams._declaration import required_us
from activedb.streams._membership import Membership, require_producer
from activedb.streams._run import StreamRun

__all__ = ["StreamProducers"]


class StreamProducers:
    """Producers of a stream: ``stream.producers``.

    Iteration yields the names of the members, in the order in which they joined. Changes of
    membership are durable when the call returns. Not thread-safe: a single thread feeds a stream
    and passes heartbeats on.

    A producer that is silent for too long is found at once, even while the stream is not fed: the
    timekeeper checks on another thread. The stream's `on_silent` is called once per silence.
    Without it the silence is logged, and the next feed or heartbeat raises the error.
    """

    def __init__(self, run: StreamRun, membership: Membership):
        self._run = run
        self._membership = membership

    def __iter__(self) -> Iterator[str]:
        return iter(self._membership.names)

    def __len__(self) -> int:
        return len(self._membership.names)

    def __contains__(self, name: object) -> bool:
        return name in self._membership.names

    @property
    def waiting(self) -> int:
        """Number of events that wait to become stable."""
        return self._run.waiting

    @property
    def stable_us(self) -> int | None:
        """Time in microseconds before which all events have been processed; None: not yet."""
        return self._membership.declared_us

    def register(
        self,
        name: str,
        types: Iterable[str] | None = None,
        *,
        silent_after: float | timedelta | None = None,
        in_order: bool = True,
    ) -> int | None:
        """Add a producer: stability then depends on it.

        Parameters
        ----------
        name : str
            Node name used in its stamps.
        types : iterable of str, optional
            Event types that it may send; None: all types of the stream.
        silent_after : float or timedelta, optional
            Maximum silence in seconds; None: as the stream declares.
        in_order : bool
            Whether it sends its events in the order of detection, so that each event implies that
            no earlier one follows. False: only heartbeats and `sync` imply that.

        Returns
        -------
        int or None
            `stable_us`: events that began before are too late. Pass it to a node with
            ``node.begin_after(us)``, so that no event it detects from now on seems older.

        Raises
        ------
        ConfigurationError
            If it is registered already, or an argument is invalid.
        """
        try:
            limit_us = None if silent_after is None else required_us("silent_after", silent_after)
        except DefinitionError as error:
            raise ConfigurationError(str(error)) from None
        with self._run.hearing() as membership:
            membership.register(name, types, limit_us, in_order)
            self._run.settle(must_write=True)
        return self.stable_us

    def remove(self, name: str) -> None:
        """Remove a producer, and process the events that are stable without it.

        Raises
        ------
        ConfigurationError
            If there is no producer of that name.
        """
        with self._run.hearing() as membership:
            membership.remove(name)
            self._run.settle(must_write=True)

    def heartbeat(self, stamp: AccuracyInterval) -> None:
        """Record that a producer is alive and has sent all its events from before `stamp`.

        Events that become stable are processed.

        Raises
        ------
        BadEvent
            If membership is atomic and the stamp's node is not registered, or if the stamp is from
            the future (setting `future_max_s`); sync points are unchanged.
        ProducerSilent
            As for `check`; the heartbeat has not been taken then.
        """
        if not isinstance(stamp, AccuracyInterval):
            raise BadEvent(f"a heartbeat is a stamp of its producer, node.stamp(), not {stamp!r}")
        with self._run.hearing() as membership:
            membership.look([stamp.node])
            self._run.settle(must_write=membership.heartbeat(stamp))

    def sync(self, name: str, until: datetime | float) -> None:
        """Record that a producer will send no further event from before `until`.

        Raises
        ------
        BadEvent, ProducerSilent
            As for `heartbeat`.
        """
        require_producer(name)
        us = Occurrence("until", until).us
        with self._run.hearing() as membership:
            membership.look([name])
            self._run.settle(must_write=membership.sync(name, us))

    def check(self) -> None:
        """Check for producers that have been silent for too long, as each feed does.

        Raises
        ------
        ProducerSilent
            If a producer is silent and the stream has no `on_silent`. The producer silent the
            longest comes first; the next checks raise the errors of the others.
        """
        with self._run.hearing() as membership:
            membership.look(())
