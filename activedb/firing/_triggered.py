"""Data passed from the parts that trigger rules to the parts that run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from activedb.errors import ConnectionLost, Deadlock, LockTimeout, SerializationConflict
from activedb.events import Occurrence, decode
from activedb.rules import OccurrenceSet, Rule, Subscription
from activedb.transactions import Node

__all__ = [
    "SYSTEMIC",
    "Cause",
    "Fed",
    "Firing",
    "Part",
    "Triggered",
    "is_systemic",
    "moment_in",
    "occurrence_of",
    "triggered_of",
]

SYSTEMIC = (ConnectionLost, Deadlock, LockTimeout, SerializationConflict)
"""Errors of the transaction rather than of its work, after which it may be retried."""


def is_systemic(error: BaseException, t: Node) -> bool:
    """Return whether `error` stems from the transactions around `t`, not from its own work."""
    return (
        not isinstance(error, Exception)
        or isinstance(error, SYSTEMIC)
        or t.hierarchy.session.failure is not None
        or t.is_rollback_only
    )


class Part(StrEnum):
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
    part : Part
        The part of the rule that is to run.
    undated : tuple of Occurrence
        The event just raised, if its time comes from the clock of this try.
    moment : str
        The moment at which time completed the occurrence; empty if an event completed it.
    """

    rule: Rule
    occurrence: Occurrence
    by: Cause | None = None
    part: Part = Part.RULE
    undated: tuple[Occurrence, ...] = ()
    moment: str = ""

    @property
    def action(self) -> Triggered:
        """Copy of this item for the action alone."""
        return replace(self, part=Part.ACTION)

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
    return Triggered(rule, occurrence_of(rule, data), part=Part(data.get("part", Part.RULE)))


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
class Firing:
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
    """

    row: dict[str, Any]
    triggered: Triggered
    restarts: int = 0
    is_recorded: bool = True

    @property
    def name(self) -> str:
        """Unique name of the firing."""
        name: str = self.row["firing"]
        return name
