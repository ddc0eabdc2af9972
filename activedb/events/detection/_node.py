"""The base of the nodes that evaluate expressions, and what a moment of evaluation carries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from activedb.events._expression import Expression, Reader
from activedb.events._occurrence import Occurrence
from activedb.events.detection._entry import Entry
from activedb.events.detection._journal import Journal, add, assign, delete
from activedb.events.detection._timers import Timers

if TYPE_CHECKING:
    from collections.abc import Hashable

    from activedb.events._primitives import Primitive
    from activedb.events._undecided import Rivals
    from activedb.events.detection._bound import Bound
    from activedb.events.detection._state import StateReader, StateWriter
    from activedb.events.detection._uncertain import Policy

__all__ = ["DECISION", "Moment", "Node", "Shared"]

DECISION = -2
"""In the place of a node's number: something that was open is decided, which concerns all nodes."""


class Shared:
    """What all nodes of a detector have in common.

    Attributes
    ----------
    arrivals : iterator of int
        The arrival of the next occurrence.
    bound : Bound
        How many matches one event may complete, of each node.
    timers : Timers
    policy : Policy
        On uncertain order.
    is_inexact : bool
        Whether an event was fed of which it is not known exactly when it happened. From then on
        candidates are found by backtracking.
    keeps_ends : bool
        Whether sequences keep events that can only be the last, as one whose timestamp is an
        interval may be fed after and possibly precede them.
    fresh : list of (Entry, Node) or None
        What nodes have begun to keep in this moment, if the detector is at its bound.
    step, undoable_step : int
        The number of the step that is being done; and of the first one that may still be undone.
    doubtful : dict of int to Rivals
        By arrival, the occurrences that were made of something that is possible and not certain,
        and why it is not.
    gone : set of int
        The arrivals of those of them that were not made after all.
    decided : int
        How many occurrences were doubtful and are so no longer.
    follows : dict of int to list of int
        By arrival, the occurrences that are made if this one is.
    awaited : list of Occurrence
        Events that are yet to be fed, and may lie before some that was fed.
    latest_us : int
        The latest upper end of what was fed.
    misses : bool
        Whether this step might have completed matches with events that were not kept.
    reach_us, late_us : int
        How far from its reading an event may lie at most; and how much later.
    """

    __slots__ = (
        "arrivals",
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
        "policy",
        "reach_us",
        "step",
        "timers",
        "undoable_step",
    )

    def __init__(self, policy: Policy, bound: Bound):
        self.bound = bound
        self.arrivals: Iterator[int] = count()
        self.timers = Timers()
        self.policy = policy
        self.is_inexact = False
        self.keeps_ends = policy.wants_possible
        self.fresh: list[tuple[Entry, Node]] | None = None
        self.step = self.undoable_step = 0
        self.doubtful: dict[int, Rivals] = {}
        self.gone: set[int] = set()
        self.decided = 0
        self.follows: dict[int, list[int]] = {}
        self.awaited: list[Occurrence] = []
        self.misses = False
        self.reach_us = 0
        self.late_us = 0
        self.latest_us = -(2**63)

    @property
    def spread_us(self) -> int:
        """How much further back than its window an occurrence may matter, by its reading.

        What it belongs to is decided when the latest moment at which that may end has passed: later
        than the earliest by the width of an interval, to which its own lateness comes.
        """
        return 2 * self.late_us + self.reach_us

    def alone(self) -> Shared:
        """The same for a node that several detectors share: another one like it, and new."""
        return Shared(self.policy, self.bound.copy())

    def doubt(self, arrival: int, why: Rivals, journal: Journal) -> None:
        """Take an occurrence for one that may be made."""
        assign(self.doubtful, arrival, why, journal)

    def follow(self, arrival: int, other: int, journal: Journal) -> None:
        """Take an occurrence for one that is made if another is, which may be."""
        if other in self.doubtful:
            self.doubt(arrival, self.doubtful[other], journal)
            assign(self.follows, other, [*self.follows.get(other, ()), arrival], journal)

    def decide(self, arrival: int, journal: Journal, *, is_made: bool) -> None:
        """Take an occurrence, if it is doubtful, for made, or for not made, and what follows it."""
        if arrival not in self.doubtful:
            return
        delete(self.doubtful, arrival, journal)
        if not is_made:
            add(self.gone, arrival, journal)
        self.decided += 1
        for other in self.follows.get(arrival, ()):
            self.decide(other, journal, is_made=is_made)

    def decide_all(self, arrival: int, journal: Journal, *, is_made: bool) -> None:
        """Decide about an occurrence and what it follows."""
        for other, followers in list(self.follows.items()):
            if arrival in followers:
                self.decide_all(other, journal, is_made=is_made)
        self.decide(arrival, journal, is_made=is_made)


