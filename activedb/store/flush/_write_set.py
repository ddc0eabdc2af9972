"""Write set of a top-level commit: its rows, their order and the statements that write them.

```
   changes ──► steps: deletes, children first; then updates and inserts, parents first
                  │
                parts: rows of one table by one statement
                  ├─ few rows in total ──► one message, including the COMMIT if allowed
                  └─ else part by part ─┬─ many rows: COPY, arrays (`_bulk`)
                                        └─ one statement each, in a pipeline
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import compress
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    MetaData,
    Table,
    TableClause,
    and_,
    bindparam,
    column,
    delete,
    insert,
    table,
    tuple_,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.ddl import sort_tables
from sqlalchemy.sql.dml import UpdateBase

from activedb.errors import ConstraintViolation, InvalidRow, SerializationConflict, UniqueViolation
from activedb.store.flush import _bulk
from activedb.store.flush._change import Change
from activedb.store.flush._constraints import Log
from activedb.store.flush._opening import Opening
from activedb.store.flush._violations import named, referred_table
from activedb.store.server import StepFailed, run, takes_messages, together, translate_error
from activedb.store.sql import Key, Row, TableSpec, differ

__all__ = ["Versions", "phases", "refuse", "steps", "write", "write_in_order"]

_TOGETHER_MAX = _bulk.COPY_ROWS_MIN
"""Number of changes from which they are not sent as one message: bulk writes may be faster."""

Versions: TypeAlias = dict[tuple[TableSpec, Key], Row | None]
"""Row versions by table and key; None is a tombstone."""


class _TableChanges:
    """Changes of one table by kind, each list sorted by key."""

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
                except TypeError:  # unordered values, such as members of an enum
                    changes.sort(key=lambda change: [f"{v!r:>24}" for v in change.key])


_key = attrgetter("key")


class _StatementChanges(NamedTuple):
    """Changes of one table made by one statement, executed once per change.

    Attributes
    ----------
    verb : str
        Name of the operation, for error messages.
    changes : sequence of Change
    statement : INSERT, UPDATE or DELETE
    names : sequence of (str, str)
        Parameters of the statement, and the columns whose values they take.
    rows : sequence of Row
        Values for the parameters, one row per change.
    bulk : callable or None
        Function that makes all changes at once and returns whether it has; None if they are few.
    """

    verb: str
    changes: Sequence[Change]
    statement: UpdateBase
    names: Sequence[tuple[str, str]]
    rows: Sequence[Row]
    bulk: Callable[[Connection], bool] | None

    @property
    def doing(self) -> str:
        return f"{self.verb} {self.changes[0].spec.name}"

    def values(self) -> list[dict[str, Any]]:
        """Return the statement's parameters for each change."""
        names = self.names
        return [{parameter: row[column] for parameter, column in names} for row in self.rows]


_Step: TypeAlias = tuple[
    Callable[[Sequence[Change]], Sequence[_StatementChanges]], Sequence[Change]
]
_Prepared: TypeAlias = tuple[UpdateBase, Sequence[tuple[str, str]]]
"""A statement, and its parameters with the columns whose values they take."""


def _nothing() -> None:
    """Do nothing."""


def write(
    connection: Connection,
    changes: Sequence[Change],
    metadata: MetaData,
    inside: Callable[[], object] = _nothing,
    *,
    opening: Opening | None = None,
    committing: Callable[[], object] | None = None,
) -> bool:
    """Write `changes`: deletes, children of foreign keys first, then the rest, parents first.

    Keys are sorted, so that two processes that flush the same rows take their locks in one order.
    A few rows are sent as one message in one round trip. Many rows of one table are written by one
    statement where the result is certain to be the same (`_bulk`).

    Parameters
    ----------
    inside : callable
        Called between the writes to the first table and to the others; before the message if
        everything is sent as one.
    opening : Opening, optional
        Run before the writes, in the same message if everything is sent as one.
    committing : callable, optional
        Called before the message, which then also commits the transaction.

    Returns
    -------
    bool
        Whether the transaction has been committed.

    Raises
    ------
    ConstraintViolation, InvalidRow
        If the server refuses a row; the connection's transaction is unusable then.
    SerializationConflict
        If another process inserted one of the keys meanwhile, or `opening` says so.
    """
    steps = _steps(changes, metadata)
    if len(changes) < _TOGETHER_MAX and takes_messages(connection):
        inside()
        return _write_together(connection, changes, steps, opening, committing)
    if opening:
        opening.run(connection)
    first: Table | None = None
    is_reached = False
    for parts_of, group in steps:
        written = group[0].spec.table
        first = first if first is not None else written
        if written is not first and not is_reached:
            is_reached = True
            inside()
        for part in parts_of(group):
            try:
                if part.bulk is None or not part.bulk(connection):
                    run(connection, part.statement, part.values())
            except BaseException as error:
                _refuse_part(error, connection, part)
                raise
    if not is_reached:
        inside()
    return False


