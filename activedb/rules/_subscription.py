"""Subscription of a rule to its event, with a detector that versions of the rule share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from activedb.events import (
    Detector,
    Expression,
    Network,
    Occurrence,
    Primitive,
    Query,
    Undecided,
    decode,
    encode,
    same_candidate,
    walk,
)
from activedb.events import Sequence as SequencePattern
from activedb.events.terms import And, Attribute, Comparison, Literal
from activedb.rules._fingerprint import event_fingerprint
from activedb.rules._rule import OnUncertain, Rule
from activedb.transactions import Transaction

__all__ = ["PARTIALS_MAX", "Demand", "Sharing", "Subscription", "Taken", "demands_of"]

T = TypeVar("T")

_TEXTS = frozenset((str,))
_NUMBERS = frozenset((int, float, bool, Decimal))
"""Types whose values compare exactly with each other, and have equal hashes if they are equal."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Equalities with constants that a primitive event evaluates first.

    An event that has all these attributes, each of a type of its kind, but not all these values, is
    not taken, and no later condition is evaluated. For any other event, a demand implies nothing.

    Attributes
    ----------
    names : tuple of str
        Attributes, in the order of evaluation.
    kinds : tuple of frozenset of type
        Types that compare with the constants without an error.
    values : tuple
        Constants; none is unequal to itself, as NaN is.
    """

    names: tuple[str, ...]
    kinds: tuple[frozenset[type], ...]
    values: tuple[Any, ...]


def demands_of(expression: Expression) -> dict[tuple[str, str], frozenset[Demand]]:
    """Return, by event key, the demands of which an event must fulfil one to be taken.

    Keys with a primitive event, negated or not, that demands no constant are left out. The result
    is empty if the expression reacts to events that it does not take, as the selection strict does.
    """
    found: dict[tuple[str, str], frozenset[Demand]] = {}
    undemanding: set[tuple[str, str]] = set()
    for part in walk(expression):
        if isinstance(part, SequencePattern) and part.selection.value == "strict":
            return {}
        if isinstance(part, Primitive) and part.schedule is None:
            demand = _demand_of(part)
            if demand is None:
                undemanding.add(part.key)
            else:
                found[part.key] = found.get(part.key, frozenset()) | {demand}
    return {key: demands for key, demands in found.items() if key not in undemanding}


def _demand_of(primitive: Primitive) -> Demand | None:
    """Return the leading equalities; None if there are none, or a missing column may fail first."""
    if primitive.columns:
        return None
    equalities: list[tuple[str, frozenset[type], Any]] = []
    for condition in _conditions(primitive.predicate):
        equality = _equality_of(condition)
        if equality is None:
            break
        equalities.append(equality)
    if not equalities:
        return None
    names, kinds, values = zip(*equalities, strict=True)
    return Demand(names, kinds, values)


def _conditions(term: object) -> Iterator[object]:
    """Yield the conjuncts in the order of evaluation, which stops at the first false one."""
    if type(term) is And:
        for condition in term.conditions:
            yield from _conditions(condition)
    else:
        yield term


def _equality_of(term: object) -> tuple[str, frozenset[type], Any] | None:
    """Return the attribute of the event itself, and the constant that it is compared with."""
    if type(term) is not Comparison or term.operator != "=":
        return None
    left, right = term.left, term.right
    if type(left) is Literal:
        left, right = right, left
    if type(left) is not Attribute or type(right) is not Literal:
        return None
    if left.part is not None or left.old:
        return None
    value = right.value
    for kind in (_TEXTS, _NUMBERS):
        if type(value) in kind and _is_like_itself(value):
            return left.name, kind, value
    return None


def _is_like_itself(value: Any) -> bool:
    try:
        return bool(value == value)
    except ArithmeticError:  # a signalling NaN
        return False


_NOTHING: Mapping[str, list[int]] = MappingProxyType({})

PARTIALS_MAX = 1_000_000
"""Default maximum number of occurrences that a rule's detector keeps."""


class Taken(NamedTuple):
    """Result of feeding, advancing or resolving a detector.

    Attributes
    ----------
    matches : list of Occurrence
    is_kept : bool
        True if the detector may have kept something.
    undecided : sequence of Undecided
        Choices that it has left open.
    decided : mapping of str to list of int
        Choices that were open before and are now closed, by identity: the numbers of the
        candidates that became matches.
    """

    matches: list[Occurrence]
    is_kept: bool = True
    undecided: Sequence[Undecided] = ()
    decided: Mapping[str, list[int]] = _NOTHING


