"""Nodes built from expressions; common subexpressions of several detectors, each evaluated once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from activedb.errors import PatternError
from activedb.events._expressions import (
    Conjunction,
    Disjunction,
    Expression,
    Negation,
    Periodic,
    Plus,
    Primitive,
    Query,
    Sequence,
    TimedOut,
)
from activedb.events._occurrence import Occurrence
from activedb.events.detection._combination import Children
from activedb.events.detection._conjunction import ConjunctionNode
from activedb.events.detection._entry import Entry
from activedb.events.detection._moment import Moment
from activedb.events.detection._node import DetectorNode, DetectorState
from activedb.events.detection._primitive import DisjunctionNode, PrimitiveNode, QueryNode
from activedb.events.detection._sequence import SequenceNode
from activedb.events.detection._temporal import PeriodicNode, PlusNode, TimedOutNode
from activedb.events.detection._traits import lasting_us, primitives_of, window_of

if TYPE_CHECKING:
    from activedb.events.detection._group import Groups
    from activedb.events.detection._journal import Journal
    from activedb.events.detection._state import StateReader, StateWriter

__all__ = [
    "Builder",
    "Hub",
    "Network",
    "SharedNode",
]


Make = Callable[[DetectorState], SequenceNode]
_NEVER_US = -(2**63)


class Hub:
    """Single evaluator of a sequence that is part of several detectors.

    Parameters
    ----------
    make : callable
        ``make(shared)`` returns a node of the sequence. It must be a plain one: then its state does
        not depend on the matches made, and a copy of its lists is a copy of its state.
    shared : DetectorState

    Attributes
    ----------
    node : SequenceNode
    members : list of SharedNode
        The nodes that take its results. They were all fed the same events, except possibly the last
        one, and except events that had no effect here.
    """

    def __init__(self, make: Make, shared: DetectorState):
        self.node = make(shared)
        self.members: list[SharedNode] = []
        self._make = make
        self._count = 0  # the number of events fed that changed or completed something
        self._last: Occurrence | None = None
        self._passed: Occurrence | None = None  # a later event without effect, if it is the latest
        self._made: list[Occurrence] = []
        self._kept = self._is_truncated = False
        # The least time to which a member was trimmed, and the number of such members; or None.
        self._trimmed_us: int | None = None
        self._behind = 0

    def join(self, member: SharedNode) -> None:
        """Add a member, which must have been fed the same events as the others."""
        self.members.append(member)
        member.hub, member.seen = self, self._count
        self._trimmed_us = None

    def feed(self, o: Occurrence, member: SharedNode) -> list[Occurrence]:
        """Return the matches that `o` completes; computed for the first member, then reused."""
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
            other.detach()  # it was not fed the last event, which must not affect it
        node = self.node
        before, ended_us = node.partials, node.ended_us
        truncated = node.shared.bound.truncated
        made = node.feed(o) if o.key in node.dispatch else []
        is_truncated = node.shared.bound.truncated > truncated
        kept = node.partials > before
        if not (made or kept or node.ended_us != ended_us):
            self._passed = o  # without effect, so members that are not fed it need not detach
            return made
        member.has_kept(kept)
        self._is_truncated = is_truncated
        member.shared.bound.truncated += is_truncated
        self._last, self._made, self._kept, self._passed = o, made, kept, None
        self._count += 1
        member.seen = self._count
        return self._made

    def without(self, member: SharedNode) -> Hub:
        """Remove a member; return a new hub for it alone, with the events it was fed."""
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
            # Only the removed member was fed the last event.
            self.node.withdraw(last)
            self._last, self._made, self._passed = None, [], None
            self._count -= 1
        return alone

    def forget_passed(self) -> None:
        """Forget the last event without effect, as it may have one now."""
        self._passed = None

    def trim(self, member: SharedNode, before_us: int) -> None:
        """Trim to the least time of all members, now that this one is trimmed to `before_us`.

        Complexity: O(members), once all of them have called it.
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
    """Set of detectors that share the evaluation of common subexpressions.

    Structurally equal sequences of primitive events that are parts of several expressions are
    evaluated once per event: by the first detector that is fed it; the others take the result.
    Whole expressions are shared likewise if `shares_whole`.

    Each event must therefore be fed, as the same object, to every detector before the next event
    is. A detector that misses an event gets its own copy of the shared state at the next event.
    So does a detector that raises, withdraws, reaches its bound or has intervals for timestamps.
    Only sharing is lost then, never correctness.

    Not thread-safe: the caller holds one latch for all its detectors.

    Parameters
    ----------
    shares_whole : bool
        True if an expression that is such a sequence as a whole is shared too. The occurrences of
        each detector have its own name.

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
        """The number of subexpressions shared by at least two detectors."""
        return sum(len(hub.members) > 1 for hub in self._by_sequence.values())

    def hub(
        self, sequence: Sequence, horizon_us: int | None, make: Make, shared: DetectorState
    ) -> Hub:
        """Return the hub of a sequence; a new one unless there is one that has kept nothing yet.

        A detector must not see events that it was not fed.
        """
        bound = shared.bound
        key = (sequence, horizon_us, bound.most, bound.truncates)
        hub = self._by_sequence.get(key)
        if hub is None or hub.node.partials or not hub.members:
            hub = self._by_sequence[key] = Hub(make, shared.alone())
        return hub


class SharedNode(DetectorNode):
    """Node of a sequence in one detector, as a part or the root, evaluated by a hub.

    Parameters
    ----------
    is_whole : bool
        True if the node is the root, so that its occurrences have the detector's name.

    Attributes
    ----------
    hub : Hub
    seen : int
        The number of the hub's events that the node has taken.
    trimmed_us : int
        The time before which the node needs no events.
    """

    hub: Hub

    def __init__(self, hub: Hub, shared: DetectorState, index: int, *, is_whole: bool = False):
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
        """True if other detectors take the results of its hub."""
        return len(self.hub.members) > 1

    def detach(self) -> None:
        """Switch to a separate hub, whose node may be modified."""
        if self.is_shared:
            self.hub.without(self).join(self)
        else:
            self.hub.forget_passed()

    @property
    def kept_events(self) -> int:
        # `partials` is no measure: other members may have fed the hub before.
        return self._kept_events

    def has_kept(self, events: int) -> None:
        """Record that the hub kept this number of the events fed to this node."""
        self._kept_events += events

    def part_for_good(self) -> None:
        """Switch to a separate hub that no detector can join."""
        if not self._has_parted:
            self._has_parted = True
            self.hub.without(self).join(self)

    def hear(self, fresh: list[tuple[Entry, DetectorNode]]) -> None:
        """Report new entries of the hub to `fresh`. REQUIRES: no detector can join the hub."""
        node = self.hub.node
        node.shared.fresh = fresh
        node.index = self.index  # the detector identifies its nodes by it

    def evaluate(self, moment: Moment) -> list[Entry]:
        o = moment.o
        if o is None:
            return []  # plain nodes have nothing that waits for a decision
        if self.shared.keeps_ends:
            self.part_for_good()  # the journal refers to entries in the hub
            own = self.hub.node.shared
            own.keeps_ends, own.is_inexact = True, self.shared.is_inexact
            own.policy = self.shared.policy  # the hub may come from another detector
            own.awaited = self.shared.awaited
            own.reach_us, own.late_us = self.shared.reach_us, self.shared.late_us
            if own.arrivals is not self.shared.arrivals:
                # Use one arrival per event here and in parents, distinct from those of composites.
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

    # -- the fast path of a plain root ---------------------------------------------------------

    @property
    def groups(self) -> Groups:
        """The groups of the hub."""
        return self.hub.node.groups

    def feed(self, o: Occurrence) -> list[Occurrence]:
        """Return the matches that `o` completes, as `SequenceNode.feed` does."""
        return [self._named(found) for found in self.hub.feed(o, self)]

    def withdraw(self, o: Occurrence) -> None:
        """Undo the last feed of `o`; this ends the sharing."""
        self.detach()
        self.hub.node.withdraw(o)

    # -- kept entries --------------------------------------------------------------------------

    @property
    def partials(self) -> int:
        return self.hub.node.partials

    def kept(self) -> Iterator[Entry]:
        yield from self.hub.node.kept()

    def drop(self, entry: Entry, journal: Journal) -> bool:
        self.detach()
        return self.hub.node.drop(entry, journal)

    def expire(self, before_us: int, journal: Journal) -> None:
        self.detach()
        self.hub.node.expire(before_us, journal)

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


# -- construction of nodes from expressions --------------------------------------------------------


class Builder:
    """Builder of nodes, numbered from the leaves up, in the order in which they are written."""

    def __init__(self, shared: DetectorState, network: Network | None = None):
        self._shared = shared
        self._network = network
        self._indices: Iterator[int] = count()

    def build(
        self, expression: Expression, bound_us: int | None = None, *, is_root: bool = False
    ) -> DetectorNode:
        """Return the node of an expression.

        Parameters
        ----------
        bound_us : int or None
            The longest duration of occurrences that the parent can use; None: unbounded.
        is_root : bool
            True for the whole expression. Only a network with `shares_whole` shares it, as its
            occurrences have the detector's name.
        """
        shared = self._shared
        if isinstance(expression, Primitive):
            return PrimitiveNode(expression, shared, next(self._indices))
        if isinstance(expression, Disjunction):
            parts = tuple(self.build(part, bound_us) for part in expression.parts)
            return DisjunctionNode(expression, parts, shared, next(self._indices))
        if isinstance(expression, Query):
            pattern = self.build(expression.pattern, bound_us)
            return QueryNode(expression, pattern, shared, next(self._indices))
        if isinstance(expression, Plus):
            operand = self.build(expression.operand, bound_us)
            return PlusNode(expression, operand, shared, next(self._indices))
        if isinstance(expression, Periodic):
            start, end = self.build(expression.start), self.build(expression.end)
            return PeriodicNode(expression, start, end, shared, next(self._indices))
        if isinstance(expression, TimedOut):
            sequence = expression.sequence
            children = self._children(sequence, sequence.window_us)
            horizon_us = window_of(sequence, None, times_out=True)
            return TimedOutNode(
                expression, sequence, children, shared, next(self._indices), horizon_us
            )
        if isinstance(expression, Sequence | Conjunction):
            horizon_us = window_of(expression, bound_us)
            network = self._network
            is_shared = network is not None and (network.shares_whole or not is_root)
            if is_shared and isinstance(expression, Sequence):
                hub = self._hub(expression, horizon_us)
                if hub is not None:
                    return SharedNode(hub, shared, next(self._indices), is_whole=is_root)
            children = self._children(expression, lasting_us(expression, bound_us))
            kind = SequenceNode if isinstance(expression, Sequence) else ConjunctionNode
            return kind(expression, children, shared, next(self._indices), horizon_us)  # type: ignore[arg-type]
        raise PatternError(
            f'a detector takes an event expression, such as event("EXIT"), not {expression!r}'
        )

    def _hub(self, sequence: Sequence, horizon_us: int | None) -> Hub | None:
        """Return the hub that evaluates a sequence for several detectors, or None if unshared."""
        assert self._network is not None

        def make(shared: DetectorState) -> SequenceNode:
            return SequenceNode(sequence, Children(), shared, 0, horizon_us)

        primitives = all(primitives_of((part,)) is not None for part in sequence.parts)
        timed = any(not part.keys for part in sequence.parts)
        if not primitives or timed or not make(self._shared).is_plain:
            return None
        return self._network.hub(sequence, horizon_us, make, self._shared)

    def _children(self, expression: Sequence | Conjunction, bound_us: int | None) -> Children:
        """Return the nodes and clock events of a combination, in the order of its parts."""
        found = Children()
        number = 0
        for part in expression.parts:
            primitives = primitives_of((part,))
            negated = isinstance(part, Negation)
            if primitives is None:
                found.nodes[number] = self.build(part, bound_us)
            else:
                for primitive in primitives:
                    if primitive.schedule is not None:
                        found.clocks[next(self._indices)] = (primitive, number, negated)
            number += not negated
        return found
