"""Coupling modes, their meanings, and the transactions that each pair of modes needs.

`plan` is an executable specification: activedb runs rules by itself, and tests compare it with the
plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coupling._dependencies import Dependency, DependencyKind

__all__ = ["ConditionAction", "Coupling", "Durability", "Plan", "Planned", "Role", "Start", "plan"]


class Start(StrEnum):
    """Time at which a transaction starts."""

    AT_EVENT = "at the event"
    AT_COMMIT_POINT = "at the commit point"
    """Commit point of the triggering transaction, in its deferred cycles; see `Planned`."""
    AFTER_COMMIT = "after the triggering commit"
    AT_EVENT_OR_ABORT = "at the event or the abort"
    """Event or abort of the triggering transaction, whichever the caller chooses."""
    WHEN_TRUE = "when the condition is true"


class Durability(StrEnum):
    """Means by which a triggered rule survives a crash and runs once."""

    WITH_COMMIT = "with the triggering commit"
    """Effects are part of the triggering transaction; no record is needed."""
    RECORDED_BY_COMMIT = "recorded by the triggering commit"
    RECORDED_AT_EVENT = "recorded at the event"
    """Recorded when the event happens, whatever the outcome of the triggering transaction."""
    ERASED_BY_COMMIT = "recorded at the event, erased by the triggering commit"
    """Recorded as an intent, which remains in force after a crash, as a crash is an abort."""


@dataclass(frozen=True, slots=True)
class _CouplingMeaning:
    is_child: bool
    starts: Start
    dependency: DependencyKind | None
    durability: Durability


class Coupling(StrEnum):
    """Coupling of a triggered transaction to the triggering one (E-C).

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

    In the paper, the last three are called "detached causally dependent", "sequential causally
    dependent" and "exclusive causally dependent".
    """

    IMMEDIATE = "immediate"
    DEFERRED = "deferred"
    DETACHED = "detached"
    CAUSAL = "causal"
    SEQUENTIAL = "sequential"
    EXCLUSIVE = "exclusive"

    @property
    def is_child(self) -> bool:
        """True if the triggered transaction is a child of the triggering one."""
        return _MEANINGS[self].is_child

    @property
    def starts(self) -> Start:
        """Time at which the triggered transaction starts."""
        return _MEANINGS[self].starts

    @property
    def starts_at_event(self) -> bool:
        """True if the triggered transaction may start at the event."""
        return self.starts in (Start.AT_EVENT, Start.AT_EVENT_OR_ABORT)

    @property
    def dependency(self) -> DependencyKind | None:
        """Dependency of the triggered transaction on the triggering one, if any.

        For a child it is WD, and the triggering transaction also depends on the child: CD.
        """
        return _MEANINGS[self].dependency

    @property
    def durability(self) -> Durability:
        """Means by which a triggered rule survives a crash."""
        return _MEANINGS[self].durability


_MEANINGS: Final = {
    Coupling.IMMEDIATE: _CouplingMeaning(
        is_child=True,
        starts=Start.AT_EVENT,
        dependency=DependencyKind.WD,
        durability=Durability.WITH_COMMIT,
    ),
    Coupling.DEFERRED: _CouplingMeaning(
        is_child=True,
        starts=Start.AT_COMMIT_POINT,
        dependency=DependencyKind.WD,
        durability=Durability.WITH_COMMIT,
    ),
    Coupling.DETACHED: _CouplingMeaning(
        is_child=False,
        starts=Start.AT_EVENT,
        dependency=None,
        durability=Durability.RECORDED_AT_EVENT,
    ),
    Coupling.CAUSAL: _CouplingMeaning(
        is_child=False,
        starts=Start.AT_EVENT,
        dependency=DependencyKind.AD,
        durability=Durability.RECORDED_BY_COMMIT,
    ),
    Coupling.SEQUENTIAL: _CouplingMeaning(
        is_child=False,
        starts=Start.AFTER_COMMIT,
        dependency=DependencyKind.SQD,
        durability=Durability.RECORDED_BY_COMMIT,
    ),
    Coupling.EXCLUSIVE: _CouplingMeaning(
        is_child=False,
        starts=Start.AT_EVENT_OR_ABORT,
        dependency=DependencyKind.ED,
        durability=Durability.ERASED_BY_COMMIT,
    ),
}


class ConditionAction(StrEnum):
    """Coupling of a rule's action to its condition (C-A).

    ========== ======================================================================
    mode       the action
    ========== ======================================================================
    immediate  follows the condition, in the same transaction
    sequential starts with the condition, beside it, and commits only if the condition
               commits and is true (Saygin, Ulusoy, Chakravarthy, section 3.3.2)
    deferred   waits for the commit point of the transaction that triggered the rule
    detached   runs in a separate top-level transaction, when the condition is true
    ========== ======================================================================

    For each coupling of event and condition, `plan` returns the transactions that result.
    """

    IMMEDIATE = "immediate"
    SEQUENTIAL = "sequential"
    DEFERRED = "deferred"
    DETACHED = "detached"


# -- transactions that a triggered rule needs, for each pair of coupling modes ---------------------


class Role(StrEnum):
    """Role of a transaction in a plan."""

    TRIGGERING = "triggering"
    """The existing transaction in which the event was raised."""
    RULE = "rule"
    """The triggered transaction, which the E-C mode couples to the triggering one."""
    CONDITION = "condition"
    """A child of the rule's transaction for the condition alone."""
    ACTION = "action"
    """A transaction for the action alone."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A transaction that a triggered rule needs.

    Attributes
    ----------
    role : Role
    parent : Role or None
        None for a top-level transaction.
    starts : Start
        `Start.AT_COMMIT_POINT` refers to the commit point of the triggering transaction; for a
        deferred action, to that of its parent.
    durability : Durability
    """

    role: Role
    parent: Role | None
    starts: Start
    durability: Durability


