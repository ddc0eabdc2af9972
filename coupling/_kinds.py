"""Kinds of dependency between two transactions, in one table that all other code consults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["DependencyKind"]


@dataclass(frozen=True, slots=True)
class _Meaning:
    holds_begin: bool
    """The dependent may not begin while the other lives."""
    holds_commit: bool
    """The dependent may not commit while the other lives."""
    aborts_after_commit: bool
    """The dependent must abort once the other has committed."""
    aborts_after_abort: bool
    """The dependent must abort once the other has aborted."""


class DependencyKind(StrEnum):
    """Kind of dependency of transaction *d* on transaction *t*, read "d AD t".

    (Saygin, Ulusoy, Chakravarthy, section 3.3.) ``→`` is "before", ``H`` the history.

    ==== ========== ============================================ ============= =================
    kind name       formula                                      d waits to    d must abort when
    ==== ========== ============================================ ============= =================
    CD   commit     Commit d ∈ H ⇒ (Commit t ∈ H ⇒               commit
                    Commit t → Commit d)
    AD   abort      Abort t ∈ H ⇒ Abort d ∈ H                    commit        t aborts
    WD   weak abort Abort t ∈ H ⇒ (¬(Commit d → Abort t) ⇒                     t aborts
                    Abort d ∈ H)
    ED   exclusion  Commit t ∈ H ⇒ Abort d ∈ H                   commit        t commits
    SQD  sequential Begin d ∈ H ⇒ (Commit t → Begin d)           begin         t aborts
    ==== ========== ============================================ ============= =================

    The waits follow from the formulas: if d acted too early, a later, free choice of t could be
    a violation that d could not undo.

    Notes
    -----
    The paper's formula for SQD has the two transactions in the opposite order to its axiom 22 and
    its text, "a child transaction cannot start its execution until its parent commits". This table
    follows axiom 22 and the text.
    """

    CD = "CD"
    AD = "AD"
    WD = "WD"
    ED = "ED"
    SQD = "SQD"

    @property
    def holds_begin(self) -> bool:
        """True if the dependent may not begin while the other transaction is live."""
        return _MEANINGS[self].holds_begin

    @property
    def holds_commit(self) -> bool:
        """True if the dependent may not commit while the other transaction is live."""
        return _MEANINGS[self].holds_commit

    @property
    def waits(self) -> bool:
        """True if the dependent cannot commit before the other transaction has ended."""
        return self.holds_begin or self.holds_commit

    def aborts_dependent(self, *, committed: bool) -> bool:
        """Return whether the dependent must abort after the other's commit or abort."""
        meaning = _MEANINGS[self]
        return meaning.aborts_after_commit if committed else meaning.aborts_after_abort


_MEANINGS: Final = {
    DependencyKind.CD: _Meaning(False, True, False, False),
    DependencyKind.AD: _Meaning(False, True, False, True),
    DependencyKind.WD: _Meaning(False, False, False, True),
    DependencyKind.ED: _Meaning(False, True, True, False),
    DependencyKind.SQD: _Meaning(True, False, False, True),
}
