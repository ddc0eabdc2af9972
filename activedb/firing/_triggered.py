"""What passes between the parts that trigger rules and those that run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from activedb.errors import ConnectionLost, Deadlock, LockTimeout, SerializationConflict
from activedb.events import Occurrence, decode
from activedb.rules import OccurrenceSet, Rule, Subscription
from activedb.transactions import Transaction

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
"""Errors that are about a transaction and not about its work: it may be tried again."""


def is_systemic(error: BaseException, t: Transaction) -> bool:
    """Whether `error` is about the transactions around `t` rather than about its own work."""
    return (
        not isinstance(error, Exception)
        or isinstance(error, SYSTEMIC)
        or t.hierarchy.session.failure is not None
        or t.is_doomed
    )


class Part(StrEnum):
    """How much of a rule is to run."""

    RULE = "rule"
    """All of it: the condition, and what follows from it."""
    ACTION = "action"
    """The action alone, because the condition was true."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A rule that has raised an event, and what had triggered that one in turn."""

    rule: str
    by: Cause | None


@dataclass(frozen=True, slots=True)
class Triggered:
    """A rule with the occurrence that triggers it.

    Attributes
    ----------
    rule : Rule
    occurrence : Occurrence
    by : Cause or None
        The rule in which the event was raised; None outside of rules.
    part : Part
        What is to run.
    undated : tuple of Occurrence
        The event that was raised just now, if its time is only when this try came to it.
    moment : str
        The moment at which time has completed the occurrence; empty if an event has.
    """

    rule: Rule
    occurrence: Occurrence
    by: Cause | None = None
    part: Part = Part.RULE
    undated: tuple[Occurrence, ...] = ()
    moment: str = ""

    @property
    def action(self) -> Triggered:
        """The same, for its action alone."""
        return replace(self, part=Part.ACTION)

    @property
    def chain(self) -> list[str]:
        """The rules that have triggered each other, up to this one; O(its length)."""
        names, by = [self.rule.name], self.by
        while by is not None:
            names.append(by.rule)
            by = by.by
        return names[::-1]


def moment_in(stream: str | None, us: int) -> str:
    """A moment in the time of a stream, or on the clock, as `Triggered` has it."""
    return f"{'clock' if stream is None else f'stream/{stream}'}@{us}"


def triggered_of(rule: Rule, row: Mapping[str, Any]) -> Triggered:
    """What a recorded firing of `rule` is to run; raises `BadEvent` if the row does not hold it."""
    data = row["occurrence"]
    return Triggered(rule, occurrence_of(rule, data), part=Part(data.get("part", Part.RULE)))


def occurrence_of(rule: Rule, data: Mapping[str, Any]) -> Occurrence:
    """What triggered `rule`, from its encoded form; raises `BadEvent` if it is none."""
    o = decode(data)
    return OccurrenceSet(list(o.parts.values()) or [o]) if rule.set_oriented else o


@dataclass(frozen=True, slots=True)
class Fed:
    """An occurrence that a detector has kept; withdrawn when its transaction aborts."""

    subscription: Subscription
    occurrence: Occurrence


@dataclass(frozen=True, slots=True, eq=False)
class Firing:
    """A rule that is to run in a top-level transaction of its own, and its row in the journal.

    Each is equal to itself alone: another try of what triggered it makes another one.

    Attributes
    ----------
    row : dict
    triggered : Triggered
    restarts : int
        How often it was given up for now, and started again.
    is_recorded : bool
        Whether its row is in the database, or will be with a batch's commit.
    """

    row: dict[str, Any]
    triggered: Triggered
    restarts: int = 0
    is_recorded: bool = True

    @property
    def name(self) -> str:
        """Digest that tells it from all others."""
        name: str = self.row["firing"]
        return name
