"""Data structures of the lock table: transactions, locks, entries, requests (README, "Structures").

A lock is reachable from two sides: its transaction has it in ``held`` or ``retained``, its entry in
a linked list. Only the methods of `Entry` change the entry's side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockmgr._modes import CONFLICTS, SUPREMUM, UNIT, Mode, X

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockmgr._predicates import Columns
    from lockmgr._replies import Resource

__all__ = ["DeclaredRows", "EndWait", "Entry", "Inside", "Lock", "LockOwner", "Request", "encloses"]


class LockOwner:
    """Live node of the transaction forest, with the locks that it owns."""

    __slots__ = (
        "awaited_by",
        "causes",
        "children",
        "declared",
        "dependents",
        "heir",
        "held",
        "inline",
        "inline_child",
        "inside",
        "merged",
        "parent",
        "retained",
        "serial",
        "tid",
        "waiting",
    )

    def __init__(self, tid: int, serial: int, parent: LockOwner | None, inline: bool):
        self.tid = tid
        self.serial = serial
        self.parent = parent
        self.inline = inline
        self.merged = 0
        self.held: dict[Entry, Lock] = {}
        self.retained: dict[Entry, Lock] = {}
        self.heir: LockOwner | None = None
        self.waiting: Request | EndWait | None = None
        # Few transactions need these, so they are created on first use.
        self.children: dict[int, LockOwner] | None = None
        self.inline_child: LockOwner | None = None
        self.causes: dict[int, LockOwner] | None = None
        self.dependents: dict[int, LockOwner] | None = None
        self.awaited_by: dict[int, LockOwner] | None = None
        self.inside: dict[Resource, Inside] | None = None
        self.declared: dict[Resource, DeclaredRows | None] | None = None
        if parent is not None:
            if parent.children is None:
                parent.children = {}
            parent.children[tid] = self
            if inline:
                parent.inline_child = self

    def bequeath(self, heir: LockOwner) -> None:
        """Let `heir` retain all that this ending transaction holds and retains.

        O(locks held + the smaller of the two sets of retained locks): the heir takes over the
        larger set as it is, and the smaller set is merged into it. So a lock that is passed up a
        chain of any length moves O(log of the locks) times.
        """
        if len(self.retained) > len(heir.retained):
            self.retained, heir.retained = heir.retained, self.retained
            self.heir = heir
        for locks in (self.retained, self.held):
            for entry, lock in locks.items():
                entry.hand_on(lock, heir)
            locks.clear()  # leave no reference cycle for the garbage collector

    def leave_parent(self) -> None:
        """Remove this ended transaction from its parent's children."""
        if self.parent is not None and self.parent.children is not None:
            del self.parent.children[self.tid]
            if self.inline:
                self.parent.inline_child = None

    def holds(self, entry: Entry | None, mode: Mode) -> bool:
        """Return whether the transaction holds `entry` in a mode as strong as `mode`. O(1).

        False if `entry` is None.
        """
        lock = None if entry is None else self.held.get(entry)
        return lock is not None and SUPREMUM[lock.mode][mode] is lock.mode

    def line(self) -> list[LockOwner]:
        """Return this transaction, its superiors and its causal ancestors, each once.

        O(length of the result), which is the depth for a hierarchy that depends on no other.
        """
        line: list[LockOwner] = []
        node: LockOwner | None = self
        while node is not None:
            line.append(node)
            top = node
            node = node.parent
        if top.causes:
            seen = set(line)
            for member in line:  # the list grows during the iteration
                beyond = list(member.causes.values()) if member.causes else []
                if member.parent is not None:
                    beyond.append(member.parent)
                for node in beyond:
                    if node not in seen:
                        seen.add(node)
                        line.append(node)
        return line

    def is_inferior_of(self, other: LockOwner) -> bool:
        """Return whether `other` is a superior of this transaction. O(depth)."""
        superior = self.parent
        while superior is not None and superior is not other:
            superior = superior.parent
        return superior is not None

    def sphere(self) -> Iterator[LockOwner]:
        """Yield this transaction and its live inferiors."""
        found = [self]
        for member in found:  # the list grows during the iteration
            yield member
            if member.children:
                found.extend(member.children.values())


