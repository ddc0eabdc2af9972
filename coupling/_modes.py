"""The coupling modes and what each one means, in one table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Coupling"]


@dataclass(frozen=True, slots=True)
class _Meaning:
    is_child: bool
    """The triggered transaction is a child of the triggering one (else top-level)."""
    starts_at_event: bool
    """It starts at the event (else at the triggering transaction's commit point)."""


class Coupling(StrEnum):
    """When a triggered transaction runs, relative to the triggering one.

    (Saygin, Ulusoy, Chakravarthy, section 2.1.)

    ========== ============================== ===================
    mode       triggered transaction is       starts
    ========== ============================== ===================
    immediate  child of the triggering one    at the event
    deferred   child of the triggering one    at its commit point
    detached   top-level, commits on its own  at the event
    ========== ============================== ===================
    """

    IMMEDIATE = "immediate"
    DEFERRED = "deferred"
    DETACHED = "detached"

    @property
    def is_child(self) -> bool:
        """Whether the triggered transaction is a child of the triggering one."""
        return _MEANINGS[self].is_child

    @property
    def starts_at_event(self) -> bool:
        """Whether the triggered transaction starts at the event."""
        return _MEANINGS[self].starts_at_event


_MEANINGS = {
    Coupling.IMMEDIATE: _Meaning(is_child=True, starts_at_event=True),
    Coupling.DEFERRED: _Meaning(is_child=True, starts_at_event=False),
    Coupling.DETACHED: _Meaning(is_child=False, starts_at_event=True),
}
