"""What passes between the parts that trigger rules and those that run them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from activedb.errors import ConnectionLost, Deadlock, LockTimeout, SerializationConflict
from activedb.events import Occurrence
from activedb.rules import Rule, Subscription
from activedb.transactions import Transaction

__all__ = ["Fed", "Firing", "Triggered", "is_systemic"]

_SYSTEMIC = (ConnectionLost, Deadlock, LockTimeout, SerializationConflict)


def is_systemic(error: BaseException, t: Transaction) -> bool:
    """Whether `error` is about the transactions around `t` rather than about its own work."""
    return (
        not isinstance(error, Exception)
        or isinstance(error, _SYSTEMIC)
        or t.hierarchy.session.failure is not None
        or t.is_doomed
    )


@dataclass(frozen=True, slots=True)
class Triggered:
    """A rule with the occurrence that triggers it."""

    rule: Rule
    occurrence: Occurrence


@dataclass(frozen=True, slots=True)
class Fed:
    """An occurrence that a detector has kept; withdrawn when its transaction aborts."""

    subscription: Subscription
    occurrence: Occurrence


@dataclass(frozen=True, slots=True)
class Firing:
    """A rule that is to run in a top-level transaction of its own, and its row in the journal."""

    row: dict[str, Any]
    triggered: Triggered