def _steps(changes: Sequence[Change], metadata: MetaData) -> Sequence[_Step]:
    """Return the changes grouped by table and kind, in the order in which to write them."""
    if len(changes) == 1:
        # Skipping grouping and sorting saves a twentieth of a small transaction's time.
        _, _, old, new, _ = changes[0]
        if old is None and new is None:
            return []
        kind = _inserted if old is None else _deleted if new is None else _updated
        return [(kind, changes)]
    groups = _grouped(changes)
    order = list(groups)
    if len(order) > 1:
        ranks = _ranks(metadata)
        order.sort(key=lambda each: (ranks.get(each, len(ranks)), str(each.fullname)))
    steps: list[_Step] = [(_deleted, groups[each].gone) for each in reversed(order)]
    for each in order:
        steps += [(_updated, groups[each].changed), (_inserted, groups[each].added)]
    return [step for step in steps if step[1]]


def _write_together(
    connection: Connection,
    changes: Sequence[Change],
    steps: Sequence[_Step],
    opening: Opening | None,
    committing: Callable[[], object] | None,
) -> bool:
    """Write a few changes as one message; raise as `write` does."""
    parts = [part for parts_of, group in steps for part in parts_of(group)]
    first = [] if opening is None else opening.steps()
    message = [*first, *((part.statement, v) for part in parts for v in part.values())]
    if not message:
        return False
    if committing is not None:
        committing()
    try:
        together(connection, message, last=committing is not None)
    except StepFailed as failed:
        at = failed.at - len(first)
        if at < 0 and opening is not None:
            opening.refuse(failed.at, failed.error)
            raise failed.error from None
        for part in parts:
            if at < len(part.changes):
                _refuse_part(failed.error, connection, part)
                raise failed.error from None
            at -= len(part.changes)
        refuse(failed.error, connection, "commit", changes)  # deferred constraints
        raise failed.error from None
    return committing is not None


def _refuse_part(error: BaseException, connection: Connection, part: _StatementChanges) -> None:
    """Raise as `refuse`; if a key that was absent is now a duplicate, a `SerializationConflict`."""
    try:
        refuse(error, connection, part.doing, part.changes)
    except UniqueViolation as duplicate:
        _raise_if_first(duplicate, part)
        raise


def _raise_if_first(error: UniqueViolation, part: _StatementChanges) -> None:
    """Raise `SerializationConflict` if a key that was absent is now refused as a duplicate."""
    spec, _, old, *_ = part.changes[0]
    if old is None and (
        error.constraint == spec.key_constraint or set(error.key) == set(spec.key_columns)
    ):
        # The key was absent when this hierarchy locked it: another process inserted it since.
        raise SerializationConflict(
            f"table {spec.name}: another process inserted the key first "
            f"({error.detail}); retry the transaction"
        ) from error


def _grouped(changes: Iterable[Change]) -> dict[Table, _TableChanges]:
    """Group `changes` by table; O(changes), in one pass because there may be many."""
    groups: dict[Table, _TableChanges] = {}
    last: TableSpec | None = None
    group = _TableChanges()
    for change in changes:
        spec, _, old, new, _ = change
        if spec is not last:
            last = spec
            group = groups.setdefault(spec.table, _TableChanges())
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


def write_in_order(
    connection: Connection,
    changes: Sequence[Change],
    parts: Iterable[Versions],
    metadata: MetaData,
    inside: Callable[[], object] = _nothing,
    *,
    savepoint: Callable[[], AbstractContextManager[None]] | None = None,
) -> None:
    """Write `changes` part by part: the `phases` or the `steps` of their log.

    Parameters
    ----------
    savepoint : callable, optional
        With it, each part is one statement's, and is first tried as one: a database checks some
        constraints at the end of a statement. The block's changes are undone if it raises.
    """
    now = {(change.spec, change.key): change.old for change in changes}
    for part in parts:
        group = [Change(*place, now[place], new) for place, new in part.items()]
        if savepoint is None or not _is_written_as_one(connection, group, savepoint):
            write(connection, group, metadata, inside)
            inside = _nothing
        now |= part


def steps(log: Log) -> Iterator[Versions]:
    """Yield the versions of each statement of `log`.

    Slower than all at once, but right wherever each statement was: when a unique value moves from
    row to row, or rows refer to rows of the same table.
    """
    for spec, rows in log:
        yield {(spec, key): new for key, new in rows.items()}


