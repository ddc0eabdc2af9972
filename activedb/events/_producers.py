"""The producers of events: who may still send, and up to when nothing more can come from them.

After C. Liebig, M. Cilia, A. Buchmann, "Event Composition in Time-dependent Distributed Systems",
1999, sections IV and V. See README-time.md.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Literal

from activedb.errors import BadEvent, ConfigurationError, ProducerSilent
from activedb.events._accuracy import AccuracyInterval
from activedb.events._occurrence import Occurrence
from activedb.events._producer import NEVER_US, NOT_YET_US, Key, Producer
from activedb.functions import checked_result

__all__ = ["Key", "Producers"]


class Producers:
    """Who sends events of some types, and the sync points of each. Not safe to share unlatched.

    A producer's *sync point* is a moment that no event it still sends can reach back to: their
    intervals begin at or after it. It is moved by heartbeats, by punctuations and watermarks
    (`sync`), and by the events of a producer that sends in the order of detection: their lower ends
    never go back. It never goes back itself. The *local sync point* is the same in readings of the
    producer's local clock: the reading of its latest event, less what the local timestamp order
    needs two readings to be apart.

    Membership is *atomic* or *weak*. Atomic: a producer is registered before it may send, and
    counts from then on; an event of any other is refused. Weak: a producer is discovered by its
    first event of a type, and counts for that type from then on, so it may come too late for what
    is declared stable already. A stream in any order is registered under weak membership, too, as
    one that is discovered is taken to send in order.

    Parameters
    ----------
    membership : {"atomic", "weak"}, optional
    silent_after_us : int or None, optional
        How long a producer may keep silent unless `register` says otherwise; None: forever.
    on_silent : callable, optional
        Gets the `ProducerSilent` of each producer that is silent; None: `timeouts` raises it.

    Attributes
    ----------
    NOT_YET_US, NEVER_US : int
        Sync points before and after every timestamp there can be: of a producer that has told
        nothing yet, and of one that has ended.

    Raises
    ------
    ConfigurationError
        If one of them has no meaning.
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
        """The names, in the order in which they joined."""
        return iter(self._producers)

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, name: object) -> bool:
        return name in self._producers

    @property
    def stable_us(self) -> int:
        """The moment before which all has been declared stable; `NOT_YET_US`: nothing has."""
        return self._stable_us

    def register(
        self,
        name: str,
        keys: Iterable[Key] | None = None,
        *,
        in_order: bool = True,
        silent_after_us: int | None = None,
    ) -> int:
        """Let a producer join; it counts from now on.

        Parameters
        ----------
        name : str
        keys : iterable of (str, str), optional
            The event types it may send, as in `Expression.keys`; None: any.
        in_order : bool, optional
            Whether it sends its events in the order of detection, and they arrive in that order.
            False, for a stream in any order: only `sync` and `heartbeat` move its sync point.
        silent_after_us : int, optional
            How long it may keep silent; None: as long as all.

        Returns
        -------
        int
            What is declared stable already ends here, and so the producer's sync point starts here.
            A `Node` that joins is told by `Node.begin_after`, so that no event it detects from now
            on seems older; `NOT_YET_US` if nothing is.

        Raises
        ------
        ConfigurationError
            If it is registered already, or the limit is negative.
        """
        if name in self._producers:
            raise ConfigurationError(
                f"producer {name!r} is registered already: remove it first if it starts anew"
            )
        if silent_after_us is None:
            silent_after_us = self._silent_after_us
        _check_limit(silent_after_us)
        producer = Producer(name, None if keys is None else set(keys), in_order, silent_after_us)
        producer.sync_us = self._stable_us
        self._producers[name] = producer
        return self._stable_us

    def remove(self, name: str) -> None:
        """Let a producer go: nothing waits for it any more.

        Raises
        ------
        ConfigurationError
            If there is none of that name.
        """
        if self._producers.pop(name, None) is None:
            raise ConfigurationError(f"there is no producer {name!r} to remove; {self._known()}")

    def observe(self, o: Occurrence, name: str | None = None) -> None:
        """Take note that an event of the producer `name` (None: of its node) has arrived; O(1).

        Raises
        ------
        BadEvent
            If it does not tell its producer; if membership is atomic and the producer is not
            registered, not for this type, or has started anew since. Nothing has changed then.
        """
        producer = self._sender(o, name)
        producer.heard = True
        if producer.in_order:
            producer.move(o.low_us, o.stamp)

    def heartbeat(self, stamp: AccuracyInterval) -> None:
        """Take note that a producer lives, and has nothing to send from before `stamp`; O(1).

        Raises
        ------
        BadEvent
            As `observe`.
        """
        producer = self._known_or_new(stamp.node, "a heartbeat")
        self._check_clock(producer, stamp)
        producer.heard = True
        producer.move(stamp.lower_us, stamp)

    def sync(self, name: str, us: int) -> None:
        """Take note that `name` sends no event any more whose interval begins before `us`; O(1).

        That is what a punctuation or watermark of a stream says; `NEVER_US` says that it has ended.
        A sync point never goes back: an earlier moment than told before changes nothing.

        Raises
        ------
        BadEvent
            As `observe`.
        """
        producer = self._known_or_new(name, "a sync point")
        producer.heard = True
        producer.move(us, None)

    def of(self, keys: Iterable[Key] | None = None) -> tuple[str, ...]:
        """Return the names of those who may send events of these types (None: any); O(n)."""
        keys = None if keys is None else frozenset(keys)
        return tuple(p.name for p in self._producers.values() if p.sends(keys))

    def sync_us(self, keys: Iterable[Key] | None = None) -> int:
        """Return the moment that no event of these types (None: any) still to come reaches; O(n).

        It is the least global sync point of those who may send some: `NOT_YET_US` if one has told
        none yet, `NEVER_US` if there is nobody.
        """
        keys = None if keys is None else frozenset(keys)
        return min((p.sync_us for p in self._producers.values() if p.sends(keys)), default=NEVER_US)

    def local_sync_us(self, name: str) -> int:
        """Return the local sync point of `name`, in readings of its local clock.

        `NOT_YET_US` if there is no such producer, or it has told no local reading.
        """
        producer = self._producers.get(name)
        return self.NOT_YET_US if producer is None else producer.local_sync_us

    def is_past(self, o: Occurrence, keys: Iterable[Key] | None = None) -> bool:
        """Whether every event of these types still to come is certain to follow `o`; O(n).

        Of the node that has detected `o` the local sync point may tell, of all others the global
        one does (section V.A).
        """
        keys = None if keys is None else frozenset(keys)
        return all(p.is_past(o) for p in self._producers.values() if p.sends(keys))

    def note_stable(self, us: int) -> None:
        """Take note that everything before `us` has been declared stable."""
        self._stable_us = max(self._stable_us, us)

    def note_heard(self, name: str | None) -> None:
        """Take note that a producer lives, if it is known; its sync points stay."""
        producer = self._producers.get(name) if name is not None else None
        if producer is not None:
            producer.heard = True

    def note_time(self, now_us: int) -> None:
        """Let those be silent from now on that have been heard since the last look; O(n).

        Without it they are so from the next look on.
        """
        for producer in self._producers.values():
            if producer.heard or producer.heard_us is None:
                producer.heard, producer.heard_us = False, now_us

    def records(self) -> dict[str, dict[str, Any]]:
        """Return what is known of each producer as a JSON-able dict, for `restore`; O(n)."""
        return {name: producer.record() for name, producer in self._producers.items()}

    def restore(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Go back to `records`; who has been heard of lately stays as it is. O(n).

        That is safe whenever the records were made: sync points told since are only told later.
        """
        before, self._producers = self._producers, {}
        for name, record in records.items():
            producer = self._producers[name] = Producer.restored(name, record)
            if name in before:
                producer.heard, producer.heard_us = before[name].heard, before[name].heard_us

    def silent_from_us(self, told: Container[str] = ()) -> int | None:
        """Return when the first producer will have been silent for too long; O(n).

        None: never. Those in `told` do not count.
        """
        return min(
            (
                p.heard_us + p.silent_after_us + 1
                for p in self._producers.values()
                if p.silent_after_us is not None and p.heard_us is not None and p.name not in told
            ),
            default=None,
        )

    def timeouts(self, now_us: int) -> list[str]:
        """Return the producers that have been silent for too long.

        Each is told to `on_silent`; without that the one silent longest is raised, and the others
        by the next calls. It is told again when it has been silent for as long once more. The
        application may `remove` it, so that the others' events become stable.

        Silence is measured from one look to another: from the first at which nothing more had been
        heard. So it is found at most one look late, and never early. O(n).

        Parameters
        ----------
        now_us : int
            By any clock that does not go back, the same each time.

        Raises
        ------
        ProducerSilent
            If one is silent, without `on_silent`.
        """
        silent = [p for p in self._producers.values() if p.is_silent(now_us)]
        if self._on_silent is None:
            # All have been looked at, but only one can be told.
            silent = sorted(silent, key=lambda p: p.heard_us or 0)[:1]
        for producer in silent:
            assert producer.heard_us is not None
            error = ProducerSilent(
                f"producer {producer.name!r} has been silent for {now_us - producer.heard_us} µs, "
                f"and may be for {producer.silent_after_us}: what others sent waits for it; "
                "remove it if it has gone",
                producer=producer.name,
            )
            producer.heard_us = now_us
            if self._on_silent is None:
                raise error
            checked_result(self._on_silent(error), "on_silent=")
        return [producer.name for producer in silent]

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
                    "it sends, or nobody waits for it"
                )
            keys.add(o.key)
        return producer

    def _known_or_new(self, name: str | None, what: str) -> Producer:
        if name is None:
            raise BadEvent(
                f"{what} does not tell its producer: give it a stamp of its node, or name it"
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
        """Refuse a producer that was started anew, and so does not know what it had promised."""
        known, clock = producer.local_clock, stamp.local_clock
        if self._is_atomic and known is not None and clock is not None and clock != known:
            raise BadEvent(
                f"producer {producer.name!r} has another local clock than before: if it was "
                "started anew, remove and register it again"
            )

    def _known(self) -> str:
        return f"registered are {', '.join(map(repr, self._producers)) or 'none'}"


def _check_limit(silent_after_us: int | None) -> None:
    if silent_after_us is not None and silent_after_us < 0:
        raise ConfigurationError(f"silent_after_us is 0 or more, or None, not {silent_after_us}")
