"""Detection of waits that only the waiting thread itself could end.

A transaction that is open on a thread continues, and ends, on that thread alone. So while the
thread sleeps in a wait of one transaction, every other transaction open on it, except for superiors
of the first, waits until that wait is over. The lock manager does not know threads, so this module
adds these edges::

    outer, open on the thread ──THREAD──► inner, in whose wait the thread sleeps
      ▲                                     │
      └── HELD, RETAINED, SOFT, COMMIT, … ──┘   the lock manager's edges

A wait for a lock of another hierarchy is a wait for the end of its top-level transaction, which
finally inherits every lock of the hierarchy. A search for a cycle with a THREAD edge runs when a
wait begins, and when locks pass to a parent. While no thread sleeps with two hierarchies open,
there is no such cycle, and the check costs a look at an empty dictionary.

Plain SQL of the users (`db.connection()`) that is open on the thread is stalled in the same way. A
transaction that waits for plain SQL waits on the server, where `_crossing` finds the cycles. In
memory it waits for the only connection, and asks this module whether the wait can ever end. If a
block of activedb has ended over such a connection, its top-level transaction is open until the
connection's transaction ends, and counts here, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias
from weakref import WeakValueDictionary

from activedb.errors import ActiveDBError, Deadlock, SelfDeadlock
from lockmgr import DeadlockReport, Edge, EdgeKind

if TYPE_CHECKING:
    from activedb.store.session import UserConnection
    from activedb.transactions._forest import Forest
    from activedb.transactions._node import TransactionNode

__all__ = [
    "CycleEdge",
    "OpenNodes",
    "Standstill",
    "end_standstills",
    "falls_asleep",
    "forget_all",
    "here",
    "is_anybody_stalled",
    "is_beside_others",
    "open_on",
    "sleepers_in_plain_sql",
    "sleeping_for",
    "sleeping_for_children",
    "wait_is_over",
]

Key: TypeAlias = "tuple[Forest, int]"
"""Transaction by forest and id; a negative number stands for a sleeper without a transaction."""

_HIERARCHY_KINDS = (EdgeKind.HELD, EdgeKind.RETAINED)


class OpenNodes(list["TransactionNode"]):
    """Transactions that are open on one thread, in the order of entry."""

    __slots__ = ("__weakref__",)


class _OpenTransactions(threading.local):
    """Open transactions of each thread, for the lifetime of the thread."""

    def __init__(self) -> None:
        self.nodes = _by_thread[get_ident()] = OpenNodes()


_by_thread: WeakValueDictionary[int, OpenNodes] = WeakValueDictionary()
here = _OpenTransactions()
"""Holder of `nodes`, the transactions open on the calling thread; each one entered adds itself."""


class _SleepingThread:
    """Thread that sleeps while transactions are open on it that its wait does not belong to.

    Parameters
    ----------
    waits_in : TransactionNode or None
        Transaction whose wait it is: neither it nor its superiors are stalled.

    Attributes
    ----------
    key : Key
    node : TransactionNode or None
        Transaction in whose wait for a lock the thread sleeps.
    stalled : tuple of TransactionNode
        Open transactions that cannot continue until then.
    plain : tuple of UserConnection
        Connections with plain SQL of the users that cannot continue either.
    is_refused_first : bool
        True if the sleeper's own wait is refused where its plain SQL blocks all others, so that
        none of the others is refused.
    """

    node: TransactionNode | None = None
    is_refused_first = False

    def __init__(self, key: Key, waits_in: TransactionNode | None):
        forest, _ = self.key = key
        self.plain = _plain_here(forest)
        self.stalled = _stalled_by(waits_in, self.plain, forest)

    def __enter__(self) -> Self:
        if self.stalled or self.plain:
            with _latch:
                _sleepers[self.key] = self
            if not self.is_refused_first:
                for use in self.plain:
                    use.asleep = partial(_why_never, self)
        return self

    def __exit__(self, *error: object) -> None:
        _remove(self.key)

    def tops(self) -> Iterable[int]:
        """Return the ids of the top-level transactions that the thread sleeps for."""
        raise NotImplementedError

    def awaited(self) -> Iterable[int]:
        """Return the ids of the awaited transactions that the lock manager does not know of."""
        return ()

    def look_again(self) -> None:
        """Check whether another thread can end the wait. REQUIRES: `node` is None."""
        raise NotImplementedError

    def refuse(self) -> None:
        """End the wait, because no other thread can. REQUIRES: `node` is None."""
        raise NotImplementedError


class _SleepingForLock(_SleepingThread):
    """Thread that sleeps in a transaction's wait for a lock."""

    node: TransactionNode

    def __init__(self, node: TransactionNode):
        super().__init__(_key(node), node)
        self.node = node

    def tops(self) -> Iterable[int]:
        return (self.node.hierarchy.top_id,)


