"""The locking protocol told naively: dictionaries of facts, and questions answered from scratch.

Written from rules 1 to 5 (Saygin, Ulusoy, Chakravarthy, section 3.1) and from what README says of
queues, waits and victims; it shares nothing with the table but the two tables of modes. It knows
what may be, `Oracle` compares it with what the table did.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar

from lockmgr import Edge, EdgeKind, LockView, Mode, Predicate, Resource, TransactionView
from lockmgr._modes import COMPATIBLE, SUPREMUM

Queues: TypeAlias = dict[Resource, list[int]]
Lock: TypeAlias = tuple[int, Resource]
Row: TypeAlias = Mapping[str, int | None]
Reason: TypeAlias = tuple[EdgeKind, Mode]
"""Reason to wait for another: the kind of edge, and the mode of the other's lock or request."""

T = TypeVar("T")
WRITING = {Mode.IX, Mode.SIX, Mode.X}
BLOCKED_BY = {EdgeKind.HELD, EdgeKind.RETAINED, EdgeKind.SOFT, EdgeKind.DEPENDENCY}
"""The kinds of edges that a wait has; the others are not about a call that waits."""


class Model:
    """Live transactions, what they own, what they wait for, and in which order.

    Waiting transactions are two nodes of the wait-for graph: the number stands for the end of the
    transaction, its negative for the end of its wait.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.parents: dict[int, int | None] = {}
        """Live transactions in order of their begin."""
        self.inline: set[int] = set()
        self.causes: dict[int, set[int]] = {}
        self.merged: Counter[int] = Counter()
        self.held: dict[Lock, Mode] = {}
        self.retained: dict[Lock, Mode] = {}
        self.asked: dict[int, tuple[Resource, Mode]] = {}
        self.awaited: dict[int, int] = {}
        self.queues: Queues = {}
        self.declared: dict[Lock, list[tuple[Row, bool]] | None] = {}
        """Rows declared by transactions in tables, each with whether their locks are held."""

    # -- what happens ------------------------------------------------------------------------

    def begin(self, tid: int, parent: int | None, causes: Iterable[int], inline: bool) -> None:
        self.parents[tid] = parent
        self.causes[tid] = set(causes)
        if inline:
            self.inline.add(tid)

    def hold(self, tid: int, resource: Resource, mode: Mode) -> None:
        self.held[tid, resource] = mode

    def retain(self, tid: int, resource: Resource, mode: Mode) -> None:
        before = self.retained.get((tid, resource))
        self.retained[tid, resource] = mode if before is None else SUPREMUM[before][mode]

    def downgrade(self, tid: int, resource: Resource, mode: Mode | None) -> None:
        """Rule 5."""
        self.retain(tid, resource, self.held.pop((tid, resource)))
        if mode is not None:
            self.hold(tid, resource, mode)
        rows = self.declared.get((tid, resource))
        if rows and mode not in WRITING:
            self.declared[tid, resource] = [(row, False) for row, _ in rows]

    def end(self, tid: int, heir: int | None, *, committed: bool) -> set[int]:
        """Rules 2 to 4; return whose wait for the end of `tid` is over."""
        parent = self.parents.pop(tid)
        for other, table in list(self.declared):
            is_known = (tid, table) in self.declared
            if other == heir and not is_known and self.may_have_written(tid, table):
                self.declared[heir, table] = None
        for resource, rows in of(tid, self.declared).items():
            del self.declared[tid, resource]
            if heir is not None:
                self._inherit(heir, resource, rows)
        for locks in (self.held, self.retained):
            for resource, mode in of(tid, locks).items():
                del locks[tid, resource]
                if heir is not None:
                    self.retain(heir, resource, mode)
        del self.causes[tid]
        successor = parent if committed else None
        for causes in self.causes.values():
            if tid in causes:
                causes.remove(tid)
                causes.update(() if successor is None else (successor,))
        over: set[int] = set()
        for waiter in [waiter for waiter, awaited in self.awaited.items() if awaited == tid]:
            if successor is None or successor in (waiter, *self.superiors(waiter)):
                over.add(waiter)
                del self.awaited[waiter]
            else:
                self.awaited[waiter] = successor
        undone = 1 + self.merged.pop(tid, 0)
        if successor is not None:
            self.merged[successor] += undone
        self.inline.discard(tid)
        return over

    def _inherit(self, heir: int, table: Resource, rows: list[tuple[Row, bool]] | None) -> None:
        known = self.declared.get((heir, table))
        if known is None and ((heir, table) in self.declared or self.may_have_written(heir, table)):
            rows = None
        if rows is not None:
            rows = [*(known or []), *((row, False) for row, _ in rows)]
        self.declared[heir, table] = rows

    def meet(self, resource: Resource) -> None:
        """Lock a new predicate for the transactions that may have written what it covers."""
        predicate, table = resource[-1], resource[:-1]
        is_known = any(there == resource for _, there in (*self.held, *self.retained))
        if is_known or not isinstance(predicate, Predicate):
            return
        for locks in (self.held, self.retained):
            for (tid, there), mode in list(locks.items()):
                if there == table and mode in WRITING:
                    rows = self.declared.get((tid, table))
                    if rows is None or any(
                        satisfies(row, predicate)
                        for row, held in rows
                        if held == (locks is self.held)
                    ):
                        locks[tid, resource] = Mode.IX

    def declare(
        self, tid: int, table: Resource, rows: list[Row] | None, *, first: bool
    ) -> set[Predicate]:
        """Return what to lock before; declare the rows if that is nothing."""
        known = {there for _, there in (*self.held, *self.retained) if there[:-1] == table}
        needed: set[Predicate] = set()
        for resource in known:
            predicate = resource[-1]
            if not isinstance(predicate, Predicate) or self.may_use(tid, resource, Mode.IX):
                continue
            if rows is None or any(satisfies(row, predicate) for row in rows):
                needed.add(predicate)
        if needed:
            return needed
        before = self.declared.get((tid, table))
        is_new = (tid, table) not in self.declared
        if is_new and first and self.retained.get((tid, table)) not in WRITING:
            before = []
        self.declared[tid, table] = None
        if rows is not None and before is not None:
            self.declared[tid, table] = [*before, *((row, True) for row in rows)]
        return needed

    def may_have_written(self, tid: int, table: Resource) -> bool:
        """Return whether a transaction owns a lock under which it may have written in a table."""
        owned = self.held.get((tid, table)), self.retained.get((tid, table))
        return any(mode in WRITING for mode in owned)

    def stop_waiting(self, tid: int) -> None:
        self.asked.pop(tid, None)
        self.awaited.pop(tid, None)

    # -- who is who --------------------------------------------------------------------------

    def waits(self, tid: int) -> bool:
        return tid in self.asked or tid in self.awaited

    def children(self, tid: int) -> list[int]:
        return [child for child, parent in self.parents.items() if parent == tid]

    def superiors(self, tid: int) -> list[int]:
        parent = self.parents[tid]
        return [] if parent is None else [parent, *self.superiors(parent)]

    def line(self, tid: int) -> set[int]:
        """The transaction, its superiors, and its causal ancestors with theirs."""
        parent = self.parents[tid]
        nearest = self.causes[tid] if parent is None else {parent}
        return {tid}.union(*(self.line(other) for other in nearest))

    def sphere(self, tid: int) -> list[int]:
        return [tid, *(other for other in self.parents if tid in self.superiors(other))]

    def hosts(self, tid: int) -> list[int]:
        """The superiors on whose thread it runs, from its parent up."""
        parent = self.parents[tid]
        return [parent, *self.hosts(parent)] if parent is not None and tid in self.inline else []

    def may_begin_inline(self, parent: int) -> bool:
        """Return whether `parent` is the innermost on its thread, and awake: only that one runs."""
        return not self.waits(parent) and self.inline.isdisjoint(self.children(parent))

    def innermost(self, tid: int) -> int:
        """Return the transaction that its thread runs."""
        inner = [child for child in self.children(tid) if child in self.inline]
        return self.innermost(inner[0]) if inner else tid

    def is_stalled(self, tid: int) -> bool:
        """Return whether its thread sleeps in a call of its own or of another."""
        innermost = self.innermost(tid)
        return any(self.waits(other) for other in (innermost, *self.hosts(innermost)))

    # -- who may have what -------------------------------------------------------------------

    def covers(self, tid: int, resource: Resource, mode: Mode) -> bool:
        """Return whether it holds something enclosing `resource` that makes `mode` needless."""
        enough = {Mode.S, Mode.SIX, Mode.X} if mode in (Mode.IS, Mode.S) else {Mode.X}
        return any(
            self.held.get((tid, resource[:length])) in enough for length in range(1, len(resource))
        )

    def may_use(self, tid: int, resource: Resource, mode: Mode) -> bool:
        """Return whether it holds `resource` in `mode`, or what covers that."""
        held = self.held.get((tid, resource))
        return (held is not None and SUPREMUM[held][mode] is held) or self.covers(
            tid, resource, mode
        )

    def in_the_way(self, tid: int, resource: Resource, mode: Mode) -> dict[int, Reason]:
        """Return the transactions because of which rule 1 does not grant, and why."""
        found: dict[int, Reason] = {}
        for (other, there), held in self.held.items():
            if there == resource and other != tid and not COMPATIBLE[mode][held]:
                found[other] = (EdgeKind.HELD, held)
        for (other, there), retained in self.retained.items():
            if there == resource and not COMPATIBLE[mode][retained] and other not in self.line(tid):
                found.setdefault(other, (EdgeKind.RETAINED, retained))
        return found

    def blockers(self, tid: int, queue: list[int]) -> dict[int, Reason]:
        """Return the transactions that a request waits for, with the hardest reason for each."""
        resource, mode = self.asked[tid]
        found = self.in_the_way(tid, resource, mode)
        for other in queue[: queue.index(tid)]:
            if self.conflict(tid, other):
                found.setdefault(other, (EdgeKind.SOFT, self.asked[other][1]))
        return found

    def enqueued(self, tid: int, queues: Queues) -> Queues:
        """The queues when a transaction has taken its place for what it has just asked for.

        That is behind all others; an upgrade's is before the first, upgrades apart, who waits for
        what the upgrader holds.
        """
        resource = self.asked[tid][0]
        queue = queues.get(resource, [])
        place = len(queue)
        held = self.held.get((tid, resource))
        if held is not None:
            in_its_way = (
                i
                for i, other in enumerate(queue)
                if (other, resource) not in self.held and not COMPATIBLE[self.asked[other][1]][held]
            )
            place = next(in_its_way, place)
        return {**queues, resource: [*queue[:place], tid, *queue[place:]]}

    def conflict(self, tid: int, other: int) -> bool:
        """Return whether the requests of two transactions conflict."""
        return not COMPATIBLE[self.asked[tid][1]][self.asked[other][1]]

    # -- the wait-for graph ------------------------------------------------------------------

    def wait_edges(self, tid: int, queues: Queues) -> set[Edge]:
        """The edges of a wait."""
        if tid in self.awaited:
            return {Edge(tid, self.awaited[tid], EdgeKind.DEPENDENCY)}
        resource, mode = self.asked[tid]
        return {
            Edge(tid, other, kind, resource, mode, against)
            for other, (kind, against) in self.blockers(tid, queues[resource]).items()
        }

    def edges(self, queues: Queues) -> set[Edge]:
        """The whole wait-for graph."""
        edges = {
            Edge(parent, tid, EdgeKind.COMMIT)
            for tid, parent in self.parents.items()
            if parent is not None
        }
        for tid in self.parents:
            if self.waits(tid):
                edges |= self.wait_edges(tid, queues)
            asleep = [host for host in self.hosts(tid) if self.waits(host)]
            edges |= {Edge(tid, host, EdgeKind.INLINE) for host in asleep[:1]}
        return edges

    def on_cycles(self, queues: Queues) -> set[int]:
        """The transactions that are on a cycle, by their end or by their wait."""
        reach: dict[int, set[int]] = {tid: set() for tid in self.parents}
        for tid in (*self.asked, *self.awaited):
            reach[-tid] = set()
            reach[tid].add(-tid)
        for edge in self.edges(queues):
            waiter, other = edge.waiter, edge.waited_for
            if edge.kind is EdgeKind.INLINE:
                reach[waiter].add(-other)
            else:
                reach[-waiter if edge.kind in BLOCKED_BY else waiter].add(other)
        for via in reach:
            for targets in reach.values():
                if via in targets:
                    targets |= reach[via]
        return {abs(node) for node, targets in reach.items() if node in targets}

    def named(self, cycle: list[Edge]) -> int:
        """Return the victim by the policy, of a cycle that begins with the requester's edge."""
        blocked = [edge.waiter for edge in cycle if edge.kind in BLOCKED_BY]
        if self.policy == "requester":
            return blocked[0]
        if self.policy == "blocker":
            after = [edge.waiter for edge in cycle[1:] if edge.kind in BLOCKED_BY]
            return (after or blocked)[0]
        if self.policy == "youngest":
            return max(blocked, key=list(self.parents).index)
        if self.policy == "smallest hierarchy":
            return min(blocked, key=lambda tid: sum(1 + self.merged[t] for t in self.sphere(tid)))
        assert self.policy == "least work"
        owned = Counter(owner for owner, _ in (*self.held, *self.retained))
        return min(blocked, key=lambda tid: sum(owned[t] for t in self.sphere(tid)))

    # -- as the table tells it ---------------------------------------------------------------

    def transaction_views(self) -> list[TransactionView]:
        return [
            TransactionView(tid, parent, tuple(sorted(self.causes[tid])), tid in self.inline)
            for tid, parent in self.parents.items()
        ]

    def lock_views(self) -> set[LockView]:
        return {
            LockView(resource, tid, mode, locks is self.held)
            for locks in (self.held, self.retained)
            for (tid, resource), mode in locks.items()
        }


def satisfies(row: Row, predicate: Predicate) -> bool:
    """Return whether a row satisfies a predicate, by the letter of its text."""
    told = repr(predicate).strip("{}").replace(" = ", " == ")
    told = re.sub(r" in ([^}a-z]*)", r" in (\1,)", told).replace(" null", " None")
    try:
        return bool(eval(told, {}, dict(row)))
    except TypeError:
        return False  # None is in no order


def of(tid: int, locks: dict[Lock, T]) -> dict[Resource, T]:
    """Return those of some locks that one transaction owns."""
    return {resource: mode for (owner, resource), mode in locks.items() if owner == tid}
