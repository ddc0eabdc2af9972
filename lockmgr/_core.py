"""The lock table: the locking rules and deadlock detection, without threads.

Rules 1 to 5 are those of (Saygin, Ulusoy, Chakravarthy, section 3.1), after (Härder, Rothermel
1993); the README says how the queue, the wait-for graph and escalation complete them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr import _refusals as refusals
from lockmgr._contest import Contest
from lockmgr._counters import Counters
from lockmgr._deadlock import (
    break_cycles,
    edge_to_whom_it_must_not_pass,
    move_ahead,
    move_to_front,
)
from lockmgr._dependence import await_end, depend, stop_waiting, succeed
from lockmgr._escalation import Escalation
from lockmgr._graph import edges_of
from lockmgr._inline import check_inline, check_thread
from lockmgr._modes import CONFLICTS, COVERING, INTENTION, SUPREMUM, Mode
from lockmgr._native import mypyc_attr
from lockmgr._policies import policy_named
from lockmgr._replies import (
    GRANTED,
    NOTHING,
    Blocked,
    Busy,
    Denial,
    Denied,
    Edge,
    EdgeKind,
    Effects,
    Grant,
    Granted,
    Reply,
    Resource,
)
from lockmgr._snapshot import Census, Glance, Snapshot, census, glance, take
from lockmgr._structures import Entry, Lock, Request, Transaction, encloses

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LockTable"]


@mypyc_attr(allow_interpreted_subclasses=True)
class LockTable:
    """Who holds, retains and waits for what; deterministic, and never blocks.

    Each call that changes locks returns, in order, what it did to *other*, waiting transactions.
    A call that the protocol does not allow raises `LockUsageError` and changes nothing. A
    resource is any path; that a path's prefixes must be locked first is the business of
    `LockManager`, except that with `escalate_at` a request without them is refused.

    Not thread-safe: one latch around every call, as in `LockManager`.

    Parameters
    ----------
    victim : str
        Who gives way in a deadlock: ``requester``, ``blocker``, ``youngest``, ``smallest
        hierarchy`` or ``least work`` (README, "Victims").
    escalate_at : int, optional
        How many locks a transaction may own directly inside one resource before they are
        exchanged for one lock on that resource; None: as many as it wants.
    """

    def __init__(self, victim: str = "requester", escalate_at: int | None = None) -> None:
        policy_named(victim)
        if escalate_at is not None and (escalate_at.__class__ is not int or escalate_at < 1):
            raise refusals.no_number_of_locks(escalate_at)
        self._victim = victim
        self._transactions: dict[int, Transaction] = {}
        self._entries: dict[Resource, Entry] = {}
        self._contest = Contest()
        self._escalation = None if escalate_at is None else Escalation(escalate_at, self._entries)
        self._begun = 0
        self.counters = Counters()

    # -- the life of a transaction -----------------------------------------------------------

    def begin(
        self,
        tid: int,
        parent: int | None = None,
        *,
        causes: Iterable[int] = (),
        inline: bool = False,
    ) -> None:
        """Add transaction `tid`, top-level or as a child of `parent`; from now on `parent` waits.

        The new wait-for-commit edge closes no cycle: the child waits for nobody yet.

        Parameters
        ----------
        tid : int
            A number that no live transaction has.
        parent : int, optional
            None for a top-level transaction.
        causes : iterable of int
            For a top-level transaction: those on which it causally depends. What they and their
            superiors retain is no obstacle to it; it commits after them, and aborts before one of
            them does. When one of them commits to its parent, that becomes the cause.
        inline : bool
            For a child: whether it runs on its parent's thread, and so cannot go on while the
            parent waits.
        """
        if tid.__class__ is not int:
            raise refusals.no_number(tid)
        if tid in self._transactions:
            raise refusals.has_begun(tid)
        superior = None if parent is None else self._live(parent, refusals.BEGIN)
        if inline:
            check_inline(tid, superior)
        by_tid = {cause: self._live(cause, refusals.DEPENDENCE) for cause in causes}
        if by_tid and superior is not None:
            raise refusals.child_with_causes(tid, parent)
        self._begun += 1
        transaction = Transaction(tid, self._begun, superior, inline)
        self._transactions[tid] = transaction
        if by_tid:
            depend(transaction, by_tid)

    def commit(self, tid: int) -> Effects:
        """End `tid`: its parent inherits and retains its locks (rule 2), or all go (rule 3).

        O(locks of `tid`), or less where the parent retains fewer (`Transaction.bequeath`); and a
        search of the wait-for graph if somebody waits for one of them or for the end of `tid`.
        """
        transaction = self._live(tid, refusals.COMMIT)
        parent = transaction.parent
        self._check_ending(
            transaction, refusals.TOP_COMMIT if parent is None else refusals.SUB_COMMIT
        )
        if transaction.causes:
            raise refusals.has_causes(transaction)
        if parent is not None:
            parent.merged += 1 + transaction.merged
        return self._end(transaction, heir=parent)

    def abort(self, tid: int, heir: int | None = None) -> Effects:
        """End `tid` and release all it holds or retains; superiors keep theirs (rule 4).

        Its children, and whoever causally depends on it, must have ended before, and its request
        been cancelled. With `heir`, a superior, that one retains the locks instead: for a store
        beneath that cannot give up the locks of a part of a hierarchy. O(locks of `tid`), and a
        search as in `commit` then.
        """
        transaction = self._live(tid, refusals.ABORT)
        self._check_ending(transaction, refusals.ABORT)
        if transaction.dependents:
            raise refusals.has_dependents(transaction)
        superior = None if heir is None else self._live(heir, refusals.ABORT)
        if superior is not None and not transaction.is_inferior_of(superior):
            raise refusals.no_superior(heir, tid)
        return self._end(transaction, heir=superior, aborted=True)

    # -- locks -------------------------------------------------------------------------------

    def request(self, tid: int, resource: Resource, mode: Mode, *, wait: bool = True) -> Reply:
        """Ask for `resource` in `mode`, or in the supremum of `mode` and the mode held.

        O(1) when nothing conflicts. What is inside a resource that `tid` holds in a covering mode
        is granted without a lock of its own. A request that must wait takes its place in the
        queue; a cycle closed by that is broken at once, by moving a soft waiter ahead (maybe this
        one, to where it need not wait), else by denying a victim. With ``wait=False`` a request
        that would have to wait is `Busy` and leaves no trace.
        """
        transaction = self._transactions.get(tid)
        if transaction is None or transaction.waiting is not None:
            transaction = self._acting(tid, refusals.GRANT)
        if mode.__class__ is not Mode or resource.__class__ is not tuple or not resource:
            raise refusals.neither_path_nor_mode(refusals.GRANT, tid, resource, mode)
        covered = len(resource) > 1 and self._is_covered(transaction, resource, mode)
        self.counters.requests += 1
        if covered:
            self.counters.grants += 1
            return GRANTED
        entry = self._entries.get(resource)
        if entry is None:
            entry = self._entries[resource] = Entry(resource)
            entry.hold(transaction, mode)
            return self._granted(transaction, resource)
        lock = transaction.held.get(entry)
        if lock is not None:
            held = lock.mode
            mode = SUPREMUM[held][mode]
            if mode is held:
                self.counters.grants += 1
                return GRANTED
        if entry.admits(transaction, mode) and not entry.waiting_tally & CONFLICTS[mode]:
            entry.hold(transaction, mode)
            return self._granted(transaction, resource)
        if wait:
            check_thread(transaction, refusals.GRANT)
        self._begun += 1
        request = Request(transaction, entry, mode, lock is not None, self._begun)
        entry.enqueue(request)
        if not wait:
            return self._grant_or_withdraw(request)
        self._contest.enter(entry)
        return self._wait(transaction, [entry])

    def await_end(self, tid: int, of: int, *, wait: bool = True) -> Reply:
        """Wait until transaction `of` has ended; granted at once if it has.

        The end of a subtransaction that commits is final only for those who share its fate from
        then on, the inferiors of its parent; for others the wait goes on for the parent. It is an
        edge of the wait-for graph, so a cycle is found and broken as for a lock. With
        ``wait=False`` it is `Busy` while `of` lives.
        """
        transaction = self._acting(tid, refusals.DEPENDENCE)
        awaited = self._transactions.get(of)
        if awaited is None:
            return GRANTED
        if awaited is transaction:
            raise refusals.own_end(tid)
        if not wait:
            return Busy((Edge(tid, of, EdgeKind.DEPENDENCY),))
        check_thread(transaction, refusals.DEPENDENCE)
        self._begun += 1
        await_end(transaction, awaited, self._begun)
        return self._wait(transaction, [])

    def overtake(self, tid: int) -> Effects:
        """Grant what `tid` waits for ahead of the queue; nothing if rule 1 does not allow it.

        For a caller who knows that those ahead wait for `tid`. Nothing is granted either where that
        would close a cycle: through a live child that waits for one of those ahead. A search.
        """
        transaction = self._live(tid, refusals.GRANT)
        request = transaction.waiting
        if not isinstance(request, Request):
            return NOTHING
        entry = request.entry
        if not entry.admits(transaction, request.mode) or not move_to_front(request):
            return NOTHING
        entry.withdraw(request)
        entry.hold(transaction, request.mode)
        self._granted(transaction, entry.resource)
        return (Grant(tid, entry.resource, request.mode), *self._sweep([entry]))

    def cancel(self, tid: int) -> Effects:
        """Withdraw what `tid` waits for, if anything."""
        transaction = self._live(tid, refusals.GRANT)
        wait = transaction.waiting
        stop_waiting(transaction)
        return self._sweep([wait.entry]) if isinstance(wait, Request) else NOTHING

    def downgrade(self, tid: int, resource: Resource, mode: Mode | None) -> Effects:
        """Hold `resource` in the weaker `mode` (None: not at all), retain what was held (rule 5).

        No wait-for edge is added: whom `tid` blocked from outside its sphere it still blocks, and
        inferiors are blocked less.
        """
        transaction = self._acting(tid, refusals.DOWNGRADE)
        if mode is not None and mode.__class__ is not Mode:
            raise refusals.neither_path_nor_mode(refusals.DOWNGRADE, tid, resource, mode)
        entry = self._entries.get(resource)
        lock = None if entry is None else transaction.held.get(entry)
        if entry is None or lock is None:
            raise refusals.not_held(tid, resource)
        held = lock.mode
        if mode is None:
            del transaction.held[entry]
            entry.hand_on(lock, transaction)
        elif mode is held or SUPREMUM[held][mode] is not held:
            raise refusals.not_weaker(tid, resource, held, mode)
        else:
            entry.retain(transaction, held)
            entry.hold(transaction, mode)
        return self._sweep([entry]) if entry.queue else NOTHING

    def offer(self, tid: int) -> Effects:
        """Downgrade everything that `tid` holds to none, for its children. O(locks held)."""
        transaction = self._acting(tid, refusals.DOWNGRADE)
        contested = self._contest.among(transaction.held)
        for entry, lock in transaction.held.items():
            entry.hand_on(lock, transaction)
        transaction.held.clear()
        return self._sweep(contested) if contested else NOTHING

    # -- questions ---------------------------------------------------------------------------

    def __contains__(self, tid: int) -> bool:
        return tid in self._transactions

    def held(self, tid: int) -> dict[Resource, Mode]:
        """Return what `tid` holds, in the order of the grants. O(locks held)."""
        return _modes(self._live(tid, refusals.GRANT).held)

    def retained(self, tid: int) -> dict[Resource, Mode]:
        """Return what `tid` retains. O(locks retained)."""
        return _modes(self._live(tid, refusals.GRANT).retained)

    def edges(self, tid: int) -> tuple[Edge, ...]:
        """Return the edges of what `tid` waits for: one per transaction, the hardest."""
        return edges_of(self._live(tid, refusals.GRANT))

    def causes(self, tid: int) -> tuple[int, ...]:
        """Return on whom `tid` causally depends now; it commits when there is nobody left."""
        return tuple(self._live(tid, refusals.DEPENDENCE).causes or ())

    def holds(self, tid: int, resource: Resource, mode: Mode) -> bool:
        """Tell whether `tid` may use `resource` in `mode`. O(length of the path).

        Either it holds it in a mode that covers `mode`, or what encloses it.
        """
        transaction = self._live(tid, refusals.GRANT)
        return transaction.holds(self._entries.get(resource), mode) or encloses(
            self._entries, transaction, resource, COVERING[mode]
        )

    def snapshot(self) -> Snapshot:
        """Return the whole state as values. O(transactions + locks + edges)."""
        return take(self._transactions.values(), self._entries.values())

    def census(self) -> Census:
        """Return how many transactions live and wait. O(transactions)."""
        return census(self._transactions.values())

    def glance(self, waiting: Iterable[int], limit: int) -> Glance:
        """Return a part of the state that is bounded, as values; see `Glance`.

        O(limit + transactions + the locks on each resource that is waited for and looked at).

        Parameters
        ----------
        waiting : iterable of int
            Transactions that wait, in the order in which they shall be looked at.
        limit : int
            How many locks, requests and edges are told at most.
        """
        found = (self._transactions.get(tid) for tid in waiting)
        waiters = [transaction for transaction in found if transaction is not None]
        return glance(waiters, self._transactions.values(), self._entries.values(), limit)

    def dump(self) -> str:
        """Return the whole state as text that depends on nothing but the state."""
        return self.snapshot().text()

    # -- the moves behind the calls ----------------------------------------------------------

    def _granted(self, transaction: Transaction, resource: Resource) -> Granted:
        self.counters.grants += 1
        escalation = self._escalation
        if escalation is not None and len(resource) > 1:
            self.counters.escalations += escalation.count(transaction, resource[:-1], 1)
        return GRANTED

    def _wait(self, transaction: Transaction, touched: list[Entry]) -> Reply:
        """Break the cycles that the new wait of `transaction` closes; grant what is free to go."""
        if not self._may_be_on_a_cycle(transaction):
            return Blocked()
        steps = self._settle(transaction, touched)
        own = next((step for step in steps if step.tid == transaction.tid), None)
        if own is None:
            return Blocked(steps)
        others = tuple(step for step in steps if step is not own)
        return Denied(own.report, others) if isinstance(own, Denial) else Granted(others)

    def _may_be_on_a_cycle(self, transaction: Transaction) -> bool:
        """Tell whether anybody may wait for a transaction that now waits; if not, no search.

        They would wait for a lock of it or of a superior, or for the end of one of these, or stand
        behind one of these in a queue, or share its thread. O(depth; and for each member of the
        line the fewer of its locks and of the resources that anybody waits for).
        """
        if transaction.inline_child is not None:
            return True
        member: Transaction | None = transaction
        while member is not None:
            wait = member.waiting
            if isinstance(wait, Request) and wait.entry.queue[-1] is not wait:
                return True
            if member.awaited_by or self._contest.touches(member.held, member.retained):
                return True
            member = member.parent
        return False

    def _grant_or_withdraw(self, request: Request) -> Reply:
        """Grant a request that is not to wait, if it may pass the queue; nobody else moves."""
        transaction, entry = request.transaction, request.entry
        may_pass = move_ahead(request)
        edges = edges_of(transaction)
        if not (may_pass or edges):
            edges = (edge_to_whom_it_must_not_pass(request),)
        entry.withdraw(request)
        if edges:
            return Busy(edges)
        entry.hold(transaction, request.mode)
        return self._granted(transaction, entry.resource)

    def _end(
        self, transaction: Transaction, heir: Transaction | None, *, aborted: bool = False
    ) -> Effects:
        """Forget `transaction`; let `heir` retain its locks, or nobody have them."""
        contested = self._contest.among(transaction.held, transaction.retained)
        if heir is not None:
            transaction.bequeath(heir)
        else:
            self._release(transaction.held)
            self._release(transaction.retained)
        transaction.leave_parent()
        del self._transactions[transaction.tid]
        successor = None if aborted else heir
        was_awaited = bool(transaction.awaited_by)
        effects = succeed(transaction, successor) if transaction.is_tied() else NOTHING
        if heir is None:
            return (*effects, *self._sweep(contested)) if contested else effects
        if contested or was_awaited:
            effects += self._settle(heir, contested, inherited=True)
        if self._escalation is not None:
            self.counters.escalations += self._escalation.inherit(heir, transaction)
        return effects

    def _settle(
        self, pivot: Transaction, touched: list[Entry], *, inherited: bool = False
    ) -> Effects:
        """Break the cycles through `pivot`, then sweep the queues in which anything changed."""
        broken = break_cycles(pivot, self._victim, inherited=inherited)
        self.counters.deadlocks += broken.cycles
        self.counters.victims += len(broken.denials)
        return (*broken.denials, *self._sweep(touched + broken.touched))

    def _release(self, locks: dict[Entry, Lock]) -> None:
        for entry, lock in locks.items():
            entry.drop(lock)
            if entry.is_idle():
                del self._entries[entry.resource]
        locks.clear()  # no cycle of references is left for the garbage collector

    def _sweep(self, entries: Iterable[Entry]) -> Effects:
        """Grant what rule 1 and the queues of `entries` allow."""
        steps: list[Grant] = []
        for request in self._contest.sweep(entries):
            steps.append(Grant(request.transaction.tid, request.entry.resource, request.mode))
            self._granted(request.transaction, request.entry.resource)
        return tuple(steps)

    def _is_covered(self, transaction: Transaction, resource: Resource, mode: Mode) -> bool:
        """Tell whether `transaction` holds what encloses `resource` in a mode that covers `mode`.

        With escalation, it must hold it at least in the intention mode: nobody's locks on the
        resource itself may be left to tell of a conflict.
        """
        if encloses(self._entries, transaction, resource, COVERING[mode]):
            return True
        if self._escalation is not None:
            needed = INTENTION[mode]
            if not transaction.holds(self._entries.get(resource[:-1]), needed):
                raise refusals.no_intention(transaction.tid, resource, needed)
        return False

    # -- who may call ------------------------------------------------------------------------

    def _live(self, tid: int, rule: str) -> Transaction:
        transaction = self._transactions.get(tid)
        if transaction is None:
            raise refusals.not_live(rule, tid)
        return transaction

    def _acting(self, tid: int, rule: str) -> Transaction:
        transaction = self._live(tid, rule)
        if transaction.waiting is not None:
            raise refusals.is_waiting(rule, transaction)
        return transaction

    def _check_ending(self, transaction: Transaction, rule: str) -> None:
        if transaction.waiting is not None:
            raise refusals.is_waiting(rule, transaction)
        if transaction.children:
            raise refusals.has_children(rule, transaction)


def _modes(locks: dict[Entry, Lock]) -> dict[Resource, Mode]:
    return {entry.resource: lock.mode for entry, lock in locks.items()}
