"""What the lock table answers: typed values, no behaviour beyond their text."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from lockmgr._modes import Mode

__all__ = [
    "GRANTED",
    "NOTHING",
    "Blocked",
    "DeadlockReport",
    "Denial",
    "Denied",
    "Edge",
    "EdgeKind",
    "Effects",
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
        part if place == 0 and isinstance(part, str) else repr(part)
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


class Edge(NamedTuple):
    """One edge of the wait-for graph; `resource` and `mode` (asked for) are None for commits."""

    waiter: int
    waited_for: int
    kind: EdgeKind
    resource: Resource | None
    mode: Mode | None

    def text(self) -> str:
        """Say in one line who waits for whom, and why."""
        if self.resource is None or self.mode is None:
            return f"{self.waiter} waits for the commit of its child {self.waited_for}"
        lock = f"{self.mode.name} on {resource_text(self.resource)}"
        reason = {
            EdgeKind.HELD: "which holds it",
            EdgeKind.RETAINED: "which retains it",
            EdgeKind.SOFT: "which asked earlier",
        }[self.kind]
        return f"{self.waiter} wants {lock}, waits for {self.waited_for}, {reason}"


@dataclass(frozen=True, slots=True)
class DeadlockReport:
    """A cycle of the wait-for graph, and so the reason why its first waiter was refused.

    Attributes
    ----------
    cycle : tuple of Edge
        In cycle order: each edge's `waited_for` is the next one's `waiter`, the last one's is the
        first one's. The first waiter is the victim.
    """

    cycle: tuple[Edge, ...]

    @property
    def victim(self) -> int:
        """The transaction whose request was withdrawn."""
        return self.cycle[0].waiter

    def text(self) -> str:
        """Say who is the victim and draw the cycle, one line per edge."""
        lines = [f"transaction {self.victim} is the victim of a deadlock; abort it and retry:"]
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


Effects: TypeAlias = tuple[Grant | Denial, ...]
"""What a call did to *other* transactions, in the order in which it happened."""

NOTHING: Final[Effects] = ()


@dataclass(frozen=True, slots=True)
class Granted:
    """The requester holds the lock."""

    effects: Effects = NOTHING


@dataclass(frozen=True, slots=True)
class Blocked:
    """The requester must wait; a later call's effects tell how its wait ends.

    Attributes
    ----------
    edges : tuple of Edge
        The held, retained and soft edges of the wait, one per transaction waited for.
    """

    edges: tuple[Edge, ...]
    effects: Effects = NOTHING


@dataclass(frozen=True, slots=True)
class Denied:
    """The requester is the victim of the deadlock that its wait would have closed."""

    report: DeadlockReport
    effects: Effects = NOTHING


Reply: TypeAlias = Granted | Blocked | Denied

GRANTED: Final = Granted()
"""The one reply of every uncontended request."""
