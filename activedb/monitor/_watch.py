"""Observer that records the steps of transactions and rules, with the reasons for aborts."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from activedb.errors import (
    ConditionWrites,
    ConnectionLost,
    ConstraintViolation,
    CycleLimitExceeded,
    Deadlock,
    LockNotAvailable,
    LockTimeout,
    RuleFailed,
    RuleInQuarantine,
    SerializationConflict,
    TransactionAborted,
    TransactionCancelled,
    TransactionTimeout,
    WrongThread,
)
from activedb.events import Occurrence
from activedb.firing import RuleListener
from activedb.metrics import Histogram
from activedb.monitor._deadlocks import Deadlocks
from activedb.monitor._records import Raw, RecentTransactions, TransactionRecord
from activedb.monitor._redaction import Params, Redaction
from activedb.store.journals import Repeated
from activedb.store.sql import Key
from activedb.transactions import Link, Observer, State, TransactionNode
from lockmgr import DeadlockReport, Edge, Mode, Resource

__all__ = ["EVENTS", "RECENT", "RaisedEvent", "Watch", "came_from", "reason"]


_SENTENCES: tuple[tuple[type[BaseException], str], ...] = (
    (LockNotAvailable, "A lock was not free at once, and it had said not to wait (nowait)."),
    (LockTimeout, "It waited for a lock for longer than lock_timeout_ms allows."),
    (TransactionTimeout, "Its limit of time was over."),
    (TransactionCancelled, "It was cancelled from outside."),
    (SerializationConflict, "The server gave it up, because something it had seen has changed."),
    (ConnectionLost, "The connection to the server was lost."),
    (ConstraintViolation, "A constraint of the database refused a row that it wrote."),
    (CycleLimitExceeded, "Rules kept triggering rules beyond the bound that is set."),
    (ConditionWrites, "The condition of its rule wrote something; a condition may only read."),
    (WrongThread, "It was used by a thread on which it does not run."),
    (KeyboardInterrupt, "The program was interrupted."),
    (SystemExit, "The program ended."),
    (GeneratorExit, "The generator in which its block stood was closed."),
)

_TOLD = (TransactionAborted, TransactionCancelled, TransactionTimeout)
"""Errors that are raised in many transactions at once, and that come from no inferior."""


def reason(
    t: TransactionNode,
    error: BaseException | None,
    deadlock: int | None,
    is_below: Callable[[int], bool],
) -> str:
    """Explain why `t` aborts.

    Parameters
    ----------
    error : BaseException or None
        The error that aborts `t`, if known.
    deadlock : int or None
        Number of the last deadlock in which `t` itself was the victim.
    is_below : callable
        Returns whether a transaction is an inferior of `t`.
    """
    if error is not None and _is_taken_along(t, error):
        assert t.parent is not None
        return f"Its superior {t.parent.id} had to abort, and takes it along."
    said = _said(t, error, deadlock)
    origin = came_from(t, error)
    if origin is None or not is_below(origin):
        return said
    return f"{said} The error came from transaction {origin} below it."


def came_from(t: TransactionNode, error: BaseException | None) -> int | None:
    """Return the transaction in which an error was first seen, if that is not `t`.

    The error object is marked, as two errors that look alike can't be told apart otherwise.
    """
    if error is None or isinstance(error, _TOLD):
        return None
    first = getattr(error, "_activedb_failed_in", None)
    if first is None:
        try:
            error._activedb_failed_in = t.id  # type: ignore[attr-defined]  # if it accepts attributes
        except Exception:  # whatever a class of the application raises
            return None
        return None
    return first if isinstance(first, int) and first != t.id else None


def _is_taken_along(t: TransactionNode, error: BaseException) -> bool:
    """Return whether the parent has to abort with the same error, which names no transaction."""
    if t.parent is None or error is not t.rollback_reason or error is not t.parent.rollback_reason:
        return False
    return not (isinstance(error, TransactionAborted) and error.transaction)


def _said(t: TransactionNode, error: BaseException | None, deadlock: int | None) -> str:
    if error is None:
        return "It was not told why."
    if isinstance(error, Deadlock):
        if deadlock is None:
            return (
                "A transaction below it was the victim of a deadlock, and could not continue alone."
            )
        return f"It was the victim of deadlock {deadlock}, so that the others could proceed."
    if isinstance(error, RuleInQuarantine):
        return f"Rule {error.rule} is in quarantine, so it is not run."
    if isinstance(error, RuleFailed):
        cause = "" if error.__cause__ is None else f" with {type(error.__cause__).__name__}"
        return (
            f"Rule {error.rule}, which was triggered in it, failed{cause}, which "
            f"aborts the triggering transaction."
        )
    if isinstance(error, TransactionTimeout | TransactionCancelled):
        return _of_kind(error) or ""
    if isinstance(error, TransactionAborted):
        if error.transaction == t.id:
            return "Its own code aborted it."
        other = error.transaction
        if not other:
            return "It had to abort with another transaction."
        if other > t.id:  # ids grow, so it began later
            return f"Transaction {other} below it was aborted, and no caller caught the error."
        return f"Transaction {other}, whose fate it shares, was aborted."
    known = _of_kind(error)
    if known is not None:
        return known
    if t.rule is not None:
        return f"Rule {t.rule} raised {type(error).__name__}."
    return f"Its code raised {type(error).__name__}."


def _of_kind(error: BaseException) -> str | None:
    found = (sentence for kind, sentence in _SENTENCES if isinstance(error, kind))
    return next(found, None)


# -- observer that records the steps of transactions and rules -------------------------------------


_LOG = logging.getLogger(__name__)

RECENT, EVENTS = 0, 1
"""Indices of the rings: transactions that have ended, events that were raised."""
_RECENT_MAX, _EVENTS_MAX = 500, 200
_ABORTED_MAX = 50
_SPAWNERS_MAX = 10_000
_CALLED_CHARS_MAX = 100
_FIRING_CHARS_MAX = 200

_MATCH = "composite"
_KINDS = {
    "insert": "row",
    "update": "row",
    "delete": "row",
    "clock": "clock",
    "late": "stream",
    _MATCH: _MATCH,
}


class RaisedEvent(NamedTuple):
    """An event that was raised, or a match of a rule's pattern.

    Attributes
    ----------
    at_s : float
        Time of the record, in seconds since 1970.
    name, kind, what : str
        `kind` is row, signal, stream, clock or composite; `what` is more precise: insert, call.
    transaction : int
    params : tuple of (str, str)
    """

    at_s: float
    name: str
    kind: str
    what: str
    transaction: int
    params: Params


class Watch(Observer, RuleListener):
    """Observer of every step of transactions and rules, with a bounded record of them.

    Latch: ``latch`` guards all records. It is taken last, for O(1), and no other latch is taken
    under it.

    Attributes
    ----------
    latch : threading.Lock
    lives : RecentTransactions
    rings : Rings
        Rings of `TransactionRecord` (`RECENT`) and `RaisedEvent` (`EVENTS`).
    aborted : deque of TransactionRecord
        The most recent aborted transactions.
    deadlocks : Deadlocks
    transactions, commits : Histogram
        Durations of top-level transactions that have committed: from begin to end, and from the end
        of their work to the end.
    """

    def __init__(self, redaction: Redaction):
        self.latch = threading.Lock()
        self.lives = RecentTransactions()
        self.rings: Rings[TransactionRecord | RaisedEvent] = Rings(_RECENT_MAX, _EVENTS_MAX)
        self.aborted: deque[TransactionRecord] = deque(maxlen=_ABORTED_MAX)
        self.deadlocks = Deadlocks()
        self.transactions = Histogram()
        self.commits = Histogram()
        self._here = threading.local()
        self._redaction = redaction
        # The transaction that triggered each of the most recent firings, by the firing's name.
        self._spawners: OrderedDict[str, int] = OrderedDict()
        self._has_failed = False

    # -- transactions ----------------------------------------------------------------------

    def began(self, t: TransactionNode) -> None:
        """Record that a transaction has begun."""
        now_s = time.time()
        parent, hierarchy = t.parent, t.hierarchy
        try:
            thread = self._here.thread
        except AttributeError:
            thread = self._here.thread = threading.current_thread().name
        rule = t.rule
        coupling = None if rule is None else t.coupling
        lives = self.lives
        with self.latch:
            above = None if parent is None else lives.live.get(parent.id)
            if above is None and parent is not None:
                lives.unknown += 1
                return
            life = TransactionRecord(t.id, above, t.label, now_s, thread)
            if rule is not None:
                life.rule, life.coupling = rule, coupling
            if not lives.begin(life):
                return
            if above is None:
                run, causes = hierarchy.run, hierarchy.causes
                life.tries = run.tries
                if run.called:
                    life.called = run.called.rpartition("<locals>.")[2][-_CALLED_CHARS_MAX:]
                spawner = self._spawners.get(run.name)
                if spawner is not None and spawner not in causes:
                    causes = (*causes, spawner)
                if causes:
                    life.causes = causes
            else:
                above.begins(life)
                what = "child" if life.tries == 1 else "retried"
                lives.add(above, (now_s, what, life.label, None, None, life.id, None))
            lives.add(life, (now_s, "began", thread, None, None, None, None))

    def spawned(self, t: TransactionNode, firing: str, coupling: str) -> None:
        """Record a triggered rule that is to run in a separate top-level transaction."""
        with self.latch:
            self._spawners[firing] = t.id
            if len(self._spawners) > _SPAWNERS_MAX:
                self._spawners.popitem(last=False)
        self._note(t, "spawned", firing[-_FIRING_CHARS_MAX:], mode=str(coupling))

    def waits(self, t: TransactionNode, edges: tuple[Edge, ...]) -> None:
        """Record that a transaction is about to sleep."""
        now_s = time.time()
        with self.latch:
            life = self.lives.live.get(t.id)
            if life is None:
                return
            edge = edges[0] if edges else None
            if edge is not None and edge.resource is not None:
                life.wait = (edge.resource, now_s)
            self.lives.add(life, _waited(now_s, edge))

    def granted(self, t: TransactionNode, resource: Resource, mode: Mode) -> None:
        """Record that a transaction has got a lock."""
        now_s = time.time()
        with self.latch:
            life = self.lives.live.get(t.id)
            if life is None:
                return
            what, lasted = "lock", ""
            wait = life.wait
            if wait is not None:
                life.wait = None
                if resource[: len(wait[0])] == wait[0]:  # or an enclosing resource was waited for
                    what, lasted = "granted", _lasted(now_s - wait[1])
            self.lives.add(life, (now_s, what, lasted, resource, mode.name, None, None))

    def wrote(self, t: TransactionNode, kind: str, table: str, key: Key) -> None:
        """Record that a transaction has made a version of a row."""
        self._note(t, "wrote", kind, resource=(table, key))

    def deadlocked(self, t: TransactionNode, cycle: DeadlockReport | tuple[Link, ...]) -> None:
        """Record that a transaction is the victim of a deadlock."""
        now_s = time.time()
        with self.latch:
            found = self.deadlocks.add(now_s, t.id, cycle, self.lives.get)
            life = self.lives.live.get(t.id)
            if life is not None:
                if life.wait is None and isinstance(cycle, DeadlockReport):
                    edge = cycle.cycle[0]
                    if edge.waiter == t.id:  # its request closed the cycle, so it never slept
                        self.lives.add(life, _waited(now_s, edge))
                life.deadlock = found.n
                life.wait = None
                self.lives.add(life, (now_s, "deadlock", str(found.n), None, None, None, None))

    def committing(self, t: TransactionNode) -> None:
        """Record that a top-level transaction has done its work; subtransactions are ignored."""
        if t.parent is not None:
            return
        now_s = time.time()
        with self.latch:
            life = self.lives.live.get(t.id)
            if life is not None:
                life.state, life.committing_s = "committing", now_s
                life.wait = None
                self.lives.add(life, (now_s, "committing", "", None, None, None, None))

    def failing(self, t: TransactionNode, error: BaseException | None) -> None:
        """Record that a transaction is about to abort."""
        self._fails(t, error)

    def ended(self, t: TransactionNode) -> None:
        """Record that a transaction has ended."""
        is_committed = t.state is State.COMMITTED
        if not is_committed:
            self._fails(t, t.rollback_reason)
        now_s = time.time()
        state = "committed" if is_committed else "aborted"
        parent = t.parent
        with self.latch:
            life = self.lives.live.get(t.id)
            if life is None:
                return
            life.state, life.ended_s = state, now_s
            self.lives.add(life, (now_s, state, "", None, None, None, None))
            self.lives.end(life)
            self.rings.add(RECENT, life)
            if not is_committed:
                self.aborted.append(life)
            above = None if parent is None else self.lives.live.get(parent.id)
            if above is not None:
                if not is_committed:
                    above.has_failed(life)
                self.lives.add(above, (now_s, "child ended", state, None, None, t.id, None))

        if parent is None and is_committed:
            # The clock may have been set back.
            self.transactions.record(max(0.0, now_s - life.began_s))
            self.commits.record(max(0.0, now_s - (life.committing_s or now_s)))

    def _fails(self, t: TransactionNode, error: BaseException | None) -> None:
        """Record why a transaction aborts, unless that is already known."""
        with self.latch:
            life = self.lives.live.get(t.id)
        if life is None or life.why is not None:
            return
        why = reason(t, error, life.deadlock, lambda other: self._is_below(other, life))
        shown = None if error is None else self._redaction.error(error)
        with self.latch:
            life.why, life.error = why, shown
            self.lives.add(life, (time.time(), "failed", why, None, None, None, None))

    def _is_below(self, number: int, life: TransactionRecord) -> bool:
        """Return whether a recorded transaction is an inferior; O(depth)."""
        with self.latch:
            found = self.lives.get(number)
        while found is not None:
            found = found.above
            if found is life:
                return True
        return False

    # -- events and rules ------------------------------------------------------------------

    def raised(self, t: TransactionNode, o: Occurrence) -> None:
        """Record that an event was raised."""
        try:
            what = o.key[0]
            kind = _KINDS.get(what)
            if kind is None:
                of_input = (Repeated.STREAM, Repeated.WORKFLOW)
                is_of_stream = t.hierarchy.run.batch in of_input
                kind = "stream" if is_of_stream else "signal"
            now_s = time.time()
            event = RaisedEvent(now_s, o.name, kind, what, t.id, self._redaction.params(o.params))
            with self.latch:
                self.rings.add(EVENTS, event)
                life = self.lives.live.get(t.id)
                if life is not None:
                    self.lives.add(life, (now_s, "event", o.name, None, what, None, None))
        except Exception as error:
            self._failed(error)

    def triggered(self, t: TransactionNode, items: Sequence[Any]) -> None:
        """Record that an event has triggered rules."""
        try:
            for item in items:
                rule, o = item.rule, item.occurrence
                if o.parts:
                    params = self._redaction.params(o.params)
                    match = RaisedEvent(time.time(), rule.name, _MATCH, _MATCH, t.id, params)
                    with self.latch:
                        self.rings.add(EVENTS, match)
                self._note(t, "triggered", rule.name, mode=str(rule.coupling))
        except Exception as error:
            self._failed(error)

    def ran(
        self,
        s: TransactionNode,
        item: Any,
        outcome: str,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Record that a rule has run."""
        try:
            if outcome != "failed":
                self._note(s, "ran", item.rule.name, mode=outcome)
        except Exception as failure:
            self._failed(failure)

    # -- inside ----------------------------------------------------------------------------

    def _note(
        self,
        t: TransactionNode,
        what: str,
        about: str = "",
        resource: Resource | None = None,
        mode: str | None = None,
    ) -> None:
        now_s = time.time()
        with self.latch:
            life = self.lives.live.get(t.id)
            if life is not None:
                self.lives.add(life, (now_s, what, about, resource, mode, None, None))

    def _failed(self, error: Exception) -> None:
        """Log the first failure of the monitor, which must not fail the work that it watches."""
        if not self._has_failed:
            self._has_failed = True
            _LOG.error("the monitor has failed, and may again", exc_info=error)