_numbers = count(1)
_latch = threading.Lock()
_sleepers: dict[Key, _SleepingThread] = {}  # changed under the latch


class CycleEdge(NamedTuple):
    """Edge of a cycle; `edge` is the lock manager's, or None for a THREAD edge."""

    waiter: Key
    waited_for: Key
    edge: Edge | None

    def as_edge(self) -> Edge:
        """Return the step as an edge between two transactions."""
        if self.edge is None:
            return Edge(self.waiter[1], self.waited_for[1], EdgeKind.THREAD)
        return self.edge._replace(waited_for=self.waited_for[1])


class Standstill(Exception):
    """Cycle through a thread, closed by a wait; raised out of the lock manager's `on_sleep`."""

    def __init__(self, steps: tuple[CycleEdge, ...]):
        self.report = DeadlockReport(tuple(step.as_edge() for step in steps), "threads")
        self.steps = steps
        super().__init__(self.report.text())

    def error_of(self, node: TransactionNode, thread: str | None = None) -> Deadlock | SelfDeadlock:
        """Return the error for `node`, whose wait closes the cycle.

        It is a `SelfDeadlock` if no other transaction waits in the cycle.

        Parameters
        ----------
        thread : str, optional
            Name of the thread, if it waits for a child; by default the present thread.
        """
        waits = [s for s in self.steps if s.waiter[1] > 0 and _is_wait(s.edge)]
        stalled = self._stalled()
        if stalled is not None and len({step.waiter for step in waits}) <= 1:
            node.forest.counters.add("waits_for_own_thread")
            who = node.path if thread is None else f"a child of {node.path}"
            where = "this same thread" if thread is None else "the thread that waits for that child"
            return SelfDeadlock(
                f"the wait of {who} would never end ({waits[0].as_edge().text()}), because "
                f"{stalled.description} is open on {where}, "
                f"{thread or threading.current_thread().name!r}, and cannot end before it: do the "
                f"work inside {stalled.description}, end that one first, or make the call on a "
                f"thread of its own and let this one continue (asyncio.to_thread)"
            )
        deadlock = Deadlock(
            f"deadlock through threads that have several transactions open, and {node.path} is "
            f"its victim: {self}"
        )
        if node.observer is not None:
            node.observer.deadlocked(node, self.report)
        deadlock.exhausted = True  # only the end of a whole hierarchy releases its locks
        deadlock.breaker = 0 if stalled is None else stalled.id
        return deadlock

    def _stalled(self) -> TransactionNode | None:
        """Return the open transaction that the wait stalls."""
        start = self.steps[0].waiter
        with _latch:
            sleeper = _sleepers.get(start)
        of_threads = {s.waiter for s in self.steps if s.edge is None and s.waited_for == start}
        stalled = () if sleeper is None else sleeper.stalled
        return next((node for node in stalled if _key(node) in of_threads), None)


def open_on(thread: int) -> list[TransactionNode]:
    """Return the transactions that are presently open on a thread."""
    return list(_by_thread.get(thread, ()))


def falls_asleep(node: TransactionNode) -> None:
    """Note that this thread is about to sleep in a wait of `node`, which is queued already.

    O(transactions open on the thread) while no thread is stalled, else O(forest).

    Raises
    ------
    Standstill
        If the wait could never end, because it closes a cycle through a thread.
    """
    if is_beside_others(node):
        _SleepingForLock(node).__enter__()
    steps = find_standstill(_key(node)) if _sleepers else None
    if steps is None:
        return
    first = steps[0].edge
    if first is not None and first.kind is EdgeKind.SOFT and node.forest.locks.overtake(node.id):
        return  # the requests ahead in the queue wait for this thread
    if not _is_told_elsewhere(steps):
        raise Standstill(steps)


def _is_told_elsewhere(steps: tuple[CycleEdge, ...]) -> bool:
    """Wake the sleeper without a transaction in a cycle; return whether there is one."""
    for step in steps:
        with _latch:
            sleeper = _sleepers.get(step.waited_for)
        if sleeper is not None and sleeper.node is None:
            sleeper.look_again()
            return True
    return False


def wait_is_over(node: TransactionNode) -> None:
    """Undo `falls_asleep`; has no effect without it."""
    _remove(_key(node))


def is_anybody_stalled() -> bool:
    """Return whether any thread sleeps with other work open than that of its wait."""
    return bool(_sleepers)


