"""What the lock table is made of: transactions, entries, requests (README, "Structures").

Each lock is seen from two sides, ``entry.holders[transaction]`` and ``transaction.held[entry]``
(and likewise for retained locks). The methods of `Entry` are the only code that changes either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr._modes import CONFLICTS, SUPREMUM, UNIT, Mode

if TYPE_CHECKING:
    from lockmgr._replies import Resource

__all__ = ["Entry", "Request", "Transaction"]


class Transaction:
    """A live node of the forest and what it owns."""

    __slots__ = ("children", "held", "parent", "retained", "tid", "waiting")

    def __init__(self, tid: int, parent: Transaction | None):
        self.tid = tid
        self.parent = parent
        self.children: dict[int, Transaction] = {}
        self.held: dict[Entry, Mode] = {}
        self.retained: dict[Entry, Mode] = {}
        self.waiting: Request | None = None

    def is_in_sphere_of(self, other: Transaction) -> bool:
        """Tell whether `other` is this transaction or a superior of it. O(depth)."""
        line: Transaction | None = self
        while line is not None:
            if line is other:
                return True
            line = line.parent
        return False


class Request:
    """The one request that a transaction may have waiting."""

    __slots__ = ("entry", "mode", "transaction", "upgrade")

    def __init__(self, transaction: Transaction, entry: Entry, mode: Mode, *, upgrade: bool):
        self.transaction = transaction
        self.entry = entry
        self.mode = mode
        self.upgrade = upgrade


class Entry:
    """Everything about one resource: who holds it, who retains it, who waits for it."""

    __slots__ = ("held_tally", "holders", "queue", "resource", "retained_tally", "retainers")

    def __init__(self, resource: Resource):
        self.resource = resource
        self.holders: dict[Transaction, Mode] = {}
        self.retainers: dict[Transaction, Mode] = {}
        self.held_tally = 0
        self.retained_tally = 0
        self.queue: list[Request] = []

    def admits(self, transaction: Transaction, mode: Mode) -> bool:
        """Tell whether rule 1 lets `transaction` hold the resource in `mode`, the queue apart.

        O(1) while nothing conflicting is retained, else O(depth): however many hold or retain,
        the locks of the transaction's own line are taken off the tally and the rest is looked at.
        """
        conflicts = CONFLICTS[mode]
        others = self.held_tally
        own = self.holders.get(transaction)
        if own is not None:
            others -= UNIT[own]
        if others & conflicts:
            return False
        outside = self.retained_tally
        if outside & conflicts:
            line: Transaction | None = transaction
            while line is not None:
                retained = self.retainers.get(line)
                if retained is not None:
                    outside -= UNIT[retained]
                line = line.parent
        return not outside & conflicts

    def hold(self, transaction: Transaction, mode: Mode) -> None:
        """Let `transaction` hold the resource in exactly `mode`, whatever it held before."""
        before = self.holders.get(transaction)
        if before is not None:
            self.held_tally -= UNIT[before]
        self.holders[transaction] = mode
        transaction.held[self] = mode
        self.held_tally += UNIT[mode]

    def retain(self, transaction: Transaction, mode: Mode) -> None:
        """Let `transaction` retain the resource in the supremum of `mode` and what it retains."""
        before = self.retainers.get(transaction)
        if before is not None:
            self.retained_tally -= UNIT[before]
            mode = SUPREMUM[before][mode]
        self.retainers[transaction] = mode
        transaction.retained[self] = mode
        self.retained_tally += UNIT[mode]

    def drop_held(self, transaction: Transaction) -> None:
        """Take the hold away on this side; the caller clears ``transaction.held``."""
        self.held_tally -= UNIT[self.holders.pop(transaction)]

    def drop_retained(self, transaction: Transaction) -> None:
        """Take the retained lock away on this side; the caller clears ``transaction.retained``."""
        self.retained_tally -= UNIT[self.retainers.pop(transaction)]

    def conflicts_with_waiters(self, mode: Mode) -> bool:
        """Tell whether any waiting request conflicts with `mode`."""
        return any(CONFLICTS[mode] & UNIT[request.mode] for request in self.queue)

    def enqueue(self, request: Request) -> None:
        """Put a request in its natural place: the end, or for an upgrade after the upgrades."""
        place = len(self.queue)
        if request.upgrade:
            place = next((i for i, other in enumerate(self.queue) if not other.upgrade), place)
        self.queue.insert(place, request)
        request.transaction.waiting = request

    def withdraw(self, request: Request) -> None:
        """Take a request out of the queue."""
        self.queue.remove(request)
        request.transaction.waiting = None

    def sweep(self) -> list[Request]:
        """Grant, from the head on, what rule 1 admits and no request left ahead conflicts with.

        Returns the requests granted. No grant adds an edge between transactions that were not
        already connected (README, "Why a sweep needs no search").
        """
        granted: list[Request] = []
        ahead = 0
        for request in tuple(self.queue):
            if not ahead & CONFLICTS[request.mode] and self.admits(
                request.transaction, request.mode
            ):
                self.withdraw(request)
                self.hold(request.transaction, request.mode)
                granted.append(request)
            else:
                ahead += UNIT[request.mode]
        return granted

    def is_idle(self) -> bool:
        """Tell whether nobody holds, retains or waits for the resource."""
        return not (self.holders or self.retainers or self.queue)
