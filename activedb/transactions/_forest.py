"""Forest: top-level transactions of one database, the begin and end of all, and what they share."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Protocol, TypeVar

from activedb.clock import Clock
from activedb.config import Settings
from activedb.errors import (
    ActiveDBError,
    Deadlock,
    database_closed,
)
from activedb.metrics import NamedCounters
from activedb.store.server import limited
from activedb.store.session import Store
from activedb.store.sql import Row, Tables, TableSpec
from activedb.transactions._crossing import Crossing
from activedb.transactions._deadlines import Deadlines, Limit
from activedb.transactions._dependencies import CausalHierarchy, Dependencies
from activedb.transactions._hierarchy import Hierarchy, Lending
from activedb.transactions._joined import Joined
from activedb.transactions._node import TransactionNode, Version, current_transaction
from activedb.transactions._observers import Log, Observer, Observers
from activedb.transactions._offers import Offers
from activedb.transactions._pool import Pool
from activedb.transactions._retries import Retries
from activedb.transactions._run import Run
from activedb.transactions._states import State
from activedb.transactions._threads import (
    end_standstills,
    forget_all,
    is_anybody_stalled,
)
from activedb.transactions._upgrades import Upgrades
from activedb.transactions._whole_tables import WholeTables
from lockmgr import Deadlock as LockDeadlock
from lockmgr import (
    Edge,
    EdgeKind,
    LockManager,
    LockTable,
)

__all__ = ["Forest", "Listener", "abandon_all"]

T = TypeVar("T")
Watching = TypeVar("Watching", bound=Observer)

_ENDED = {
    (True, True): "transactions_committed",
    (True, False): "transactions_aborted",
    (False, True): "subtransactions_committed",
    (False, False): "subtransactions_aborted",
}


class Listener(Protocol):
    """Callbacks to the layer above; called on the thread of the transaction."""

    def began(self, t: TransactionNode) -> None:
        """Handle the entry of the top-level `t`."""

    def changed(
        self, t: TransactionNode, spec: TableSpec, old: Row | None, new: Row | None
    ) -> None:
        """Handle a row inserted (`old` is None), updated, or deleted (`new` is None) by `t`."""

    def changed_all(
        self,
        t: TransactionNode,
        spec: TableSpec,
        versions: Sequence[Version],
    ) -> None:
        """Handle the rows of one statement of `t`: key, old row, new row; see `changed`."""

    def at_commit_point(self, t: TransactionNode) -> None:
        """Handle the commit point of `t`, whose children have ended."""

    def aborting(self, t: TransactionNode) -> None:
        """Handle the abort of `t`, which still has its locks."""

    def ended(self, t: TransactionNode) -> None:
        """Handle the end of `t`, which has committed or aborted and passed on its locks."""

    def gave_up(self, run: Run, error: BaseException) -> None:
        """Handle the final failure, with `error`, of a run that was retried here."""


class Forest:
    """All transactions of one database object, and the state that they share.

    Parameters
    ----------
    listening : callable ``(forest)``
        Return the listener of this forest. It may keep the forest, and must not use it yet.
    new_log : callable ``(run)``, optional
        Return a recorder for a new hierarchy, or None.

    Latch order: a hierarchy's, then its session's. The latches of its `Kin`, of the lock manager,
    and of pool, deadlines and offers are taken last and alone.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        listening: Callable[[Forest], Listener],
        *,
        counters: NamedCounters | None = None,
        new_log: Callable[[Run], Log | None] | None = None,
    ):
        self.store = store
        self.settings = settings
        self.clock = clock
        self.new_log = new_log
        self.counters = NamedCounters() if counters is None else counters
        self.observer: Observers | None = None  # for hierarchies that begin from now on
        self._observing = threading.Lock()
        self.tables = Tables(store.schema, store.engine.dialect)
        self.locks = LockManager(LockTable(settings.victim_policy, settings.lock_escalation))
        self.pool = Pool(settings.threads)
        self.crossing = Crossing(self)
        self._ids = itertools.count(1)
        self.whole_tables = WholeTables()
        self.asked: set[TableSpec] = set()  # tables in which predicates have been locked
        # Rules with detectors, and the time of the last commit that has fed each.
        self.detectors: dict[str, float] = {}
        self._hierarchies: dict[int, Hierarchy] = {}  # live ones, by top-level transaction
        self.offers = Offers(lambda: self.locks)
        self.deadlines = Deadlines()
        self._upgrades = Upgrades()
        self.retries = Retries(settings, self.counters, current_transaction)
        self.dependencies = Dependencies(self)
        self.idle = threading.Condition()  # notified when something ends that `wait_idle` awaits
        self.joined = Joined(self)
        # Tables that only certain transactions may write, with the `writer` of these.
        self.writers: dict[TableSpec, str] = {}
        self.listener = listening(self)
        self._is_closed = False

    def close(self) -> None:
        """Let the queued tasks end, then end every thread of the forest. Idempotent.

        Top-level transactions that begin later are refused.
        """
        self.joined.close()
        self.dependencies.close()
        self.pool.close()
        self._is_closed = True
        self.crossing.close()
        self.deadlines.close()

    def observe(self, observer: Observer) -> None:
        """Add an observer of all hierarchies that begin from now on."""
        with self._observing:
            before = () if self.observer is None else self.observer.each
            self.observer = Observers((*before, observer))

    def observed_by(self, kind: type[Watching]) -> Watching:
        """Return the observer of this kind, created and added if there was none."""
        with self._observing:
            before = () if self.observer is None else self.observer.each
            found = next((one for one in before if isinstance(one, kind)), None)
            if found is None:
                found = kind()
                self.observer = Observers((*before, found))
            return found

    def unobserve(self, observer: Observer) -> None:
        """Remove an observer; it continues to observe the live hierarchies."""
        with self._observing:
            before = () if self.observer is None else self.observer.each
            each = tuple(one for one in before if one is not observer)
            self.observer = Observers(each) if each else None

    # -- top-level transactions ------------------------------------------------------------

    def top_level(self, run: Run | None = None, limit: Limit | None = None) -> TransactionNode:
        """Return a new top-level transaction, used as ``with forest.top_level() as t:``."""
        if self._is_closed:
            raise database_closed()
        run = run or Run()
        hierarchy = Hierarchy(self.store.session(run.isolation), run)
        run.tries += 1
        top = TransactionNode(self, hierarchy, None, label=run.name, rule=run.rule, limit=limit)
        around = current_transaction()
        if around is not None:
            top.condition_of = around.condition_of  # beside a condition, reads only, too
        return top

    def run(
        self,
        function: Callable[[TransactionNode], T],
        run: Run | None = None,
        *,
        timeout: float | None = None,
        on_failed: Callable[[], object] = lambda: None,
    ) -> T:
        """Run `function` in a top-level transaction, retried when that is safe.

        Parameters
        ----------
        timeout : float, optional
            Seconds that all tries together may take.
        on_failed : callable
            Called when a try has failed, before the pause that may follow.

        Raises
        ------
        TransactionAborted
            If `function` aborts it.
        TransactionTimeout
            When the time is over; no retry follows.
        Deadlock, LockTimeout, SerializationConflict, ConnectionLost
                When ``retries_max`` retries have failed. A lost connection is retried only if
                nothing was committed.
        """
        work, limit = run or Run(), Limit.after(timeout)
        work.is_retried = True
        self._upgrades.begin(work)

        def attempt() -> T:
            try:
                return self.top_level(work, limit).call(function)
            except BaseException as error:
                self._upgrades.failed(work, error)
                on_failed()
                raise

        with nullcontext() if limit is None else limited(limit.at_s):
            try:
                return self.retries.run(
                    attempt, name=lambda: f"transaction {work.name}", limit=limit
                )
            except BaseException as error:
                self.listener.gave_up(work, error)
                raise

    def causal(self, cause: TransactionNode, run: Run) -> TransactionNode:
        """Return a top-level transaction that causally depends on `cause` and all its superiors.

        The dependent may use the locks of `cause` and sees its versions as if it were a child. It
        commits after `cause`, and aborts if `cause` aborts. If `cause` and all its superiors have
        committed, the result is an ordinary top-level transaction.

        REQUIRES: the connection of `cause` is activedb's own.

        Raises
        ------
        TransactionAborted
            If `cause`, or a superior that it has committed to, has aborted.
        """
        with self.dependencies.latch:
            heir = self.dependencies.pinned(cause)
            if heir is None:
                return self.top_level(run)
            lender = cause.hierarchy
            if lender.lending is None:
                lender.lending = Lending()
            if heir.state is not State.ACTIVE:
                lender.lending.shut()  # it commits; no wait is allowed under this latch
            hierarchy = CausalHierarchy(self.store.session(), run, cause, heir.id)
            run.tries += 1
            dependent = TransactionNode(self, hierarchy, None, label=run.name, rule=run.rule)
            self.dependencies.began(dependent, heir)
            return dependent

    # -- services for nodes ----------------------------------------------------------------

    def begin(self, node: TransactionNode) -> None:
        """Register a new node and assign its id."""
        node.id = number = next(self._ids)
        parent, hierarchy = node.parent, node.hierarchy
        if parent is None:
            if self.new_log is not None:
                if hierarchy.session.is_serializable:
                    self.settings.check_recordable(hierarchy.run.isolation)
                node.log = self.new_log(hierarchy.run)
            if hierarchy.session.is_serializable:
                hierarchy.space = f" of {number}"
            self.locks.begin(number, causes=hierarchy.causes)
            node.is_enrolled = True
            hierarchy.top_id = number
            hierarchy.members.add(number)
            self._hierarchies[number] = hierarchy
            if self.store.is_shared:
                self.crossing.add(number, node)
            return
        with node.kin.latch:
            parent.inferiors[node] = None
            hierarchy.members.add(number)
            # A later mark of the parent reaches this node.
            node.rollback_reason = parent.rollback_reason

    def enrol(self, node: TransactionNode) -> None:
        """Make a live node, with its superiors, known to the lock manager. O(depth).

        The lock manager knows a transaction from its first request, or from the first wait in which
        it matters: most rules end before. May be called on any thread.
        """
        with node.kin.latch:
            line: list[TransactionNode] = []
            member: TransactionNode | None = node
            while member is not None and not (member.is_enrolled or member.state.is_final):
                line.append(member)
                member = member.parent
            for member in reversed(line):
                assert member.parent is not None
                self.locks.begin(member.id, member.parent.id)
                member.is_enrolled = True

    def live(self) -> tuple[int, int]:
        """Return the numbers of live top-level transactions and of live subtransactions."""
        members = [len(hierarchy.members) for hierarchy in list(self._hierarchies.values())]
        return len(members), sum(members) - len(members)

    def prepare(self, node: TransactionNode) -> None:
        """Prepare the first request of `node`; REQUIRES: it is not enrolled, or not prepared."""
        parent = node.parent
        if not node.is_prepared and parent is not None and parent.thread == node.thread:
            parent.offer_line()
        node.is_prepared = True
        self.enrol(node)
        if node.rollback_reason is not None:  # a mark before did not reach the lock manager
            raise node.rollback_error()

    def deadlock(self, node: TransactionNode, error: LockDeadlock) -> Deadlock:
        """Return the error of a wait of `node` that the lock manager has refused."""
        if node.observer is not None:
            node.observer.deadlocked(node, error.report)
        deadlock = Deadlock(f"deadlock, and {node.path} is its victim: {error}")
        # Only the abort of a whole hierarchy releases locks that another hierarchy waits for.
        with node.kin.latch:
            members = node.hierarchy.members
            deadlock.exhausted = any(edge.waiter not in members for edge in error.report.cycle)
        deadlock.breaker = _breaker(node, error.report.cycle)
        return deadlock

    def end(self, node: TransactionNode) -> None:
        """Pass on or release the locks of a node that has ended, and count it."""
        committed = node.state is State.COMMITTED
        parent = node.parent
        if node.log is not None:
            node.log.ended(node)
        if parent is not None:
            with node.kin.latch:
                parent.inferiors.pop(node, None)
                node.hierarchy.members.discard(node.id)
        try:
            if node.id in self.dependencies.nodes:
                self.dependencies.ending(node)
            if not committed:
                self.listener.aborting(node)
        finally:
            self._pass_on(node, committed=committed)
            if parent is not None and is_anybody_stalled():
                end_standstills(self)

    def _pass_on(self, node: TransactionNode, *, committed: bool) -> None:
        """Pass on or release the locks of a node that has ended, after its dependents have."""
        parent, hierarchy = node.parent, node.hierarchy
        if hierarchy.detectors and parent is None and committed:
            now_s = time.monotonic()
            for rule in hierarchy.detectors:
                self.detectors[rule] = now_s  # before the next hierarchy gets the lock
        causal = hierarchy if parent is None and isinstance(hierarchy, CausalHierarchy) else None
        try:
            if causal is not None and not committed:
                causal.leave()
            if not node.is_enrolled:
                pass  # it has no locks
            elif committed:
                self.locks.commit(node.id)
            else:
                # The server keeps the row locks of the flat transaction, and the hierarchy the rows
                # read under them, so the top-level transaction retains the locks.
                self.locks.abort(node.id, node.hierarchy.top_id if parent is not None else None)
        finally:
            if parent is None:
                del self._hierarchies[node.id]
                self.crossing.remove(node)
                if not committed:
                    try:
                        hierarchy.session.close()
                    except ActiveDBError:
                        # The connection is gone, and with it the server's side.
                        self.counters.add("sessions_lost")
                if causal is not None:
                    self.dependencies.ended(node)
            self.counters.add(_ENDED[parent is None, committed])
            if node.observer is not None:
                node.observer.ended(node)
            self.listener.ended(node)


def abandon_all(parent: int) -> None:
    """Make every open transaction unusable. REQUIRES: a forked child of process `parent`."""
    lines = forget_all()
    for node in lines:  # grows while it is walked
        if not node.state.is_final:
            lines.extend(node.inferiors)
            if node.parent is not None:
                lines.append(node.parent)
            node.abandon(parent)


def _breaker(victim: TransactionNode, cycle: tuple[Edge, ...]) -> int:
    """Return the id of the smallest transaction whose abort breaks a cycle; see `Deadlock`.

    This is a superior of the victim if a transaction outside its sphere waits for a lock that the
    superior retains, and the superior itself waits only for the end of the victim.
    """
    found, *before = victim, *reversed(cycle)
    while found.parent is not None and before[0].kind is EdgeKind.COMMIT:
        found = found.parent
        del before[0]
    with found.kin.latch:
        is_own_affair = any(node.id == before[0].waiter for node in found.sphere())
    return victim.id if is_own_affair else found.id
