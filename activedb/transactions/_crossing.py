"""Detection of deadlocks through local locks and the server's locks, in one wait-for graph.

A hierarchy that waits for another hierarchy waits for its end, here as on the server: the locks of
a hierarchy pass on inside it until its top-level transaction ends, which waits for all its
inferiors. So the nodes of the graph are hierarchies, identified by their server processes, and a
cycle is a deadlock. The lock manager finds cycles of local waits alone. The server finds cycles of
waits on the server alone, but only after a time (``deadlock_timeout``, by default a second) that an
ordinary role cannot set; so these are broken here as well.

A thread that sleeps on the server for one hierarchy stalls the other hierarchies open on it,
including those of other database objects of this process: they wait for the first one (`_threads`).
Connections with plain SQL of the users (`db.connection()`) count as hierarchies here, and wait for
whatever their thread sleeps for, even if it sleeps in a local wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from activedb.errors import ActiveDBError, Deadlock, SelfDeadlock
from activedb.store.session import Backend, UserConnection
from activedb.transactions._observers import Link
from activedb.transactions._threads import open_on, sleepers_in_plain_sql

if TYPE_CHECKING:
    from activedb.transactions._forest import Forest
    from activedb.transactions._node import TransactionNode

__all__ = ["Crossing", "cycle_through"]

_LOG = logging.getLogger(__name__)
_TICK_S = 0.025
_LOOK_AFTER_S = 0.03  # a longer statement may be waiting for a lock
_LOOK_EVERY_S_MIN, _LOOK_EVERY_S_MAX = 0.05, 1.0
_YIELDS_MAX = 10  # looks granted to a victim in another process before it is our turn


def cycle_through(start: int, waits: Mapping[int, Iterable[int]]) -> list[int]:
    """Return the nodes of a cycle through `start`, in order; empty if there is none. O(edges)."""
    came_from: dict[int, int] = {}
    stack = [start]
    while stack:
        node = stack.pop()
        for other in waits.get(node, ()):
            if other == start:
                cycle = [node]
                while cycle[-1] != start:
                    cycle.append(came_from[cycle[-1]])
                return cycle[::-1]
            if other not in came_from:
                came_from[other] = node
                stack.append(other)
    return []


class Crossing:
    """Watcher of the hierarchies of one forest, for waits that cross to the server.

    One daemon thread, started by the first hierarchy of a store shared with other processes. It
    asks the server only while some statement has been running for long.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self, forest: Forest):
        self._forest = forest
        self._latch = threading.Lock()
        self._tops: dict[int, TransactionNode] = {}
        self._is_needed = threading.Event()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: dict[frozenset[tuple[int, datetime]], int] = {}
        self._published: dict[int, frozenset[int]] = {}

    def add(self, number: int, top: TransactionNode) -> None:
        """Watch the hierarchy of a top-level transaction with the id `number`."""
        with self._latch:
            self._tops[number] = top
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="activedb-crossing", daemon=True
                )
                self._thread.start()
        self._is_needed.set()

    def remove(self, top: TransactionNode) -> None:
        """Stop watching the hierarchy of a top-level transaction."""
        with self._latch:
            self._tops.pop(top.id, None)

    def close(self) -> None:
        """End the thread."""
        with self._latch:
            self._is_closed.set()
            self._is_needed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        polled_s, looked_s, pause_s = time.monotonic(), 0.0, _LOOK_EVERY_S_MIN
        is_new = is_suspicious = False  # whether to look soon, or at once
        while self._is_needed.wait() and not self._is_closed.wait(_TICK_S):
            with self._latch:
                tops = list(self._tops.values())
                if not tops and not self._is_closed.is_set():
                    self._is_needed.clear()
            try:
                called = [top.hierarchy.session.called_s for top in tops]
                called += [use.called_s for use in self._forest.store.plain_uses()]
                now_s = time.monotonic()
                new_s, polled_s = now_s - polled_s, now_s
                if all(seconds < _LOOK_AFTER_S for seconds in called):
                    self._seen.clear()
                    self._take_back(_at_server(tops))
                    is_new = is_suspicious = False
                    continue
                if is_new := is_new or any(0 <= s - _LOOK_AFTER_S <= new_s for s in called):
                    pause_s = _LOOK_EVERY_S_MIN
                if not is_suspicious and now_s - looked_s < pause_s:
                    continue
                is_suspicious = self.look_once(tops)
            except Exception:
                _LOG.exception("cannot look for deadlocks through the server")
                is_suspicious = False
                self._is_closed.wait(pause_s)
            is_new, looked_s = False, time.monotonic()
            pause_s = min(2 * pause_s, _LOOK_EVERY_S_MAX)

    def look_once(self, tops: Iterable[TransactionNode]) -> bool:
        """Ask the server for its waits, and break a deadlock; return whether one is suspected."""
        try:
            backends = {backend.number: backend for backend in self._forest.store.backends()}
        except ActiveDBError:
            return False  # the server is away; its users get their own errors
        # Only transactions begun on the server: waits are published per transaction, not process.
        ours = {n: top for n, top in _at_server(tops).items() if n in backends}
        edges = self._local_edges()
        plain = {use.backend: use for use in self._forest.store.plain_uses() if use.backend}
        asleep = _Asleep(self._forest, ours, plain, edges)
        waits = _Waits(backends, ours, plain, _local_waits(edges, ours), asleep)
        self._publish(waits.local, ours)
        cycles = waits.cycles()
        # Local and server waits were not read at one moment, so a cycle counts if it is seen twice.
        self._seen = {nodes: self._seen.get(nodes, 0) + 1 for nodes in cycles}
        for nodes, cycle in cycles.items():
            if self._seen[nodes] > 1:
                self._break(cycle, self._seen[nodes], waits)
        return bool(cycles)

    def _local_edges(self) -> dict[int, set[int]]:
        """Return the local waits between hierarchies, by their top-level transactions."""
        snapshot = self._forest.locks.snapshot()
        top_of: dict[int, int] = {}
        for view in snapshot.transactions:
            top_of[view.tid] = view.tid if view.parent is None else top_of[view.parent]
        edges: dict[int, set[int]] = {}
        for edge in snapshot.edges:
            edges.setdefault(top_of[edge.waiter], set()).add(top_of[edge.waited_for])
        for view in snapshot.transactions:
            # A causal transaction uses the connection of its cause, and cannot end before it.
            for cause in view.causes:
                edges.setdefault(view.tid, set()).add(top_of[cause])
        return edges

    def _publish(
        self, local: Mapping[int, frozenset[int]], ours: Mapping[int, TransactionNode]
    ) -> None:
        """Publish the local waits of the hierarchies on the server, for other processes."""
        for number, top in ours.items():
            waits = local.get(number, frozenset())
            is_news = waits != self._published.get(top.id, frozenset())
            if is_news and top.hierarchy.session.publish_waits(waits):
                self._published[top.id] = waits
        for gone in self._published.keys() - {top.id for top in ours.values()}:
            del self._published[gone]

    def _take_back(self, ours: Mapping[int, TransactionNode]) -> None:
        """Withdraw published waits that are over, while no look for deadlocks is due."""
        if any(self._published.values()):
            nothing: frozenset[int] = frozenset()
            local = _local_waits(self._local_edges(), ours)
            still = {
                number: local.get(number, nothing) & self._published.get(top.id, nothing)
                for number, top in ours.items()
            }
            self._publish(still, ours)

    def _break(self, cycle: list[int], looks: int, waits: _Waits) -> None:
        """Abort the youngest hierarchy of the cycle, or leave that to its own process."""
        asleep, ours, backends = waits.asleep, waits.ours, waits.backends
        following = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        of_threads = [(a, b) for a, b in following if b in asleep.waits.get(a, ())]
        if of_threads:
            refuse = next(
                (asleep.refuse[step] for step in of_threads if step in asleep.refuse), None
            )
            if refuse is not None:
                self._forest.counters.add("deadlocks_crossing")
                refuse()
                return
            is_own = (
                len(cycle) - len(of_threads) == 1 and of_threads[0] not in asleep.through_others
            )
            self._end_sleep(of_threads[0], is_own, waits)
            return
        if ours.keys().isdisjoint(cycle):
            return
        candidates = [n for n in cycle if n in ours or backends[n].is_ours]
        victim = max(candidates, key=lambda n: (backends[n].began, n))
        if victim not in ours:
            if looks < _YIELDS_MAX:
                return
            victim = max((n for n in cycle if n in ours), key=lambda n: (backends[n].began, n))
        top = ours[victim]
        links = [Link(ours.get(a, a), ours.get(b, b), waits.place(a, b)) for a, b in following]
        said = (
            f"{waits.name(a)} waits {link.where} for {waits.name(b)}"
            for (a, b), link in zip(following, links, strict=True)
        )
        deadlock = Deadlock(
            f"deadlock through the server, and {top.path} is its victim: {'; '.join(said)}"
        )
        deadlock.exhausted = True  # only the end of the hierarchy releases its locks
        if not top.is_rollback_only:  # its end may take longer than one poll
            self._forest.counters.add("deadlocks_crossing")
            if top.observer is not None:
                top.observer.deadlocked(top, tuple(links))
            top.interrupt(deadlock)

    def _end_sleep(self, step: tuple[int, int], is_own: bool, waits: _Waits) -> None:
        """End the statement in which a thread sleeps that another hierarchy needs."""
        stalled, sleeping = step
        top = waits.ours.get(sleeping)
        who = waits.name(sleeping)
        error: ActiveDBError
        if is_own:
            error = SelfDeadlock(
                f"the wait of {who} at the server would never end, because "
                f"{waits.name(stalled)} is open on this same thread and cannot end "
                f"before it: do the work inside that one, end that one first, or make the call on "
                f"a thread of its own and let this one continue"
            )
        else:
            error = deadlock = Deadlock(
                f"deadlock through the server and through a thread that has several transactions "
                f"open, and {who} is its victim"
            )
            deadlock.exhausted = True
        if top is None:
            self._forest.counters.add("deadlocks_crossing")
            waits.plain[sleeping].interrupt(error)
        elif not top.is_rollback_only:
            self._forest.counters.add("deadlocks_crossing")
            top.interrupt(error)


