"""The base of the nodes that evaluate expressions, and what a moment of evaluation carries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from activedb.events._expression import Expression, Reader
from activedb.events._occurrence import Occurrence
from activedb.events.detection._entry import Entry
from activedb.events.detection._journal import Journal
from activedb.events.detection._timers import Timers

if TYPE_CHECKING:
    from collections.abc import Hashable

    from activedb.events._primitives import Primitive
    from activedb.events.detection._state import StateReader, StateWriter
    from activedb.events.detection._uncertain import Policy

__all__ = ["Moment", "Node", "Shared"]


class Shared:
    """What all nodes of a detector have in common.

    Attributes
    ----------
    arrivals : iterator of int
        The arrival of the next occurrence.
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
    """

    __slots__ = ("arrivals", "fresh", "is_inexact", "keeps_ends", "new", "open", "policy", "timers")

    def __init__(self, policy: Policy):
        self.arrivals: Iterator[int] = count()
        self.open: dict[str, Any] = {}
        self.new: dict[str, Any] = {}
        self.timers = Timers()
        self.policy = policy
        self.is_inexact = False
        self.keeps_ends = policy.wants_possible
        self.fresh: list[tuple[Entry, Node]] | None = None


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
            assert moment.o is not None
            return moment.o.key in self.keys
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

    def kept(self) -> Iterator[Entry]:
        """What it keeps itself, each once."""
        return iter(())

    def drop(self, entry: Entry, journal: Journal) -> bool:
        """Forget one entry; tell whether it was kept."""
        return False

    def trim(self, before_us: int) -> None:  # noqa: B027  # most nodes keep nothing
        """Forget what no occurrence at or after `before_us` can need."""

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
