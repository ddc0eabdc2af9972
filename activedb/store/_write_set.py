"""The write set of a top-level commit: which rows, in which order, by which statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import attrgetter, is_
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Insert,
    MetaData,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    insert,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.ddl import sort_tables

from activedb.errors import ConstraintViolation, SerializationConflict, UniqueViolation
from activedb.store import _bulk
from activedb.store._direct import run
from activedb.store._faults import translation
from activedb.store._tables import Key, Row, TableSpec
from activedb.store._violations import named

__all__ = ["Change", "Log", "naming", "write", "write_one", "write_step_by_step"]

Log: TypeAlias = Sequence[tuple[TableSpec, Key, Row | None]]
"""Versions in the order in which they were written; None is a tombstone."""


class Change(NamedTuple):
    """One row of a write set: `old` is the committed row (None: absent), `new` what to make it."""

    spec: TableSpec
    key: Key
    old: Row | None
    new: Row | None


class _Group:
    """The changes of one table, by what they do; each list in the order of the keys."""

    def __init__(self) -> None:
        self.gone: list[Change] = []
        self.changed: list[Change] = []
        self.added: list[Change] = []

    def sort(self) -> None:
        """Sort by key, the same way in every process."""
        for changes in (self.gone, self.changed, self.added):
            if len(changes) > 1:
                try:
                    changes.sort(key=_key)
                except TypeError:  # no order of their own: members of an enum
                    changes.sort(key=lambda change: [f"{v!r:>24}" for v in change.key])


_key = attrgetter("key")


_Step: TypeAlias = tuple[Callable[[Connection, Sequence[Change]], bool], list[Change]]


def _nothing() -> None:
    """Do nothing."""


def write(
    connection: Connection,
    changes: Sequence[Change],
    metadata: MetaData,
    inside: Callable[[], object] = _nothing,
) -> None:
    """Write `changes`: deletes, children of foreign keys first, then the rest, parents first.

    Keys are sorted, so that two processes flushing the same rows take their locks in one order.
    Many rows of one table go in one statement where that is sure to store the same (`_bulk`);
    one row is one round trip.

    Parameters
    ----------
    inside : callable
        Called when the first table has been written, and the others have not.

    Raises
    ------
    ConstraintViolation, InvalidRow
        When the server refuses a row; the connection's transaction is unusable then.
    SerializationConflict
        When another process inserted one of the keys meanwhile.
    """
    if len(changes) == 1:
        # Nothing to group and to sort: a twentieth of a small transaction's time.
        write_one(connection, changes[0])
        inside()
        return
    groups = _grouped(changes)
    order = [t for t in _parents_first(tuple(metadata.tables.values())) if t in groups]
    order += sorted(groups.keys() - set(order), key=lambda table: str(table.fullname))
    steps: list[_Step] = [(_delete, groups[table].gone) for table in reversed(order)]
    for table in order:
        steps += [(_update, groups[table].changed), (_insert, groups[table].added)]
    first: Table | None = None
    is_reached = False
    for step, group in steps:
        if group:
            table = group[0].spec.table
            first = first if first is not None else table
            if table is not first and not is_reached:
                is_reached = True
                inside()
            step(connection, group)
    if not is_reached:
        inside()


def write_one(connection: Connection, change: Change, *, last: bool = False) -> bool:
    """Write one change, in one round trip; raises as `write` does.

    Parameters
    ----------
    last : bool
        Whether the transaction may be committed in the same round trip.

    Returns
    -------
    bool
        Whether it has been.
    """
    _, _, old, new = change
    if old is None and new is None:
        return False
    step = _insert if old is None else _delete if new is None else _update
    return step(connection, [change], last=last)


def _grouped(changes: Iterable[Change]) -> dict[Table, _Group]:
    """`changes` by table; O(changes), in one pass because there may be many."""
    groups: dict[Table, _Group] = {}
    last: TableSpec | None = None
    group = _Group()
    for change in changes:
        spec, _, old, new = change
        if spec is not last:
            last = spec
            group = groups.setdefault(spec.table, _Group())
        if old is None:
            if new is not None:
                group.added.append(change)
        elif new is None:
            group.gone.append(change)
        else:
            group.changed.append(change)
    for group in groups.values():
        group.sort()
    return groups


def write_step_by_step(
    connection: Connection,
    changes: Iterable[Change],
    log: Log,
    metadata: MetaData,
    inside: Callable[[], object] = _nothing,
) -> None:
    """Write `changes` as `log` came to them, one row at a time.

    Slower than `write`, but right wherever the steps were: a unique value handed from row to
    row, rows that refer to rows of the same table.
    """
    now = {(change.spec, change.key): change.old for change in changes}
    for spec, key, new in log:
        write(connection, [Change(spec, key, now[spec, key], new)], metadata, inside)
        now[spec, key] = new
        inside = _nothing


class naming:  # noqa: N801  # used like a function
    """`translated`, with the refused row of `changes` named."""

    __slots__ = ("_changes", "_connection", "_doing")

    def __init__(self, connection: Connection, doing: str, changes: Sequence[Change]):
        self._connection = connection
        self._doing = doing
        self._changes = changes

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        ours = translation(error, self._doing)
        known = ours or error
        if isinstance(known, ConstraintViolation):
            cause = error if ours is not None else error.__cause__
            known.__cause__ = cause
            raise named(known, self._connection, self._changes) from cause
        if ours is not None:
            raise ours from error


@lru_cache(maxsize=16)
def _parents_first(tables: tuple[Table, ...]) -> Sequence[Table]:
    return sort_tables(sorted(tables, key=lambda table: str(table.fullname)))


# -- one table -----------------------------------------------------------------------------------


def _delete(connection: Connection, gone: Sequence[Change], *, last: bool = False) -> bool:
    spec, keys = gone[0].spec, [c.key for c in gone]
    with naming(connection, f"delete rows of {spec.name}", gone):
        if len(keys) >= _bulk.UNNEST_ROWS_MIN and _bulk.delete_rows(connection, spec, keys):
            return False
        keyed = [f"key_{name}" for name in spec.key_columns]
        values = [dict(zip(keyed, k, strict=True)) for k in keys]
        return run(connection, _delete_by_key(spec), values, last=last)


@lru_cache(maxsize=1_024)
def _delete_by_key(spec: TableSpec) -> Delete:
    return delete(spec.table).where(_same_key(spec))


def _same_key(spec: TableSpec) -> ColumnElement[bool]:
    return and_(*(spec.table.c[name] == bindparam(f"key_{name}") for name in spec.key_columns))


def _update(connection: Connection, changed: Sequence[Change], *, last: bool = False) -> bool:
    spec = changed[0].spec
    is_committed = False
    for columns, group in _by_columns(changed).items():
        rows = _new_rows(group)
        with naming(connection, f"update {spec.name}", group):
            is_done = len(rows) >= _bulk.UNNEST_ROWS_MIN and _bulk.update_rows(
                connection, spec, columns, rows
            )
            if not is_done:
                values = [
                    {f"new_{name}": row[name] for name in columns}
                    | {f"key_{name}": row[name] for name in spec.key_columns}
                    for row in rows
                ]
                statement = _update_by_key(spec, columns)
                is_committed = run(connection, statement, values, last=last)
    return is_committed


def _by_columns(changed: Sequence[Change]) -> Mapping[tuple[str, ...], Sequence[Change]]:
    """`changed`, all of one table, by the columns that change; column by column, to be fast."""
    spec = changed[0].spec
    if len(changed) == 1:
        _, _, was, now = changed[0]
        assert was is not None
        assert now is not None
        names = tuple([n for n in spec.written if was[n] is not now[n] and _differ(was[n], now[n])])
        return {names: changed} if names else {}
    olds = zip(*[spec.values_of(change.old) for change in changed], strict=True)
    news = zip(*[spec.values_of(change.new) for change in changed], strict=True)
    differing: dict[str, list[bool]] = {}
    for name, old, new in zip(spec.written, olds, news, strict=True):
        if not all(map(is_, old, new)):
            differing[name] = [a is not b and _differ(a, b) for a, b in zip(old, new, strict=True)]
    groups: dict[tuple[bool, ...], list[Change]] = {}
    for change, pattern in zip(changed, zip(*differing.values(), strict=True), strict=False):
        groups.setdefault(pattern, []).append(change)
    named_groups = {tuple(compress(differing, p)): group for p, group in groups.items()}
    named_groups.pop((), None)
    return dict(sorted(named_groups.items()))


def _differ(a: Any, b: Any) -> bool:
    """Whether two values are different to a database; True and 1, alike to Python, are."""
    return bool(a != b) or repr(a) != repr(b)


@lru_cache(maxsize=1_024)
def _update_by_key(spec: TableSpec, columns: tuple[str, ...]) -> Update:
    new: dict[str, Any] = {name: bindparam(f"new_{name}") for name in columns}
    return update(spec.table).where(_same_key(spec)).values(new)


def _insert(connection: Connection, added: Sequence[Change], *, last: bool = False) -> bool:
    spec, rows = added[0].spec, _new_rows(added)
    try:
        with naming(connection, f"insert into {spec.name}", added):
            if len(rows) >= _bulk.COPY_ROWS_MIN and _bulk.copy_rows(connection, spec, rows):
                return False
            names = [(f"new_{name}", name) for name in spec.written]
            values = [{new: row[name] for new, name in names} for row in rows]
            return run(connection, _insertion(spec), values, last=last)
    except UniqueViolation as error:
        if error.constraint == spec.key_constraint or set(error.key) == set(spec.key_columns):
            # The key was absent when this hierarchy locked it: another process came first.
            raise SerializationConflict(
                f"table {spec.name}: another process inserted the key first "
                f"({error.detail}); retry the transaction"
            ) from error
        raise


def _new_rows(changes: Iterable[Change]) -> list[Row]:
    return [change.new for change in changes if change.new is not None]


@lru_cache(maxsize=1_024)
def _insertion(spec: TableSpec) -> Insert:
    statement = _WithIdentity(spec.table) if spec.overrides_identity else insert(spec.table)
    # Inline: nothing is wanted back.
    return statement.values({name: bindparam(f"new_{name}") for name in spec.written}).inline()


class _WithIdentity(Insert):
    """An INSERT that brings numbers for a column GENERATED ALWAYS AS IDENTITY."""

    inherit_cache = True


@compiles(_WithIdentity, "postgresql")
def _compile_with_identity(element: _WithIdentity, compiler: Any, **options: Any) -> str:
    plain: str = compiler.visit_insert(element, **options)
    return plain.replace(") VALUES (", ") OVERRIDING SYSTEM VALUE VALUES (", 1)