class Sharing:
    """Shared state of detectors that evaluate common subexpressions once.

    Attributes
    ----------
    network : Network
        Network of the detectors that share parts.
    latch : threading.Lock
        Latch of all subscriptions that share parts, held while one of them is fed.
    wholes : mapping of Expression to _SharedDetector
        A detection that another subscription on the same event may join. The two then share a
        network and a latch. A subscription that is alone thus never waits for another one.
    """

    __slots__ = ("latch", "network", "wholes")

    def __init__(self) -> None:
        self.network = Network()
        self.latch = threading.Lock()
        self.wholes: WeakValueDictionary[Expression, _SharedDetector] = WeakValueDictionary()


class _FiguresBefore(NamedTuple):
    """Figures of a detector at one moment, named as its attributes."""

    partials: int
    dropped: int
    truncated: int
    due_us: int | None


class _SharedDetector:
    """Detector with its latch, and the state that versions of the rule share.

    Parameters
    ----------
    make : callable
        Returns a new detector that shares in this network.

    Attributes
    ----------
    detector : Detector
    network : Network or None
        Network in which the detector shares.
    latch : threading.Lock
        Held during a step. If the detector reads the store, the step may wait for a row; what may
        be asked meanwhile, without the rule's lock, does not wait for this latch.
    is_changed : bool
        True if the state may differ from the last one written; set by every feed and advance.
    pending : list of Occurrence
        Pending matches: time has completed them, and they have not triggered the rule yet.
    source : str
        Name that tells its timed matches from those of another process; empty before the first one.
    taken_count : int
        Number of matches taken from `pending`.
    newest_us : int
        Time of the newest event kept.
    kept_in_columns : int
        Number of events that a columnar detector keeps for the rule in place of this one.
    open : dict of str to Undecided
        Choices that the detector has left open, by identity.
    """

    __slots__ = (
        "__weakref__",
        "_before",
        "_make",
        "detector",
        "is_changed",
        "kept_in_columns",
        "latch",
        "network",
        "newest_us",
        "open",
        "pending",
        "source",
        "taken_count",
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
        self.pending: list[Occurrence] = []
        self.source = ""
        self.taken_count = 0
        self.newest_us = 0
        self.kept_in_columns = 0
        self.open: dict[str, Undecided] = {}
        self._before = _FiguresBefore(0, 0, 0, None)

    def begin(self) -> None:
        """Begin a step. REQUIRES: ``latch``."""
        if self.detector.reads:
            of = self.detector
            self._before = _FiguresBefore(of.partials, of.dropped, of.truncated, of.due_us)

    def ask(self, figure: Callable[[Detector | _FiguresBefore], T]) -> T:
        """Return a figure; the one before the step in progress, if that may wait for a row."""
        if not self.latch.acquire(blocking=not self.detector.reads):
            return figure(self._before)
        try:
            return figure(self.detector)
        finally:
            self.latch.release()

    def taken(self, matches: list[Occurrence], *, is_kept: bool = True) -> Taken:
        """Return a step's matches, and choices opened and closed. REQUIRES: ``latch``."""
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
        """Update the open choices from the detector. REQUIRES: ``latch``."""
        self.open = {undecided.identity: undecided for undecided in self.detector.undecided}

    def renewed(self) -> Detector:
        """Return a new detector without state."""
        return self._make(self.network)

    def joined(self, make: Callable[[Network | None], Detector]) -> _SharedDetector | None:
        """Return a detection for an equal event that shares with this one from now on.

        None if they cannot share, or if this one has been fed, as the other must not see those
        events.
        """
        with self.latch:
            if self.is_changed or self.detector.partials or self.detector.dropped:
                return None
            network = self.network or Network(shares_whole=True)
            other = _SharedDetector(make, network, self.latch)
            if not other.detector.is_sharing:
                return None
            if self.network is None:
                self.network = network
                self.detector = self.renewed()
            return other


class Subscription:
    """Subscription of a rule, with the detector of its event.

    The detector is used under the subscription's own latch. No lock is taken under it, except by
    predicates that read the store; then no other hierarchy feeds this detector: see `is_exclusive`.

    Parameters
    ----------
    rule : Rule
    detecting : Subscription, optional
        Subscription of an earlier version of the rule, on the same event, whose detector to keep.
    partials_max : int
        Maximum number of occurrences to keep, if the rule has no value; 0: any number.
    sharing : Sharing, optional
        State for sharing common subexpressions, or the whole expression, with other rules. Not
        used for a rule without sharable subexpressions, nor for one that reads the store under
        the latch.

    Attributes
    ----------
    rule : Rule
    is_stateful : bool
        True if the detector keeps state.
    is_replayable : bool
        True if its state follows from the last retained events alone, in any order.
    is_exclusive : bool
        True if one hierarchy at a time may feed it, until that hierarchy ends: the occurrences that
        one event has consumed, or its decisions, must be certain before the next event is
        evaluated.
    is_timed : bool
        True if time alone can complete a match.
    reads : bool
        True if its predicates read the shared store.
    single : Primitive or None
        The rule's event, if it is a single one that is judged by the event alone.
    keys : frozenset
        Keys of the events it listens to.
    demands : dict of tuple to frozenset of Demand
        By key, the constants without which an event need not be fed. If a key is absent, all its
        events must be fed.
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
        "single",
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
        # Late events are not retained to be fed again.
        takes_late = any(kind == "late" for kind, _ in self.keys)
        self.is_replayable = detector.is_replayable and not takes_late
        self.is_timed = detector.is_timed
        self.reads = detector.reads
        self.is_exclusive = self.is_stateful and not self.is_replayable
        self.single = detector.single
        # The state of a replayable detector follows from the events that it takes. Feeding other
        # events to an exclusive one locks it, and advances its time.
        is_indifferent = not self.is_exclusive and not self.reads
        self.demands: dict[tuple[str, str], frozenset[Demand]] = (
            demands_of(rule.on) if is_indifferent else {}
        )

    def changed(self, rule: Rule, *, goes_on: bool) -> Subscription:
        """Return the subscription of another version of the rule."""
        before = self if goes_on else None
        return Subscription(
            rule, detecting=before, partials_max=self._partials_max, sharing=self._sharing
        )

    def shares_detector(self, other: Subscription | None) -> bool:
        """Return whether `other` has the same detector, as another version of the rule does."""
        return other is not None and self._detection is other._detection

    @property
    def detection(self) -> object:
        """Identity of the detector, shared by exactly the versions of the rule that use it."""
        return self._detection

    @property
    def event(self) -> str:
        """Fingerprint of the detection."""
        if self._event is None:
            self._event = event_fingerprint(self.rule)
        return self._event

    @property
    def pending(self) -> list[Occurrence]:
        """Pending matches: time has completed them, and they have not triggered the rule yet.

        Only the holder of the rule's lock changes the list.
        """
        return self._detection.pending

    @property
    def source(self) -> str:
        """Name that is part of the state, and tells its matches from those of other processes.

        Empty until `begin_naming`.
        """
        return self._detection.source

    @property
    def next_match(self) -> str:
        """Name of the first pending match, or of the next one: the same after a crash."""
        return f"{self._detection.source}/{self._detection.taken_count}"

    def begin_naming(self, source: str) -> None:
        """Set the `source`, once."""
        self._detection.source = source

    def take(self) -> Occurrence:
        """Take the first pending match. REQUIRES: the rule's lock, as for `put_back`."""
        self._detection.taken_count += 1
        return self._detection.pending.pop(0)

    def put_back(self, o: Occurrence) -> None:
        """Undo the last `take`."""
        self._detection.taken_count -= 1
        self._detection.pending.insert(0, o)

    @property
    def memory_us(self) -> int | None:
        """Time span of the state kept, in microseconds; None: without bound."""
        return self._detection.detector.memory_us

    @property
    def partials(self) -> int:
        """Number of occurrences kept because they may become part of a match."""
        return self._detection.ask(lambda of: of.partials) + self._detection.kept_in_columns

    @property
    def dropped(self) -> int:
        """Number of occurrences dropped because there were too many."""
        return self._detection.ask(lambda of: of.dropped)

    @property
    def truncated(self) -> int:
        """Number of events for which matches were left out because there were too many."""
        return self._detection.ask(lambda of: of.truncated)

    @property
    def due_us(self) -> int | None:
        """Time at which time alone completes a match or decides a choice; None: never."""
        return self._detection.ask(lambda of: of.due_us)

    @property
    def newest_us(self) -> int:
        """Time of the newest event that the detector has kept; 0 if there is none."""
        return self._detection.newest_us

    @property
    def is_changed(self) -> bool:
        """True if it was fed or advanced since `written`."""
        return self._detection.is_changed

    def keeps_in_columns(self, count: int) -> None:
        """Set the number of events that a columnar detector keeps for the rule."""
        self._detection.kept_in_columns = count

    def feed(self, o: Occurrence) -> list[Occurrence]:
        """Return the matches that `o` completes. REQUIRES: not `reads`."""
        return self.feed_kept(o).matches

    def feed_kept(
        self,
        o: Occurrence,
        reader: Transaction | None = None,
        *,
        exactly: bool = True,
        contemporaries: Sequence[Occurrence] = (),
    ) -> Taken:
        """Feed `o` to the detector.

        Parameters
        ----------
        reader : Transaction, optional
            Transaction through which predicates read the store.
        exactly : bool
            Whether the result must tell exactly if an event was kept.
        contemporaries : sequence of Occurrence
            Events yet to be fed that may be before `o`.
        """
        detection = self._detection
        if not self.is_stateful:
            if self.reads:  # this may block, so not under the latch
                return Taken(detection.renewed().feed(o, reader), is_kept=False)
            with detection.latch:
                return Taken(detection.detector.feed(o), is_kept=False)
        with detection.latch:
            detection.begin()
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

    def advance(self, us: int, reader: Transaction | None = None) -> Taken:
        """Advance the detector's time: no event before `us` will be fed."""
        detection = self._detection
        with detection.latch:
            detection.begin()
            detection.is_changed = True
            return detection.taken(detection.detector.advance(us, reader))

    def has_open(self, identity: str) -> bool:
        """Return whether the detector still knows a choice that it has left open."""
        return identity in self._detection.open

    @property
    def is_inexact(self) -> bool:
        """True if a step may leave a choice open."""
        return self._detection.detector.is_inexact

    @property
    def undecided(self) -> int:
        """Number of choices that the detector has left open and still knows."""
        return len(self._detection.open)

    def check_chosen(self, identity: str, chosen: Sequence[int]) -> None:
        """Raise `BadEvent` if no world makes just these candidates of an open choice."""
        with self._detection.latch:
            self._detection.detector.check_chosen(identity, chosen)

    def resolve(
        self, identity: str, chosen: Sequence[int], reader: Transaction | None = None
    ) -> Taken:
        """Close an open choice by the numbers of its chosen candidates; none: no match.

        Raises
        ------
        BadEvent
            If the candidates exclude each other, or are never made without others; the state
            is unchanged.
        """
        detection = self._detection
        with detection.latch:
            detection.begin()
            detection.is_changed = True
            matches = detection.detector.resolve(identity, chosen, reader)
            detection.open.pop(identity, None)
            return detection.taken(matches)

    def withdraw(self, o: Occurrence) -> None:
        """Remove `o`, whose transaction aborted."""
        with self._detection.latch:
            self._detection.detector.withdraw(o)
            self._detection.look()

    def trim(self, before_us: int) -> bool:
        """Drop occurrences that no match at or after `before_us` can need.

        Return False, with nothing done, if a step is in progress that may wait for a row.
        """
        detection = self._detection
        if not detection.latch.acquire(blocking=not self.reads):
            return False
        try:
            detection.detector.trim(before_us)
            if detection.open:
                detection.look()
        finally:
            detection.latch.release()
        return True

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`; raise `BadEvent` if it cannot be serialised."""
        with self._detection.latch:
            state: dict[str, Any] = {"detector": self._detection.detector.state()}
        if self._detection.pending:
            state["in_hand"] = [encode(o) for o in self._detection.pending]
        if self._detection.source:
            state["source"], state["taken"] = self._detection.source, self._detection.taken_count
        return state

    def written(self) -> None:
        """Mark the present state as durable."""
        self._detection.is_changed = False

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue with a detector in this state; None: with a new one."""
        pending: list[Occurrence] = []
        if state is not None:
            pending = [decode(data) for data in state.get("in_hand", ())]
        with self._detection.latch:
            detector = self._detection.renewed()
            if state is not None:
                detector.restore(state["detector"])
                self._detection.source = state.get("source", "")
                self._detection.taken_count = state.get("taken", 0)
            self._detection.detector = detector
            self._detection.pending = pending
            self._detection.is_changed = False
            self._detection.look()

    @property
    def _bound(self) -> int | None:
        return self.rule.partials_max or self._partials_max or None

    def _new_detection(self, sharing: Sharing | None) -> _SharedDetector:
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

        alone = _SharedDetector(make)
        if sharing is None or alone.detector.reads or not alone.detector.is_stateful:
            return alone
        with sharing.latch:
            with_parts = _SharedDetector(make, sharing.network, sharing.latch)
            if with_parts.detector.is_sharing:
                return with_parts
            try:
                first = sharing.wholes.get(rule.on)
            except TypeError:  # an unhashable predicate
                return alone
            found = None if first is None else first.joined(make)
            if found is None:
                found = sharing.wholes[rule.on] = alone
            return found


def _of_detector(rule: Rule) -> OnUncertain:
    """Return the detector's policy; with "raise" it makes certain matches, and the rule raises."""
    return "certain" if rule.on_uncertain == "raise" else rule.on_uncertain


def _numbers(undecided: Undecided, made: Sequence[Occurrence]) -> list[int]:
    """Return the numbers of the candidates that are among some matches."""
    return [
        number
        for number, candidate in enumerate(undecided.candidates)
        if any(same_candidate(o.parts, candidate) for o in made)
    ]
