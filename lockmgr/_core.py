"""Lock table: the locking rules and deadlock detection, without threads.

Rules 1 to 5 are those of (Saygin, Ulusoy, Chakravarthy, section 3.1), after (Härder, Rothermel
1993); the README describes the additions: the queue, the wait-for graph and escalation.

With inline children a thread runs several transactions, one at a time: the innermost. While that
transaction waits, the thread can make no call for its other transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr import _refusals as refusals
from lockmgr._deadlock import blocking_edge, break_cycles, move_ahead, move_to_front, policy_named
from lockmgr._escalation import Escalation
from lockmgr._graph import await_end, depend, edges_of, stop_waiting, succeed
from lockmgr._modes import CONFLICTS, COVERING, INTENTION, SUPREMUM, WRITES, Mode
from lockmgr._native import mypyc_attr
from lockmgr._precision import PredicateLocks
from lockmgr._predicates import Predicate
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
from lockmgr._snapshot import Census, Counters, PartialSnapshot, Snapshot, census, glance, take
from lockmgr._structures import Entry, Lock, LockOwner, Request, encloses

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockmgr._predicates import Columns

__all__ = ["ContendedEntries", "LockTable", "check_inline", "check_thread"]


class ContendedEntries:
    """Entries with a non-empty queue, in the order in which they are swept.

    The order matters when several locks are released at once.
    """

    __slots__ = ("_begun", "_places")

    def __init__(self) -> None:
        self._places: dict[Entry, int] = {}
        self._begun = 0

    def entries(self) -> set[Entry]:
        """Return the entries with waiting requests."""
        return set(self._places)

    def enter(self, entry: Entry) -> None:
        """Record that a request waits for `entry`."""
        if entry not in self._places:
            self._begun += 1
            self._places[entry] = self._begun

    def touches(self, *owned: dict[Entry, Lock]) -> bool:
        """Return whether a request waits for one of the locks `owned`. Complexity as in `among`."""
        places = self._places
        for locks in owned:
            if len(locks) < len(places):
                if any(entry in places for entry in locks):
                    return True
            elif any(entry in locks for entry in places):
                return True
        return False

    def among(self, *owned: dict[Entry, Lock]) -> list[Entry]:
        """Return the entries of the locks `owned` that have waiting requests.

        O(the smaller of the number of locks and the number of entries with a queue).
        """
        places = self._places
        if not places:
            return []
        found: list[Entry] = []
        for locks in owned:
            if len(locks) < len(places):
                found.extend(entry for entry in locks if entry in places)
            else:
                found.extend(entry for entry in places if entry in locks)
        found.sort(key=places.__getitem__)
        return found

    def sweep(self, entries: Iterable[Entry]) -> list[Request]:
        """Grant the requests that rule 1 and the queues of `entries` allow, and return them.

        No search is needed: README, "Deadlock".
        """
        granted: list[Request] = []
        for entry in entries:
            granted.extend(entry.sweep())
            if not entry.queue:
                self._places.pop(entry, None)
        return granted


# -- rules for threads that inline children share with their superiors -----------------------------


def check_inline(tid: int, parent: LockOwner | None) -> None:
    """Refuse an inline child `tid` if `parent` is None, waits, or has an inline child already."""
    if parent is None:
        raise refusals.inline_without_parent(tid)
    if parent.inline_child is not None:
        raise refusals.inline_beside_inline(tid, parent.inline_child)
    if parent.waiting is not None:
        raise refusals.is_waiting(refusals.BEGIN, parent)


def check_thread(transaction: LockOwner, rule: str) -> None:
    """Refuse a wait of `transaction` while its thread sleeps for one of its inline inferiors."""
    inner = transaction.inline_child
    while inner is not None:
        if inner.waiting is not None:
            raise refusals.thread_sleeps(rule, transaction, inner)
        inner = inner.inline_child


# -- lock table ------------------------------------------------------------------------------------


@mypyc_attr(allow_interpreted_subclasses=True)
class LockTable:
    """Table of held, retained and requested locks; deterministic, and never blocks.

    Each call that changes locks returns, in order, its effects on *other*, waiting transactions. A
    call that the protocol does not allow raises `LockUsageError` and changes nothing. A resource
    may be any path; `LockManager` locks the prefixes of a path first. The table itself requires
    this only with `escalate_at`, and then refuses a request without them.

    Not thread-safe: callers need one latch around every call, as in `LockManager`.

    Parameters
    ----------
    victim : str
        Victim policy for deadlocks: ``requester``, ``blocker``, ``youngest``, ``smallest
        hierarchy`` or ``least work`` (README, "Victims").
    escalate_at : int, optional
        Maximum number of locks that a transaction may own directly inside one resource; beyond it,
        they are exchanged for one lock on that resource. None: no limit.
    """

    def __init__(self, victim: str = "requester", escalate_at: int | None = None) -> None:
        policy_named(victim)
        if escalate_at is not None and (escalate_at.__class__ is not int or escalate_at < 1):
            raise refusals.no_number_of_locks(escalate_at)
        self._victim = victim
        self._transactions: dict[int, LockOwner] = {}
        self._entries: dict[Resource, Entry] = {}
        self._contest = ContendedEntries()
        self._predicates = PredicateLocks(self._entries)
        self._escalation = (
            None
            if escalate_at is None
            else Escalation(escalate_at, self._entries, self._predicates)
        )
        self._begun = 0
        self.counters = Counters()

    # -- transactions ------------------------------------------------------------------------

    def begin(
        self,
        tid: int,
        parent: int | None = None,
        *,
        causes: Iterable[int] = (),
        inline: bool = False,
    ) -> None:
        """Add transaction `tid`, top-level or as a child of `parent`; from now on `parent` waits.

        The new wait-for-commit edge closes no cycle: the child does not wait yet.

        Parameters
        ----------
        tid : int
            Number that no live transaction has.
        parent : int, optional
            None for a top-level transaction.
        causes : iterable of int
            For a top-level transaction: the transactions on which it causally depends. Locks
            retained by them and their superiors do not block it; it commits after them, and aborts
            before one of them does. When one of them commits to its parent, the parent becomes the
            cause.
        inline : bool
            For a child: whether it runs on its parent's thread, and so cannot proceed while the
            parent waits.
        """
        if tid.__class__ is not int:
            raise refusals.no_number(tid)
        if tid in self._transactions:
            raise refusals.has_begun(tid)
        superior = None if parent is None else self._live(parent, refusals.BEGIN)
        if inline:
            check_inline(tid, superior)
        by_tid: dict[int, LockOwner] = {}
        for cause in causes:
            by_tid[cause] = self._live(cause, refusals.DEPENDENCE)
        if by_tid and superior is not None:
            raise refusals.child_with_causes(tid, parent)
        self._begun += 1
        transaction = LockOwner(tid, self._begun, superior, inline)
        self._transactions[tid] = transaction
        if by_tid:
            depend(transaction, by_tid)

    def commit(self, tid: int) -> Effects:
        """End `tid`: its parent inherits its locks (rule 2), or all are released (rule 3).

        O(locks of `tid`), or less if the parent retains fewer (`LockOwner.bequeath`); plus a
        search of the wait-for graph if a transaction waits for one of these locks or for the end of
        `tid`.
        """
        transaction = self._transactions.get(tid)
        if transaction is None:
            raise refusals.not_live(refusals.COMMIT, tid)
        parent = transaction.parent
        if transaction.waiting is not None or transaction.children:
            rule = refusals.TOP_COMMIT if parent is None else refusals.SUB_COMMIT
            self._check_ending(transaction, rule)
        if transaction.causes:
            raise refusals.has_causes(transaction)
        if parent is not None:
            parent.merged += 1 + transaction.merged
        return self._end(transaction, heir=parent)

    def abort(self, tid: int, heir: int | None = None) -> Effects:
        """End `tid` and release all locks it holds or retains; superiors keep theirs (rule 4).

        Its children and its causal dependents must have ended before, and its request must have
        been cancelled. With `heir`, a superior of `tid`, the heir retains the locks instead: for an
        underlying store that cannot release the locks of a part of a hierarchy. O(locks of `tid`),
        plus, with `heir`, a search as in `commit`.
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
        """Request `resource` in `mode`, or in the supremum of `mode` and the mode held.

        O(1) if nothing conflicts. A resource inside one that `tid` holds in a covering mode is
        granted without a separate lock. A request that must wait takes its place in the queue; if
        this closes a cycle, the cycle is broken at once: by moving a waiter on a soft edge ahead
        (possibly this request, to a place where it need not wait), else by denying a victim. With
        ``wait=False`` a request that would have to wait is `Busy` and leaves no trace.
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
            if resource[-1].__class__ is Predicate:
                self._predicates.added(entry)
            if entry.locks is None:
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

    def declare(
        self, tid: int, table: Resource, rows: Sequence[Columns] | None, *, first: bool = True
    ) -> Predicate | None:
        """Declare rows, old and new, that `tid` will write in `table`.

        Returns a predicate in the table that covers one of them: `tid` must lock it in IX and call
        again. None once no such predicate is left; predicates that are locked from then on are
        compared with the rows. A transaction that writes without this call is taken to write
        anything.

        Parameters
        ----------
        tid : int
            It needs a lock on `table` under which it may write inside.
        rows : sequence of mapping or None
            None for any rows.
        first : bool
            True if `tid` and its inferiors have not written in the table without this call.
        """
        transaction = self._acting(tid, refusals.GRANT)
        if not transaction.holds(self._entries.get(table), Mode.IX):
            raise refusals.declares_without_lock(tid, table)
        return self._predicates.declare(transaction, table, rows, first=first)

    def await_end(self, tid: int, of: int, *, wait: bool = True) -> Reply:
        """Wait until transaction `of` has ended; granted at once if it has.

        The end of a committing subtransaction is final only for transactions that share its fate
        from then on, the inferiors of its parent; for others the wait continues for the parent. The
        wait is an edge of the wait-for graph, so a cycle is found and broken as for a lock. With
        ``wait=False`` the reply is `Busy` while `of` lives.
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
        """Grant the pending request of `tid` ahead of the queue, if rule 1 allows it.

        For callers that know that the transactions ahead wait for `tid`. Nothing is granted if the
        grant would close a cycle through a live child that waits for one of the transactions ahead.
        Costs a search.
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
        """Withdraw the pending request or wait of `tid`, if any."""
        transaction = self._live(tid, refusals.GRANT)
        wait = transaction.waiting
        stop_waiting(transaction)
        return self._sweep([wait.entry]) if isinstance(wait, Request) else NOTHING

    def downgrade(self, tid: int, resource: Resource, mode: Mode | None) -> Effects:
        """Hold `resource` in the weaker `mode` (None: not at all), retain the mode held (rule 5).

        No wait-for edge is added: transactions outside the sphere of `tid` remain blocked, and
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
        declared = None if transaction.declared is None else transaction.declared.get(resource)
        if declared is not None and (mode is None or not WRITES[mode]):
            declared.offer()
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
        """Downgrade all locks that `tid` holds to none, for its children. O(locks held)."""
        transaction = self._acting(tid, refusals.DOWNGRADE)
        contested = self._contest.among(transaction.held)
        for entry, lock in transaction.held.items():
            entry.hand_on(lock, transaction)
        transaction.held.clear()
        for declared in (transaction.declared or {}).values():
            if declared is not None:
                declared.offer()
        return self._sweep(contested) if contested else NOTHING

    # -- queries -----------------------------------------------------------------------------

    def __contains__(self, tid: int) -> bool:
        return tid in self._transactions

    def held(self, tid: int) -> dict[Resource, Mode]:
        """Return the modes in which `tid` holds resources, in grant order. O(locks held)."""
        return _modes(self._live(tid, refusals.GRANT).held)

    def retained(self, tid: int) -> dict[Resource, Mode]:
        """Return the modes in which `tid` retains resources. O(locks retained)."""
        return _modes(self._live(tid, refusals.GRANT).retained)

    def edges(self, tid: int) -> tuple[Edge, ...]:
        """Return the edges of the wait of `tid`, one per transaction waited for: the hardest."""
        return edges_of(self._live(tid, refusals.GRANT))

    def causes(self, tid: int) -> tuple[int, ...]:
        """Return the live causes of `tid`; it may commit when there are none."""
        return tuple(self._live(tid, refusals.DEPENDENCE).causes or ())

    def holds(self, tid: int, resource: Resource, mode: Mode) -> bool:
        """Return whether `tid` may use `resource` in `mode`. O(length of the path).

        True if it holds the resource in a mode that covers `mode`, or an enclosing resource in a
        covering mode.
        """
        transaction = self._live(tid, refusals.GRANT)
        return transaction.holds(self._entries.get(resource), mode) or encloses(
            self._entries, transaction, resource, COVERING[mode]
        )

    def snapshot(self) -> Snapshot:
        """Return the whole state as values. O(transactions + locks + edges)."""
        return take(self._transactions.values(), self._entries.values())

    def census(self) -> Census:
        """Return the numbers of live and waiting transactions. O(transactions)."""
        return census(self._transactions.values())

    def glance(self, waiting: Iterable[int], limit: int) -> PartialSnapshot:
        """Return a bounded part of the state as values; see `PartialSnapshot`.

        O(limit + transactions + the locks on each resource that is waited for and visited).

        Parameters
        ----------
        waiting : iterable of int
            Waiting transactions, in the order in which they are visited.
        limit : int
            Maximum number of locks, of requests and of edges returned.
        """
        found = (self._transactions.get(tid) for tid in waiting)
        waiters = [transaction for transaction in found if transaction is not None]
        return glance(waiters, self._transactions.values(), self._entries.values(), limit)

    def dump(self) -> str:
        """Return the whole state as text; equal states give equal text."""
        return self.snapshot().text()

    # -- internals ---------------------------------------------------------------------------

    def _granted(self, transaction: LockOwner, resource: Resource) -> Granted:
        self.counters.grants += 1
        escalation = self._escalation
        if escalation is not None and len(resource) > 1:
            self.counters.escalations += escalation.count(transaction, resource[:-1], 1)
        return GRANTED

    def _wait(self, transaction: LockOwner, touched: list[Entry]) -> Reply:
        """Break the cycles that the new wait of `transaction` closes; grant requests now free."""
        if not self._may_be_on_a_cycle(transaction):
            return Blocked()
        steps = self._settle(transaction, touched)
        own = next((step for step in steps if step.tid == transaction.tid), None)
        if own is None:
            return Blocked(steps)
        others = tuple(step for step in steps if step is not own)
        return Denied(own.report, others) if isinstance(own, Denial) else Granted(others)

    def _may_be_on_a_cycle(self, transaction: LockOwner) -> bool:
        """Return whether a transaction may wait for `transaction`, which now waits.

        If not, no search is needed. Such a transaction would wait for a lock or the end of
        `transaction` or of a superior, stand behind one of these in a queue, or share the thread.
        O(depth; plus, for each member of the line, the smaller of the number of its locks and the
        number of resources that are waited for).
        """
        if transaction.inline_child is not None:
            return True
        member: LockOwner | None = transaction
        while member is not None:
            wait = member.waiting
            if isinstance(wait, Request) and wait.entry.queue[-1] is not wait:
                return True
            if member.awaited_by or self._contest.touches(member.held, member.retained):
                return True
            member = member.parent
        return False

    def _grant_or_withdraw(self, request: Request) -> Reply:
        """Grant a request without `wait` if it may pass the queue; no other request moves."""
        transaction, entry = request.transaction, request.entry
        may_pass = move_ahead(request)
        edges = edges_of(transaction)
        if not (may_pass or edges):
            edges = (blocking_edge(request),)
        entry.withdraw(request)
        if edges:
            return Busy(edges)
        entry.hold(transaction, request.mode)
        return self._granted(transaction, entry.resource)

    def _end(
        self, transaction: LockOwner, heir: LockOwner | None, *, aborted: bool = False
    ) -> Effects:
        """Remove `transaction`; let `heir` retain its locks, or release them if `heir` is None."""
        contested = self._contest.among(transaction.held, transaction.retained)
        if heir is not None:
            if transaction.declared or heir.declared:
                self._predicates.bequeath(transaction, heir)
            transaction.bequeath(heir)
        else:
            self._release(transaction.held)
            self._release(transaction.retained)
        transaction.leave_parent()
        del self._transactions[transaction.tid]
        successor = None if aborted else heir
        was_awaited = bool(transaction.awaited_by)
        is_tied = transaction.awaited_by or transaction.dependents or transaction.causes
        effects = succeed(transaction, successor) if is_tied else NOTHING
        if heir is None:
            return (*effects, *self._sweep(contested)) if contested else effects
        if contested or was_awaited:
            effects += self._settle(heir, contested, inherited=True)
        if self._escalation is not None:
            self.counters.escalations += self._escalation.inherit(heir, transaction)
        return effects

    def _settle(
        self, pivot: LockOwner, touched: list[Entry], *, inherited: bool = False
    ) -> Effects:
        """Break the cycles through `pivot`, then sweep the queues that changed."""
        broken = break_cycles(pivot, self._victim, inherited=inherited)
        self.counters.deadlocks += broken.cycles
        self.counters.victims += len(broken.denials)
        return (*broken.denials, *self._sweep(touched + broken.touched))

    def _release(self, locks: dict[Entry, Lock]) -> None:
        """Drop the locks, and remove the entries that have no other use."""
        for entry, lock in locks.items():
            entry.drop(lock)
            if entry.is_idle():
                resource = entry.resource
                del self._entries[resource]
                if resource[-1].__class__ is Predicate:
                    self._predicates.removed(entry)
        locks.clear()  # leave no reference cycle for the garbage collector

    def _sweep(self, entries: Iterable[Entry]) -> Effects:
        """Grant what rule 1 and the queues of `entries` allow."""
        steps: list[Grant] = []
        for request in self._contest.sweep(entries):
            steps.append(Grant(request.transaction.tid, request.entry.resource, request.mode))
            self._granted(request.transaction, request.entry.resource)
        return tuple(steps)

    def _is_covered(self, transaction: LockOwner, resource: Resource, mode: Mode) -> bool:
        """Return whether `transaction` holds a prefix of `resource` in a mode that covers `mode`.

        With escalation, it must hold the prefix at least in the intention mode: the other owners'
        locks on the resource itself may be gone, and so could not show a conflict.
        """
        if encloses(self._entries, transaction, resource, COVERING[mode]):
            return True
        if self._escalation is not None:
            needed = INTENTION[mode]
            if not transaction.holds(self._entries.get(resource[:-1]), needed):
                raise refusals.no_intention(transaction.tid, resource, needed)
        return False

    # -- preconditions -----------------------------------------------------------------------

    def _live(self, tid: int, rule: str) -> LockOwner:
        transaction = self._transactions.get(tid)
        if transaction is None:
            raise refusals.not_live(rule, tid)
        return transaction

    def _acting(self, tid: int, rule: str) -> LockOwner:
        transaction = self._live(tid, rule)
        if transaction.waiting is not None:
            raise refusals.is_waiting(rule, transaction)
        return transaction

    def _check_ending(self, transaction: LockOwner, rule: str) -> None:
        if transaction.waiting is not None:
            raise refusals.is_waiting(rule, transaction)
        if transaction.children:
            raise refusals.has_children(rule, transaction)


def _modes(locks: dict[Entry, Lock]) -> dict[Resource, Mode]:
    return {entry.resource: lock.mode for entry, lock in locks.items()}