def _waited(at_s: float, edge: Edge | None) -> Raw:
    if edge is None:  # another thread let it continue before the wait was seen
        return (at_s, "waited", "", None, None, None, None)
    mode = None if edge.mode is None else edge.mode.name
    return (at_s, "waited", "", edge.resource, mode, edge.waited_for, edge)


def _lasted(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"


# -- recent entries, within a bound, for clients that poll for news --------------------------------

T = TypeVar("T")


class News(NamedTuple, Generic[T]):
    """Entries that are new since an earlier poll.

    Attributes
    ----------
    entries : list of list of (int, T)
        For each ring, its newest entries with their numbers, the newest last.
    last : int
        Number of the newest entry of all rings: the `since` of the next poll.
    skipped : int
        Entries between the two polls that are left out, because there were too many.
    """

    entries: list[list[tuple[int, T]]]
    last: int
    skipped: int


class Rings(Generic[T]):
    """Several rings whose entries are numbered together, from 1 on.

    A client that passes the `last` of one poll as `since` of the next gets each entry once, and
    learns exactly how many it has missed: ``last - since == entries returned + skipped``.

    Not thread-safe: the owner guards it with a latch.

    Parameters
    ----------
    *sizes : int
        Capacity of each ring; beyond it the oldest entries are forgotten.
    """

    def __init__(self, *sizes: int):
        self._rings: tuple[deque[tuple[int, T]], ...] = tuple(deque(maxlen=n) for n in sizes)
        self.last = 0

    def add(self, ring: int, entry: T) -> int:
        """Add an entry to a ring; return its number."""
        self.last += 1
        self._rings[ring].append((self.last, entry))
        return self.last

    def since(self, since: int) -> News[T]:
        """Return the entries added after number `since`. O(size of the answer).

        A number that has not been assigned yet comes from another process: then all entries are
        new.
        """
        if not 0 <= since <= self.last:
            since = 0
        entries = []
        for ring in self._rings:
            new: list[tuple[int, T]] = []
            for entry in reversed(ring):
                if entry[0] <= since:
                    break
                new.append(entry)
            new.reverse()
            entries.append(new)
        told = sum(map(len, entries))
        return News(entries, self.last, self.last - since - told)
