"""Lock insertion: the locks that an s-transaction needs (Wang et al., algorithm 1)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, NamedTuple

from activedb.errors import ConfigurationError
from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling._tables import Ref
from activedb.scheduling.locking._modes import Mode

__all__ = [
    "Granularity",
    "Lock",
    "Locked",
    "check_granularity",
    "locks_of",
    "read_locks",
    "write_locks_of",
]

Granularity = Literal["table", "row"]
Locked = tuple[str] | tuple[str, Hashable]
"""Locked object: a table by its name, or a row by table name and key."""


class Lock(NamedTuple):
    """Lock on an object, in a mode."""

    on: Locked
    mode: Mode


def check_granularity(granularity: str) -> Granularity:
    """Return the granularity; raise `ConfigurationError` if it is invalid."""
    if granularity == "table":
        return "table"
    if granularity == "row":
        return "row"
    raise ConfigurationError(f"granularity is 'table' or 'row', not {granularity!r}")


def locks_of(transaction: STransaction, granularity: Granularity) -> dict[Lock, None]:
    """Return all locks that an s-transaction may need, each once, write locks first.

    They follow from its operations: targets get write locks, sources read locks. Complexity:
    O(references).
    """
    locks = write_locks_of(transaction, granularity)
    for ref in transaction.reads():
        for lock in read_locks(ref, granularity):
            locks[lock] = None
    return locks


def write_locks_of(transaction: STransaction, granularity: Granularity) -> dict[Lock, None]:
    """Return the write locks that an s-transaction may need, each once."""
    locks: dict[Lock, None] = {}
    for ref in transaction.writes():
        for lock in _locks(ref, granularity, Mode.WRITE, Mode.WRITE_ROWS):
            locks[lock] = None
    return locks


def read_locks(ref: Ref, granularity: Granularity) -> tuple[Lock, ...]:
    """Return the locks needed to read a reference: on its table, then on its row."""
    return _locks(ref, granularity, Mode.READ, Mode.READ_ROWS)


def _locks(ref: Ref, granularity: Granularity, mode: Mode, inside: Mode) -> tuple[Lock, ...]:
    name = ref.table.name
    if granularity == "table" or ref.is_whole or not _is_hashable(ref.key):
        return (Lock((name,), mode),)
    return Lock((name,), inside), Lock((name, ref.key), mode)


def _is_hashable(key: object) -> bool:
    """Return whether `key` is hashable; an access with an unhashable key is refused later."""
    try:
        hash(key)
    except Exception:  # user-defined classes may raise anything
        return False
    return True
