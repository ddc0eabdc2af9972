"""A lock table that checks its invariants after every call; on in all tests.

The checks are written the slow and obvious way, from the tables of modes alone: they use neither
the tallies, nor the graph, nor the search of the lock table.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from lockmgr._core import LockTable
from lockmgr._modes import COMPATIBLE, UNIT, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lockmgr._replies import Effects, Reply, Resource
    from lockmgr._structures import Entry, Request, Transaction

__all__ = ["InvariantViolated", "VerifyingLockTable"]


class InvariantViolated(AssertionError):
    """The lock table is wrong; the message begins with the name of the invariant."""


class VerifyingLockTable(LockTable):
    """A `LockTable` that raises `InvariantViolated` as soon as its state is wrong.

    Every call costs time quadratic in the size of the table.
    """

    def begin(self, tid: int, parent: int | None = None) -> None:
        """Begin, then verify."""
        super().begin(tid, parent)
        self.verify()

    def commit(self, tid: int) -> Effects:
        """Commit, then verify."""
        effects = super().commit(tid)
        self.verify()
        return effects

    def abort(self, tid: int, heir: int | None = None) -> Effects:
        """Abort, then verify."""
        effects = super().abort(tid, heir)
        self.verify()
        return effects

    def request(self, tid: int, resource: Resource, mode: Mode) -> Reply:
        """Request, then verify."""
        reply = super().request(tid, resource, mode)
        self.verify()
        return reply

    def cancel(self, tid: int) -> Effects:
        """Cancel, then verify."""
        effects = super().cancel(tid)
        self.verify()
        return effects

    def downgrade(self, tid: int, resource: Resource, mode: Mode | None) -> Effects:
        """Downgrade, then verify."""
        effects = super().downgrade(tid, resource, mode)
        self.verify()
        return effects

    def offer(self, tid: int) -> Effects:
        """Offer, then verify."""
        effects = super().offer(tid)
        self.verify()
        return effects

    def verify(self) -> None:
        """Check I1 to I7 of the README; the bookkeeping first, as the rest relies on it."""
        live = self._transactions
        for entry in self._entries.values():
            _check_bookkeeping(entry, live)
        _check_transactions(live, self._entries)
        for entry in self._entries.values():
            _check_locks(entry)
            _check_no_lost_wake_up(entry)
        _check_acyclic(live.values())


def _check_bookkeeping(entry: Entry, live: Mapping[int, Transaction]) -> None:
    if not (entry.holders or entry.retainers or entry.queue):
        _fail("I5 nothing is left behind", entry, "an entry without a use")
    involved = {*entry.holders, *entry.retainers, *(r.transaction for r in entry.queue)}
    for transaction in involved:
        if live.get(transaction.tid) is not transaction:
            _fail("I5 nothing is left behind", entry, f"{transaction.tid} has ended")
    if any(holder.held.get(entry) is not mode for holder, mode in entry.holders.items()):
        _fail("I4 views agree", entry, "held")
    if any(owner.retained.get(entry) is not mode for owner, mode in entry.retainers.items()):
        _fail("I4 views agree", entry, "retained")
    if entry.held_tally != sum(UNIT[mode] for mode in entry.holders.values()):
        _fail("I4 views agree", entry, "tally of held locks")
    if entry.retained_tally != sum(UNIT[mode] for mode in entry.retainers.values()):
        _fail("I4 views agree", entry, "tally of retained locks")
    if any(request.transaction.waiting is not request for request in entry.queue):
        _fail("I4 views agree", entry, "queue")


def _check_transactions(live: Mapping[int, Transaction], entries: Mapping[Resource, Entry]) -> None:
    for tid, transaction in live.items():
        for entry in transaction.held:
            if transaction not in entry.holders or entries.get(entry.resource) is not entry:
                _fail("I4 views agree", entry, f"held by {tid}")
        for entry in transaction.retained:
            if transaction not in entry.retainers or entries.get(entry.resource) is not entry:
                _fail("I4 views agree", entry, f"retained by {tid}")
        request = transaction.waiting
        if request is not None and request not in request.entry.queue:
            _fail("I4 views agree", request.entry, f"request of {tid}")
        parent = transaction.parent
        if parent is not None and (
            live.get(parent.tid) is not parent or parent.children.get(tid) is not transaction
        ):
            raise InvariantViolated(f"I7 parents outlive children: {tid} under {parent.tid}")
        if any(child.parent is not transaction for child in transaction.children.values()):
            raise InvariantViolated(f"I7 parents outlive children: children of {tid}")


def _check_locks(entry: Entry) -> None:
    for (one, mode), (other, other_mode) in combinations(entry.holders.items(), 2):
        if not COMPATIBLE[mode][other_mode]:
            _fail("I1 holders agree", entry, f"{one.tid} and {other.tid} hold it")
    for holder, mode in entry.holders.items():
        for retainer, retained in entry.retainers.items():
            if not COMPATIBLE[mode][retained] and retainer not in _line(holder):
                _fail("I6 retainers guard", entry, f"{holder.tid} holds, {retainer.tid} retains")
    for (one, mode), (other, other_mode) in combinations(entry.retainers.items(), 2):
        related = one in _line(other) or other in _line(one)
        if not COMPATIBLE[mode][other_mode] and not related:
            _fail("I6 retainers guard", entry, f"{one.tid} and {other.tid} retain it")


def _check_no_lost_wake_up(entry: Entry) -> None:
    for request in entry.queue:
        if not any(_blockers(request)):
            _fail("I2 waiters are blocked", entry, f"{request.transaction.tid} waits for nobody")


def _check_acyclic(transactions: Iterable[Transaction]) -> None:
    """Take away, again and again, whoever waits for nobody left; a cycle is what stays."""
    waits = {
        transaction: {
            *transaction.children.values(),
            *(_blockers(transaction.waiting) if transaction.waiting is not None else ()),
        }
        for transaction in transactions
    }
    while free := [transaction for transaction, targets in waits.items() if not targets]:
        for transaction in free:
            del waits[transaction]
        for targets in waits.values():
            targets.difference_update(free)
    if waits:
        raise InvariantViolated(f"I3 no deadlock: a cycle among {sorted(t.tid for t in waits)}")


def _blockers(request: Request) -> Iterator[Transaction]:
    """Rule 1 and the queue, to the letter."""
    entry, transaction = request.entry, request.transaction
    line = _line(transaction)
    for holder, mode in entry.holders.items():
        if holder is not transaction and not COMPATIBLE[request.mode][mode]:
            yield holder
    for retainer, mode in entry.retainers.items():
        if retainer not in line and not COMPATIBLE[request.mode][mode]:
            yield retainer
    for other in entry.queue[: entry.queue.index(request)]:
        if not COMPATIBLE[request.mode][other.mode]:
            yield other.transaction


def _line(transaction: Transaction) -> list[Transaction]:
    """Return the transaction and its superiors."""
    line = [transaction]
    while line[-1].parent is not None:
        line.append(line[-1].parent)
    return line


def _fail(invariant: str, entry: Entry, what: str) -> None:
    raise InvariantViolated(f"{invariant}: {entry.resource!r}: {what}")