def end_standstills(forest: Forest) -> None:
    """End waits that only their own threads could end, after locks have passed to a parent.

    Sleepers without a transaction are told to check again.
    """
    with _latch:
        found = [sleeper for key, sleeper in _sleepers.items() if key[0] is forest]
    for sleeper in found:
        if sleeper.node is None:
            sleeper.look_again()
    for node in [sleeper.node for sleeper in found if sleeper.node is not None]:
        steps = find_standstill(_key(node))
        error = None if steps is None else Standstill(steps).error_of(node)
        if isinstance(error, SelfDeadlock):
            node.mark_rollback_only(error)


def sleepers_in_plain_sql(forest: Forest) -> list[_SleepingThread]:
    """Return the sleepers of a forest on whose threads plain SQL of the users is stalled."""
    with _latch:
        found = list(_sleepers.items())
    return [sleeper for key, sleeper in found if key[0] is forest and sleeper.plain]


class sleeping_for(_SleepingThread):  # noqa: N801 - a context manager, used like a function
    """Context manager: this thread sleeps for transactions unknown to the lock manager.

    Does nothing if neither a transaction nor plain SQL of the users is open on the thread. Inside
    the block, `is_stuck` returns whether the thread sleeps in a cycle.

    Parameters
    ----------
    awaited : callable
        Returns the present ids of those transactions of the forest.
    look_again : callable
        Called on another thread when a cycle through this sleeper may have been closed.
    """

    is_refused_first = True

    def __init__(
        self,
        forest: Forest,
        awaited: Callable[[], Iterable[int]],
        look_again: Callable[[], object],
    ):
        super().__init__((forest, -next(_numbers)), None)
        self._awaited = awaited
        self._look_again = look_again
        self._is_refused = False

    @property
    def is_beside_work(self) -> bool:
        """True if a transaction, or plain SQL of the users, is open on the thread."""
        return bool(self.stalled or self.plain)

    def is_stuck(self) -> bool:
        """Return whether no other thread can end the wait."""
        if self._is_refused or any(use.keeps_all_out for use in self.plain):
            return True
        return bool(self.stalled) and find_standstill(self.key) is not None

    def tops(self) -> Iterable[int]:
        return self._awaited()

    def awaited(self) -> Iterable[int]:
        return self._awaited()

    def look_again(self) -> None:
        self._look_again()

    def refuse(self) -> None:
        self._is_refused = True
        self._look_again()


class sleeping_for_children(_SleepingThread):  # noqa: N801 - as above
    """Context manager: this thread sleeps until a child of a transaction has ended.

    If that can never happen, the transaction is marked rollback-only.
    """

    def __init__(self, parent: TransactionNode):
        super().__init__((parent.forest, -next(_numbers)), parent)
        self._parent = parent
        self._thread = threading.current_thread().name

    def tops(self) -> Iterable[int]:
        return (self._parent.hierarchy.top_id,)

    def awaited(self) -> Iterable[int]:
        return (self._parent.id,)

    def look_again(self) -> None:
        """Mark the transaction rollback-only if no other thread can end the wait."""
        steps = find_standstill(self.key) if self.stalled else None
        while steps is not None:
            soft = next((s for s in steps if s.edge and s.edge.kind is EdgeKind.SOFT), None)
            if soft is None or not soft.waiter[0].locks.overtake(soft.waiter[1]):
                break
            steps = find_standstill(self.key)  # requests ahead in the queue wait for this thread
        if steps is not None:
            self._parent.mark_rollback_only(Standstill(steps).error_of(self._parent, self._thread))

    def refuse(self) -> None:
        self._parent.interrupt(
            SelfDeadlock(
                f"children of {self._parent.path} would wait at the server for ever, because SQL "
                f"on db.connection() is open on the thread that waits for them, {self._thread!r}: "
                f"end that first"
            )
        )


def is_beside_others(node: TransactionNode) -> bool:
    """Return whether other work than `node` may be open on this thread; nearly O(1)."""
    nodes = here.nodes
    return (
        len(nodes) > 1 or (bool(nodes) and nodes[0] is not node) or bool(_plain_here(node.forest))
    )


def find_standstill(
    start: Key, waiting: TransactionNode | None = None
) -> tuple[CycleEdge, ...] | None:
    """Return a cycle from `start` through a thread, in order; None if there is none.

    A cycle of hard edges is preferred. O(forest).

    Parameters
    ----------
    waiting : TransactionNode, optional
        A transaction that waits for the thread of `start`, unknown to the lock manager.
    """
    with _latch:
        sleepers = dict(_sleepers)
    graph = _WaitForGraph(sleepers)
    if waiting is not None:
        graph.behind(waiting, start)
    return graph.cycle(start, soft=False) or graph.cycle(start, soft=True)


