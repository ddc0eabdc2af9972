"""Replies of the lock table: typed values without behaviour beyond their text."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from lockmgr._modes import Mode

__all__ = [
    "GRANTED",
    "NOTHING",
    "Blocked",
    "Busy",
    "DeadlockReport",
    "Denial",
    "Denied",
    "Edge",
    "EdgeKind",
    "Effects",
    "Ended",
    "Grant",
    "Granted",
    "Reply",
    "Resource",
    "resource_text",
]

Resource: TypeAlias = tuple[Hashable, ...]
"""A path: ``("accounts",)`` is a table, ``("accounts", 7)`` a row in it."""


def resource_text(resource: Resource) -> str:
    """Format a resource for display: ``accounts/7``; keys that are strings keep their quotes."""
    return "/".join(
        part if place == 0 and isinstance(part, str) and "/" not in part else repr(part)
        for place, part in enumerate(resource)
    )


class EdgeKind(StrEnum):
    """Reason for a wait of one transaction for another.

    After (Saygin, Ulusoy, Chakravarthy, section 4.2.2).
    """

    HELD = "held"
    """wait-for-held-lock: the other holds the lock in a conflicting mode."""
    RETAINED = "retained"
    """wait-for-retained-lock: the other retains the lock in a conflicting mode and is no ancestor.
    """
    SOFT = "soft"
    """The other has a conflicting request ahead in the queue; the order may be reversed."""
    COMMIT = "commit"
    """wait-for-commit: a parent waits for its live child, from the child's begin on."""
    DEPENDENCY = "dependency"
    """wait-for-commit: a dependent transaction, about to end, waits for the other to end."""
    INLINE = "inline"
    """The waiter runs on the thread of the other, a superior, which is blocked."""
    THREAD = "thread"
    """The waiter's thread sleeps in a wait of the other; only callers detect these edges."""


class Edge(NamedTuple):
    """Edge of the wait-for graph.

    Attributes
    ----------
    waiter, waited_for : int
    kind : EdgeKind
    resource : Resource or None
        Resource that the waiter asked for; None for edges that do not concern a lock.
    mode : Mode or None
        Mode in which the waiter asked for the resource.
    against : Mode or None
        Conflicting mode in which the other transaction holds, retains or asked for the resource.
    """

    waiter: int
    waited_for: int
    kind: EdgeKind
    resource: Resource | None = None
    mode: Mode | None = None
    against: Mode | None = None

    def text(self) -> str:
        """Return one line that names the waiter, the transaction waited for and the reason."""
        waiter, other = self.waiter, self.waited_for
        if self.resource is None or self.mode is None or self.against is None:
            if self.kind is EdgeKind.COMMIT:
                return f"{waiter} waits for the commit of its child {other}"
            if self.kind is EdgeKind.INLINE:
                return f"{waiter} runs on the thread of its superior {other}, which is blocked"
            if self.kind is EdgeKind.THREAD:
                return f"{waiter} is open on the thread that sleeps in the wait of {other}"
            return f"{waiter} waits for the end of {other}, on which it depends"
        reason = {
            EdgeKind.HELD: "which holds it in",
            EdgeKind.RETAINED: "which retains it in",
            EdgeKind.SOFT: "which asked earlier for",
        }[self.kind]
        return (
            f"{waiter} wants {self.mode.name} on {resource_text(self.resource)}, "
            f"waits for {other}, {reason} {self.against.name}"
        )


@dataclass(frozen=True)
class DeadlockReport:
    """Cycle of the wait-for graph; the reason why its first waiter was denied.

    Attributes
    ----------
    cycle : tuple of Edge
        In cycle order: the `waited_for` of each edge is the `waiter` of the next, and that of the
        last edge is the `waiter` of the first. The first waiter is the victim.
    policy : str
        Name of the policy that chose the victim.
    waits : tuple of Edge
        Edges of the cycle in the order in which the waits began: the last one closed the cycle. The
        wait for a child began with the child, the wait of an inline child with its superior's wait.
    """

    cycle: tuple[Edge, ...]
    policy: str
    waits: tuple[Edge, ...] = ()

    @property
    def victim(self) -> int:
        """The transaction whose request was withdrawn."""
        return self.cycle[0].waiter

    def text(self) -> str:
        """Return text that names the victim and lists the cycle, one line per edge."""
        lines = [
            f"transaction {self.victim} is the victim of a deadlock (policy: {self.policy}); "
            "abort it and retry:"
        ]
        lines += [f"  {edge.text()}" for edge in self.cycle]
        return "\n".join(lines)


class Grant(NamedTuple):
    """A waiting transaction got its lock; `mode` is the mode that it holds now."""

    tid: int
    resource: Resource
    mode: Mode


class Denial(NamedTuple):
    """A waiting transaction became the victim of a deadlock; its request is withdrawn."""

    tid: int
    report: DeadlockReport


class Ended(NamedTuple):
    """A wait is over: transaction `of`, for whose end `tid` waited, has ended."""

    tid: int
    of: int


Effects: TypeAlias = tuple[Grant | Denial | Ended, ...]
"""Effects of a call on *other* transactions, in the order in which they happened."""

NOTHING: Final[Effects] = ()


@dataclass(frozen=True)
class Granted:
    """The request is granted."""

    effects: Effects = NOTHING


@dataclass(frozen=True)
class Blocked:
    """The requester must wait; the effects of a later call report how its wait ends.

    `LockTable.edges` returns the transactions that it waits for.
    """

    effects: Effects = NOTHING


@dataclass(frozen=True)
class Busy:
    """The requester would have to wait, but was not to; nothing has changed.

    Attributes
    ----------
    edges : tuple of Edge
        Edges that the wait would have had.
    """

    edges: tuple[Edge, ...]
    effects: Effects = NOTHING


@dataclass(frozen=True)
class Denied:
    """The requester is the victim of the deadlock that its wait would have closed."""

    report: DeadlockReport
    effects: Effects = NOTHING


Reply: TypeAlias = Granted | Blocked | Busy | Denied

GRANTED: Final = Granted()
"""Shared reply of all uncontended requests."""
