"""Reader of references: resolves computed keys first, and makes each access through the pool."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from activedb.scheduling._s_transactions import At
from activedb.scheduling._tables import Computed, Ref, at_key
from activedb.scheduling.locking._insertion import Lock
from activedb.scheduling.locking._pool import Pool

__all__ = ["resolving"]


def resolving(
    read: Callable[[Ref], Any],
    at: At,
    pool: Pool,
    *,
    locks: Callable[[Ref], Collection[Lock]] | None = None,
) -> Callable[[Ref], Any]:
    """Return a reader for the operations of one s-transaction.

    Parameters
    ----------
    read : callable
        Gives the value of a reference whose key is known.
    at : At
        The s-transaction's timestamp.
    pool : Pool
        Pool on whose thread the reads happen.
    locks : callable, optional
        Gives the locks needed to read such a reference; by default the s-transaction has them
        already.

    Returns
    -------
    callable
        Gives the value of any reference; the sources of a computed key are read through it, too.
    """

    def read_any(ref: Ref) -> Any:
        if isinstance(ref.key, Computed):
            ref = replace(ref, key=at_key(ref, read_any))
        what = f"read {ref!r}" if pool.is_gated else ""
        pool.access(at, what, () if locks is None else locks(ref))
        return read(ref)

    return read_any
