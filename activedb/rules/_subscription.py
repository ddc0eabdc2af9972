"""A rule with the detector of its event, which its versions share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from activedb.events import (
    Detector,
    Expression,
    Network,
    Occurrence,
    Query,
    Undecided,
    decode,
    encode,
    same_candidate,
)
from activedb.rules._constants import Demand, demands_of
from activedb.rules._fingerprint import event_fingerprint
from activedb.rules._rule import OnUncertain, Rule

__all__ = ["PARTIALS_MAX", "Sharing", "Subscription", "Taken"]

_NOTHING: Mapping[str, list[int]] = MappingProxyType({})

PARTIALS_MAX = 1_000_000
"""Occurrences that a rule's detector keeps at most, if neither rule nor settings say otherwise."""


class Taken(NamedTuple):
    """Result of a step of a detector: an event, time, or a decision.

    Attributes
    ----------
    matches : list of Occurrence
    is_kept : bool
        Whether the detector may have kept something of it.
    undecided : sequence of Undecided
        Choices that it has left open.
    decided : mapping of str to list of int
        Choices that were open before and are no more, by identity: the numbers of the candidates
        that were made.
    """

    matches: list[Occurrence]
    is_kept: bool = True
    undecided: Sequence[Undecided] = ()
    decided: Mapping[str, list[int]] = _NOTHING


class Sharing:
    """What detectors need that evaluate common subexpressions once.

    Attributes
    ----------
    network : Network
        Of those that share parts.
    latch : threading.Lock
        That of all subscriptions that share parts; held while one of them is fed.
    wholes : mapping of Expression to _Detection
        One that another subscription on the same event may join, with which it then has a network
        and the latch in common: so that those that are alone wait for nobody.
    """

    __slots__ = ("latch", "network", "wholes")

    def __init__(self) -> None:
        self.network = Network()
        self.latch = threading.Lock()
        self.wholes: WeakValueDictionary[Expression, _Detection] = WeakValueDictionary()


class _Detection:
    """One detector with its latch, and what versions of the rule have to know of it together.

    Parameters
    ----------
    make : callable
        Returns a new detector that shares in this network.

    Attributes
    ----------
    detector : Detector
    network : Network or None
        In which it shares.
    latch : threading.Lock
    is_changed : bool
        Whether it may have another state than the one that was written last; set by every feed and
        advance.
    in_hand : list of Occurrence
        Matches that time has completed, and that have not triggered the rule yet.
    newest_us : int
        Time of the newest event that it has kept.
    kept_in_columns : int
        How many events are kept for the rule by a detector in columns, in place of this one.
    open : dict of str to Undecided
        The choices that the detector has left open, by identity.
    """

    __slots__ = (
        "__weakref__",
        "_make",
        "detector",
        "in_hand",
        "is_changed",
        "kept_in_columns",
        "latch",
        "network",
        "newest_us",
        "open",
    )

    def __init__(
        self,
        make: Callable[[Network | None], Detector],
        network: Network | None = None,
        latch: threading.Lock | None = None,
    ):
        self._make = make
        self.detector = make(network)
        self.network = network
        self.latch = latch or threading.Lock()
        self.is_changed = False
        self.in_hand: list[Occurrence] = []
        self.newest_us = 0
        self.kept_in_columns = 0
        self.open: dict[str, Undecided] = {}

    def taken(self, matches: list[Occurrence], *, is_kept: bool = True) -> Taken:
        """Return what a step of the detector has made and left open. REQUIRES: ``latch``."""
        new = self.detector.take_undecided()
        if not new and not self.open:
            return Taken(matches, is_kept)
        before = self.open
        self.look()
        decided = {
            name: _numbers(undecided, matches)
            for name, undecided in before.items()
            if name not in self.open
        }
        return Taken(matches, is_kept, new, decided)

    def look(self) -> None:
        """Look which choices are open. REQUIRES: ``latch``."""
        self.open = {undecided.identity: undecided for undecided in self.detector.undecided}

    def renewed(self) -> Detector:
        """A detector as it was when it was new."""
        return self._make(self.network)

    def joined(self, make: Callable[[Network | None], Detector]) -> _Detection | None:
        """One with another detector for an equal event, with which this one shares from now on.

        None if they cannot share, or if this one was fed anything, which the other must not see.
        """
        with self.latch:
            if self.is_changed or self.detector.partials or self.detector.dropped:
                return None
            network = self.network or Network(shares_whole=True)
            other = _Detection(make, network, self.latch)
            if not other.detector.is_sharing:
                return None
            if self.network is None:
                self.network = network
                self.detector = self.renewed()
            return other


