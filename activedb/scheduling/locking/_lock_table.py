"""Lock table of a run: lock modes, lock insertion (Wang et al., algorithm 1), waiting requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from activedb.errors import AccessError, DefinitionError
from activedb.scheduling._operations import At, Outcome, STransaction
from activedb.scheduling._tables import Ref
from activedb.scheduling.locking._gate import Gate, Stopped

__all__ = [
    "FIGURE_3_LWM",
    "FIGURE_3_S2PL",
    "AccessMode",
    "Compatibility",
    "Granularity",
    "LockAnswer",
    "Locked",
    "ObjectLock",
    "TimestampLockTable",
    "blockers",
    "check_granularity",
    "insert_all",
    "just_after",
    "locks_of",
    "read_locks",
    "write_locks_of",
]


class AccessMode(IntEnum):
    """Access of an s-transaction that a lock permits, to an object or to rows inside it.

    An integer enumeration, since modes are hashed at every access.
    """

    READ = 1
    WRITE = 2
    READ_ROWS = 3
    WRITE_ROWS = 4

    @property
    def is_inside(self) -> bool:
        """True if the mode only announces locks on rows, which then decide."""
        return self in (AccessMode.READ_ROWS, AccessMode.WRITE_ROWS)

    @property
    def access(self) -> AccessMode:
        """`READ` or `WRITE`."""
        return (
            AccessMode.WRITE
            if self in (AccessMode.WRITE, AccessMode.WRITE_ROWS)
            else AccessMode.READ
        )


class LockAnswer(Enum):
    """Answer to a request for a lock while another s-transaction holds one."""

    YES = "yes"
    MAYBE = "maybe"
    """Depends on the timestamps: granted unless the lock held is older."""
    NO = "no"


Compatibility = Mapping[tuple[AccessMode, AccessMode], LockAnswer]
"""Answers by the mode held and the mode requested."""

FIGURE_3_S2PL: Compatibility = {
    (AccessMode.READ, AccessMode.READ): LockAnswer.YES,
    (AccessMode.READ, AccessMode.WRITE): LockAnswer.NO,
    (AccessMode.WRITE, AccessMode.READ): LockAnswer.NO,
    (AccessMode.WRITE, AccessMode.WRITE): LockAnswer.NO,
}
FIGURE_3_LWM: Compatibility = {
    (AccessMode.READ, AccessMode.READ): LockAnswer.YES,
    (AccessMode.READ, AccessMode.WRITE): LockAnswer.YES,
    (AccessMode.WRITE, AccessMode.READ): LockAnswer.MAYBE,
    (AccessMode.WRITE, AccessMode.WRITE): LockAnswer.NO,
}


def answer(figure: Compatibility, held: AccessMode, requested: AccessMode) -> LockAnswer:
    """Return the answer of figure 3 for two locks on one object, including announcing modes.

    Two locks that both only announce locks on rows are compatible: the locks on the rows decide.
    Otherwise each counts as the mode that it announces.
    """
    if held.is_inside and requested.is_inside:
        return LockAnswer.YES
    return figure[held.access, requested.access]


def blockers(figure: Compatibility) -> dict[AccessMode, tuple[AccessMode, ...]]:
    """Return, for each requested mode, the modes whose older holders must end before the grant.

    Queues are in timestamp order. So the holder of a lock ahead of a request is older, and `NO` and
    `MAYBE` are equivalent; `MAYBE` allows a younger writer that came first to let the reader pass.
    """
    return {
        requested: tuple(
            held for held in AccessMode if answer(figure, held, requested) is not LockAnswer.YES
        )
        for requested in AccessMode
    }


# -- lock table: all locks of a run, and the waiting requests --------------------------------------


class TimestampLockTable:
    """Locks with timestamps, inserted in any order of arrival, granted in timestamp order.

    Parameters
    ----------
    compatibility : mapping
        Figure 3: `FIGURE_3_S2PL` or `FIGURE_3_LWM`.
    gate : Gate, optional
        Notified of waits and of their ends.

    Notes
    -----
    A request is granted when the punctuation has passed it and no older incompatible lock is left
    (Wang et al., algorithm 2 with the two lines of appendix F). Once the punctuation has passed a
    request, no older lock can be inserted; so the marks that it waits for only rise, and it may
    wait for them one after the other. Each request sleeps on its own condition; only the thread
    that ends the blocking lock wakes it.

    Latch: ``_latch``; the gate's latch is taken under it.
    """

    def __init__(self, compatibility: Compatibility, gate: Gate | None = None):
        self._blockers = blockers(compatibility)
        self._gate = gate
        self._latch = threading.Lock()
        self._marks: dict[ObjectLock, LowWaterMark] = {}  # by object and mode; no idle ones
        self._of: dict[At, tuple[ObjectLock, ...]] = {}
        self._punctuation: At | None = None
        self._unpunctuated: list[WaitingRequest] = []  # a heap
        self._waiting: set[WaitingRequest] = set()
        self._is_stopped = False
        kept = {mode for modes in self._blockers.values() for mode in modes}
        self._kept = frozenset(kept)  # locks in other modes block no request

    def insert(self, at: At, locks: Iterable[ObjectLock]) -> None:
        """Insert the locks of an s-transaction, before it runs.

        Raises
        ------
        AccessError
            If the punctuation has passed the s-transaction, or its locks were inserted before.
        """
        kept = tuple(lock for lock in locks if lock.mode in self._kept)
        with self._latch:
            if self._punctuation is not None and at < self._punctuation:
                raise AccessError(
                    f"locks of an s-transaction at {at.us} come too late: the punctuation is at "
                    f"{self._punctuation.us}"
                )
            if at in self._of:
                raise AccessError(f"the s-transaction at {at} has its locks already")
            self._of[at] = kept
            for lock in kept:
                mark = self._marks.get(lock)
                if mark is None:
                    mark = self._marks[lock] = LowWaterMark()
                mark.add(at)

    def punctuate(self, before: At) -> None:
        """Declare that no more locks of s-transactions before a place will be inserted."""
        with self._latch:
            if self._punctuation is not None and before <= self._punctuation:
                return
            self._punctuation = before
            while self._unpunctuated and self._unpunctuated[0].at < before:
                self._grant(heappop(self._unpunctuated))

    def request(self, at: At, locks: Iterable[ObjectLock]) -> None:
        """Block until all these locks are granted.

        Raises
        ------
        Stopped
            If the table has been stopped.
        """
        with self._latch:
            if self._punctuation is None or at >= self._punctuation:
                waiter = WaitingRequest(at, self._latch)
                heappush(self._unpunctuated, waiter)
                self._sleep(waiter)
            for on, mode in locks:
                for held in self._blockers[mode]:
                    mark = self._marks.get(ObjectLock(on, held))
                    if mark is not None and not mark.lets_pass(at):
                        waiter = WaitingRequest(at, self._latch)
                        mark.join(waiter)
                        self._sleep(waiter)

    def release(self, at: At) -> None:
        """Release all locks of an s-transaction, and wake the requests that they blocked."""
        with self._latch:
            for lock in self._of.pop(at):
                mark = self._marks[lock]
                for waiter in mark.end(at):
                    self._grant(waiter)
                if mark.is_idle:
                    del self._marks[lock]

    def stop(self) -> None:
        """Make all requests, waiting and future ones, raise `Stopped`."""
        with self._latch:
            self._is_stopped = True
            for waiter in self._waiting:
                waiter.wake()

    def low_water_mark(self, on: Locked, mode: AccessMode = AccessMode.WRITE) -> At | None:
        """Return the oldest timestamp of the locks in a mode on an object; None if none."""
        with self._latch:
            mark = self._marks.get(ObjectLock(on, mode))
            return None if mark is None else mark.oldest

    def __len__(self) -> int:
        """Return the number of s-transactions with locks."""
        with self._latch:
            return len(self._of)

    def _sleep(self, waiter: WaitingRequest) -> None:
        if self._is_stopped:
            raise Stopped
        self._waiting.add(waiter)
        if self._gate is not None:
            self._gate.blocked(waiter.at)
        while not waiter.is_granted:
            waiter.wait()
            if self._is_stopped:
                raise Stopped

    def _grant(self, waiter: WaitingRequest) -> None:
        waiter.is_granted = True
        self._waiting.discard(waiter)
        if self._gate is not None:
            self._gate.unblocked(waiter.at)
        waiter.wake()


def insert_all(
    transactions: Sequence[STransaction],
    table: TimestampLockTable,
    locks_of: Callable[[STransaction], dict[ObjectLock, None]],
) -> dict[STransaction, dict[ObjectLock, None]]:
    """Insert the locks of all s-transactions of a run, in their order, and punctuate after them.

    Returns
    -------
    dict
        The locks of each s-transaction. One whose operations fail to name their locks, because it
        was built by hand from invalid operations or references, aborts here and is left out.

    Raises
    ------
    AccessError
        If two s-transactions have the same place.
    """
    inserted = {}
    for transaction in transactions:
        try:
            locks = locks_of(transaction)
        except Exception as error:
            transaction.outcome = Outcome.of_error(error)
            continue
        table.insert(transaction.at, locks)
        inserted[transaction] = locks
    if inserted:
        table.punctuate(just_after(max(transaction.at for transaction in inserted)))
    return inserted


def just_after(at: At) -> At:
    """Return the first place after `at`: a punctuation at that place has passed `at`."""
    return At(at.us, at.id, at.arrival + 1)


# -- low-water marks: the oldest of the locks in one mode on one object ----------------------------


class WaitingRequest:
    """Request that waits on its own condition until it is granted.

    Attributes
    ----------
    at : At
        Its s-transaction's timestamp.
    is_granted : bool
    """

    __slots__ = ("_condition", "at", "is_granted")

    def __init__(self, at: At, latch: threading.Lock):
        self.at = at
        self.is_granted = False
        self._condition = threading.Condition(latch)

    def wait(self) -> None:
        """Sleep until woken. REQUIRES: the latch, which is released meanwhile."""
        self._condition.wait()

    def wake(self) -> None:
        """Wake the waiting thread. REQUIRES: the latch."""
        self._condition.notify()

    def __lt__(self, other: WaitingRequest) -> bool:
        return self.at < other.at


class LowWaterMark:
    """Locks in one mode on one object, inserted in any order, and the requests that they block.

    Its low-water mark is the oldest timestamp among the locks (Wang et al., definition 8). A
    request passes if the mark is not older than the request.

    REQUIRES, for every method: the latch of the lock table.
    """

    __slots__ = ("_ended", "_live", "_waiting")

    def __init__(self) -> None:
        self._live: list[At] = []  # a heap; members of _ended are removed when they reach its top
        self._ended: set[At] | None = None  # created lazily: most marks have one lock and no waiter
        self._waiting: list[WaitingRequest] | None = None  # a heap

    @property
    def oldest(self) -> At | None:
        """The low-water mark; None if there is no lock."""
        return self._live[0] if self._live else None

    @property
    def is_idle(self) -> bool:
        """True if there is neither a lock nor a request."""
        return not self._live and not self._waiting

    def add(self, at: At) -> None:
        """Insert a lock; O(log locks), O(1) in timestamp order."""
        heappush(self._live, at)

    def lets_pass(self, at: At) -> bool:
        """Return whether no lock is older than a timestamp."""
        return not self._live or at <= self._live[0]

    def join(self, waiter: WaitingRequest) -> None:
        """Make a request wait until the mark lets it pass."""
        if self._waiting is None:
            self._waiting = []
        heappush(self._waiting, waiter)

    def end(self, at: At) -> list[WaitingRequest]:
        """Remove a lock; return the requests that need not wait any more, oldest first."""
        live, ended = self._live, self._ended
        if live[0] != at:
            if ended is None:
                ended = self._ended = set()
            ended.add(at)
            return []  # the mark is unchanged
        heappop(live)
        while ended and live[0] in ended:
            ended.remove(heappop(live))
        granted = []
        while self._waiting and self.lets_pass(self._waiting[0].at):
            granted.append(heappop(self._waiting))
        return granted


# -- lock insertion: the locks that an s-transaction needs (Wang et al., algorithm 1) --------------


Granularity = Literal["table", "row"]
Locked = tuple[str] | tuple[str, Hashable]
"""Locked object: a table by its name, or a row by table name and key."""


class ObjectLock(NamedTuple):
    """Lock on an object, in a mode."""

    on: Locked
    mode: AccessMode


def check_granularity(granularity: str) -> Granularity:
    """Return the granularity; raise `DefinitionError` if it is invalid."""
    if granularity == "table":
        return "table"
    if granularity == "row":
        return "row"
    raise DefinitionError(f"granularity is 'table' or 'row', not {granularity!r}")


def locks_of(transaction: STransaction, granularity: Granularity) -> dict[ObjectLock, None]:
    """Return all locks that an s-transaction may need, each once, write locks first.

    They follow from its operations: targets get write locks, sources read locks. Complexity:
    O(references).
    """
    locks = write_locks_of(transaction, granularity)
    for ref in transaction.reads():
        for lock in read_locks(ref, granularity):
            locks[lock] = None
    return locks


def write_locks_of(transaction: STransaction, granularity: Granularity) -> dict[ObjectLock, None]:
    """Return the write locks that an s-transaction may need, each once."""
    locks: dict[ObjectLock, None] = {}
    for ref in transaction.writes():
        for lock in _locks(ref, granularity, AccessMode.WRITE, AccessMode.WRITE_ROWS):
            locks[lock] = None
    return locks


def read_locks(ref: Ref, granularity: Granularity) -> tuple[ObjectLock, ...]:
    """Return the locks needed to read a reference: on its table, then on its row."""
    return _locks(ref, granularity, AccessMode.READ, AccessMode.READ_ROWS)


def _locks(
    ref: Ref, granularity: Granularity, mode: AccessMode, inside: AccessMode
) -> tuple[ObjectLock, ...]:
    name = ref.table.name
    if granularity == "table" or ref.is_whole or not _is_hashable(ref.key):
        return (ObjectLock((name,), mode),)
    return ObjectLock((name,), inside), ObjectLock((name, ref.key), mode)


def _is_hashable(key: object) -> bool:
    """Return whether `key` is hashable; an access with an unhashable key is refused later."""
    try:
        hash(key)
    except Exception:  # user-defined classes may raise anything
        return False
    return True