class DeclaredRows:
    """Rows in one table, old and new, that a transaction has declared before it writes them.

    Attributes
    ----------
    held, retained : list of mapping
        Those under locks that it holds, and those under locks that it only retains.
    """

    __slots__ = ("held", "retained")

    def __init__(self) -> None:
        self.held: list[Columns] = []
        self.retained: list[Columns] = []

    def offer(self) -> None:
        """Note that the transaction has downgraded its locks to none."""
        self.retained += self.held
        self.held = []

    def inherit(self, child: DeclaredRows) -> None:
        """Take the rows of a child that ends. O(the smaller of the numbers of rows)."""
        for rows in (child.held, child.retained):
            if len(rows) > len(self.retained):
                self.retained, rows = rows, self.retained
            self.retained += rows


class Inside:
    """Number of a transaction's locks inside one resource, and the next escalation threshold."""

    __slots__ = ("count", "due")

    def __init__(self, due: int):
        self.count = 0
        self.due = due


class Lock:
    """Lock that one transaction holds or retains on one resource."""

    __slots__ = ("_owner", "is_held", "mode", "next", "previous")

    def __init__(self, owner: LockOwner, mode: Mode, is_held: bool, next_: Lock | None):
        self._owner = owner
        self.mode = mode
        self.is_held = is_held
        self.next = next_
        self.previous: Lock | None = None

    @property
    def owner(self) -> LockOwner:
        """The transaction that holds or retains the lock: the original owner or its heir."""
        owner = self._owner
        heir = owner.heir
        while heir is not None:
            owner = heir
            heir = owner.heir
        ended = self._owner
        while ended.heir is not None:  # path compression: the next lookup is shorter
            ended.heir, ended = owner, ended.heir
        self._owner = owner
        return owner

    def pass_to(self, heir: LockOwner) -> None:
        """Make `heir` the owner."""
        self._owner = heir


class Request:
    """Wait of a transaction for a lock."""

    __slots__ = ("entry", "mode", "serial", "transaction", "upgrade")

    def __init__(
        self, transaction: LockOwner, entry: Entry, mode: Mode, upgrade: bool, serial: int = 0
    ):
        self.transaction = transaction
        self.entry = entry
        self.mode = mode
        self.upgrade = upgrade
        self.serial = serial


class EndWait:
    """Wait of a transaction for the end of another."""

    __slots__ = ("awaited", "serial", "transaction")

    def __init__(self, transaction: LockOwner, awaited: LockOwner, serial: int = 0):
        self.transaction = transaction
        self.awaited = awaited
        self.serial = serial


_EMPTY_QUEUE: Final[list[Request]] = []  # shared queue of all entries that were never waited for


