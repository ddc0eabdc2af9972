"""What the dependency graph answers, as values, and the errors with which it refuses.

::

    DependencyError
    ├── DependencyCycle        nobody in the cycle could ever commit
    └── DependencyUsageError   a call that has no meaning now: a mistake in the caller
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
    """`dependent` depends on `on`: an edge of the graph."""

    dependent: T
    kind: DependencyKind
    on: T

    def __str__(self) -> str:
        return f"{self.dependent} {self.kind} {self.on}"


class Answer(StrEnum):
    """What becomes of an attempt to begin or to commit."""

    GO = "go"
    """It may go on now."""
    WAIT = "wait"
    """Not yet; an end to come will say ``may_begin`` or ``may_commit``."""
    ABORT = "abort"
    """Never; the transaction must abort."""


@dataclass(frozen=True, slots=True)
class Verdict(Generic[T]):
    """The answer to an attempt, and the dependencies that made it, oldest first.

    ``because`` is empty for `Answer.GO`; otherwise its ``on`` say for whom to wait, or whose end
    makes the transaction abort.
    """

    answer: Answer
    because: tuple[Dependency[T], ...] = ()


@dataclass(frozen=True, slots=True)
class Consequences(Generic[T]):
    """What the end of a transaction means to those who depend on it.

    Each tuple is in the order in which the dependencies were added to the ended transaction.

    Attributes
    ----------
    must_abort : tuple of Dependency
        Who must abort now, and the dependency because of which. Nobody is named twice, in this
        or a later answer.
    may_begin : tuple
        Who was told to wait to begin, and has begun now.
    may_commit : tuple
        Who was told to wait to commit, and may do so now.
    handed_over : tuple of Dependency
        Dependencies on the ended subtransaction that are ones on its parent now. Those of
        transactions that wait are new edges for a deadlock detector.
    """

    must_abort: tuple[Dependency[T], ...] = ()
    may_begin: tuple[T, ...] = ()
    may_commit: tuple[T, ...] = ()
    handed_over: tuple[Dependency[T], ...] = ()


class DependencyError(Exception):
    """Root of every error that the dependency graph raises; it is unchanged then."""


class DependencyCycle(DependencyError):
    """The dependency would close a cycle, in which each waits for the next one's end.

    Attributes
    ----------
    cycle : tuple of Dependency
        Beginning with the refused one; each one's ``on``, or a superior of it up to which its
        commit would have to come, is the next one's ``dependent``, and the last leads to the
        first.
    """

    def __init__(self, cycle: Iterable[Dependency[Any]]):
        self.cycle = tuple(cycle)
        refused, *others = self.cycle
        super().__init__(
            f"{refused} would close a cycle of transactions that wait for each other's end: "
            + ", ".join(str(edge) for edge in others)
        )


class DependencyUsageError(DependencyError):
    """The call has no meaning in the state in which the transactions are."""
