"""The producers of a stream, as an application deals with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from activedb.errors import ConfigurationError
from activedb.events import AccuracyInterval, Occurrence
from activedb.streams._membership import Membership
from activedb.streams._run import StreamRun

__all__ = ["StreamProducers"]


class StreamProducers:
    """Who sends the events of a stream: ``db.producers(stream)``.

    Iterating gives the names of those that count, in the order in which they joined. All that
    changes who counts is durable when the call returns. Not thread-safe: one thread feeds a stream,
    and passes heartbeats on.

    A producer that is silent for too long is found at once, also while the stream is not fed: by
    the timekeeper, on another thread. The stream's `on_silent` is called once until the producer is
    heard again; without it the silence is logged, and the next feed or heartbeat raises it.
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
        """How many events wait until they are stable."""
        return self._run.waiting

    @property
    def stable_us(self) -> int | None:
        """The moment before which all has been processed, in microseconds; None: nothing has."""
        return self._membership.declared_us

    def register(
        self,
        name: str,
        types: Iterable[str] | None = None,
        *,
        silent_after: float | timedelta | None = None,
        in_order: bool = True,
    ) -> int | None:
        """Let a producer join: from now on nothing is stable without it.

        Parameters
        ----------
        name : str
            As in its stamps.
        types : iterable of str, optional
            The event types that it may send; None: all of the stream.
        silent_after : float or timedelta, optional
            How long it may keep silent, in seconds; None: as long as the stream says.
        in_order : bool
            Whether it sends its events in the order of detection, so that each tells that no
            earlier one follows. False: only heartbeats and `sync` tell that.

        Returns
        -------
        int or None
            `stable_us`: what began before is too late. A node is told that with
            ``node.begin_after(us)``, so that nothing it detects from now on seems older.

        Raises
        ------
        ConfigurationError
            If it is registered already, or an argument has no meaning.
        """
        limit_us = None if silent_after is None else _duration_us(silent_after)
        with self._run.hearing() as membership:
            membership.register(name, types, limit_us, in_order)
            self._run.settle(must_write=True)
        return self.stable_us

    def remove(self, name: str) -> None:
        """Let a producer go: nothing waits for it any more. What is stable without it is processed.

        Raises
        ------
        ConfigurationError
            If there is none of that name.
        """
        with self._run.hearing() as membership:
            membership.remove(name)
            self._run.settle(must_write=True)

    def heartbeat(self, stamp: AccuracyInterval) -> None:
        """Take note that a producer lives and has sent all from before `stamp`.

        What becomes stable by that is processed.

        Raises
        ------
        BadEvent
            If membership is atomic and the stamp's node is not registered, or the stamp is from
            the future (setting `future_max_s`); no sync point has moved then.
        ProducerSilent
            As `check`; the heartbeat has not been taken then.
        """
        with self._run.hearing() as membership:
            membership.look([stamp.node])
            self._run.settle(must_write=membership.heartbeat(stamp))

    def sync(self, name: str, until: datetime | float) -> None:
        """Take note that a producer sends nothing any more from before `until`.

        Raises
        ------
        BadEvent, ProducerSilent
            As `heartbeat`.
        """
        us = Occurrence("until", until).us
        with self._run.hearing() as membership:
            membership.look([name])
            self._run.settle(must_write=membership.sync(name, us))

    def check(self) -> None:
        """Look for producers that have been silent for too long, as each feed does.

        Raises
        ------
        ProducerSilent
            If there is one, and the stream was declared without `on_silent`; of several the one
            that has been silent longest, the others by the next looks.
        """
        with self._run.hearing() as membership:
            membership.look(())


def _duration_us(duration: float | timedelta) -> int:
    if isinstance(duration, timedelta):
        us = duration // timedelta(microseconds=1)
    else:
        us = round(duration * 1_000_000)
    if us <= 0:
        raise ConfigurationError(f"a producer may be silent for a positive time, not {duration!r}")
    return us