class Moment:
    """A step on its way through the nodes: an event that is fed, or what is due at one node.

    Attributes
    ----------
    o : Occurrence or None
        The event that is fed; a clock event, too.
    index : int
        The node whose timers fire, or the number of the clock event; -1: an event is fed.
    us, called :
        When they fire, and what the node calls them.
    reader : object
        What predicates read through that read the shared store.
    journal : Journal
        How to undo what the moment does.
    said : dict
        What readings have said: by node, reading and arrivals of what they were asked of.
    contemporaries : tuple of Occurrence
        Events that are not fed yet, but may lie before `o` for all that is known.
    """

    __slots__ = (
        "_arrival",
        "called",
        "contemporaries",
        "index",
        "journal",
        "o",
        "reader",
        "said",
        "us",
    )

    def __init__(
        self,
        o: Occurrence | None,
        reader: Reader,
        journal: Journal,
        said: dict[Hashable, bool],
        *,
        index: int = -1,
        us: int = 0,
        called: tuple[Hashable, ...] = (),
        contemporaries: tuple[Occurrence, ...] = (),
    ):
        self.o = o
        self.index = index
        self.us = us
        self.called = called
        self.reader = reader
        self.journal = journal
        self.said = said
        self.contemporaries = contemporaries
        self._arrival = -1

    def place(self, shared: Shared) -> tuple[int, str, int]:
        """The place of the event that is fed: one for all nodes."""
        o = self.o
        assert o is not None
        if self._arrival < 0:
            self._arrival = next(shared.arrivals)
        return (o.us, o.id or "", self._arrival)


class Node(ABC):
    """Evaluates one expression: keeps what later matches need, and makes its occurrences.

    Attributes
    ----------
    index : int
        Its number, after those of its children.
    lowest : int
        The least number in its subtree.
    keys : frozenset
        What it listens to; not the clock events, which are told by their numbers.
    clocks : dict of int to Primitive
        The clock events that it takes itself, by their numbers.
    children : tuple of Node
    name : str
        Of the composite occurrences that it makes.
    """

    __slots__ = ("children", "clocks", "expression", "index", "keys", "lowest", "name", "shared")

    def __init__(
        self,
        expression: Expression,
        children: tuple[Node, ...],
        keys: frozenset[tuple[str, str]],
        shared: Shared,
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
        """Whether the moment can make or change anything here."""
        if moment.index < 0:
            return moment.o is None or moment.o.key in self.keys
        return self.lowest <= moment.index <= self.index

    @abstractmethod
    def evaluate(self, moment: Moment) -> list[Entry]:
        """Take in the moment and return what occurs, in the order in which it is made."""

    @property
    def partials(self) -> int:
        """How many occurrences it keeps itself."""
        return 0

    @property
    def kept_events(self) -> int:
        """Another number whenever a moment has made it keep, or forget, something."""
        return self.partials

    @property
    def is_doubtful(self) -> bool:
        """Whether something that it keeps may be used up, as the order of events is not known."""
        return False

    @property
    def is_vague(self) -> bool:
        """Return whether it may make something that no occurrence it has made stands for."""
        return False

    def kept(self) -> Iterator[Entry]:
        """What it keeps itself, each once."""
        return iter(())

    def open_entries(self) -> Iterator[Entry]:
        """Iterate over the entries that it has made and that are open."""
        return iter(())

    def drop(self, entry: Entry, journal: Journal) -> bool:
        """Forget one entry; tell whether it was kept."""
        return False

    def trim(self, before_us: int) -> None:  # noqa: B027  # most nodes keep nothing
        """Forget what no occurrence at or after `before_us` can need."""

    def become_exact(self, journal: Journal) -> None:  # noqa: B027  # most nodes keep nothing
        """Take note that the order of all that is kept is known again."""

    def write(self, state: StateWriter) -> Any:
        """Its own state as JSON; None if it has none."""
        return None

    def read(self, data: Any, state: StateReader) -> None:  # noqa: B027  # as `write`
        """Take up the state that `write` gave."""

    def walk(self) -> Iterator[Node]:
        """It and all nodes below, the children first."""
        for child in self.children:
            yield from child.walk()
        yield self
