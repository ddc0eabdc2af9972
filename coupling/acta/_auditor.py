"""Auditor of a history against the 30 axioms."""

from __future__ import annotations

from coupling.acta._axioms import Violation
from coupling.acta._dependency_axioms import check_dependencies
from coupling.acta._history import History
from coupling.acta._life_axioms import check_lives
from coupling.acta._lives import Lives
from coupling.acta._order_axioms import check_order
from coupling.acta._responsibility import Responsibility
from coupling.acta._serial import check_serial

__all__ = ["audit"]


def audit(history: History) -> list[Violation]:
    """Check a history against the axioms of rule execution.

    Returns
    -------
    list of Violation
        By last position, which is the order in which they become apparent; empty if the history
        is legal.

    Notes
    -----
    O(n log n + n · depth · length of paths) for a legal history of n events; one that breaks
    axioms 9 and 17 throughout may cost more. The reading of each axiom is in ``README.md`` of this
    folder. (Saygin, Ulusoy, Chakravarthy, section 3.3.)
    """
    lives = Lives(history)
    responsibility = Responsibility(history, lives)
    found = [
        *check_lives(history, lives),
        *responsibility.check(),
        *check_serial(history, lives, responsibility.aborted_at),
        *check_dependencies(lives),
        *check_order(lives),
    ]
    return sorted(found, key=lambda violation: (violation.positions[-1:], violation.axiom))
