"""Coupling as pure logic: modes, plans, deferred cycles and dependencies of transactions.

Standard library only; no threads, no store. See ``README.md`` in this folder.
"""

from coupling._dependencies import (
    Answer,
    Consequences,
    Dependency,
    DependencyCycle,
    DependencyError,
    DependencyGraph,
    DependencyKind,
    DependencyUsageError,
    Verdict,
)
from coupling._modes import ConditionAction, Coupling, Durability, Plan, Planned, Role, Start, plan
from coupling._order import (
    CycleBoundReached,
    DeferredCycles,
    Group,
    OrderCycle,
    check_order,
    ordered_groups,
    priority_groups,
    priority_rank,
)

__all__ = [
    "Answer",
    "ConditionAction",
    "Consequences",
    "Coupling",
    "CycleBoundReached",
    "DeferredCycles",
    "Dependency",
    "DependencyCycle",
    "DependencyError",
    "DependencyGraph",
    "DependencyKind",
    "DependencyUsageError",
    "Durability",
    "Group",
    "OrderCycle",
    "Plan",
    "Planned",
    "Role",
    "Start",
    "Verdict",
    "check_order",
    "ordered_groups",
    "plan",
    "priority_groups",
    "priority_rank",
]