@dataclass(frozen=True, slots=True)
class Plan:
    """Transactions of a triggered rule, and the dependencies between them.

    Attributes
    ----------
    transactions : tuple of Planned
        In the order of creation; parents before children.
    condition_in, action_in : Role
        Transactions that evaluate the condition and run the action.
    dependencies : tuple of Dependency
        All dependencies between the transactions of the plan, including those between parents
        and children.

    Notes
    -----
    Under `ConditionAction.SEQUENTIAL`, the condition has its own transaction, which a false
    condition aborts. The transaction of the action depends on it.
    """

    transactions: tuple[Planned, ...]
    condition_in: Role
    action_in: Role
    dependencies: tuple[Dependency[Role], ...]


def plan(event_condition: Coupling, condition_action: ConditionAction) -> Plan:
    """Return the plan of a rule with this pair of modes; every pair is valid.

    A deferred action waits for the commit point of the triggering transaction if the rule is its
    child; otherwise for that of the rule's own top-level transaction, since the triggering
    one may be over by then.

    A detached action is coupled to the triggering transaction as the rule is, or detached if the
    rule is a child: the guarantee of a causal, sequential or exclusive rule holds for its action.

    O(1).
    """
    ec, ca = event_condition, condition_action
    over = Role.TRIGGERING if ec.is_child else None
    rule = Planned(Role.RULE, over, ec.starts, ec.durability)
    transactions = [rule]
    dependencies = _coupled(Role.RULE, ec)
    condition_in, action_in = Role.RULE, Role.ACTION
    if ca is ConditionAction.IMMEDIATE:
        action_in = Role.RULE
    elif ca is ConditionAction.SEQUENTIAL:
        condition_in = Role.CONDITION
        for part in (Role.CONDITION, Role.ACTION):
            transactions.append(Planned(part, Role.RULE, ec.starts, ec.durability))
            dependencies += _child(part, Role.RULE)
        dependencies.append(Dependency(Role.ACTION, DependencyKind.AD, Role.CONDITION))
    elif ca is ConditionAction.DEFERRED:
        parent = over or Role.RULE
        transactions.append(Planned(Role.ACTION, parent, Start.AT_COMMIT_POINT, ec.durability))
        dependencies += _child(Role.ACTION, parent)
        if parent is not Role.RULE:
            dependencies.append(Dependency(Role.ACTION, DependencyKind.SQD, Role.RULE))
    else:
        own = Coupling.DETACHED if ec.is_child else ec
        transactions.append(Planned(Role.ACTION, None, Start.WHEN_TRUE, own.durability))
        dependencies += _coupled(Role.ACTION, own)
    return Plan(tuple(transactions), condition_in, action_in, tuple(dependencies))


def _coupled(role: Role, mode: Coupling) -> list[Dependency[Role]]:
    """Return the dependencies between a transaction and the triggering one in this mode."""
    if mode.is_child:
        return _child(role, Role.TRIGGERING)
    if mode.dependency is None:
        return []
    return [Dependency(role, mode.dependency, Role.TRIGGERING)]


def _child(role: Role, parent: Role) -> list[Dependency[Role]]:
    return [
        Dependency(role, DependencyKind.WD, parent),
        Dependency(parent, DependencyKind.CD, role),
    ]
