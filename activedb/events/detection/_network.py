"""Common subexpressions of several detectors, evaluated once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from activedb.events._occurrence import Occurrence
from activedb.events._sequence import Sequence
from activedb.events.detection._entry import Entry
from activedb.events.detection._node import Moment, Node, Shared
from activedb.events.detection._sequence import SequenceNode

if TYPE_CHECKING:
    from activedb.events.detection._group import Groups
    from activedb.events.detection._journal import Journal
    from activedb.events.detection._state import StateReader, StateWriter

__all__ = ["Hub", "Network", "SharedNode"]

Make = Callable[[Shared], SequenceNode]
_NEVER_US = -(2**63)


class Hub:
    """One sequence that several detectors have as a part.

    Parameters
    ----------
    make : callable
        ``make(shared)`` returns a node of the sequence: a plain one, so that what it keeps does
        not depend on what it has made, and the copy of its lists is a copy of its state.
    shared : Shared

    Attributes
    ----------
    node : SequenceNode
    members : list of SharedNode
        Who takes its results. All have been fed the same, but for the last event perhaps, and for
        events that have left nothing here.
    """

    def __init__(self, make: Make, shared: Shared):
        self.node = make(shared)
        self.members: list[SharedNode] = []
        self._make = make
        self._count = 0  # of the events that it was fed and that have changed or made something
        self._last: Occurrence | None = None
        self._passed: Occurrence | None = None  # the last of the others, if it came after that
        self._made: list[Occurrence] = []
        self._kept = self._is_truncated = False
        # Until when the member that has trimmed least has, and how many have; None: unknown.
        self._trimmed_us: int | None = None
        self._behind = 0

    def join(self, member: SharedNode) -> None:
        """Take in a member, which has been fed what the others have."""
        self.members.append(member)
        member.hub, member.seen = self, self._count
        self._trimmed_us = None

    def feed(self, o: Occurrence, member: SharedNode) -> list[Occurrence]:
        """What `o` completes: found when the first member asks, remembered for the others."""
        if member.seen < self._count:
            if o is self._last:
                member.seen += 1
                member.has_kept(self._kept)
                member.shared.bound.truncated += self._is_truncated
                return self._made
            member.detach()
            return member.hub.feed(o, member)
        if o is self._passed:
            return []
        for other in [other for other in self.members if other.seen < self._count]:
            other.detach()  # it was not fed the last event, and must not see it
        node = self.node
        before, ended_us = node.partials, node.ended_us
        truncated = node.shared.bound.truncated
        made = node.feed(o) if o.key in node.dispatch else []
        is_truncated = node.shared.bound.truncated > truncated
        kept = node.partials > before
        if not (made or kept or node.ended_us != ended_us):
            self._passed = o  # who is not fed it misses nothing
            return made
        member.has_kept(kept)
        self._is_truncated = is_truncated
        member.shared.bound.truncated += is_truncated
        self._last, self._made, self._kept, self._passed = o, made, kept, None
        self._count += 1
        member.seen = self._count
        return self._made

    def without(self, member: SharedNode) -> Hub:
        """Let a member go, and return a hub of its own with what it has been fed."""
        alone = Hub(self._make, member.shared.alone())
        arrival = next(self.node.shared.arrivals)
        self.node.shared.arrivals = count(arrival)
        alone.node.shared.arrivals = count(arrival)
        alone.node.copy_groups(self.node)
        if member.seen < self._count and self._last is not None:
            alone.node.withdraw(self._last)
        self.members.remove(member)
        self._trimmed_us = None
        last = self._last
        if self.members and last is not None and all(m.seen < self._count for m in self.members):
            # Only who has left was fed it.
            self.node.withdraw(last)
            self._last, self._made, self._passed = None, [], None
            self._count -= 1
        return alone

    def forget_passed(self) -> None:
        """Take note that an event that has left nothing may do so now."""
        self._passed = None

    def trim(self, member: SharedNode, before_us: int) -> None:
        """Forget what no member needs, now that this one needs nothing before a time.

        Complexity: O(members), once they have all done so.
        """
        was, member.trimmed_us = member.trimmed_us, before_us
        known = self._trimmed_us
        if known is not None and before_us > known:
            if was > known:
                return  # others are behind
            self._behind -= 1
            if self._behind:
                return
        trimmed = [other.trimmed_us for other in self.members]
        self._trimmed_us = least_us = min(trimmed)
        self._behind = trimmed.count(least_us)
        if least_us > _NEVER_US:
            self.node.trim(least_us)


class Network:
    """Detectors that share the evaluation of common subexpressions.

    Sequences of primitive events that are parts of several expressions, structurally equal, are
    evaluated once per event: by the first detector that is fed it; the others take the result. So
    are whole expressions, if the network is made for them.
    So each event has to be fed, as the same object, to every detector before the next one is. One
    that is not fed it gets a copy of its own of what it shared, at the next event, and so does one
    that raises, withdraws, reaches its bound or has intervals for timestamps: sharing is lost then,
    never correctness.

    Not thread-safe: the caller holds one latch for all its detectors.

    Parameters
    ----------
    shares_whole : bool
        Whether an expression that is such a sequence as a whole is shared, too. The occurrences of
        each detector bear its own name.

    Examples
    --------
    >>> from activedb.events import Detector, event, seq
    >>> network, pair = Network(), seq(event("A"), event("B")).within(5)
    >>> first = Detector(seq(pair, event("C")), network=network)
    >>> second = Detector(seq(pair, event("D")), network=network)
    >>> network.shared
    1
    """

    def __init__(self, *, shares_whole: bool = False) -> None:
        self.shares_whole = shares_whole
        self._by_sequence: dict[tuple[Sequence, int | None, int | None, bool], Hub] = {}

    @property
    def shared(self) -> int:
        """How many subexpressions are shared by two detectors or more."""
        return sum(len(hub.members) > 1 for hub in self._by_sequence.values())

    def hub(self, sequence: Sequence, horizon_us: int | None, make: Make, shared: Shared) -> Hub:
        """The hub of a sequence, a new one if there is none that has kept nothing yet.

        What a detector was not fed it must not see.
        """
        bound = shared.bound
        key = (sequence, horizon_us, bound.most, bound.truncates)
        hub = self._by_sequence.get(key)
        if hub is None or hub.node.partials or not hub.members:
            hub = self._by_sequence[key] = Hub(make, shared.alone())
        return hub


class SharedNode(Node):
    """A sequence that a hub evaluates, in one detector: a part, or the whole.

    Parameters
    ----------
    is_whole : bool
        Whether what it makes is what the detector makes, under its name.

    Attributes
    ----------
    hub : Hub
    seen : int
        How many events of the hub it has taken.
    trimmed_us : int
        What is before it needs no more.
    """

    hub: Hub

    def __init__(self, hub: Hub, shared: Shared, index: int, *, is_whole: bool = False):
        node = hub.node
        super().__init__(node.expression, (), node.keys, shared, index)
        self.dispatch = node.dispatch
        self.seen = 0
        self.trimmed_us = _NEVER_US
        self._is_whole = is_whole
        self._kept_events = 0
        self._has_parted = False
        hub.join(self)

    @property
    def is_shared(self) -> bool:
        """Whether other detectors take the results of its hub."""
        return len(self.hub.members) > 1

    def detach(self) -> None:
        """Have a hub alone from now on, whose node may be changed."""
        if self.is_shared:
            self.hub.without(self).join(self)
        else:
            self.hub.forget_passed()

    @property
    def kept_events(self) -> int:
        # `partials` does not tell: the hub may have been fed before, by others.
        return self._kept_events

    def has_kept(self, events: int) -> None:
        """Take note that the hub has kept so many of the events that this node was fed."""
        self._kept_events += events

    def part_for_good(self) -> None:
        """Have a hub alone that nobody can join."""
        if not self._has_parted:
            self._has_parted = True
            self.hub.without(self).join(self)

    def hear(self, fresh: list[tuple[Entry, Node]] | None) -> None:
        """Tell there what the hub begins to keep. REQUIRES: nobody else can join it."""
        node = self.hub.node
        node.shared.fresh = fresh
        node.index = self.index  # by which the detector tells its nodes apart

    def evaluate(self, moment: Moment) -> list[Entry]:
        o = moment.o
        if o is None:
            return []  # nothing that is plain waits for a decision
        if self.shared.keeps_ends:
            self.part_for_good()  # the journal refers to what is kept there
            own = self.hub.node.shared
            own.keeps_ends, own.is_inexact = True, self.shared.is_inexact
            own.policy = self.shared.policy  # the hub may have been another's
            own.awaited = self.shared.awaited
            own.reach_us, own.late_us = self.shared.reach_us, self.shared.late_us
            if own.arrivals is not self.shared.arrivals:
                # From now on an event has one arrival here and above, and no composite has it.
                least = max(next(own.arrivals), next(self.shared.arrivals))
                own.arrivals = self.shared.arrivals = count(least)
            before = self.hub.node.partials
            made_alone = self.hub.node.evaluate(moment)
            self.has_kept(self.hub.node.partials - before)
            found: list[Entry] = []
            for entry in made_alone:
                made_here = self._entry(entry[3])
                why = own.doubtful.pop(entry[2], None)
                if why is not None:
                    self.shared.doubt(made_here[2], why, moment.journal)
                found.append(made_here)
            return found
        made = self.hub.feed(o, self)
        moment.journal.append((self.withdraw, (o,)))
        return [self._entry(found) for found in made]

    def _entry(self, o: Occurrence) -> Entry:
        if self._is_whole:
            o = self._named(o)
        return (o.us, "", next(self.shared.arrivals), o, o.parts)

    def _named(self, o: Occurrence) -> Occurrence:
        return Occurrence(self.name, o.timestamp, o.params, parts=o.parts)

    # -- the plain way, of a whole -------------------------------------------------------------

    @property
    def groups(self) -> Groups:
        """What the hub keeps."""
        return self.hub.node.groups

    def feed(self, o: Occurrence) -> list[Occurrence]:
        """As that of the sequence's own node: what `o` completes."""
        return [self._named(found) for found in self.hub.feed(o, self)]

    def withdraw(self, o: Occurrence) -> None:
        """Undo the last feeding of `o`; from then on nothing is shared."""
        self.detach()
        self.hub.node.withdraw(o)

    # -- what it keeps -------------------------------------------------------------------------

    @property
    def partials(self) -> int:
        return self.hub.node.partials

    def kept(self) -> Iterator[Entry]:
        yield from self.hub.node.kept()

    def drop(self, entry: Entry, journal: Journal) -> bool:
        self.detach()
        return self.hub.node.drop(entry, journal)

    def trim(self, before_us: int) -> None:
        self.hub.trim(self, before_us)

    def write(self, state: StateWriter) -> Any:
        arrival = next(self.hub.node.shared.arrivals)
        self.hub.node.shared.arrivals = count(arrival)
        return {"arrival": arrival, "groups": self.hub.node.write(state)}

    def read(self, data: Any, state: StateReader) -> None:
        self.detach()
        self.hub.node.read(data["groups"], state)
        self.hub.node.shared.arrivals = count(data["arrival"])