def _behind(
    top: int, edges: Mapping[int, Iterable[int]], number_of: Mapping[int, int]
) -> frozenset[int]:
    """Return the server processes of a hierarchy and of the hierarchies it waits for locally.

    The waits are also followed through hierarchies that are not on the server, because all the
    tables they use are owned, for example.
    """
    reached = {top}
    stack = [top]
    while stack:
        for other in set(edges.get(stack.pop(), ())) - reached:
            reached.add(other)
            if other not in number_of:
                stack.append(other)
    return frozenset(number_of[other] for other in reached & number_of.keys())


def _local_waits(
    edges: Mapping[int, Iterable[int]], ours: Mapping[int, TransactionNode]
) -> dict[int, frozenset[int]]:
    """Return, for each hierarchy with local waits, the server processes it waits for."""
    number_of = {top.id: number for number, top in ours.items()}
    found = ((n, _behind(top, edges, number_of) - {n}) for top, n in number_of.items())
    return {number: others for number, others in found if others}


class _Asleep:
    """Wait-for edges of hierarchies and connections whose threads are asleep.

    Attributes
    ----------
    waits : dict of int to set of int
        The hierarchies or connections that each hierarchy or connection sleeps for, by server
        process.
    through_others : set of (int, int)
        Pairs whose second member is reached through a local wait of the hierarchy in whose wait
        the thread sleeps.
    refuse : dict of (int, int) to callable
        Calls that end the sleep, for the pairs in which no transaction sleeps.
    """

    def __init__(
        self,
        forest: Forest,
        ours: Mapping[int, TransactionNode],
        plain: Mapping[int, UserConnection],
        edges: Mapping[int, Iterable[int]],
    ):
        self.waits: dict[int, set[int]] = {}
        self.through_others: set[tuple[int, int]] = set()
        self.refuse: dict[tuple[int, int], Callable[[], object]] = {}
        self._in_statements(ours, plain)
        if ours:
            self._here(forest, ours, edges)

    def _in_statements(
        self, ours: Mapping[int, TransactionNode], plain: Mapping[int, UserConnection]
    ) -> None:
        open_of: dict[int, set[int]] = {}
        for number, use in plain.items():
            if use.thread is not None:
                open_of.setdefault(use.thread, set()).add(number)
        sleeping = [(t, n) for n, top in ours.items() for t in top.hierarchy.session.callers]
        sleeping += [(use.caller, n) for n, use in plain.items() if use.caller is not None]
        for thread, number in sleeping:
            backends = (node.hierarchy.session.backend for node in open_on(thread))
            for other in open_of.get(thread, set()).union(backends):
                if other is not None and other != number:
                    self.waits.setdefault(other, set()).add(number)

    def _here(
        self,
        forest: Forest,
        ours: Mapping[int, TransactionNode],
        edges: Mapping[int, Iterable[int]],
    ) -> None:
        number_of = {top.id: number for number, top in ours.items()}
        for sleeper in sleepers_in_plain_sql(forest):
            for use in sleeper.plain:
                number = use.backend
                if number is None:
                    continue
                for top in sleeper.tops():
                    for other in _behind(top, edges, number_of) - {number}:
                        self.waits.setdefault(number, set()).add(other)
                        if sleeper.node is None:
                            self.refuse[number, other] = sleeper.refuse
                        elif other != number_of.get(top):
                            self.through_others.add((number, other))


