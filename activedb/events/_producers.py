"""Producers of events: membership, and sync points that bound the events still to come.

After C. Liebig, M. Cilia, A. Buchmann, "Event Composition in Time-dependent Distributed Systems",
1999, sections IV and V. See README-time.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Self

from activedb.errors import BadEvent, ConfigurationError, ProducerSilent
from activedb.events._accuracy import AccuracyInterval, LocalClock
from activedb.events._codec import decode_params, encode_params
from activedb.events._occurrence import Occurrence
from activedb.functions import checked_result

__all__ = ["Key", "Producers"]


Key = tuple[str, str]

# Sentinels below and above all timestamps, which fit in 64 bits.
NOT_YET_US = -(2**63)
NEVER_US = 2**63


class Producer:
    """State of one producer."""

    __slots__ = (
        "heard",
        "heard_us",
        "in_order",
        "is_told",
        "keys",
        "local_clock",
        "local_sync_us",
        "name",
        "silent_after_us",
        "sync_us",
    )

    def __init__(
        self, name: str, keys: set[Key] | None, in_order: bool, silent_after_us: int | None
    ):
        self.name = name
        self.keys = keys  # None: any
        self.in_order = in_order
        self.silent_after_us = silent_after_us
        self.sync_us = NOT_YET_US  # never decreases
        self.local_clock: LocalClock | None = None
        self.local_sync_us = NOT_YET_US  # in readings of local_clock; never decreases
        self.heard = True  # since the last check for silent producers
        self.heard_us: int | None = None  # time of the first check at which it had been silent
        self.is_told = False  # this silence has been reported

    def sends(self, keys: Iterable[Key] | None) -> bool:
        return keys is None or self.keys is None or not self.keys.isdisjoint(keys)

    def move(self, us: int, stamp: AccuracyInterval | None) -> None:
        """Advance the sync points to `us` and to what the local reading of `stamp` implies."""
        self.sync_us = max(self.sync_us, us)
        clock = None if stamp is None else stamp.local_clock
        if stamp is None or clock is None:
            return
        assert stamp.local_us is not None
        local_sync_us = stamp.local_us - clock.apart_us
        if self.local_clock == clock:
            local_sync_us = max(self.local_sync_us, local_sync_us)
        self.local_clock, self.local_sync_us = clock, local_sync_us

    def is_past(self, o: Occurrence) -> bool:
        """Return whether every event this producer still sends is certain to follow `o`."""
        if self.sync_us > o.high_us:
            return True
        stamp = o.stamp
        return (
            stamp is not None
            and not o.parts
            and stamp.local_us is not None
            and stamp.local_us < self.local_sync_us
            and stamp.node == self.name
            and stamp.local_clock == self.local_clock
        )

    def hear(self) -> None:
        """End a silence; the next one starts at the next check."""
        self.heard, self.is_told = True, False

    def note_time(self, now_us: int) -> None:
        """Start a silence, if the producer was heard since the last check."""
        if self.heard or self.heard_us is None:
            self.heard, self.heard_us = False, now_us

    @property
    def silent_from_us(self) -> int | None:
        """Time at which it will have been silent for too long; None: never, or reported."""
        if self.silent_after_us is None or self.heard_us is None or self.is_told:
            return None
        return self.heard_us + self.silent_after_us + 1

    def record(self) -> dict[str, Any]:
        """Return the producer's state as a JSON-serialisable dict for `restored`."""
        clock = self.local_clock
        return encode_params(
            {
                "keys": None if self.keys is None else [list(key) for key in sorted(self.keys)],
                "in_order": self.in_order,
                "silent_after_us": self.silent_after_us,
                "sync_us": self.sync_us,
                "local_sync_us": self.local_sync_us,
                "local_clock": None
                if clock is None
                else [
                    clock.incarnation,
                    clock.detection_delay_us,
                    clock.drift_ppb,
                    clock.granularity_us,
                    clock.adjustment_us,
                ],
            }
        )

    @classmethod
    def restored(cls, name: str, record: Mapping[str, Any]) -> Self:
        """Return the producer whose state is `record`."""
        data = decode_params(record)
        keys = None if data["keys"] is None else {(kind, key) for kind, key in data["keys"]}
        producer = cls(name, keys, data["in_order"], data["silent_after_us"])
        producer.sync_us = data["sync_us"]
        producer.local_sync_us = data["local_sync_us"]
        if data["local_clock"] is not None:
            producer.local_clock = LocalClock(*data["local_clock"])
        return producer


