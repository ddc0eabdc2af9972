"""The locking protocol told naively: everything is recomputed from the list of what happened.

Two things are taken from the table under test as given, because the protocol leaves them open:
which of several cycles it broke first, and by which move. Each outcome is checked to be one that
the protocol allows, and where it allows only one, to be that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from lockmgr import (
    Blocked,
    Denial,
    Denied,
    Edge,
    EdgeKind,
    Effects,
    Grant,
    Granted,
    Mode,
    Reply,
    Resource,
)
from lockmgr._modes import COMPATIBLE, SUPREMUM

Queues: TypeAlias = dict[Resource, list[int]]
Lock: TypeAlias = tuple[int, Resource]
Arcs: TypeAlias = dict[int, dict[int, EdgeKind]]


class Model:
    """What the rules say, from a list of facts; `queues` holds the observed queue orders."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, int, Resource, Mode | int | None]] = []
        self.queues: Queues = {}
        self.parents: dict[int, int | None] = {}
        self.held: dict[Lock, Mode] = {}
        self.retained: dict[Lock, Mode] = {}
        self.asked: dict[int, tuple[Resource, Mode]] = {}

    def add(
        self, verb: str, tid: int, resource: Resource = (), what: Mode | int | None = None
    ) -> None:
        """Add a fact and compute everything again, from the first fact on."""
        self.facts.append((verb, tid, resource, what))
        self.parents, self.held, self.retained, self.asked = {}, {}, {}, {}
        for fact in self.facts:
            self._replay(*fact)

    def _replay(self, verb: str, tid: int, resource: Resource, what: Mode | int | None) -> None:
        lock = (tid, resource)
        if verb == "begin":
            self.parents[tid] = what
        elif verb == "ask":
            assert isinstance(what, Mode)
            self.asked[tid] = (resource, what)
        elif verb == "withdraw":
            del self.asked[tid]
        elif verb == "grant":
            assert isinstance(what, Mode)
            self.held[lock] = what
            self.asked.pop(tid, None)
        elif verb == "downgrade":
            self._retain(lock, self.held.pop(lock))
            if isinstance(what, Mode):
                self.held[lock] = what
        else:
            assert verb in {"commit", "abort"}
            parent = self.parents.pop(tid)
            for locks in (self.held, self.retained):
                for owner, owned in [key for key in locks if key[0] == tid]:
                    mode = locks.pop((owner, owned))
                    if verb == "commit" and parent is not None:
                        self._retain((parent, owned), mode)

    def _retain(self, lock: Lock, mode: Mode) -> None:
        before = self.retained.get(lock)
        self.retained[lock] = mode if before is None else SUPREMUM[before][mode]

    # -- the rules ---------------------------------------------------------------------------

    def line(self, tid: int) -> list[int]:
        """The transaction and its superiors."""
        superior = self.parents[tid]
        return [tid] if superior is None else [tid, *self.line(superior)]

    def children(self, tid: int) -> list[int]:
        return [child for child, parent in self.parents.items() if parent == tid]

    def in_the_way(self, tid: int, resource: Resource, mode: Mode) -> dict[int, EdgeKind]:
        """Whom rule 1 keeps from granting."""
        found: dict[int, EdgeKind] = {}
        for (other, there), held in self.held.items():
            if there == resource and other != tid and not COMPATIBLE[mode][held]:
                found[other] = EdgeKind.HELD
        for (other, there), retained in self.retained.items():
            if there == resource and other not in self.line(tid) and not COMPATIBLE[mode][retained]:
                found.setdefault(other, EdgeKind.RETAINED)
        return found

    def blockers(self, tid: int, queue: list[int]) -> dict[int, EdgeKind]:
        """Whom a waiting transaction waits for, with the hardest kind of edge to each."""
        resource, mode = self.asked[tid]
        found = self.in_the_way(tid, resource, mode)
        for other in queue[: queue.index(tid)]:
            if not COMPATIBLE[mode][self.asked[other][1]]:
                found.setdefault(other, EdgeKind.SOFT)
        return found

    def arcs(self, queues: Queues) -> Arcs:
        """The whole wait-for graph."""
        arcs: Arcs = {
            tid: dict.fromkeys(self.children(tid), EdgeKind.COMMIT) for tid in self.parents
        }
        for tid, (resource, _) in self.asked.items():
            arcs[tid].update(self.blockers(tid, queues[resource]))
        return arcs

    def has_cycle(self, queues: Queues) -> bool:
        reach = {tid: set(targets) for tid, targets in self.arcs(queues).items()}
        for via in reach:
            for targets in reach.values():
                if via in targets:
                    targets |= reach[via]
        return any(tid in targets for tid, targets in reach.items())

    # -- what the table did ------------------------------------------------------------------

    def check_request(
        self, tid: int, resource: Resource, asked: Mode, reply: Reply, after: Queues
    ) -> None:
        held = self.held.get((tid, resource))
        mode = asked if held is None else SUPREMUM[held][asked]
        if mode is held:
            assert reply == Granted()
            assert after == self.queues
            return
        self.add("ask", tid, resource, mode)
        queue = self.queues.get(resource, [])
        place = len(queue)
        if held is not None:
            place = next((i for i, t in enumerate(queue) if (t, resource) not in self.held), place)
        natural = {**self.queues, resource: [*queue[:place], tid, *queue[place:]]}
        if not self.has_cycle(natural):
            blockers = self.blockers(tid, natural[resource])
            if blockers:
                edges = {Edge(tid, other, kind, resource, mode) for other, kind in blockers.items()}
                assert isinstance(reply, Blocked)
                assert set(reply.edges) == edges
                assert len(reply.edges) == len(edges)
                assert after == natural
            else:
                assert isinstance(reply, Granted)
                assert after == self.queues
                self.add("grant", tid, resource, mode)
            assert reply.effects == ()
        elif isinstance(reply, Denied):
            for position in range(place + 1):
                order = [*queue[:position], tid, *queue[position:]]
                assert self.has_cycle({**self.queues, resource: order}), "denied without need"
            assert reply.report.victim == tid
            self._check_cycle(reply.report.cycle, natural)
            self.add("withdraw", tid)
            self._apply_grants(reply.effects)
        else:
            own = (Grant(tid, resource, mode),) if isinstance(reply, Granted) else ()
            self._apply_grants((*own, *reply.effects))
            assert (tid in self.asked) == isinstance(reply, Blocked)
        self._settle(after)

    def check_end(self, verb: str, tid: int, effects: Effects, after: Queues) -> None:
        """Check a commit, abort or withdrawal."""
        parent = self.parents[tid]
        if verb == "withdraw":
            self.queues[self.asked[tid][0]].remove(tid)
        self.add(verb, tid)
        if self.has_cycle(self.queues):
            assert verb == "commit"
            denials = [step for step in effects if isinstance(step, Denial)]
            for victim, report in denials:
                assert report.victim == victim
                assert report.cycle[0].waited_for == parent
                assert report.cycle[0].kind is EdgeKind.RETAINED
                self._check_cycle(report.cycle, self.queues)
                self.queues[self.asked[victim][0]].remove(victim)
                self.add("withdraw", victim)
            self._apply_grants(effects[len(denials) :])
        else:
            self.check_quiet(effects, after)
        self._settle(after)

    def check_quiet(self, effects: Effects, after: Queues) -> None:
        """Check a change that closed no cycle: the heads of the queues go, nobody moves."""
        expected: dict[Resource, list[Grant]] = {}
        for resource, queue in self.queues.items():
            for tid in list(queue):
                if not self.blockers(tid, queue):
                    expected.setdefault(resource, []).append(Grant(tid, *self.asked[tid]))
                    self.add("grant", tid, *self.asked[tid])
                    queue.remove(tid)
        actual: dict[Resource, list[Grant]] = {}
        for step in effects:
            assert isinstance(step, Grant)
            actual.setdefault(step.resource, []).append(step)
        assert actual == expected
        self._settle(after)

    def _apply_grants(self, steps: Sequence[Grant | Denial]) -> None:
        for step in steps:
            assert isinstance(step, Grant)
            assert self.asked[step.tid] == (step.resource, step.mode)
            assert not self.in_the_way(step.tid, step.resource, step.mode)
            self.add("grant", step.tid, step.resource, step.mode)

    def _check_cycle(self, cycle: tuple[Edge, ...], queues: Queues) -> None:
        """Each edge is there, save that moves may have made soft edges that `queues` lacks."""
        arcs = self.arcs(queues)
        for edge, following in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            assert edge.waited_for == following.waiter
            if edge.kind is EdgeKind.SOFT:
                assert edge.resource is not None
                assert {edge.waiter, edge.waited_for} <= set(queues[edge.resource])
            else:
                assert arcs[edge.waiter][edge.waited_for] is edge.kind
            if edge.kind is not EdgeKind.COMMIT:
                assert self.asked[edge.waiter] == (edge.resource, edge.mode)

    def _settle(self, after: Queues) -> None:
        """Take over the observed order of the queues; it must be stable and free of cycles."""
        self.queues = after
        waiting = sorted((resource, tid) for resource, queue in after.items() for tid in queue)
        assert waiting == sorted((resource, tid) for tid, (resource, _) in self.asked.items())
        for resource, queue in after.items():
            for tid in queue:
                assert self.blockers(tid, queue), f"{tid} waits for nobody on {resource}"
        assert not self.has_cycle(after)