@dataclass(frozen=True, slots=True)
class _Waits:
    """Wait-for graph of hierarchies and connections with plain SQL, all by their server processes.

    Attributes
    ----------
    backends : mapping of int to Backend
        Server processes, as the server lists them.
    ours, plain : mapping of int to TransactionNode or UserConnection
        The hierarchies of the forest, and the connections with plain SQL.
    local : mapping of int to frozenset of int
        Local waits of our hierarchies.
    asleep : _Asleep
    """

    backends: Mapping[int, Backend]
    ours: Mapping[int, TransactionNode]
    plain: Mapping[int, UserConnection]
    local: Mapping[int, frozenset[int]]
    asleep: _Asleep

    def cycles(self) -> dict[frozenset[tuple[int, datetime]], list[int]]:
        """Return the cycles through what is ours, by their nodes and the times these began."""
        waits = {
            # Published waits of our own hierarchies may be stale.
            number: {
                *backend.blockers,
                *(self.local.get(number, ()) if number in self.ours else backend.waits_for),
                *self.asleep.waits.get(number, ()),
            }
            for number, backend in self.backends.items()
        }
        found = {}
        for number in (self.ours.keys() | self.plain.keys()) & waits.keys():
            cycle = cycle_through(number, waits)
            if cycle:
                found[frozenset((n, self.backends[n].began) for n in cycle)] = cycle
        return found

    def place(self, waiter: int, other: int) -> str:
        """Return where one waits for another."""
        if waiter not in self.ours and other in self.backends[waiter].waits_for:
            return "in its own program"
        return "here" if other in self.local.get(waiter, ()) else "at the server"

    def name(self, number: int) -> str:
        """Return a name for messages."""
        if number in self.ours:
            return self.ours[number].path
        if number in self.plain:
            return "SQL on db.connection()"
        return f"process {number} of the server"


def _at_server(tops: Iterable[TransactionNode]) -> dict[int, TransactionNode]:
    """Return top-level transactions by their server process, if they have one."""
    ours: dict[int, TransactionNode] = {}
    for top in tops:
        number = top.hierarchy.session.backend
        if number is not None:
            ours[number] = top
    return ours
