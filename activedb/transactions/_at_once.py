"""Locks acquired without waiting: NOWAIT and SKIP LOCKED."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from activedb.store.sql import Key, Row, TableSpec
from lockmgr import Mode

if TYPE_CHECKING:
    from activedb.transactions._node import Node

__all__ = ["lock_free_rows"]


def lock_free_rows(t: Node, spec: TableSpec, keys: Iterable[Key]) -> dict[Key, Row | None]:
    """Lock the unlocked rows among `keys` exclusively, and read them.

    Keys locked by another transaction, here or in another process, are left out. Never waits.
    """
    free = [key for key in keys if _is_free(t, (spec.name, key))]
    base = t.hierarchy.read_free(spec, free)
    return {key: t.visible(spec, key, base) for key in base}


def _is_free(t: Node, resource: tuple[object, ...]) -> bool:
    """Lock a row in this process if that needs no wait; return whether it was locked."""
    t.check_usable()
    if not t.forest.acquire_free(t, resource, Mode.X):
        return False
    t._held[resource] = Mode.X
    return True
