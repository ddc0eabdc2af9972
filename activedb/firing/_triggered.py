"""Triggered rules, as passed from the parts that trigger them to the parts that run them.

Names and error texts are readable, and the same when work is repeated.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from activedb.errors import (
    ConnectionLost,
    CycleLimitExceeded,
    Deadlock,
    LockTimeout,
    RuleFailed,
    SerializationConflict,
)
from activedb.events import Occurrence, decode
from activedb.functions import error_text
from activedb.rules import OccurrenceSet, Rule, Subscription
from activedb.transactions import TransactionNode

__all__ = [
    "SYSTEMIC",
    "Cause",
    "Fed",
    "RecordedFiring",
    "RulePart",
    "Triggered",
    "failed_in",
    "is_systemic",
    "moment_in",
    "occurrence_of",
    "shortened",
    "too_deep",
    "too_many_cycles",
    "triggered_of",
]


def shortened(name: str, length_max: int) -> str:
    """Return `name`; if too long for its column, its beginning and a hash of the whole."""
    if len(name) <= length_max:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
    return f"{name[: length_max - len(digest) - 1]}#{digest}"


SYSTEMIC = (ConnectionLost, Deadlock, LockTimeout, SerializationConflict)
"""Errors of the transaction rather than of its work, after which it may be retried."""


def is_systemic(error: BaseException, t: TransactionNode) -> bool:
    """Return whether `error` stems from the transactions around `t`, not from its own work."""
    return (
        not isinstance(error, Exception)
        or isinstance(error, SYSTEMIC)
        or t.hierarchy.session.failure is not None
        or t.is_rollback_only
    )


class RulePart(StrEnum):
    """Part of a rule that is to run."""

    RULE = "rule"
    """The whole rule: the condition, then the action if it is true."""
    ACTION = "action"
    """The action alone, after the condition was true."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Rule that has raised an event, with the cause that triggered the rule in turn."""

    rule: str
    by: Cause | None


@dataclass(frozen=True, slots=True)
class Triggered:
    """Triggered rule with the occurrence that triggers it.

    Attributes
    ----------
    rule : Rule
    occurrence : Occurrence
    by : Cause or None
        The rule in which the event was raised; None outside of rules.
    part : RulePart
        The part of the rule that is to run.
    undated : tuple of Occurrence
        The event just raised, if its time comes from the clock of this try.
    moment : str
        The moment at which time completed the occurrence; empty if an event completed it.
    """

    rule: Rule
    occurrence: Occurrence
    by: Cause | None = None
    part: RulePart = RulePart.RULE
    undated: tuple[Occurrence, ...] = ()
    moment: str = ""

    @property
    def action(self) -> Triggered:
        """Copy of this item for the action alone."""
        return replace(self, part=RulePart.ACTION)

    @property
    def chain(self) -> list[str]:
        """Chain of rules that have triggered each other, up to this rule; O(length)."""
        names, by = [self.rule.name], self.by
        while by is not None:
            names.append(by.rule)
            by = by.by
        return names[::-1]


def moment_in(stream: str | None, us: int) -> str:
    """Return a moment in the time of a stream, or of the clock, as `Triggered.moment` has it."""
    return f"{'clock' if stream is None else f'stream/{stream}'}@{us}"


def triggered_of(rule: Rule, row: Mapping[str, Any]) -> Triggered:
    """Decode the item that a recorded firing of `rule` runs; raise `BadEvent` on a bad row."""
    data = row["occurrence"]
    return Triggered(
        rule, occurrence_of(rule, data), part=RulePart(data.get("part", RulePart.RULE))
    )


def occurrence_of(rule: Rule, data: Mapping[str, Any]) -> Occurrence:
    """Decode the occurrence that triggered `rule`; raise `BadEvent` if it is malformed."""
    o = decode(data)
    return OccurrenceSet(list(o.parts.values()) or [o]) if rule.set_oriented else o


@dataclass(frozen=True, slots=True)
class Fed:
    """Occurrence kept by a detector; withdrawn when its transaction aborts."""

    subscription: Subscription
    occurrence: Occurrence


@dataclass(frozen=True, slots=True, eq=False)
class RecordedFiring:
    """Rule that is to run in a separate top-level transaction, with its row in the journal.

    Compared by identity: another try of the triggering work makes another object.

    Attributes
    ----------
    row : dict
    triggered : Triggered
    restarts : int
        Number of times the firing was given up for now, and started again.
    is_recorded : bool
        True if its row is in the database, or will be with a batch's commit.
    fired : set of str
        Names of the detached firings that it has triggered in tries of this process.
    """

    row: dict[str, Any]
    triggered: Triggered
    restarts: int = 0
    is_recorded: bool = True
    fired: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Unique name of the firing."""
        name: str = self.row["firing"]
        return name


_SHOWN = 5  # names at either end of a chain
_PENDING_SHOWN = 10


def too_deep(t: TransactionNode, depth: int, items: Sequence[Triggered]) -> CycleLimitExceeded:
    """Return the error for rules that would run `depth` deep, below `t` or as its next level."""
    chain = _shown(items[0].chain)
    return CycleLimitExceeded(
        f"{t.top.path}: rules trigger rules {depth} deep: {chain}; give one of them a condition "
        f"that ends it, or raise cascade_max"
    )


def too_many_cycles(
    t: TransactionNode, bound: int, pending: Sequence[Triggered]
) -> CycleLimitExceeded:
    """Return the error for rules still deferred when the cycles of `t` are used up."""
    names = sorted({item.rule.name for item in pending})
    more = f" and {len(names) - _PENDING_SHOWN} more" if len(names) > _PENDING_SHOWN else ""
    longest = max(pending, key=lambda item: len(item.chain))
    return CycleLimitExceeded(
        f"{t.top.path}: more than {bound} deferred cycles; still deferred: "
        f"{', '.join(names[:_PENDING_SHOWN])}{more}, triggered by way of {_shown(longest.chain)}. "
        f"These rules keep triggering each other; give one a condition that ends it, or raise "
        f"cycles_max"
    )


def failed_in(rule: str, error: BaseException) -> str:
    """Return the message for a rule that failed with `error`, perhaps through a rule below it.

    Each rule of the chain is named once.
    """
    names, cause = [rule], error
    while isinstance(cause, RuleFailed) and type(cause) is RuleFailed and cause.__cause__:
        names.append(cause.rule)
        cause = cause.__cause__
    if len(names) == len(set(names)) <= 2 * _SHOWN + 1:
        return f"rule {rule} failed: {error_text(error)}"
    return f"rules {_shown(names)} failed: {error_text(cause)}"


def _shown(chain: Sequence[str]) -> str:
    """Return a chain of rules as text, each once with its count; cut a long chain in the middle."""
    names = [
        name if number == 1 else f"{name} ({number} times)"
        for name, number in Counter(chain).items()  # in order of first appearance
    ]
    if len(names) > 2 * _SHOWN + 1:
        left_out = len(names) - 2 * _SHOWN
        names[_SHOWN:-_SHOWN] = [f"… {left_out} more …"]
    return " → ".join(names)
