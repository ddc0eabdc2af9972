"""Base class of the nodes that evaluate expressions, and the state that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, count
from typing import TYPE_CHECKING, Any

from activedb.events._expressions import Expression
from activedb.events._occurrence import Occurrence
from activedb.events.detection._entry import Entry, Stage
from activedb.events.detection._journal import Journal, add, assign, delete
from activedb.events.detection._moment import Moment, Timers
from activedb.events.detection._uncertain import is_exact

if TYPE_CHECKING:
    from activedb.events._expressions import Primitive
    from activedb.events._undecided import Rivals
    from activedb.events.detection._choice import Bound
    from activedb.events.detection._state import StateReader, StateWriter
    from activedb.events.detection._uncertain import Policy

__all__ = ["DetectorNode", "DetectorState"]


class DetectorState:
    """State that all nodes of a detector share.

    Attributes
    ----------
    arrivals : iterator of int
        The arrival of the next occurrence.
    bound : Bound
        Upper bound on the matches that one event completes in each node.
    timers : Timers
    policy : Policy
        Policy on uncertain order.
    is_inexact : bool
        True once an event with an uncertain time was fed. From then on candidates are found by
        backtracking.
    keeps_ends : bool
        True if sequences keep events that can only be the last, as an interval that possibly
        precedes them may be fed later.
    fresh : list of (Entry, DetectorNode) or None
        The entries first kept in this moment, if the detector has reached its bound.
    doubtful : dict of int to Rivals
        By arrival, occurrences made although they are only possible, and why they are not certain.
    gone : set of int
        The arrivals of doubtful occurrences that turned out not to be made.
    decided : int
        The number of doubtful occurrences that were decided.
    follows : dict of int to list of int
        By arrival, the occurrences that are made if and only if this one is.
    needs : dict of int to list of int
        By arrival of an occurrence, the arrivals of others: if it is made, one of these is.
    awaited : list of Occurrence
        Events yet to be fed that may be before some that was fed.
    latest_us : int
        The latest upper end of all events fed.
    told_us, advanced_us : int or None, int
        The first time that the detector's clocks were told, and the latest time announced.
    misses : bool
        True if this step might have completed matches with events that were not kept.
    reach_us, late_us : int
        Upper bounds on the distance of an event from its reading: in both directions, and later.
    """

    __slots__ = (
        "advanced_us",
        "arrivals",
        "awaited",
        "bound",
        "decided",
        "doubtful",
        "follows",
        "fresh",
        "gone",
        "is_inexact",
        "keeps_ends",
        "late_us",
        "latest_us",
        "misses",
        "needs",
        "policy",
        "reach_us",
        "timers",
        "told_us",
    )

    def __init__(self, policy: Policy, bound: Bound):
        self.bound = bound
        self.arrivals: Iterator[int] = count()
        self.timers = Timers()
        self.policy = policy
        self.is_inexact = False
        self.keeps_ends = policy.wants_possible
        self.fresh: list[tuple[Entry, DetectorNode]] | None = None
        self.doubtful: dict[int, Rivals] = {}
        self.gone: set[int] = set()
        self.decided = 0
        self.follows: dict[int, list[int]] = {}
        self.needs: dict[int, list[int]] = {}
        self.awaited: list[Occurrence] = []
        self.misses = False
        self.reach_us = 0
        self.late_us = 0
        self.latest_us = -(2**63)
        self.told_us: int | None = None
        self.advanced_us = -(2**62)

    @property
    def spread_us(self) -> int:
        """Upper bound on how much longer than its window the reading of an occurrence matters.

        Its matches are decided after the latest moment at which the window may end. That is later
        than the earliest such moment by the width of an interval, plus the occurrence's own delay.
        """
        return 2 * self.late_us + self.reach_us

    def alone(self) -> DetectorState:
        """Return new shared state with the same options, for a node that detectors share."""
        return DetectorState(self.policy, self.bound.copy())

    def doubt(self, arrival: int, why: Rivals, journal: Journal) -> None:
        """Mark an occurrence as doubtful: made only possibly."""
        assign(self.doubtful, arrival, why, journal)

    def follow(self, arrival: int, other: int, journal: Journal) -> None:
        """Record that an occurrence is made if and only if `other` is, which may be doubtful."""
        if other in self.doubtful:
            self.doubt(arrival, self.doubtful[other], journal)
            assign(self.follows, other, [*self.follows.get(other, ()), arrival], journal)

    def need(self, arrival: int, others: list[int], journal: Journal) -> None:
        """Record that an occurrence is only made if one of `others` is."""
        assign(self.needs, arrival, others, journal)

    def growing(self, path: Iterable[tuple[Stage, Entry]]) -> frozenset[tuple[str, str]]:
        """Return the keys of events that constituents may turn out to contain besides their own.

        An open occurrence of a cumulative part may be merged with others.
        """
        if not self.doubtful:
            return frozenset()
        keys = [stage.merged_keys for stage, entry in path if entry[2] in self.doubtful]
        return frozenset[tuple[str, str]]().union(*keys)

    def is_unsettled(self, path: Iterable[tuple[Stage, Entry]]) -> bool:
        """Return whether predicates may see other constituents than these, or in another order.

        An occurrence of a cumulative part may be open, or have events whose order is uncertain.
        O(n²) for n events in one part, if timestamps are intervals.
        """
        return (self.is_inexact and self.policy.doubts) and any(
            stage.merged_keys and (entry[2] in self.doubtful or self._is_unordered(entry[3]))
            for stage, entry in path
        )

    def _is_unordered(self, o: Occurrence) -> bool:
        """Return whether the order of events in one part is uncertain, at any level."""
        precedes = self.policy.relation.precedes
        for part in o.parts.values():
            events = part if isinstance(part, tuple) else (part,)
            for a, b in combinations(events, 2):
                if not ((is_exact(a) and is_exact(b)) or precedes(a, b) or precedes(b, a)):
                    return True
            if any(map(self._is_unordered, events)):
                return True
        return False

    def decide(self, arrival: int, journal: Journal, *, is_made: bool) -> None:
        """Decide a doubtful occurrence, and so those that follow or need it: made, or not made."""
        if arrival not in self.doubtful:
            return
        delete(self.doubtful, arrival, journal)
        if not is_made:
            add(self.gone, arrival, journal)
        self.decided += 1
        for other in self.follows.get(arrival, ()):
            self.decide(other, journal, is_made=is_made)
        for other, needed in () if is_made else list(self.needs.items()):
            if arrival in needed and self.gone.issuperset(needed):
                self.decide(other, journal, is_made=False)

    def decide_all(self, arrival: int, journal: Journal, *, is_made: bool) -> None:
        """Decide an occurrence, those that it follows or, if made, needs, and their followers."""
        for other, followers in list(self.follows.items()):
            if arrival in followers:
                self.decide_all(other, journal, is_made=is_made)
        needed = self.needs.get(arrival, ())
        if is_made and len(needed) == 1:
            self.decide_all(needed[0], journal, is_made=True)
        self.decide(arrival, journal, is_made=is_made)


class DetectorNode(ABC):
    """Evaluator of one expression: keeps the entries that later matches need, makes occurrences.

    Attributes
    ----------
    index : int
        The node's number; children have lower numbers.
    lowest : int
        The least number in its subtree.
    keys : frozenset
        The keys of the events it takes. Clock events are identified by number instead.
    clocks : dict of int to Primitive
        The clock events that it takes itself, by number.
    children : tuple of DetectorNode
    name : str
        The name of the composite occurrences that it makes.
    """

    __slots__ = ("children", "clocks", "expression", "index", "keys", "lowest", "name", "shared")

    def __init__(
        self,
        expression: Expression,
        children: tuple[DetectorNode, ...],
        keys: frozenset[tuple[str, str]],
        shared: DetectorState,
        index: int,
        clocks: Mapping[int, Primitive] | None = None,
    ):
        self.expression = expression
        self.clocks = dict(clocks or {})
        self.children = children
        self.keys = keys
        self.shared = shared
        self.index = index
        self.lowest: int = min([*(child.lowest for child in children), *self.clocks, index])
        self.name = repr(expression)

    def concerns(self, moment: Moment) -> bool:
        """Return whether the moment can make or change anything in this subtree."""
        if moment.index < 0:
            return moment.o is None or moment.o.key in self.keys
        return self.lowest <= moment.index <= self.index

    @abstractmethod
    def evaluate(self, moment: Moment) -> list[Entry]:
        """Process the moment and return the occurrences, in the order in which they are made."""

    @property
    def partials(self) -> int:
        """The number of occurrences that the node itself keeps."""
        return 0

    @property
    def kept_events(self) -> int:
        """A number that changes whenever a moment makes the node keep or forget an entry."""
        return self.partials

    @property
    def is_doubtful(self) -> bool:
        """True if a kept entry may be used up, depending on an uncertain order."""
        return False

    @property
    def is_vague(self) -> bool:
        """True if it may make something that no occurrence made so far represents."""
        return False

    def kept(self) -> Iterator[Entry]:
        """Iterate over the entries that the node itself keeps, each once."""
        return iter(())

    def open_entries(self) -> Iterator[Entry]:
        """Iterate over the entries that the node has made and that are open."""
        return iter(())

    def drop(self, entry: Entry, journal: Journal) -> bool:
        """Forget one entry; return whether it was kept."""
        return False

    def expire(self, before_us: int, journal: Journal) -> None:  # noqa: B027  # as `trim`
        """Forget entries as `trim` does, but so that this can be undone."""

    def trim(self, before_us: int) -> None:  # noqa: B027  # most nodes keep nothing
        """Forget entries that no occurrence at or after `before_us` can need."""

    def become_exact(self, journal: Journal) -> None:  # noqa: B027  # most nodes keep nothing
        """Switch back to exact evaluation, as the order of all kept events is certain again."""

    def write(self, state: StateWriter) -> Any:
        """Return the node's own state as JSON, or None if it has none."""
        return None

    def read(self, data: Any, state: StateReader) -> None:  # noqa: B027  # as `write`
        """Restore the state that `write` returned."""

    def walk(self) -> Iterator[DetectorNode]:
        """Yield all nodes of the subtree, children before parents."""
        for child in self.children:
            yield from child.walk()
        yield self
