"""Deadlocks through local locks and the server's, found in one wait-for graph.

A hierarchy that waits for another one waits for the end of that, here as at the server: locks of
a hierarchy pass on inside it until its top-level transaction ends, which waits for all that run in
it. So the nodes are hierarchies, known by the server's process beneath them, and a cycle is a
deadlock. Cycles of local waits alone are found by the lock manager, those of waits at the server
alone by the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from activedb.errors import ActiveDBError, Deadlock
from activedb.store import Backend

if TYPE_CHECKING:
    from activedb.transactions._transaction import Transaction
    from lockmgr import LockManager

__all__ = ["Crossing", "cycle_through"]

_TICK_S = 0.05
_LOOK_AFTER_S = 0.1  # a statement that takes longer may be waiting for a lock
_LOOK_EVERY_S_MAX = 1.0
_YIELDS_MAX = 10  # looks for which a victim of another process is waited for


def cycle_through(start: int, waits: Mapping[int, Iterable[int]]) -> list[int]:
    """The nodes of a cycle through `start`, in order; empty if there is none. O(edges)."""
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
    """Watches the hierarchies of one forest for waits that cross to the server.

    One daemon thread, started by the first hierarchy of a store that others share. It asks the
    server only while a statement has been running for long.

    Latch: ``_latch``, under which nothing else is taken.
    """

    def __init__(
        self,
        locks: Callable[[], LockManager],
        look: Callable[[], list[Backend]],
        broke: Callable[[], object],
    ):
        self._locks = locks
        self._look = look
        self._broke = broke
        self._latch = threading.Lock()
        self._tops: dict[int, Transaction] = {}
        self._is_needed = threading.Event()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: dict[frozenset[int], int] = {}
        self._published: dict[int, frozenset[int]] = {}

    def add(self, number: int, top: Transaction) -> None:
        """Watch the hierarchy of a top-level transaction that begins as `number`."""
        with self._latch:
            self._tops[number] = top
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="activedb-crossing", daemon=True
                )
                self._thread.start()
        self._is_needed.set()

    def remove(self, top: Transaction) -> None:
        """Watch it no longer."""
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
        next_look, pause = 0.0, _LOOK_AFTER_S
        while self._is_needed.wait() and not self._is_closed.wait(_TICK_S):
            with self._latch:
                tops = list(self._tops.values())
                if not tops and not self._is_closed.is_set():
                    self._is_needed.clear()
            if all(top.hierarchy.session.called_s < _LOOK_AFTER_S for top in tops):
                next_look, pause = 0.0, _LOOK_AFTER_S
                self._seen.clear()
            elif time.monotonic() >= next_look:
                suspicious = self.look_once(tops)
                pause = _LOOK_AFTER_S if suspicious else min(2 * pause, _LOOK_EVERY_S_MAX)
                next_look = time.monotonic() + pause

    def look_once(self, tops: Iterable[Transaction]) -> bool:
        """Ask the server who waits, and break a deadlock; returns whether one is suspected."""
        try:
            backends = {backend.number: backend for backend in self._look()}
        except ActiveDBError:
            return False  # the server is away: whoever needs it is told so
        ours: dict[int, Transaction] = {}
        for top in tops:
            number = top.hierarchy.session.backend
            if number is not None:
                ours[number] = top
        local = self._local_waits(ours)
        self._publish(local, ours)
        waits = {
            number: {*backend.blockers, *local.get(number, backend.waits_for)}
            for number, backend in backends.items()
        }
        cycles = {frozenset(c): c for c in (cycle_through(n, waits) for n in local) if c}
        # What was read here and there is not of one moment: it counts if it is there twice.
        self._seen = {nodes: self._seen.get(nodes, 0) + 1 for nodes in cycles}
        for nodes, cycle in cycles.items():
            if self._seen[nodes] > 1:
                self._break(cycle, backends, ours, local)
        return bool(cycles)

    def _local_waits(self, ours: Mapping[int, Transaction]) -> dict[int, frozenset[int]]:
        """For each hierarchy that waits here for others: their processes of the server."""
        snapshot = self._locks().snapshot()
        top_of: dict[int, int] = {}
        for view in snapshot.transactions:
            top_of[view.tid] = view.tid if view.parent is None else top_of[view.parent]
        number_of = {top.id: number for number, top in ours.items()}
        waits: dict[int, set[int]] = {}
        for edge in snapshot.edges:
            one = number_of.get(top_of[edge.waiter])
            other = number_of.get(top_of[edge.waited_for])
            if one is not None and other is not None and one != other:
                waits.setdefault(one, set()).add(other)
        return {number: frozenset(others) for number, others in waits.items()}

    def _publish(
        self, local: Mapping[int, frozenset[int]], ours: Mapping[int, Transaction]
    ) -> None:
        """Tell other processes what this one knows of the hierarchies at the server."""
        for number, top in ours.items():
            waits = local.get(number, frozenset())
            is_news = waits != self._published.get(number, frozenset())
            if is_news and top.hierarchy.session.publish_waits(waits):
                self._published[number] = waits
        for number in self._published.keys() - ours.keys():
            del self._published[number]

    def _break(
        self,
        cycle: list[int],
        backends: Mapping[int, Backend],
        ours: Mapping[int, Transaction],
        local: Mapping[int, frozenset[int]],
    ) -> None:
        """Abort the youngest hierarchy of the cycle, or leave that to the process it is in."""
        candidates = [n for n in cycle if n in ours or backends[n].is_ours]
        victim = max(candidates, key=lambda n: (backends[n].began, n))
        if victim not in ours:
            if self._seen[frozenset(cycle)] < _YIELDS_MAX:
                return
            victim = max((n for n in cycle if n in ours), key=lambda n: (backends[n].began, n))
        top = ours[victim]
        links = []
        for waiter, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            where = "here" if other in local.get(waiter, ()) else "at the server"
            links.append(f"{_named(waiter, ours)} waits {where} for {_named(other, ours)}")
        deadlock = Deadlock(
            f"deadlock through the server, and {top.path} is its victim: {'; '.join(links)}"
        )
        deadlock.exhausted = True  # only the end of the hierarchy gives up its locks
        self._broke()
        top.interrupt(deadlock)


def _named(number: int, ours: Mapping[int, Transaction]) -> str:
    return ours[number].path if number in ours else f"process {number} of the server"
