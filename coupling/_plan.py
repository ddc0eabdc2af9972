"""Transactions that a triggered rule needs, for each pair of coupling modes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coupling._kinds import DependencyKind
from coupling._modes import ConditionAction, Coupling, Durability, Start
from coupling._replies import Dependency

__all__ = ["Plan", "Planned", "Role", "plan"]


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
        `Start.AT_COMMIT_POINT` refers to the commit point of its parent.
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
