"""Coupling as pure logic: modes, plans, deferred cycles and dependencies of transactions.

Standard library only; no threads, no store. See ``README.md`` in this folder.
"""

from coupling._cycles import CycleBoundReached, DeferredCycles
from coupling._dependencies import DependencyGraph
from coupling._kinds import DependencyKind
from coupling._modes import ConditionAction, Coupling, Durability, Start
from coupling._order import (
    Group,
    OrderCycle,
    check_order,
    ordered_groups,
    priority_groups,
    priority_rank,
)
from coupling._plan import Plan, Planned, Role, plan
from coupling._replies import (
    Answer,
    Consequences,
    Dependency,
    DependencyCycle,
    DependencyError,
    DependencyUsageError,
    Verdict,
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
