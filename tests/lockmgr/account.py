"""Account of all that has happened, as a list of facts, and the locking rules taken literally.

The facts: which transaction is whose child and depends on which, which holds, retains and asks for
what, and which awaits whose end. Every question is answered by going through all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from lockmgr import Denial, Edge, EdgeKind, Ended, Grant, Mode, Predicate, Resource
from lockmgr._modes import COMPATIBLE, SUPREMUM

Row: TypeAlias = Mapping[str, int | None]
Node: TypeAlias = tuple[str, int]
"""The end of a transaction, or the end of its present wait."""


class Lock(NamedTuple):
    """A lock that is held or retained."""

    owner: int
    resource: Resource
    mode: Mode
    kind: EdgeKind


class Write(NamedTuple):
    """A row that is declared; None for any row."""

    owner: int
    table: Resource
    row: Row | None
    kind: EdgeKind


class Account:
    """The facts; it says what cannot be, with `AssertionError`."""

    def __init__(self) -> None:
        self.parents: dict[int, int | None] = {}
        self.causes: dict[int, set[int]] = {}
        self.inline: set[int] = set()
        self.locks: list[Lock] = []
        self.asked: dict[int, tuple[Resource, Mode]] = {}
        self.awaited: dict[int, int] = {}
        self.writes: list[Write] = []

    # -- facts -------------------------------------------------------------------------------

    def begin(self, tid: int, parent: int | None, causes: Iterable[int], *, inline: bool) -> None:
        self.parents[tid] = parent
        self.causes[tid] = set(causes)
        if inline:
            self.inline.add(tid)

    def withdraw(self, tid: int) -> None:
        """Take away what a transaction waits for, if anything."""
        self.asked.pop(tid, None)
        self.awaited.pop(tid, None)

    def retain(self, tid: int, resource: Resource | None = None) -> None:
        """Let a transaction retain what it holds, one resource or all."""
        self._hand_on([x for x in self._held(tid) if resource in (None, x.resource)], tid)
        if resource is None:
            self._hand_on_writes(tid, tid)

    def hold(self, tid: int, resource: Resource, mode: Mode) -> None:
        """Let a transaction hold a resource in this mode instead of its present one."""
        old = [lock for lock in self._held(tid) if lock.resource == resource]
        self.locks = [lock for lock in self.locks if lock not in old]
        self.locks.append(Lock(tid, resource, mode, EdgeKind.HELD))

    def end(self, tid: int, *, heir: int | None, successor: int | None) -> None:
        """End a transaction: the heir retains its locks, the successor is awaited instead of it.

        For transactions in the successor's sphere, that was the end that they awaited.
        """
        del self.parents[tid], self.causes[tid]
        self.inline.discard(tid)
        if heir is not None:
            self._note_silence(tid, heir)
        self._hand_on_writes(tid, heir)
        self._hand_on([lock for lock in self.locks if lock.owner == tid], heir)
        for causes in self.causes.values():
            if tid in causes:
                causes.remove(tid)
                causes.update(() if successor is None else (successor,))
        if successor is not None:
            for waiter, of in self.awaited.items():
                if of == tid and successor not in self._superiors(waiter):
                    self.awaited[waiter] = successor

    def _hand_on(self, locks: list[Lock], heir: int | None) -> None:
        """Take locks away; let the heir retain them, merged with what he retains already."""
        for lock in locks:
            self.locks.remove(lock)
            if heir is not None:
                merged = lock._replace(owner=heir, kind=EdgeKind.RETAINED)
                for other in self.locks:
                    if other[:2] == merged[:2] and other.kind is EdgeKind.RETAINED:
                        merged = merged._replace(mode=SUPREMUM[other.mode][lock.mode])
                        self.locks.remove(other)
                        break
                self.locks.append(merged)

    def write(self, tid: int, table: Resource, rows: Sequence[Row] | None) -> None:
        """Enter the rows that a transaction declares."""
        listed = [None] if rows is None else rows
        self.writes += [Write(tid, table, row, EdgeKind.HELD) for row in listed]

    def meet(self, resource: Resource) -> None:
        """Lock a predicate, new in the table, for those who may have written what it is about."""
        for lock in list(self.locks):
            if lock.resource == resource[:-1] and lock.mode in WRITING:
                declared = [x for x in self.writes if x[:2] == (lock.owner, lock.resource)]
                mine = [x for x in declared if x.kind is lock.kind]
                if not declared or any(is_about(resource, x) for x in mine):
                    self.locks.append(Lock(lock.owner, resource, Mode.IX, lock.kind))

    def _note_silence(self, tid: int, heir: int) -> None:
        """Enter that an heir may have written any row, if one of the two has declared none."""
        for one, other in ((tid, heir), (heir, tid)):
            for table in {write.table for write in self.writes if write.owner == other}:
                told = any(write[:2] == (one, table) for write in self.writes)
                owns = (
                    x.owner == one and x.resource == table for x in self.locks if x.mode in WRITING
                )
                if not told and any(owns):
                    self.writes.append(Write(heir, table, None, EdgeKind.RETAINED))

    def _hand_on_writes(self, tid: int, heir: int | None) -> None:
        for write in [write for write in self.writes if write.owner == tid]:
            self.writes.remove(write)
            if heir is not None:
                self.writes.append(write._replace(owner=heir, kind=EdgeKind.RETAINED))

    # -- verdicts: a step of the table is entered if it was right ----------------------------

    def enter(self, step: Grant | Denial | Ended) -> None:
        """Enter how a wait has ended."""
        if isinstance(step, Grant):
            self._judge_grant(step)
        elif isinstance(step, Denial):
            self._judge_denial(step)
        else:
            assert self.awaited[step.tid] == step.of, f"not awaited: {step}"
            assert step.of not in self.parents, f"not ended: {step}"
        self.withdraw(step.tid)

    def _judge_grant(self, grant: Grant) -> None:
        tid, resource, mode = grant
        assert self.asked[tid] == (resource, mode), f"not asked for: {grant}"
        way = list(self.in_the_way(tid, resource, mode))
        assert not way, f"rule 1 is broken: {tid} is granted {resource} in spite of {way}"
        self.hold(tid, resource, mode)

    def _judge_denial(self, denial: Denial) -> None:
        cycle = denial.report.cycle
        assert denial.report.victim == denial.tid
        self.find_true(cycle)
        for edge, following in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            assert edge.waited_for == following.waiter, f"a false deadlock: no cycle in {cycle}"
        assert self.stuck(), f"a false deadlock: {denial.tid} is denied, but none is stuck"

    def find_true(self, edges: Iterable[Edge]) -> None:
        """Fail unless each edge of the wait-for graph is there."""
        for edge in edges:
            waiter, other, kind, resource, mode, against = edge
            if kind is EdgeKind.COMMIT:
                true = other in self.parents and self.parents[other] == waiter
            elif kind is EdgeKind.DEPENDENCY:
                true = self.awaited.get(waiter) == other
            elif kind is EdgeKind.INLINE:
                true = self._blocked_on_its_thread(waiter) == other
            elif waiter not in self.asked or self.asked[waiter] != (resource, mode):
                true = False
            elif kind is EdgeKind.SOFT:
                there, theirs = self.asked.get(other, (None, None))
                true = there == resource and theirs is against
                true &= theirs is not None and not COMPATIBLE[self.asked[waiter][1]][theirs]
            else:
                way = self.in_the_way(waiter, *self.asked[waiter])
                true = (other, kind, against) in list(way)
            assert true, f"a false edge: {edge.text()}"

    def check_waits(self) -> None:
        """Fail if a transaction waits for nothing, or for itself."""
        for tid, (resource, mode) in self.asked.items():
            conflicting = (
                there == resource and not COMPATIBLE[mode][theirs]
                for other, (there, theirs) in self.asked.items()
                if other != tid
            )
            blocked = any(self.in_the_way(tid, resource, mode)) or any(conflicting)
            assert blocked, f"a wake-up is lost: {tid} waits for no transaction"
        lost = [tid for tid, of in self.awaited.items() if of not in self.parents]
        assert not lost, f"a wake-up is lost: {lost} await transactions that have ended"
        stuck = self.stuck()
        assert not stuck, f"a deadlock is missed: {stuck} wait for each other"

    def check_answers(self) -> None:
        """Fail if a transaction has written what another, not of its line, has asked about."""
        for lock in self.locks:
            if lock.mode in (Mode.S, Mode.SIX):
                for write in self.writes:
                    one, two = lock.owner, write.owner
                    related = one in self._line(two) or two in self._line(one)
                    # Whoever declares nothing meets only the predicates that come later.
                    changes = write.row is not None and is_about(lock.resource, write)
                    assert related or not changes, f"an answer changes: {lock} and {write}"

    # -- rules -------------------------------------------------------------------------------

    def _held(self, tid: int) -> list[Lock]:
        return [x for x in self.locks if x.owner == tid and x.kind is EdgeKind.HELD]

    def _superiors(self, tid: int) -> list[int]:
        """The transaction and its superiors."""
        parent = self.parents[tid]
        return [tid] if parent is None else [tid, *self._superiors(parent)]

    def _line(self, tid: int) -> set[int]:
        """The transaction, its superiors, and on whom any of them causally depends."""
        superiors = self._superiors(tid)
        causes = set().union(*(self.causes[superior] for superior in superiors))
        return set(superiors).union(*map(self._line, causes))

    def _blocked_on_its_thread(self, tid: int) -> int | None:
        """Return the next superior on whose thread `tid` runs, and which is blocked there."""
        parent = self.parents[tid]
        if parent is None or tid not in self.inline:
            return None
        if parent in self.asked or parent in self.awaited:
            return parent
        return self._blocked_on_its_thread(parent)

    def wanted(self, tid: int, resource: Resource, mode: Mode) -> Mode | None:
        """Return in which mode `tid` would hold the resource it asks for; None if it need not."""
        needed = Mode.S if mode in (Mode.IS, Mode.S) else Mode.X
        for _, there, theirs, _ in self._held(tid):
            enclosing = any(there == resource[:length] for length in range(1, len(resource)))
            if enclosing and SUPREMUM[theirs][needed] is theirs:
                return None
            if there == resource:
                mode = SUPREMUM[theirs][mode]
        return mode

    def in_the_way(
        self, tid: int, resource: Resource, mode: Mode
    ) -> Iterator[tuple[int, EdgeKind, Mode]]:
        """Yield each transaction because of which rule 1 does not grant, why, and its mode."""
        line = self._line(tid)
        for owner, there, theirs, kind in self.locks:
            allowed = owner == tid if kind is EdgeKind.HELD else owner in line
            if there == resource and not allowed and not COMPATIBLE[mode][theirs]:
                yield owner, kind, theirs

    def stuck(self) -> set[int]:
        """Return the transactions that can never go on, in whatever order queues are served."""
        waits: dict[Node, set[Node]] = {("end", tid): set() for tid in self.parents}
        for tid, wanted in self.asked.items():
            waits["wait", tid] = {("end", way[0]) for way in self.in_the_way(tid, *wanted)}
        for tid, of in self.awaited.items():
            waits["wait", tid] = {("end", of)}
        for tid, parent in self.parents.items():
            waits["end", tid].add(("wait", tid))
            if parent is not None:
                waits["end", parent].add(("end", tid))
            blocked = self._blocked_on_its_thread(tid)
            if blocked is not None:
                waits["end", tid].add(("wait", blocked))
        while free := [node for node, targets in waits.items() if not targets & waits.keys()]:
            for node in free:
                del waits[node]
        return {tid for _, tid in waits}


WRITING = (Mode.IX, Mode.SIX, Mode.X)


def is_about(resource: Resource, write: Write) -> bool:
    """Return whether a resource is a predicate that a row satisfies."""
    predicate = resource[-1]
    if resource[:-1] != write.table or not isinstance(predicate, Predicate):
        return False
    return write.row is None or predicate.covers(write.row)