def forget_all() -> list[TransactionNode]:
    """Forget all threads; return their open transactions. REQUIRES: a forked child."""
    global _latch
    _latch = threading.Lock()
    _sleepers.clear()
    found = [node for nodes in list(_by_thread.values()) for node in nodes]
    _by_thread.clear()
    del here.nodes[:]
    _by_thread[get_ident()] = here.nodes
    return found


def _key(node: TransactionNode) -> Key:
    return (node.forest, node.id)


def _plain_here(forest: Forest) -> tuple[UserConnection, ...]:
    """Return the connections with plain SQL that only this thread has used, and so can end."""
    here = get_ident()
    return tuple([u for u in forest.store.plain_uses() if u.thread == here and u.has_begun])


def _remove(key: Key) -> None:
    with _latch:
        sleeper = _sleepers.pop(key, None)
    for use in () if sleeper is None else sleeper.plain:
        use.asleep = None


def _why_never(sleeper: _SleepingThread, thread: int) -> ActiveDBError | None:
    """Return the error if the wait of a thread for a sleeper's plain SQL could never end."""
    waiting = next(iter(reversed(open_on(thread))), None)
    steps = None if waiting is None else find_standstill(sleeper.key, waiting)
    if waiting is None or steps is None:
        return None
    if waiting.hierarchy.top_id in sleeper.tops():
        return SelfDeadlock(
            f"the wait of {waiting.path} would never end, because SQL on db.connection() is open "
            f"on the thread that waits for it: end that first"
        )
    deadlock = Deadlock(
        f"deadlock through a thread that has SQL on db.connection() open, and {waiting.path} is "
        f"its victim"
    )
    deadlock.exhausted = True  # only the end of the hierarchy releases its locks
    return deadlock


def _stalled_by(
    node: TransactionNode | None, plain: Iterable[UserConnection], forest: Forest
) -> tuple[TransactionNode, ...]:
    """Return the open transactions of this thread except `node` and its superiors.

    Includes those of its connections, which stay open between their blocks. O(open + depth).
    """
    line = set() if node is None else set(node.line)
    callers = [forest.joined.top_of(use.connection) for use in plain]
    nodes = [*here.nodes, *[top for top in callers if top is not None]]
    stalled = tuple([n for n in nodes if n not in line and not n.state.is_final])
    for each in stalled:
        each.forest.enrol(each)  # others may wait for its end
    return stalled


def _is_wait(edge: Edge | None) -> bool:
    return edge is not None and edge.kind is not EdgeKind.COMMIT


class _WaitForGraph:
    """Wait-for graph of the forests that a search reaches, with the edges of threads."""

    def __init__(self, sleepers: dict[Key, _SleepingThread]):
        self._sleepers = sleepers
        self._edges: dict[Forest, dict[int, list[Edge]]] = {}
        self._tops: dict[Forest, dict[int, int]] = {}
        self._behind: dict[Key, list[Key]] = {}
        for key, sleeper in sleepers.items():
            for node in sleeper.stalled:
                self.behind(node, key)

    def behind(self, node: TransactionNode, sleeper: Key) -> None:
        """Add the edge of a transaction that is stalled until a sleeper's wait is over."""
        self._behind.setdefault(_key(node), []).append(sleeper)

    def cycle(self, start: Key, *, soft: bool) -> tuple[CycleEdge, ...] | None:
        """Return a shortest cycle from `start` with at least one THREAD edge."""
        first = (start, False)
        came_by: dict[tuple[Key, bool], tuple[tuple[Key, bool], CycleEdge]] = {}
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

    def _steps(self, key: Key, *, soft: bool) -> Iterator[CycleEdge]:
        forest, tid = key
        self._look_at(forest)
        tops = self._tops[forest]
        for edge in self._edges[forest].get(tid, ()):
            if edge.kind is EdgeKind.SOFT and not soft:
                continue
            yield CycleEdge(key, (forest, edge.waited_for), edge)
            if edge.kind in _HIERARCHY_KINDS and tops.get(edge.waited_for) != tops.get(tid):
                yield CycleEdge(key, (forest, tops[edge.waited_for]), edge)
        wait = forest.offers.wait_of(tid)
        if wait is not None:
            yield CycleEdge(key, (forest, wait.waited_for), wait)
        sleeper = self._sleepers.get(key)
        if sleeper is not None:
            for other in sleeper.awaited():
                yield CycleEdge(key, (forest, other), Edge(tid, other, EdgeKind.DEPENDENCY))
        for sleeping in self._behind.get(key, ()):
            yield CycleEdge(key, sleeping, None)

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