class Subscription:
    """A rule with the detector of its event.

    The detector is used under the subscription's own latch. Nothing is taken under it but what
    predicates take that read the store, and then no other hierarchy comes to it: see
    `is_exclusive`.

    Parameters
    ----------
    rule : Rule
    detecting : Subscription, optional
        Whose detector to go on with: that of an earlier version of the rule, on the same event.
    partials_max : int
        How many occurrences to keep at most, if the rule does not say it; 0: any number.
    sharing : Sharing, optional
        With what others to share common subexpressions, or all of the expression. Not used for a
        rule that has none that can be shared, nor for one that reads the store under the latch.

    Attributes
    ----------
    rule : Rule
    is_stateful : bool
        Whether the detector keeps anything.
    is_replayable : bool
        Whether what it keeps follows from the last events alone, in any order.
    is_exclusive : bool
        Whether one hierarchy at a time may feed it, until that one ends: what one event has used
        up, or decided, must be certain before the next one is judged.
    is_timed : bool
        Whether time alone can complete something.
    reads : bool
        Whether its predicates read the shared store.
    keys : frozenset
        Keys of the events it listens to.
    demands : dict of tuple to frozenset of Demand
        By key, the constants that an event must have so that it need be fed: any event of a key
        that is not there.
    """

    __slots__ = (
        "_detection",
        "_event",
        "_partials_max",
        "_sharing",
        "demands",
        "is_exclusive",
        "is_replayable",
        "is_stateful",
        "is_timed",
        "keys",
        "reads",
        "rule",
    )

    def __init__(
        self,
        rule: Rule,
        *,
        detecting: Subscription | None = None,
        partials_max: int = PARTIALS_MAX,
        sharing: Sharing | None = None,
    ):
        self.rule = rule
        self.keys = rule.on.keys
        self._partials_max = partials_max
        self._event: str | None = None
        self._sharing = sharing
        if detecting is None:
            self._detection = self._new_detection(sharing)
        else:
            self._detection = detecting._detection
        detector = self._detection.detector
        self.is_stateful = detector.is_stateful
        self.is_replayable = detector.is_replayable
        self.is_timed = detector.is_timed
        self.reads = detector.reads
        self.is_exclusive = self.is_stateful and not self.is_replayable
        # What a detector keeps that is replayable follows from the events that it takes; to be fed
        # others locks an exclusive one, and lets time go on.
        is_indifferent = not self.is_exclusive and not self.reads
        self.demands: dict[tuple[str, str], frozenset[Demand]] = (
            demands_of(rule.on) if is_indifferent else {}
        )

    def changed(self, rule: Rule, *, goes_on: bool) -> Subscription:
        """The subscription of another version of the rule."""
        before = self if goes_on else None
        return Subscription(
            rule, detecting=before, partials_max=self._partials_max, sharing=self._sharing
        )

    def shares_detector(self, other: Subscription | None) -> bool:
        """Whether `other` has the same detector: that of another version of the rule."""
        return other is not None and self._detection is other._detection

    @property
    def detection(self) -> object:
        """What versions of the rule with the same detector share, and nobody else."""
        return self._detection

    @property
    def event(self) -> str:
        """The fingerprint of what it detects."""
        if self._event is None:
            self._event = event_fingerprint(self.rule)
        return self._event

    @property
    def in_hand(self) -> list[Occurrence]:
        """Matches that time has completed, and that have not triggered the rule yet.

        Changed by the one who has the rule's lock.
        """
        return self._detection.in_hand

    @property
    def memory_us(self) -> int | None:
        """How far back what it keeps may reach, in microseconds; None: without bound."""
        return self._detection.detector.memory_us

    @property
    def partials(self) -> int:
        """Occurrences kept because they may still become part of a match."""
        with self._detection.latch:
            return self._detection.detector.partials + self._detection.kept_in_columns

    @property
    def dropped(self) -> int:
        """Occurrences that were forgotten because there were too many."""
        with self._detection.latch:
            return self._detection.detector.dropped

    @property
    def truncated(self) -> int:
        """Number of events of which matches were left out, as they completed too many."""
        with self._detection.latch:
            return self._detection.detector.truncated

    @property
    def due_us(self) -> int | None:
        """When time will complete or decide something, if no event comes; None: never."""
        with self._detection.latch:
            return self._detection.detector.due_us

    @property
    def newest_us(self) -> int:
        """Time of the newest event that the detector has kept; 0 if there was none."""
        return self._detection.newest_us

    @property
    def is_changed(self) -> bool:
        """Whether it was fed or advanced since `written`."""
        return self._detection.is_changed

    def keeps_in_columns(self, count: int) -> None:
        """Take note of how many events a detector in columns keeps for the rule."""
        self._detection.kept_in_columns = count

    def feed(self, o: Occurrence) -> list[Occurrence]:
        """Matches that `o` completes. REQUIRES: not `reads`."""
        return self.feed_kept(o).matches

    def feed_kept(
        self,
        o: Occurrence,
        reader: Any = None,
        *,
        exactly: bool = True,
        contemporaries: Sequence[Occurrence] = (),
    ) -> Taken:
        """Show `o` to the detector.

        Parameters
        ----------
        reader : Transaction, optional
            Through which predicates read the store.
        exactly : bool
            Whether it matters if it has not.
        contemporaries : sequence of Occurrence
            Events yet to be fed that may be before `o`.
        """
        detection = self._detection
        if not self.is_stateful:
            if self.reads:  # which may wait, so not under the latch
                return Taken(detection.renewed().feed(o, reader), is_kept=False)
            with detection.latch:
                return Taken(detection.detector.feed(o), is_kept=False)
        with detection.latch:
            detector = detection.detector
            if contemporaries:
                contemporaries = [other for other in contemporaries if detector.accepts(other)]
            if self.is_exclusive or not exactly:
                matches, is_kept = detector.feed(o, reader, contemporaries), True
            else:
                before = detector.kept_events
                matches = detector.feed(o, reader, contemporaries)
                is_kept = detector.kept_events != before
            detection.is_changed = True
            if is_kept and o.us > detection.newest_us:
                detection.newest_us = o.us
            return detection.taken(matches, is_kept=is_kept)

    def advance(self, us: int, reader: Any = None) -> Taken:
        """Tell what time it is: no event before `us` is fed any more."""
        detection = self._detection
        with detection.latch:
            detection.is_changed = True
            return detection.taken(detection.detector.advance(us, reader))

    def has_open(self, identity: str) -> bool:
        """Return whether the detector still knows a choice that it has left open."""
        return identity in self._detection.open

    @property
    def undecided(self) -> int:
        """Number of choices that the detector has left open and still knows."""
        return len(self._detection.open)

    def resolve(self, identity: str, chosen: Sequence[int], reader: Any = None) -> Taken:
        """Decide a choice that is open: candidates by number; none: nothing was to be made.

        Raises
        ------
        BadEvent
            If two of them exclude each other; nothing has changed then.
        """
        detection = self._detection
        with detection.latch:
            detection.is_changed = True
            matches = detection.detector.resolve(identity, chosen, reader)
            detection.open.pop(identity, None)
            return detection.taken(matches)

    def withdraw(self, o: Occurrence) -> None:
        """Forget `o`, whose transaction aborted."""
        with self._detection.latch:
            self._detection.detector.withdraw(o)
            self._detection.look()

    def trim(self, before_us: int) -> None:
        """Forget what no match at or after `before_us` can need."""
        with self._detection.latch:
            self._detection.detector.trim(before_us)
            if self._detection.open:
                self._detection.look()

    def state(self) -> dict[str, Any]:
        """What the detector keeps, for `restore`; raises `BadEvent` if that cannot be written."""
        with self._detection.latch:
            state: dict[str, Any] = {"detector": self._detection.detector.state()}
        if self._detection.in_hand:
            state["in_hand"] = [encode(o) for o in self._detection.in_hand]
        return state

    def written(self) -> None:
        """Take note that the state is durable as it is."""
        self._detection.is_changed = False

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on with a detector in this state; None: with a new one."""
        in_hand: list[Occurrence] = []
        if state is not None:
            in_hand = [decode(data) for data in state.get("in_hand", ())]
        with self._detection.latch:
            detector = self._detection.renewed()
            if state is not None:
                detector.restore(state["detector"])
            self._detection.detector = detector
            self._detection.in_hand = in_hand
            self._detection.is_changed = False
            self._detection.look()

    @property
    def _bound(self) -> int | None:
        return self.rule.partials_max or self._partials_max or None

    def _new_detection(self, sharing: Sharing | None) -> _Detection:
        rule, bound = self.rule, self._bound

        def make(network: Network | None) -> Detector:
            return Detector(
                rule.on,
                name=None if isinstance(rule.on, Query) else rule.name,
                on_uncertain=_of_detector(rule),
                partials_max=bound,
                on_full=str(rule.on_full),
                matches_max=rule.matches_max,
                on_many=str(rule.on_many),
                network=network,
            )

        alone = _Detection(make)
        if sharing is None or alone.detector.reads or not alone.detector.is_stateful:
            return alone
        with sharing.latch:
            with_parts = _Detection(make, sharing.network, sharing.latch)
            if with_parts.detector.is_sharing:
                return with_parts
            try:
                first = sharing.wholes.get(rule.on)
            except TypeError:  # a predicate without a hash
                return alone
            found = None if first is None else first.joined(make)
            if found is None:
                found = sharing.wholes[rule.on] = alone
            return found


def _of_detector(rule: Rule) -> OnUncertain:
    """The detector's policy: one that raises does what is certain, and its rule tells the rest."""
    return "certain" if rule.on_uncertain == "raise" else rule.on_uncertain


def _numbers(undecided: Undecided, made: Sequence[Occurrence]) -> list[int]:
    """Return the numbers of the candidates that are among some matches."""
    return [
        number
        for number, candidate in enumerate(undecided.candidates)
        if any(same_candidate(o.parts, candidate) for o in made)
    ]
