"""Reading a reference: computed keys first, each access through the gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from activedb.scheduling._s_transactions import At
from activedb.scheduling._tables import Computed, Ref, at_key
from activedb.scheduling.locking._gate import Gate

__all__ = ["resolving"]


def resolving(
    read: Callable[[Ref], Any],
    at: At,
    *,
    before: Callable[[Ref], None] | None = None,
    gate: Gate | None = None,
) -> Callable[[Ref], Any]:
    """A reader for the operations of one s-transaction.

    Parameters
    ----------
    read : callable
        Gives the value of a reference whose key is known.
    at : At
        The s-transaction's timestamp.
    before : callable, optional
        Called with such a reference before it is read; may block.
    gate : Gate, optional

    Returns
    -------
    callable
        Gives the value of any reference; the sources of a computed key are read through it, too.
    """

    def read_any(ref: Ref) -> Any:
        if isinstance(ref.key, Computed):
            ref = replace(ref, key=at_key(ref, read_any))
        if before is not None:
            before(ref)
        if gate is not None:
            gate.access(at, f"read {ref!r}")
        return read(ref)

    return read_any
