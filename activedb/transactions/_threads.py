"""Waits that only the waiting thread itself could end.

A transaction that is open on a thread goes on, and ends, on that thread alone. So while the thread
sleeps in a wait of one transaction, every other one that is open on it and is no superior waits
until that wait is over. The lock manager knows nothing of threads, so these edges are here::

    outer, open on the thread ──THREAD──► inner, in whose wait the thread sleeps
      ▲                                     │
      └── HELD, RETAINED, SOFT, COMMIT, … ──┘   the lock manager's edges

A wait for a lock of another hierarchy is a wait for the end of its top-level transaction, to whom
every lock in it goes in the end. A cycle with a THREAD edge is looked for when a wait begins, and
when locks pass to a parent; there is none while no thread sleeps with two hierarchies open, which
costs a look at an empty dictionary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from lockmgr import DeadlockReport, Edge, EdgeKind

if TYPE_CHECKING:
    from activedb.transactions._forest import Forest
    from activedb.transactions._node import Node

__all__ = [
    "OpenNodes",
    "Standstill",
    "Step",
    "begins_wait",
    "find_standstill",
    "forget_all",
    "is_anybody_stalled",
    "is_soft",
    "open_here",
    "open_on",
    "sleeping_for",
    "stalled_sleepers",
    "wait_is_over",
]

Key: TypeAlias = "tuple[Forest, int]"
"""A transaction by its forest and number, or a sleeper that is none, by a negative number."""

_HIERARCHY_KINDS = (EdgeKind.HELD, EdgeKind.RETAINED)


class OpenNodes(list["Node"]):
    """The transactions that are open on one thread, in the order in which they were entered."""

    __slots__ = ("__weakref__",)


class _Here(threading.local):
    """The open transactions of each thread, as long as the thread lives."""

    def __init__(self) -> None:
        self.nodes = _by_thread[get_ident()] = OpenNodes()


_by_thread: WeakValueDictionary[int, OpenNodes] = WeakValueDictionary()
_here = _Here()


@dataclass(frozen=True, slots=True)
class _Sleeper:
    """A thread that sleeps while transactions are open on it that its wait does not belong to.

    Attributes
    ----------
    node : Node or None
        In whose wait it sleeps.
    stalled : tuple of Node
        What cannot go on meanwhile.
    awaited : callable
        Numbers of the transactions that it waits for beside those the lock manager knows.
    look_again : callable
        Makes a sleeper without a transaction look whether anybody else could end its wait.
    """

    node: Node | None
    stalled: tuple[Node, ...]
    awaited: Callable[[], Iterable[int]]
    look_again: Callable[[], object]


_latch = threading.Lock()
_sleepers: dict[Key, _Sleeper] = {}  # changed under the latch


class Step(NamedTuple):
    """One edge of a cycle; `edge` is the lock manager's, None if it is about a thread."""

    waiter: Key
    waited_for: Key
    edge: Edge | None

    def told(self) -> Edge:
        """Return the step as an edge between two transactions."""
        if self.edge is None:
            return Edge(self.waiter[1], self.waited_for[1], EdgeKind.THREAD)
        return self.edge._replace(waited_for=self.waited_for[1])


class Standstill(Exception):
    """A wait closes a cycle through a thread; raised out of the lock manager's `on_sleep`."""

    def __init__(self, steps: tuple[Step, ...]):
        self.report = DeadlockReport(tuple(step.told() for step in steps), "threads")
        self.steps = steps
        super().__init__(self.report.text())

    @property
    def is_own(self) -> bool:
        """Return whether the wait that closes the cycle is the only one in it."""
        waiters = {step.waiter for step in self.steps if _is_wait(step.edge)}
        return waiters <= {self.steps[0].waiter}

    @property
    def stalled(self) -> Node | None:
        """The open transaction that the wait keeps from going on."""
        start = self.steps[0].waiter
        with _latch:
            sleeper = _sleepers.get(start)
        of_threads = {s.waiter for s in self.steps if s.edge is None and s.waited_for == start}
        stalled = () if sleeper is None else sleeper.stalled
        return next((node for node in stalled if _key(node) in of_threads), None)


def open_here() -> OpenNodes:
    """Return the transactions that are open on the calling thread; whoever enters one adds it."""
    return _here.nodes


def open_on(thread: int) -> list[Node]:
    """Return the transactions that are open on a thread at this moment."""
    return list(_by_thread.get(thread, ()))


def begins_wait(node: Node) -> tuple[Step, ...] | None:
    """Note that this thread is about to sleep in a wait of `node`, which is queued already.

    Returns the cycle that the wait closes, if it does, and if none of the others in it is one that
    has no transaction and can be told instead. O(transactions open on the thread) while no thread
    is stalled, else O(forest).
    """
    nodes = _here.nodes
    if len(nodes) > 1 or (nodes and nodes[0] is not node):
        _add(_key(node), _Sleeper(node, _stalled_by(node), _nobody, _nobody))
    if not _sleepers:
        return None
    steps = find_standstill(_key(node))
    for step in steps or ():
        with _latch:
            sleeper = _sleepers.get(step.waited_for)
        if sleeper is not None and sleeper.node is None:
            sleeper.look_again()
            return None
    return steps


def is_soft(steps: tuple[Step, ...]) -> bool:
    """Return whether it is the queue alone that keeps the first waiter of a cycle."""
    return steps[0].edge is not None and steps[0].edge.kind is EdgeKind.SOFT


def wait_is_over(node: Node) -> None:
    """Take back `begins_wait`; safe to call without it."""
    with _latch:
        _sleepers.pop(_key(node), None)


