"""Replies of the dependency graph, as values, and the errors that it raises.

::

    DependencyError
    ├── DependencyCycle        no transaction in the cycle could ever commit
    └── DependencyUsageError   a call that is invalid in this state: a mistake in the caller
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from coupling._kinds import DependencyKind

__all__ = [
    "Answer",
    "Consequences",
    "Dependency",
    "DependencyCycle",
    "DependencyError",
    "DependencyUsageError",
    "Verdict",
]

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Dependency(Generic[T]):
    """Edge of the graph: `dependent` depends on `on`."""

    dependent: T
    kind: DependencyKind
    on: T

    def __str__(self) -> str:
        return f"{self.dependent} {self.kind} {self.on}"


class Answer(StrEnum):
    """Outcome of an attempt to begin or to commit."""

    GO = "go"
    """The transaction may proceed now."""
    WAIT = "wait"
    """The transaction must wait; ``may_begin`` or ``may_commit`` of a later end will name it."""
    ABORT = "abort"
    """The transaction must abort."""


@dataclass(frozen=True, slots=True)
class Verdict(Generic[T]):
    """Answer to an attempt, and the dependencies that caused it, oldest first.

    ``because`` is empty for `Answer.GO`. Otherwise its ``on`` are the transactions to wait for, or
    the ones whose end forces the abort.
    """

    answer: Answer
    because: tuple[Dependency[T], ...] = ()


@dataclass(frozen=True, slots=True)
class Consequences(Generic[T]):
    """Consequences of the end of a transaction for its dependents.

    Each tuple is in the order in which the dependencies were added to the ended transaction.

    Attributes
    ----------
    must_abort : tuple of Dependency
        Dependencies whose dependents must abort now. No dependent is named twice, in this or a
        later reply.
    may_begin : tuple
        Transactions that waited to begin, and have begun now.
    may_commit : tuple
        Transactions that waited to commit, and may do so now.
    handed_over : tuple of Dependency
        Dependencies on the ended subtransaction, now on its parent. For waiting dependents, they
        are new edges for a deadlock detector.
    """

    must_abort: tuple[Dependency[T], ...] = ()
    may_begin: tuple[T, ...] = ()
    may_commit: tuple[T, ...] = ()
    handed_over: tuple[Dependency[T], ...] = ()


class DependencyError(Exception):
    """Base class of the errors that the dependency graph raises; the graph is unchanged."""


class DependencyCycle(DependencyError):
    """The dependency would close a cycle of transactions that wait for each other's end.

    Attributes
    ----------
    cycle : tuple of Dependency
        Dependencies of the cycle, beginning with the refused one. The ``on`` of each, or a
        superior up to which its commit would have to come, is the ``dependent`` of the next; the
        last one leads to the first.
    """

    def __init__(self, cycle: Iterable[Dependency[Any]]):
        self.cycle = tuple(cycle)
        refused, *others = self.cycle
        super().__init__(
            f"{refused} would close a cycle of transactions that wait for each other's end: "
            + ", ".join(str(edge) for edge in others)
        )


class DependencyUsageError(DependencyError):
    """The call is invalid in the present state of the transactions."""