class Producers:
    """Producers of some event types, with a sync point each.

    A producer's *sync point* is a moment that no event it still sends can reach back to: the
    intervals of those events begin at or after it. Heartbeats, punctuations and watermarks (`sync`)
    move it. So do the events of a producer that sends in the order of detection, as their lower
    ends never decrease. A sync point never decreases either. The *local sync point* is the same in
    readings of the producer's local clock: the reading of its latest event, less the distance that
    the local timestamp order requires between two readings.

    Membership is *atomic* or *weak*. Atomic: a producer is registered before it may send, and
    counts from then on; events of any other producer are refused. Weak: a producer is discovered by
    its first event of a type, and counts for that type from then on. Its events may therefore come
    too late for what is declared stable already. A stream in any order must be registered under
    weak membership, too, as a discovered producer is assumed to send in order.

    Not thread-safe: the caller must hold a latch.

    Parameters
    ----------
    membership : {"atomic", "weak"}, optional
    silent_after_us : int or None, optional
        How long a producer may be silent unless `register` says otherwise; None: forever.
    on_silent : callable, optional
        Called with the `ProducerSilent` of each silent producer, once until it is heard again;
        None: `timeouts` raises it.

    Attributes
    ----------
    NOT_YET_US, NEVER_US : int
        Sync points before and after every possible timestamp: of a producer that has reported none
        yet, and of one that has ended.

    Raises
    ------
    ConfigurationError
        If an argument is invalid.
    """

    NOT_YET_US = NOT_YET_US
    NEVER_US = NEVER_US

    def __init__(
        self,
        membership: Literal["atomic", "weak"] = "atomic",
        *,
        silent_after_us: int | None = None,
        on_silent: Callable[[ProducerSilent], object] | None = None,
    ):
        if membership not in ("atomic", "weak"):
            raise ConfigurationError(f'membership is "atomic" or "weak", not {membership!r}')
        _check_limit(silent_after_us)
        self._is_atomic = membership == "atomic"
        self._silent_after_us = silent_after_us
        self._on_silent = on_silent
        self._producers: dict[str, Producer] = {}
        self._stable_us = NOT_YET_US

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in the order in which the producers joined."""
        return iter(self._producers)

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, name: object) -> bool:
        return name in self._producers

    @property
    def stable_us(self) -> int:
        """The moment before which all is declared stable; `NOT_YET_US` if nothing is."""
        return self._stable_us

    def register(
        self,
        name: str,
        keys: Iterable[Key] | None = None,
        *,
        in_order: bool = True,
        silent_after_us: int | None = None,
    ) -> int:
        """Add a producer; it counts from now on.

        Parameters
        ----------
        name : str
        keys : iterable of (str, str), optional
            The event types it may send, as in `Expression.keys`; None: any.
        in_order : bool, optional
            True if it sends its events in the order of detection, and they arrive in that order.
            False for a stream in any order: only `sync` and `heartbeat` move its sync point.
        silent_after_us : int, optional
            How long it may be silent; None: the limit for all producers.

        Returns
        -------
        int
            The end of what is declared stable already, at which the producer's sync point starts;
            `NOT_YET_US` if nothing is stable. Pass it to `Node.begin_after` of a joining node, so
            that no event the node detects from now on seems older.

        Raises
        ------
        ConfigurationError
            If the producer is registered already, or the limit is negative.
        """
        if name in self._producers:
            raise ConfigurationError(
                f"producer {name!r} is registered already: remove it first if it was restarted"
            )
        if silent_after_us is None:
            silent_after_us = self._silent_after_us
        _check_limit(silent_after_us)
        producer = Producer(name, None if keys is None else set(keys), in_order, silent_after_us)
        producer.sync_us = self._stable_us
        self._producers[name] = producer
        return self._stable_us

    def remove(self, name: str) -> None:
        """Remove a producer: nothing waits for it any more.

        Raises
        ------
        ConfigurationError
            If there is no producer of that name.
        """
        if self._producers.pop(name, None) is None:
            raise ConfigurationError(f"there is no producer {name!r} to remove; {self._known()}")

    def observe(self, o: Occurrence, name: str | None = None) -> None:
        """Record that an event of the producer `name` (None: of its node) has arrived; O(1).

        Raises
        ------
        BadEvent
            If the event does not identify its producer. With atomic membership, also if the
            producer is not registered, not registered for this type, or was restarted. The state is
            unchanged.
        """
        producer = self._sender(o, name)
        producer.hear()
        if producer.in_order:
            producer.move(o.low_us, o.stamp)

    def heartbeat(self, stamp: AccuracyInterval) -> None:
        """Record that a producer is alive and has nothing to send from before `stamp`; O(1).

        Raises
        ------
        BadEvent
            As for `observe`.
        """
        producer = self._known_or_new(stamp.node, "a heartbeat")
        self._check_clock(producer, stamp)
        producer.hear()
        producer.move(stamp.lower_us, stamp)

    def sync(self, name: str, us: int) -> None:
        """Record that `name` sends no more events whose interval begins before `us`; O(1).

        A punctuation or watermark of a stream conveys this; `NEVER_US`: the stream has ended.
        A sync point never decreases: an earlier moment than before has no effect.

        Raises
        ------
        BadEvent
            As for `observe`.
        """
        producer = self._known_or_new(name, "a sync point")
        producer.hear()
        producer.move(us, None)

    def of(self, keys: Iterable[Key] | None = None) -> tuple[str, ...]:
        """Return the names of the producers that may send these types (None: any); O(n)."""
        keys = None if keys is None else frozenset(keys)
        return tuple(p.name for p in self._producers.values() if p.sends(keys))

    def sync_us(self, keys: Iterable[Key] | None = None) -> int:
        """Return a lower bound on the events of these types (None: any) still to come; O(n).

        The bound is the least global sync point of the producers that may send them: `NOT_YET_US`
        if one of them has reported none yet, `NEVER_US` if there are no such producers.
        """
        keys = None if keys is None else frozenset(keys)
        return min((p.sync_us for p in self._producers.values() if p.sends(keys)), default=NEVER_US)

    def local_sync_us(self, name: str) -> int:
        """Return the local sync point of `name`, in readings of its local clock.

        `NOT_YET_US` if there is no such producer, or it has reported no local reading.
        """
        producer = self._producers.get(name)
        return self.NOT_YET_US if producer is None else producer.local_sync_us

    def is_past(self, o: Occurrence, keys: Iterable[Key] | None = None) -> bool:
        """Return whether every event of these types still to come is certain to follow `o`; O(n).

        For the node that detected `o` the local sync point is sufficient; for all others the global
        sync point decides (section V.A).
        """
        keys = None if keys is None else frozenset(keys)
        return all(p.is_past(o) for p in self._producers.values() if p.sends(keys))

    def note_stable(self, us: int) -> None:
        """Record that everything before `us` has been declared stable."""
        self._stable_us = max(self._stable_us, us)

    def note_heard(self, name: str | None) -> None:
        """Record that a producer is alive, if it is known; its sync points do not change."""
        producer = self._producers.get(name) if name is not None else None
        if producer is not None:
            producer.hear()

    def note_time(self, now_us: int) -> None:
        """Start the silence of producers that were heard since the last check; O(n).

        Without this call their silence starts at the next check.
        """
        for producer in self._producers.values():
            producer.note_time(now_us)

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the state of each producer as a JSON-serialisable dict for `restore`; O(n)."""
        return {name: producer.record() for name, producer in self._producers.items()}

    def restore(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the state by `records`, but keep what is known of each producer's silence. O(n).

        It is safe however old the records are: sync points reported since are only lost until they
        are reported again.
        """
        before, self._producers = self._producers, {}
        for name, record in records.items():
            producer = self._producers[name] = Producer.restored(name, record)
            known = before.get(name)
            if known is not None:
                producer.heard, producer.heard_us = known.heard, known.heard_us
                producer.is_told = known.is_told

    def silent_from_us(self) -> int | None:
        """Return when `timeouts` will report a producer, unless it is heard; None: never. O(n).

        Other threads may add and remove producers meanwhile.
        """
        found = [producer.silent_from_us for producer in list(self._producers.values())]
        return min((us for us in found if us is not None), default=None)

    def timeouts(self, now_us: int) -> list[str]:
        """Report the producers that have been silent for too long, and return them.

        Each is reported once until it is heard again, to `on_silent`. Without that, the one silent
        longest is raised, and the others by the next calls. The application may `remove` it, so
        that the others' events become stable.

        Silence is measured between checks: from the first check at which nothing new was heard.
        So it is detected at most one check late, and never early. O(n).

        Parameters
        ----------
        now_us : int
            The time by any clock that never goes back; the same clock for each call.

        Raises
        ------
        ProducerSilent
            If a producer is silent and there is no `on_silent`.
        """
        self.note_time(now_us)
        found = []
        for producer in sorted(self._producers.values(), key=lambda p: p.heard_us or 0):
            from_us = producer.silent_from_us
            if from_us is None or now_us < from_us:
                continue
            assert producer.heard_us is not None
            error = ProducerSilent(
                f"producer {producer.name!r} has been silent for {now_us - producer.heard_us} µs, "
                f"and may be for {producer.silent_after_us}: what others sent waits for it; "
                "remove it if it has gone",
                producer=producer.name,
            )
            producer.is_told = True
            if self._on_silent is None:
                raise error
            found.append(producer.name)
            checked_result(self._on_silent(error), "on_silent=")
        return found

    def _sender(self, o: Occurrence, name: str | None) -> Producer:
        name = o.producer if name is None else name
        producer = self._known_or_new(name, f"event {o.name!r}")
        if o.stamp is not None and producer.in_order:
            self._check_clock(producer, o.stamp)
        keys = producer.keys
        if keys is not None and o.key not in keys:
            if self._is_atomic:
                raise BadEvent(
                    f"producer {name!r} is not registered for {o.key!r}: register it for all types "
                    "it sends, so that the stream waits for it"
                )
            keys.add(o.key)
        return producer

    def _known_or_new(self, name: str | None, what: str) -> Producer:
        if name is None:
            raise BadEvent(
                f"{what} does not name its producer: give it a stamp of its node, or name it"
            )
        producer = self._producers.get(name)
        if producer is None:
            if self._is_atomic:
                raise BadEvent(
                    f"{what} is of producer {name!r}, which is not registered: register it before "
                    f"it sends, or choose weak membership; {self._known()}"
                )
            producer = Producer(name, set(), True, self._silent_after_us)
            self._producers[name] = producer
        return producer

    def _check_clock(self, producer: Producer, stamp: AccuracyInterval) -> None:
        """Refuse a restarted producer, which may have lost its sync point."""
        known, clock = producer.local_clock, stamp.local_clock
        if self._is_atomic and known is not None and clock is not None and clock != known:
            raise BadEvent(
                f"producer {producer.name!r} has another local clock than before: if it was "
                "restarted, remove and register it again"
            )

    def _known(self) -> str:
        return f"registered are {', '.join(map(repr, self._producers)) or 'none'}"


def _check_limit(silent_after_us: int | None) -> None:
    if silent_after_us is not None and silent_after_us < 0:
        raise ConfigurationError(f"silent_after_us is 0 or more, or None, not {silent_after_us}")