def phases(log: Log) -> Iterator[Versions]:
    """Yield the steps of `log` in groups: deletes that follow each other, and what is between them.

    A delete may change other rows by a foreign key with ON DELETE CASCADE, SET NULL or SET DEFAULT.
    So these have the versions that they had when it was made.
    """
    part: Versions = {}
    is_gone = False
    for spec, rows in log:
        for key, new in rows.items():
            if part and is_gone is not (new is None):
                yield part
                part = {}
            is_gone = new is None
            part[spec, key] = new
    if part:
        yield part


def _is_written_as_one(
    connection: Connection,
    changes: Sequence[Change],
    savepoint: Callable[[], AbstractContextManager[None]],
) -> bool:
    """Make the changes of one statement by one statement, and return whether that was done."""
    kinds = {(change.old is None, change.new is None) for change in changes}
    if len(changes) < 2 or len(kinds) > 1:  # several: those of a program's state
        return False
    spec, _, old, new, _ = changes[0]
    rows = _new_rows(changes)
    write_all: Callable[..., bool]
    values: tuple[object, ...]
    if new is None:
        keys = [change.key for change in changes]
        doing, write_all, values = "delete rows of", _delete_as_one, (spec, keys)
    elif old is None:
        doing, write_all, values = "insert into", _insert_as_one, (spec, rows)
    else:
        differing = set().union(*_by_columns(changes))
        names = [name for name in spec.written if name in differing]
        doing, write_all, values = "update", _bulk.update_rows, (spec, names, rows)
    try:
        with savepoint():
            try:
                return write_all(connection, *values)
            except BaseException as error:
                refuse(error, connection, f"{doing} {spec.name}", changes)
                raise
    except (ConstraintViolation, InvalidRow):
        return False  # perhaps not one by one


_PARAMETERS_MAX = 30_000  # of one statement: SQLite takes 32,766, Postgres twice as many


def _delete_as_one(connection: Connection, spec: TableSpec, keys: Sequence[Key]) -> bool:
    rows = [dict(zip(spec.key_columns, key, strict=True)) for key in keys]
    if _bulk.delete_rows(connection, spec, rows):
        return True
    if len(keys) * len(spec.key_columns) > _PARAMETERS_MAX:
        return False
    columns = [_bare(spec).c[name] for name in spec.key_columns]
    chosen = (
        tuple_(*columns).in_(keys) if len(columns) > 1 else columns[0].in_([k for (k,) in keys])
    )
    connection.execute(delete(_bare(spec)).where(chosen))
    return True


def _insert_as_one(connection: Connection, spec: TableSpec, rows: Sequence[Row]) -> bool:
    if _bulk.copy_rows(connection, spec, rows):
        return True
    if len(rows) * len(spec.written) > _PARAMETERS_MAX:
        return False
    values = [{name: row[name] for name in spec.written} for row in rows]
    connection.execute(_insert_into(spec).values(values).inline())
    return True


def refuse(
    error: BaseException, connection: Connection, doing: str, changes: Sequence[Change]
) -> None:
    """Raise the error that stands for a driver's, if any, with the refused row of `changes` named.

    Parameters
    ----------
    doing : str
        As for `translate_errors`.
    """
    ours = translate_error(error, doing)
    known = ours or error
    if isinstance(known, ConstraintViolation):
        cause = error if ours is not None else error.__cause__
        known.__cause__ = cause
        raise named(known, connection, changes) from cause
    if ours is not None:
        raise ours from error


_known_ranks: WeakKeyDictionary[MetaData, dict[Table, int]] = WeakKeyDictionary()


def _ranks(metadata: MetaData) -> Mapping[Table, int]:
    """Return the rank of each table: parents of foreign keys first, others by name."""
    ranks = _known_ranks.get(metadata)
    if ranks is None or len(ranks) != len(metadata.tables):
        tables = sorted(metadata.tables.values(), key=lambda each: str(each.fullname))
        ranks = {each: rank for rank, each in enumerate(sort_tables(tables, _refers_elsewhere))}
        _known_ranks[metadata] = ranks
    return ranks


def _refers_elsewhere(reference: Any) -> bool:
    """Return whether a foreign key refers to a table that is not declared."""
    return referred_table(reference.constraint) is None


# -- one table -----------------------------------------------------------------------------------


def _deleted(gone: Sequence[Change]) -> Sequence[_StatementChanges]:
    spec = gone[0].spec
    rows = [dict(zip(spec.key_columns, change.key, strict=True)) for change in gone]
    many = _if_many(rows, _bulk.UNNEST_ROWS_MIN, _bulk.delete_rows, spec, rows)
    return [_StatementChanges("delete rows of", gone, *_delete_by_key(spec), rows, many)]


@lru_cache(maxsize=1_024)
def _delete_by_key(spec: TableSpec) -> _Prepared:
    return delete(_bare(spec)).where(_same_key(spec)), _key_names(spec)


