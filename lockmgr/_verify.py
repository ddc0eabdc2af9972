"""Lock table that checks its invariants after every call; enabled in all tests.

The checks are written the slow and obvious way, from the tables of modes alone: they use neither
the tallies, nor the graph, nor the search of the lock table.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from lockmgr._core import LockTable
from lockmgr._modes import COMPATIBLE, SUPREMUM, UNIT, Mode
from lockmgr._predicates import Predicate
from lockmgr._replies import Denial, Denied, EdgeKind
from lockmgr._structures import EndWait, LockOwner, Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lockmgr._predicates import Columns
    from lockmgr._replies import Effects, Reply, Resource
    from lockmgr._structures import Entry, Lock

__all__ = ["InvariantViolated", "VerifyingLockTable"]


class InvariantViolated(AssertionError):
    """The lock table is corrupt; the message begins with the name of the invariant."""


class VerifyingLockTable(LockTable):
    """`LockTable` that raises `InvariantViolated` as soon as its state is wrong.

    Every call costs time quadratic in the size of the table.
    """

    def begin(
        self,
        tid: int,
        parent: int | None = None,
        *,
        causes: Iterable[int] = (),
        inline: bool = False,
    ) -> None:
        """Call `LockTable.begin`, then verify the invariants."""
        super().begin(tid, parent, causes=causes, inline=inline)
        self.verify()

    def commit(self, tid: int) -> Effects:
        """Call `LockTable.commit`, then verify the invariants."""
        effects = super().commit(tid)
        self.verify()
        self._check_victims(effects)
        return effects

    def abort(self, tid: int, heir: int | None = None) -> Effects:
        """Call `LockTable.abort`, then verify the invariants."""
        effects = super().abort(tid, heir)
        self.verify()
        self._check_victims(effects)
        return effects

    def request(self, tid: int, resource: Resource, mode: Mode, *, wait: bool = True) -> Reply:
        """Call `LockTable.request`, then verify the invariants."""
        reply = super().request(tid, resource, mode, wait=wait)
        self.verify()
        self._check_victims(reply.effects, reply)
        return reply

    def declare(
        self, tid: int, table: Resource, rows: Sequence[Columns] | None, *, first: bool = True
    ) -> Predicate | None:
        """Call `LockTable.declare`, then verify the invariants."""
        predicate = super().declare(tid, table, rows, first=first)
        self.verify()
        return predicate

    def await_end(self, tid: int, of: int, *, wait: bool = True) -> Reply:
        """Call `LockTable.await_end`, then verify the invariants."""
        reply = super().await_end(tid, of, wait=wait)
        self.verify()
        self._check_victims(reply.effects, reply)
        return reply

    def overtake(self, tid: int) -> Effects:
        """Call `LockTable.overtake`, then verify the invariants."""
        effects = super().overtake(tid)
        self.verify()
        self._check_victims(effects)
        return effects

    def cancel(self, tid: int) -> Effects:
        """Call `LockTable.cancel`, then verify the invariants."""
        effects = super().cancel(tid)
        self.verify()
        self._check_victims(effects)
        return effects

    def downgrade(self, tid: int, resource: Resource, mode: Mode | None) -> Effects:
        """Call `LockTable.downgrade`, then verify the invariants."""
        effects = super().downgrade(tid, resource, mode)
        self.verify()
        self._check_victims(effects)
        return effects

    def offer(self, tid: int) -> Effects:
        """Call `LockTable.offer`, then verify the invariants."""
        effects = super().offer(tid)
        self.verify()
        self._check_victims(effects)
        return effects

    def verify(self) -> None:
        """Check I1 to I8 and I10 of the README, bookkeeping first, since the others rely on it."""
        live = self._transactions
        for entry in self._entries.values():
            _check_bookkeeping(entry, live)
        for transaction in live.values():
            _check_forest(transaction, live)
            _check_ties(transaction, live)
            _check_owned(transaction, self._entries)
            _check_declared(transaction, self._entries)
        for entry in self._entries.values():
            _check_locks(entry)
            for request in entry.queue:
                if not _blockers(request):
                    _fail(_I2, entry, f"{request.transaction.tid} waits for no transaction")
        _check_acyclic(live.values())
        if self._contest.entries() != {e for e in self._entries.values() if e.queue}:
            raise InvariantViolated(f"{_I4}: who is waited for")

    def _check_victims(self, effects: Effects, reply: Reply | None = None) -> None:
        """Check I9: each denied transaction is on a cycle that no queue order would break."""
        reports = [step.report for step in effects if isinstance(step, Denial)]
        reports += [reply.report] if isinstance(reply, Denied) else []
        if any(transaction.inline for transaction in self._transactions.values()):
            return
        for report in reports:
            if any(edge.kind is EdgeKind.SOFT for edge in report.cycle):
                raise InvariantViolated(f"{_I9}: {report.text()}")


_Node: TypeAlias = LockOwner | Request | EndWait

_I1 = "I1 holders agree"
_I2 = "I2 waiters are blocked"
_I3 = "I3 no deadlock"
_I4 = "I4 views agree"
_I5 = "I5 nothing is left behind"
_I6 = "I6 retainers guard"
_I7 = "I7 parents outlive children"
_I8 = "I8 ties agree"
_I9 = "I9 no needless victim"
_I10 = "I10 writers meet predicates"


def _check_bookkeeping(entry: Entry, live: Mapping[int, LockOwner]) -> None:
    held, retained = _locks(entry)
    if not (held or retained or entry.queue):
        _fail(_I5, entry, "an entry without a use")
    involved = [lock.owner for lock in held + retained]
    for transaction in involved + [request.transaction for request in entry.queue]:
        if live.get(transaction.tid) is not transaction:
            _fail(_I5, entry, f"{transaction.tid} has ended")
    if any(lock.owner.held.get(entry) is not lock for lock in held):
        _fail(_I4, entry, "held")
    if any(lock.owner.retained.get(entry) is not lock for lock in retained):
        _fail(_I4, entry, "retained")
    if entry.held_tally != sum(UNIT[lock.mode] for lock in held):
        _fail(_I4, entry, "tally of held locks")
    if entry.retained_tally != sum(UNIT[lock.mode] for lock in retained):
        _fail(_I4, entry, "tally of retained locks")
    if entry.waiting_tally != sum(UNIT[request.mode] for request in entry.queue):
        _fail(_I4, entry, "tally of requests")
    if any(request.transaction.waiting is not request for request in entry.queue):
        _fail(_I4, entry, "queue")


def _locks(entry: Entry) -> tuple[list[Lock], list[Lock]]:
    """Return the held and the retained locks; check that the list is consistent backwards."""
    held: list[Lock] = []
    retained: list[Lock] = []
    previous: Lock | None = None
    lock = entry.locks
    while lock is not None:
        if lock.previous is not previous:
            _fail(_I4, entry, "the list of locks is broken")
        (held if lock.is_held else retained).append(lock)
        previous, lock = lock, lock.next
    return held, retained


def _check_owned(transaction: LockOwner, entries: Mapping[Resource, Entry]) -> None:
    for owned, is_held in ((transaction.held, True), (transaction.retained, False)):
        for entry, lock in owned.items():
            found = any(lock is other for other in _locks(entry)[0 if is_held else 1])
            if (
                not found
                or lock.owner is not transaction
                or entries.get(entry.resource) is not entry
            ):
                _fail(_I4, entry, f"owned by {transaction.tid}")
    request = transaction.waiting
    if isinstance(request, Request) and request not in request.entry.queue:
        _fail(_I4, request.entry, f"request of {transaction.tid}")


def _check_declared(transaction: LockOwner, entries: Mapping[Resource, Entry]) -> None:
    """Check that a transaction has locked each predicate that covers a row it has declared."""
    owned = transaction.held, transaction.retained
    for table, declared in (transaction.declared or {}).items():
        for entry in entries.values():
            predicate = entry.resource[-1]
            if declared is None or entry.resource[:-1] != table:
                continue
            if not isinstance(predicate, Predicate):
                continue
            locks = [(locks.get(entry), Mode.IX) for locks in owned]
            locks += [(locks.get(entries[table]), Mode.X) for locks in owned]
            is_locked = any(
                lock is not None and SUPREMUM[lock.mode][mode] is lock.mode for lock, mode in locks
            )
            rows = [*declared.held, *declared.retained]
            if not is_locked and any(predicate.covers(row) for row in rows):
                _fail(_I10, entry, f"{transaction.tid} has declared a row that it covers")


def _check_forest(transaction: LockOwner, live: Mapping[int, LockOwner]) -> None:
    parent = transaction.parent
    if parent is not None and (
        live.get(parent.tid) is not parent
        or parent.children is None
        or parent.children.get(transaction.tid) is not transaction
    ):
        raise InvariantViolated(f"{_I7}: {transaction.tid} under {parent.tid}")
    if any(child.parent is not transaction for child in (transaction.children or {}).values()):
        raise InvariantViolated(f"{_I7}: children of {transaction.tid}")


def _check_ties(transaction: LockOwner, live: Mapping[int, LockOwner]) -> None:
    tid = transaction.tid
    wait = transaction.waiting
    awaited = [wait.awaited] if isinstance(wait, EndWait) else []
    for others, back in (
        (transaction.causes, "dependents"),
        (transaction.dependents, "causes"),
        ({other.tid: other for other in awaited}, "awaited_by"),
    ):
        for other in (others or {}).values():
            mirrored = getattr(other, back) or {}
            if live.get(other.tid) is not other or mirrored.get(tid) is not transaction:
                raise InvariantViolated(f"{_I8}: {tid} and {other.tid} ({back})")
    for waiter in (transaction.awaited_by or {}).values():
        wait = waiter.waiting
        if not isinstance(wait, EndWait) or wait.awaited is not transaction:
            raise InvariantViolated(f"{_I8}: {waiter.tid} waits for the end of {tid}")


def _check_locks(entry: Entry) -> None:
    held, retained = _locks(entry)
    for lock, other in combinations(held, 2):
        if not COMPATIBLE[lock.mode][other.mode]:
            _fail(_I1, entry, f"{lock.owner.tid} and {other.owner.tid} hold it")
    for lock in held:
        for other in retained:
            holder, retainer = lock.owner, other.owner
            if not COMPATIBLE[lock.mode][other.mode] and retainer not in _line(holder):
                _fail(_I6, entry, f"{holder.tid} holds, {retainer.tid} retains")
    for lock, other in combinations(retained, 2):
        one, two = lock.owner, other.owner
        related = one in _line(two) or two in _line(one)
        if not COMPATIBLE[lock.mode][other.mode] and not related:
            _fail(_I6, entry, f"{one.tid} and {two.tid} retain it")


def _check_acyclic(transactions: Iterable[LockOwner]) -> None:
    """Repeatedly remove nodes that wait for no remaining node; a non-empty rest has a cycle.

    The nodes are the transactions, which are waited for until their end, and the waits of blocked
    transactions, which their inline children wait for.
    """
    waits: dict[_Node, set[_Node]] = {}
    for transaction in transactions:
        targets: set[_Node] = set((transaction.children or {}).values())
        wait = transaction.waiting
        if wait is not None:
            targets.add(wait)
            waits[wait] = set(_blockers(wait) if isinstance(wait, Request) else [wait.awaited])
        outer = transaction
        while outer.inline and outer.parent is not None:
            outer = outer.parent
            if outer.waiting is not None:
                targets.add(outer.waiting)
        waits[transaction] = targets
    while free := [waiter for waiter, targets in waits.items() if not targets]:
        for waiter in free:
            del waits[waiter]
        for targets in waits.values():
            targets.difference_update(free)
    if waits:
        tids = {(w if isinstance(w, LockOwner) else w.transaction).tid for w in waits}
        raise InvariantViolated(f"{_I3}: a cycle among {sorted(tids)}")


def _blockers(request: Request) -> list[LockOwner]:
    """Return the transactions that block a request by the letter of rule 1 and the queue."""
    entry, transaction, mode = request.entry, request.transaction, request.mode
    held, retained = _locks(entry)
    line = _line(transaction)
    ahead = entry.queue[: entry.queue.index(request)]
    return [
        *(
            lock.owner
            for lock in held
            if lock.owner is not transaction and not COMPATIBLE[mode][lock.mode]
        ),
        *(
            lock.owner
            for lock in retained
            if lock.owner not in line and not COMPATIBLE[mode][lock.mode]
        ),
        *(other.transaction for other in ahead if not COMPATIBLE[mode][other.mode]),
    ]


def _line(transaction: LockOwner) -> set[LockOwner]:
    """Return the transaction, its superiors, and all transactions on which any of them depends."""
    line = {transaction}
    while True:
        beyond = {
            other
            for member in line
            for other in (member.parent, *(member.causes or {}).values())
            if other is not None
        }
        if beyond <= line:
            return line
        line |= beyond


def _fail(invariant: str, entry: Entry, what: str) -> None:
    raise InvariantViolated(f"{invariant}: {entry.resource!r}: {what}")
