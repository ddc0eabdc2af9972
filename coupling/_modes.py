"""The coupling modes and what each one means, in two tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coupling._kinds import DependencyKind

__all__ = ["ConditionAction", "Coupling", "Durability", "Start"]


class Start(StrEnum):
    """When something starts."""

    AT_EVENT = "at the event"
    AT_COMMIT_POINT = "at the commit point"
    """Of the triggering transaction, in its deferred cycles."""
    AFTER_COMMIT = "after the triggering commit"
    AT_EVENT_OR_ABORT = "at the event or the abort"
    """Of the triggering transaction; which of them is for the engine to choose."""
    WHEN_TRUE = "when the condition is true"


class Durability(StrEnum):
    """How it is made sure that a triggered rule survives a crash, and runs once."""

    WITH_COMMIT = "with the triggering commit"
    """Its effects are part of the triggering transaction's; there is nothing to record."""
    RECORDED_BY_COMMIT = "recorded by the triggering commit"
    RECORDED_AT_EVENT = "recorded at the event"
    """When it happens, whatever becomes of the triggering transaction."""
    ERASED_BY_COMMIT = "recorded at the event, erased by the triggering commit"
    """An intent, so that a crash, which is an abort, leaves it standing."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    is_child: bool
    starts: Start
    dependency: DependencyKind | None
    durability: Durability


class Coupling(StrEnum):
    """Where and when a triggered transaction runs, relative to the triggering one (E-C).

    (Saygin, Ulusoy, Chakravarthy, sections 2.1 and 3.3.2.)

    ========== ========= =========================== ========== =================================
    mode       is        starts                      dependency durable
    ========== ========= =========================== ========== =================================
    immediate  child     at the event                WD, CD     with the triggering commit
    deferred   child     at the commit point         WD, CD     with the triggering commit
    detached   top-level at the event                none       recorded at the event
    causal     top-level at the event                AD         recorded by the triggering commit
    sequential top-level after the triggering commit SQD        recorded by the triggering commit
    exclusive  top-level at the event or the abort   ED         recorded at the event, erased by
                                                                the triggering commit
    ========== ========= =========================== ========== =================================

    The last three are "detached causally dependent", "sequential causally dependent" and
    "exclusive causally dependent" in the paper.
    """

    IMMEDIATE = "immediate"
    DEFERRED = "deferred"
    DETACHED = "detached"
    CAUSAL = "causal"
    SEQUENTIAL = "sequential"
    EXCLUSIVE = "exclusive"

    @property
    def is_child(self) -> bool:
        """Whether the triggered transaction is a child of the triggering one."""
        return _MEANINGS[self].is_child

    @property
    def starts(self) -> Start:
        """When the triggered transaction starts."""
        return _MEANINGS[self].starts

    @property
    def starts_at_event(self) -> bool:
        """Whether the triggered transaction may start at the event."""
        return self.starts in (Start.AT_EVENT, Start.AT_EVENT_OR_ABORT)

    @property
    def dependency(self) -> DependencyKind | None:
        """How the triggered transaction depends on the triggering one, if it does.

        WD for a child, and then the triggering one also depends on it: CD.
        """
        return _MEANINGS[self].dependency

    @property
    def durability(self) -> Durability:
        """How a triggered rule survives a crash."""
        return _MEANINGS[self].durability


_MEANINGS: Final = {
    Coupling.IMMEDIATE: _Meaning(
        is_child=True,
        starts=Start.AT_EVENT,
        dependency=DependencyKind.WD,
        durability=Durability.WITH_COMMIT,
    ),
    Coupling.DEFERRED: _Meaning(
        is_child=True,
        starts=Start.AT_COMMIT_POINT,
        dependency=DependencyKind.WD,
        durability=Durability.WITH_COMMIT,
    ),
    Coupling.DETACHED: _Meaning(
        is_child=False,
        starts=Start.AT_EVENT,
        dependency=None,
        durability=Durability.RECORDED_AT_EVENT,
    ),
    Coupling.CAUSAL: _Meaning(
        is_child=False,
        starts=Start.AT_EVENT,
        dependency=DependencyKind.AD,
        durability=Durability.RECORDED_BY_COMMIT,
    ),
    Coupling.SEQUENTIAL: _Meaning(
        is_child=False,
        starts=Start.AFTER_COMMIT,
        dependency=DependencyKind.SQD,
        durability=Durability.RECORDED_BY_COMMIT,
    ),
    Coupling.EXCLUSIVE: _Meaning(
        is_child=False,
        starts=Start.AT_EVENT_OR_ABORT,
        dependency=DependencyKind.ED,
        durability=Durability.ERASED_BY_COMMIT,
    ),
}


class ConditionAction(StrEnum):
    """Where and when a rule's action runs, relative to its condition (C-A).

    ========== ======================================================================
    mode       the action
    ========== ======================================================================
    immediate  follows the condition, in the same transaction
    sequential starts with the condition, beside it, and commits only if the condition
               commits and is true (Saygin, Ulusoy, Chakravarthy, section 3.3.2)
    deferred   waits for the commit point of the transaction that triggered the rule
    detached   runs in a top-level transaction of its own, when the condition is true
    ========== ======================================================================

    `plan` says which transactions that makes, for each coupling of event and condition.
    """

    IMMEDIATE = "immediate"
    SEQUENTIAL = "sequential"
    DEFERRED = "deferred"
    DETACHED = "detached"
