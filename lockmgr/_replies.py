"""What the lock table answers: typed values, no behaviour beyond their text."""

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
    """Write a resource for people: ``accounts/7``; keys that are strings keep their quotes."""
    return "/".join(
        part if place == 0 and isinstance(part, str) and "/" not in part else repr(part)
        for place, part in enumerate(resource)
    )


class EdgeKind(StrEnum):
    """Why one transaction waits for another (Saygin, Ulusoy, Chakravarthy, section 4.2.2)."""

    HELD = "held"
    """wait-for-held-lock: the other holds the lock in a conflicting mode."""
    RETAINED = "retained"
    """wait-for-retained-lock: the other retains it so, and is no ancestor of the waiter."""
    SOFT = "soft"
    """The other has a conflicting request ahead in the queue; may be turned round."""
    COMMIT = "commit"
    """wait-for-commit: a parent waits for its live child, from the child's begin on."""
    DEPENDENCY = "dependency"
    """wait-for-commit: a dependent transaction, about to end, waits for the other to end."""
    INLINE = "inline"
    """The waiter runs on the thread of the other, a superior, which is blocked."""
    THREAD = "thread"
    """The waiter goes on on a thread that sleeps in a wait of the other; callers find these."""


class Edge(NamedTuple):
    """One edge of the wait-for graph.

    Attributes
    ----------
    waiter, waited_for : int
    kind : EdgeKind
    resource : Resource or None
        What the waiter asked for; None for edges that are not about a lock.
    mode : Mode or None
        The mode in which the waiter wants it.
    against : Mode or None
        The conflicting mode in which the other holds it, retains it or asked for it.
    """

    waiter: int
    waited_for: int
    kind: EdgeKind
    resource: Resource | None = None
    mode: Mode | None = None
    against: Mode | None = None

    def text(self) -> str:
        """Say in one line who waits for whom, and why."""
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
    """A cycle of the wait-for graph, and so the reason why its first waiter was refused.

    Attributes
    ----------
    cycle : tuple of Edge
        In cycle order: each edge's `waited_for` is the next one's `waiter`, the last one's is the
        first one's. The first waiter is the victim.
    policy : str
        Name of the policy that chose the victim.
    waits : tuple of Edge
        The edges of the cycle in the order in which the waits began: the last one closed it.
        The wait for a child began with the child, that for a thread with its superior's wait.
    """

    cycle: tuple[Edge, ...]
    policy: str
    waits: tuple[Edge, ...] = ()

    @property
    def victim(self) -> int:
        """The transaction whose request was withdrawn."""
        return self.cycle[0].waiter

    def text(self) -> str:
        """Say who is the victim and draw the cycle, one line per edge."""
        lines = [
            f"transaction {self.victim} is the victim of a deadlock (policy: {self.policy}); "
            "abort it and retry:"
        ]
        lines += [f"  {edge.text()}" for edge in self.cycle]
        return "\n".join(lines)


class Grant(NamedTuple):
    """A waiting transaction got its lock; `mode` is what it holds now."""

    tid: int
    resource: Resource
    mode: Mode


class Denial(NamedTuple):
    """A waiting transaction became the victim of a deadlock; its request is withdrawn."""

    tid: int
    report: DeadlockReport


class Ended(NamedTuple):
    """A transaction need wait no more: `of`, for whose end it waited, has ended."""

    tid: int
    of: int


Effects: TypeAlias = tuple[Grant | Denial | Ended, ...]
"""What a call did to *other* transactions, in the order in which it happened."""

NOTHING: Final[Effects] = ()


@dataclass(frozen=True)
class Granted:
    """The requester has what it asked for."""

    effects: Effects = NOTHING


@dataclass(frozen=True)
class Blocked:
    """The requester must wait; a later call's effects tell how its wait ends.

    For whom it waits, `LockTable.edges` tells.
    """

    effects: Effects = NOTHING


@dataclass(frozen=True)
class Busy:
    """The requester would have to wait and did not want to; nothing has changed.

    Attributes
    ----------
    edges : tuple of Edge
        The edges that its wait would have had.
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
"""The one reply of every uncontended request."""
