"""Requirements on a correct execution of batches; a program may relax each by name."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from activedb.errors import WorkflowError

__all__ = ["Requirement", "relaxed_of"]


class Requirement(StrEnum):
    """Requirements 2 to 6 of the paper's section 2, over single transactions as atomic units.

    The first requirement, atomic units, is left out: a transaction is always executed
    completely or not at all.
    """

    SERIALIZABLE = "serializable"
    """The execution is equivalent to a serial one of the transactions."""
    TRANSACTION_ORDER = "transaction order"
    """A transaction comes after its predecessors in the transaction graph."""
    BATCH_ORDER = "batch order"
    """The transactions of a program come in the order of its input batches."""
    COMPLETION = "completion"
    """All transactions that a batch triggers are executed."""
    MONOTONIC_EXECUTION = "monotonic execution"
    """Requirement that the standing part of a composite transaction is a prefix of its graph."""


def relaxed_of(names: Iterable[str], program: str) -> frozenset[Requirement]:
    """Return the requirements that a program relaxes, given by name.

    Raises
    ------
    WorkflowError
        If there is no requirement of that name.
    """
    found = set()
    for name in [names] if isinstance(names, str) else names:
        try:
            found.add(Requirement(name))
        except ValueError:
            raise WorkflowError(
                f"program {program!r} cannot relax {name!r}: say one of "
                + ", ".join(repr(str(each)) for each in Requirement)
            ) from None
    return frozenset(found)