def is_anybody_stalled() -> bool:
    """Return whether any thread sleeps with more open on it than what its wait belongs to."""
    return bool(_sleepers)


def stalled_sleepers(forest: Forest) -> list[Node]:
    """Return the transactions of a forest in whose waits threads sleep that are stalled."""
    with _latch:
        found = [sleeper.node for sleeper in _sleepers.values()]
    return [node for node in found if node is not None and node.forest is forest]


class sleeping_for:  # noqa: N801 - a context manager, used like a function
    """Note that this thread sleeps for transactions which it does not name to the lock manager.

    Does nothing if no transaction is open on the thread. Inside the block `standstill` looks for
    a cycle.

    Parameters
    ----------
    awaited : callable
        Numbers of those transactions of the forest, whenever they are asked for.
    look_again : callable
        Called on another thread when a cycle through this sleeper may have been closed.
    """

    def __init__(
        self, forest: Forest, awaited: Callable[[], Iterable[int]], look_again: Callable[[], object]
    ):
        self._key: Key = (forest, -get_ident())
        self._sleeper = _Sleeper(None, _stalled_by(None), awaited, look_again)

    def __enter__(self) -> sleeping_for:
        if self._sleeper.stalled:
            _add(self._key, self._sleeper)
        return self

    def __exit__(self, *error: object) -> None:
        with _latch:
            _sleepers.pop(self._key, None)

    def standstill(self) -> tuple[Step, ...] | None:
        """Return the cycle in which this thread sleeps, if no other thread can end it."""
        return find_standstill(self._key) if self._sleeper.stalled else None


def find_standstill(start: Key) -> tuple[Step, ...] | None:
    """Return a cycle from `start` through a thread, in order; None if there is none.

    One of hard edges if there is one. O(forest).
    """
    with _latch:
        sleepers = dict(_sleepers)
    graph = _Graph(sleepers)
    return graph.cycle(start, soft=False) or graph.cycle(start, soft=True)


def forget_all() -> list[Node]:
    """Forget every thread, and return what was open on them. REQUIRES: a forked child."""
    global _latch
    _latch = threading.Lock()
    _sleepers.clear()
    found = [node for nodes in list(_by_thread.values()) for node in nodes]
    _by_thread.clear()
    del _here.nodes[:]
    _by_thread[get_ident()] = _here.nodes
    return found


def _key(node: Node) -> Key:
    return (node.forest, node.id)


def _nobody() -> Iterable[int]:
    return ()


def _add(key: Key, sleeper: _Sleeper) -> None:
    if sleeper.stalled:
        with _latch:
            _sleepers[key] = sleeper


def _stalled_by(node: Node | None) -> tuple[Node, ...]:
    """Return the open transactions of this thread but `node` and its superiors. O(open + depth)."""
    line = set()
    found = node
    while found is not None:
        line.add(found)
        found = found.parent
    return tuple(n for n in _here.nodes if n not in line and not n.state.is_final)


def _is_wait(edge: Edge | None) -> bool:
    return edge is not None and edge.kind is not EdgeKind.COMMIT


class _Graph:
    """The wait-for graph of the forests that a search comes to, with the edges of threads."""

    def __init__(self, sleepers: dict[Key, _Sleeper]):
        self._sleepers = sleepers
        self._edges: dict[Forest, dict[int, list[Edge]]] = {}
        self._tops: dict[Forest, dict[int, int]] = {}
        self._behind: dict[Key, list[Key]] = {}
        for key, sleeper in sleepers.items():
            for node in sleeper.stalled:
                self._behind.setdefault(_key(node), []).append(key)

    def cycle(self, start: Key, *, soft: bool) -> tuple[Step, ...] | None:
        """Return a shortest cycle from `start` with at least one edge about a thread."""
        first = (start, False)
        came_by: dict[tuple[Key, bool], tuple[tuple[Key, bool], Step]] = {}
        frontier = [first]
        for place in frontier:  # grows while it is walked
            for step in self._steps(place[0], soft=soft):
                target = (step.waited_for, place[1] or step.edge is None)
                if target == (start, True):
                    steps = [step]
                    back = place
                    while back != first:
                        back, step = came_by[back]
                        steps.append(step)
                    return tuple(reversed(steps))
                if target not in came_by and target != first:
                    came_by[target] = (place, step)
                    frontier.append(target)
        return None

    def _steps(self, key: Key, *, soft: bool) -> Iterator[Step]:
        forest, tid = key
        self._look_at(forest)
        tops = self._tops[forest]
        for edge in self._edges[forest].get(tid, ()):
            if edge.kind is EdgeKind.SOFT and not soft:
                continue
            yield Step(key, (forest, edge.waited_for), edge)
            if edge.kind in _HIERARCHY_KINDS and tops.get(edge.waited_for) != tops.get(tid):
                yield Step(key, (forest, tops[edge.waited_for]), edge)
        superior = forest.offers.awaited_by(tid)
        if superior is not None:
            yield Step(key, (forest, superior), Edge(tid, superior, EdgeKind.INLINE))
        sleeper = self._sleepers.get(key)
        if sleeper is not None:
            for other in sleeper.awaited():
                yield Step(key, (forest, other), Edge(tid, other, EdgeKind.DEPENDENCY))
        for sleeping in self._behind.get(key, ()):
            yield Step(key, sleeping, None)

    def _look_at(self, forest: Forest) -> None:
        if forest in self._edges:
            return
        snapshot = forest.locks.snapshot()
        edges = self._edges[forest] = {}
        tops = self._tops[forest] = {}
        for view in snapshot.transactions:
            tops[view.tid] = view.tid if view.parent is None else tops[view.parent]
        for edge in snapshot.edges:
            edges.setdefault(edge.waiter, []).append(edge)
