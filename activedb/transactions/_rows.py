"""Rows that a transaction reads and writes, under the locks that this needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from activedb.errors import TableOwned
from activedb.transactions._locking import declare, lock, lock_free, will_declare
from lockmgr import Mode

if TYPE_CHECKING:
    from activedb.store.sql import Key, Row, TableSpec
    from activedb.transactions._node import TransactionNode, Version

__all__ = [
    "lock_rows",
    "read_free",
    "read_locked",
    "read_row",
    "read_rows",
    "write_row",
    "write_rows",
]

_UNWRITTEN: Any = object()


# -- reading -----------------------------------------------------------------------------------


def read_row(
    t: TransactionNode,
    spec: TableSpec,
    key: Key,
    mode: Mode,
    *,
    inserting: bool = False,
    to_write: bool = False,
) -> Row | None:
    """Return one row, locked; see `Hierarchy.read`. O(depth)."""
    mode = _lock_each(t, spec, (key,), mode)
    row = t.version(spec, key, _UNWRITTEN)
    if row is not _UNWRITTEN:
        return row  # the commit locks it on the server, if nothing has before
    is_exclusive = mode is Mode.X
    return t.hierarchy.read(
        spec, [key], exclusive=is_exclusive, inserting=inserting, to_write=to_write
    )[key]


def read_rows(
    t: TransactionNode,
    spec: TableSpec,
    keys: list[Key],
    mode: Mode,
    *,
    inserting: bool = False,
    to_write: bool = False,
) -> dict[Key, Row | None]:
    """Return rows by key, locked, in a few round trips for any number; see `Hierarchy.read`."""
    mode = _lock_each(t, spec, keys, mode)
    base = t.hierarchy.read(
        spec, keys, exclusive=mode is Mode.X, inserting=inserting, to_write=to_write
    )
    return {key: t.version(spec, key, base[key]) for key in keys}


def read_locked(
    t: TransactionNode,
    spec: TableSpec,
    keys: Sequence[Key],
    *,
    inserting: bool = False,
    to_write: bool = False,
) -> dict[Key, Row | None]:
    """Return rows by key, locked for writing in the order of the keys; see `read_rows`."""
    keys = spec.in_order(keys)
    return read_rows(t, spec, keys, Mode.X, inserting=inserting, to_write=to_write)


def read_free(t: TransactionNode, spec: TableSpec, keys: Iterable[Key]) -> dict[Key, Row | None]:
    """Return those rows that can be locked for writing at once. Never waits.

    Keys locked by another transaction, here or in another process, are left out.
    """
    if spec in t.forest.asked and not lock_free(t, (spec.name,), Mode.IX):
        return {}
    will_declare(t, spec)
    base = t.hierarchy.read_free(spec, [key for key in keys if lock_free(t, (spec.name, key))])
    if t.log is not None:
        t.log.operated(t, "read", spec.name, base)
    return {key: t.version(spec, key, row) for key, row in base.items()}


def lock_rows(t: TransactionNode, spec: TableSpec, keys: list[Key]) -> dict[Key, Row | None]:
    """Return rows by key, None where absent, locked for writes made directly on the server."""
    t.check_usable()
    _check_may_write(t, spec)
    rows = read_rows(t, spec, keys, Mode.X)
    if spec in t.forest.asked:
        declare(t, spec, None)
    if t.log is not None:
        t.log.operated(t, "write", spec.name, keys)
    return rows


def _lock_each(t: TransactionNode, spec: TableSpec, keys: Sequence[Key], mode: Mode) -> Mode:
    """Lock rows; return the mode, which is X for a function that announces writes of the table.

    Notes that the try has upgraded rows, if they were locked for reading before.
    """
    run = t.hierarchy.run
    if mode is not Mode.X:
        if spec in run.announced:
            mode = Mode.X
    elif spec not in run.upgraded and t.hierarchy.base.is_any_shared(spec, keys):
        run.upgraded.add(spec)
    if spec in t.forest.asked and mode is Mode.X and keys:
        will_declare(t, spec)
    for key in keys:
        lock(t, (spec.name, key), mode)
    if t.log is not None:
        t.log.operated(t, "read", spec.name, keys)
    return mode


# -- writing -----------------------------------------------------------------------------------


def write_row(
    t: TransactionNode, spec: TableSpec, key: Key, old: Row | None, new: Row | None
) -> None:
    """Write one row that is locked and checked, then show it to the rules."""
    _write(t, spec, ((key, old, new),))
    t.forest.listener.changed(t, spec, old, new)


def write_rows(t: TransactionNode, spec: TableSpec, versions: Sequence[Version]) -> None:
    """Write the rows of one statement, which are locked and checked; then show them to the rules.

    Set-oriented rules see them together.
    """
    _write(t, spec, versions)
    t.forest.listener.changed_all(t, spec, versions)


def _write(t: TransactionNode, spec: TableSpec, versions: Sequence[Version]) -> None:
    if t.forest.writers:
        _check_may_write(t, spec)
    for _, _, new in versions:
        if new is None:
            _lock_cascades(t, spec)
            break
    if spec in t.forest.asked:
        declare(t, spec, [row for _, *both in versions for row in both if row is not None])
    with t.kin.latch:
        t.workspace.write(spec, {key: new for key, _, new in versions})
    if t.log is not None:
        for key, old, new in versions:
            t.log.operated(t, _kind(old, new), spec.name, (key,))
    if t.observer is not None:
        for key, old, new in versions:
            t.observer.wrote(t, _kind(old, new), spec.name, key)


def _lock_cascades(t: TransactionNode, spec: TableSpec) -> None:
    """Lock the tables in which a delete changes rows; a server locks these rows itself."""
    for name in t.forest.store.cascades_from(spec.table):
        known = t.forest.tables.named(name)
        lock(t, (name if known is None else known.name,), Mode.X)


def _check_may_write(t: TransactionNode, spec: TableSpec) -> None:
    writer = t.forest.writers.get(spec, t.writer)
    if writer != t.writer:
        raise TableOwned(
            f"table {spec.name} is written by {writer} alone, which has its rows in memory: feed "
            f"it an event that makes the change"
        )


def _kind(old: Row | None, new: Row | None) -> str:
    return "insert" if old is None else "delete" if new is None else "write"