@lru_cache(maxsize=1_024)
def _bare(spec: TableSpec) -> TableClause:
    """Return the table with no more than names and types.

    SQLAlchemy would add the onupdate= of each column that an UPDATE leaves out: here one that has
    the same value as before, given or computed.
    """
    known = spec.table
    return table(known.name, *(column(c.name, c.type) for c in known.columns), schema=known.schema)


def _key_names(spec: TableSpec) -> list[tuple[str, str]]:
    """Return the parameters of a key: numbered, since SQLite parses quotes in names as SQL."""
    return [(f"key_{number}", name) for number, name in enumerate(spec.key_columns)]


def _same_key(spec: TableSpec) -> ColumnElement[bool]:
    return and_(*(_bare(spec).c[name] == bindparam(key) for key, name in _key_names(spec)))


def _updated(changed: Sequence[Change]) -> Sequence[_StatementChanges]:
    spec = changed[0].spec
    parts = []
    for columns, group in _by_columns(changed).items():
        rows = _new_rows(group)
        many = _if_many(rows, _bulk.UNNEST_ROWS_MIN, _bulk.update_rows, spec, columns, rows)
        parts.append(_StatementChanges("update", group, *_update_by_key(spec, columns), rows, many))
    return parts


def _by_columns(changed: Sequence[Change]) -> Mapping[tuple[str, ...], Sequence[Change]]:
    """Group `changed`, all of one table, by the columns that change; by column, for speed."""
    spec = changed[0].spec
    if len(changed) == 1:
        _, _, was, now, _ = changed[0]
        assert was is not None
        assert now is not None
        names = tuple([n for n in spec.written if was[n] is not now[n] and differ(was[n], now[n])])
        return {names: changed} if names else {}
    olds = zip(*[spec.values_of(change.old) for change in changed], strict=True)
    news = zip(*[spec.values_of(change.new) for change in changed], strict=True)
    differing: dict[str, list[bool]] = {}
    for name, old, new in zip(spec.written, olds, news, strict=True):
        if not all(map(is_, old, new)):
            differing[name] = [a is not b and differ(a, b) for a, b in zip(old, new, strict=True)]
    groups: dict[tuple[bool, ...], list[Change]] = {}
    for change, pattern in zip(changed, zip(*differing.values(), strict=True), strict=False):
        groups.setdefault(pattern, []).append(change)
    named_groups = {tuple(compress(differing, p)): group for p, group in groups.items()}
    named_groups.pop((), None)
    return dict(sorted(named_groups.items()))


@lru_cache(maxsize=1_024)
def _update_by_key(spec: TableSpec, columns: tuple[str, ...]) -> _Prepared:
    names = [(f"new_{number}", name) for number, name in enumerate(columns)]
    new: dict[str, Any] = {name: bindparam(parameter) for parameter, name in names}
    statement = update(_bare(spec)).where(_same_key(spec)).values(new)
    return statement, [*names, *_key_names(spec)]


def _inserted(added: Sequence[Change]) -> Sequence[_StatementChanges]:
    spec, rows = added[0].spec, _new_rows(added)
    many = _if_many(rows, _bulk.COPY_ROWS_MIN, _bulk.copy_rows, spec, rows)
    return [_StatementChanges("insert into", added, *_insertion(spec), rows, many)]


def _if_many(
    rows: Sequence[object], rows_min: int, write_all: Callable[..., bool], *arguments: object
) -> Callable[[Connection], bool] | None:
    """Return a function that writes `rows` at once, or None if they are few."""
    if len(rows) < rows_min:
        return None
    return lambda connection: write_all(connection, *arguments)


def _new_rows(changes: Iterable[Change]) -> list[Row]:
    return [change.new for change in changes if change.new is not None]


@lru_cache(maxsize=1_024)
def _insertion(spec: TableSpec) -> _Prepared:
    names = [(f"new_{number}", name) for number, name in enumerate(spec.written)]
    new: dict[str, Any] = {name: bindparam(parameter) for parameter, name in names}
    return _insert_into(spec).values(new).inline(), names  # inline: no RETURNING


def _insert_into(spec: TableSpec) -> Insert:
    return _WithIdentity(_bare(spec)) if spec.overrides_identity else insert(_bare(spec))


class _WithIdentity(Insert):
    """INSERT that supplies values for a column GENERATED ALWAYS AS IDENTITY."""

    inherit_cache = True


@compiles(_WithIdentity, "postgresql")
def _compile_with_identity(element: _WithIdentity, compiler: Any, **options: Any) -> str:
    plain: str = compiler.visit_insert(element, **options)
    return plain.replace(") VALUES (", ") OVERRIDING SYSTEM VALUE VALUES (", 1)