class Entry:
    """State of one resource: its holders, its retainers and its queue."""

    __slots__ = ("held_tally", "locks", "queue", "resource", "retained_tally", "waiting_tally")

    def __init__(self, resource: Resource):
        self.resource = resource
        self.locks: Lock | None = None
        self.held_tally = 0
        self.retained_tally = 0
        self.queue: list[Request] = _EMPTY_QUEUE
        self.waiting_tally = 0

    # -- admission ---------------------------------------------------------------------------

    def admits(self, transaction: LockOwner, mode: Mode) -> bool:
        """Return whether rule 1 lets `transaction` hold the resource in `mode`, ignoring the queue.

        O(1) while no conflicting lock is retained, else O(depth), whatever the number of holders
        and retainers: the locks of the transaction's own line are subtracted from the tally, and
        the rest is tested.
        """
        conflicts = CONFLICTS[mode]
        if self.held_tally & conflicts:
            own = transaction.held.get(self)
            if own is None or (self.held_tally - UNIT[own.mode]) & conflicts:
                return False
        outside = self.retained_tally
        if outside & conflicts:
            for member in transaction.line():
                lock = member.retained.get(self)
                if lock is not None:
                    outside -= UNIT[lock.mode]
            if outside & conflicts:
                return False
        return True

    def owners(self) -> list[Lock]:
        """Return the held locks, then the retained ones; oldest first within each kind."""
        held: list[Lock] = []
        retained: list[Lock] = []
        lock = self.locks
        while lock is not None:
            (held if lock.is_held else retained).append(lock)
            lock = lock.next
        held.reverse()
        retained.reverse()
        return held + retained

    def is_idle(self) -> bool:
        """Return whether the resource has no holder, no retainer and no waiting request."""
        return self.locks is None and not self.queue

    # -- changes of locks --------------------------------------------------------------------

    def hold(self, transaction: LockOwner, mode: Mode) -> None:
        """Let `transaction` hold the resource in exactly `mode`, whatever mode it held before."""
        lock = transaction.held.get(self)
        if lock is None:
            transaction.held[self] = self._add(transaction, mode, True)
        else:
            self.held_tally -= UNIT[lock.mode]
            lock.mode = mode
        self.held_tally += UNIT[mode]

    def retain(self, transaction: LockOwner, mode: Mode) -> None:
        """Let `transaction` retain the supremum of `mode` and the mode that it retains already."""
        lock = transaction.retained.get(self)
        if lock is None:
            transaction.retained[self] = self._add(transaction, mode, False)
        else:
            self.retained_tally -= UNIT[lock.mode]
            mode = lock.mode = SUPREMUM[lock.mode][mode]
        self.retained_tally += UNIT[mode]

    def hand_on(self, lock: Lock, heir: LockOwner) -> None:
        """Let `heir` retain the resource in the mode of `lock`; the owner loses the lock.

        The caller removes `lock` from the owner's dictionary.
        """
        if heir.retained.get(self) is not None:
            self.retain(heir, lock.mode)
            self.drop(lock)
            return
        unit = UNIT[lock.mode]
        if lock.is_held:
            self.held_tally -= unit
            self.retained_tally += unit
            lock.is_held = False
        lock.pass_to(heir)
        heir.retained[self] = lock

    def drop(self, lock: Lock) -> None:
        """Remove a lock from the entry; the caller removes it from the owner's dictionary."""
        if lock.is_held:
            self.held_tally -= UNIT[lock.mode]
        else:
            self.retained_tally -= UNIT[lock.mode]
        before, after = lock.previous, lock.next
        if before is None:
            self.locks = after
        else:
            before.next = after
        if after is not None:
            after.previous = before

    def _add(self, transaction: LockOwner, mode: Mode, is_held: bool) -> Lock:
        first = self.locks
        lock = self.locks = Lock(transaction, mode, is_held, first)
        if first is not None:
            first.previous = lock
        return lock

    # -- the queue ---------------------------------------------------------------------------

    def enqueue(self, request: Request) -> None:
        """Insert a request at its natural place in the queue.

        The place is the end of the queue. An upgrade goes ahead of the first request, other
        upgrades apart, that waits for the lock held by the upgrader. It passes no other request: a
        stream of upgrades would starve those.
        """
        if self.queue is _EMPTY_QUEUE:
            self.queue = []
        place = len(self.queue)
        if request.upgrade:
            conflicts = CONFLICTS[request.transaction.held[self].mode]
            for i, other in enumerate(self.queue):
                if not other.upgrade and UNIT[other.mode] & conflicts:
                    place = i
                    break
        self.queue.insert(place, request)
        self.waiting_tally += UNIT[request.mode]
        request.transaction.waiting = request

    def withdraw(self, request: Request) -> None:
        """Remove a request from the queue."""
        self.queue.remove(request)
        self.waiting_tally -= UNIT[request.mode]
        request.transaction.waiting = None

    def sweep(self) -> list[Request]:
        """Grant, from the head on, each request that rule 1 admits and no remaining request blocks.

        Returns the requests granted. No grant adds an edge between transactions that were not
        already connected (README, "Why a sweep needs no search"). O(queue up to the first X that
        stays), apart from a copy of the queue, since that X blocks all requests behind it.
        """
        granted: list[Request] = []
        ahead = 0
        for request in tuple(self.queue):
            mode = request.mode
            if not ahead & CONFLICTS[mode] and self.admits(request.transaction, mode):
                self.withdraw(request)
                self.hold(request.transaction, mode)
                granted.append(request)
            elif mode is X:
                break
            else:
                ahead |= UNIT[mode]
        return granted


def encloses(
    entries: dict[Resource, Entry], transaction: LockOwner, resource: Resource, mode: Mode
) -> bool:
    """Return whether `transaction` holds a prefix of `resource` in a mode as strong as `mode`.

    O(length of the path).
    """
    for length in range(len(resource) - 1, 0, -1):
        if transaction.holds(entries.get(resource[:length]), mode):
            return True
    return False
