"""Statements over the versions of a sphere: SELECT, and writes based on a locking read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from activedb.errors import (
    DefinitionError,
    InvalidRow,
    LockNotAvailable,
    RowExists,
    StoreError,
    UnsupportedStatement,
)
from activedb.store.sql import (
    KEYS_PINNED_MAX,
    Key,
    LockedRows,
    LockingRead,
    Parameters,
    PinnedKeys,
    Row,
    StatementPlan,
    TableSpec,
    Unlocked,
    keys_covered,
    named_rows,
    numbering,
    pinned_keys,
    plan_locks,
    plan_write,
    restricted_keys,
    rows_by_default,
    tables_of,
)
from activedb.transactions._locking import lock, lock_predicate, lock_table, will_declare
from activedb.transactions._rows import read_free, read_locked, read_rows, write_rows
from lockmgr import Mode, OneOf, Predicate

if TYPE_CHECKING:
    from activedb.transactions._node import TransactionNode, Version

__all__ = ["default_of", "execute", "next_number", "query"]


_NOTHING: Mapping[TableSpec, Mapping[Key, Row | None]] = MappingProxyType({})
_KEYS_MAX = 5_000  # keys in one SELECT
_QUERIES = {each: f"queries_locking_{each}" for each in ("rows", "predicates", "tables")}
"""Counters of queries, by the coarsest that they lock."""
_ATTEMPTS = 20
"""Times that a query is sent before it locks tables: its values may differ each time."""
_LOOKS = 3  # for rows by a unique constraint that others change meanwhile
_AT_ONCE = 8  # extra rows to look at, because some may be locked


def query(
    t: TransactionNode, statement: Any, parameters: Mapping[str, Any] | None = None
) -> list[Any]:
    """Return the rows of a SELECT; see `Transaction.query`."""
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRow(
            f"query() takes the values of parameters by name, such as {{'x': 1}}, not "
            f"{type(parameters).__name__}"
        )
    plan = plan_locks(statement, parameters)
    if not isinstance(plan, LockingRead):
        return _select(t, plan, parameters)
    spec = t.forest.tables.spec(plan.table)
    if plan.nowait or plan.skip_locked:
        return _claim(t, spec, plan, parameters)
    answer = _known_rows(t, plan.pinned, to_write=True)
    if answer is not None:
        return answer
    keys = _keys(spec, plan.pinned)
    if keys is None:
        found = _select(t, plan.keys(plan.limit), parameters, to_write=spec)
        keys = [spec.key(plan.key(row)) for row in found]
    read_locked(t, spec, keys)
    return _select(t, plan.plain, parameters, pinned=plan.pinned)


def execute(t: TransactionNode, statement: Any, parameters: Parameters = None) -> Any:
    """Run an UPDATE, DELETE or INSERT; see `Transaction.execute`."""
    plan = plan_write(statement, parameters)
    spec = t.forest.tables.spec(plan.table)
    if plan.kind == "insert":
        versions = _inserted(t, plan, spec, parameters)
    else:
        versions = _changed(t, plan, spec, parameters)
    returned = None if plan.returning is None else _returned(t, plan, spec, versions)
    write_rows(t, spec, versions)
    return len(versions) if returned is None else returned


# -- reading -----------------------------------------------------------------------------------


def _select(
    t: TransactionNode,
    statement: Any,
    parameters: Mapping[str, Any] | None = None,
    *,
    pinned: PinnedKeys | None = None,
    to_write: TableSpec | None = None,
    unlocked: Collection[TableSpec] = (),
    instead: Mapping[TableSpec, Mapping[Key, Row | None]] = _NOTHING,
) -> list[Any]:
    """Run a SELECT over the sphere.

    Parameters
    ----------
    pinned : PinnedKeys, optional
        Keys to which the statement restricts tables, if they are known already.
    to_write : TableSpec, optional
        Table to lock for writing: its rows if the statement needs but some, else the whole.
    unlocked : collection of TableSpec
        Tables to read without a table lock, because their rows are locked one by one.
    instead : mapping of TableSpec to (key to row or None)
        Dirty rows of some tables, in place of the versions of the sphere.
    """
    tables = t.forest.tables
    pinned = pinned or pinned_keys(statement, parameters)
    if not (unlocked or instead):
        found = _known_rows(t, pinned, to_write=to_write is not None)
        if found is not None:
            return found

    def read(spec: TableSpec, keys: list[Key]) -> Iterable[Row | None]:
        if not keys:
            return []
        if spec is to_write:
            return read_locked(t, spec, keys).values()
        return read_rows(t, spec, keys, Mode.S).values()

    def find(
        spec: TableSpec, names: tuple[str, ...], values: list[tuple[Any, ...]]
    ) -> list[Key] | None:
        mode = Mode.SIX if spec is to_write else Mode.S
        return _unique_rows(t, spec, names, values, mode, read)

    def ask(spec: TableSpec, predicate: Predicate, is_last: bool) -> list[Key] | None:
        understood.add(spec)
        mode = Mode.SIX if spec is to_write else Mode.S
        keys = _covered_rows(t, spec, predicate, mode, read, is_last=is_last)
        if keys is not None:
            locked.asked.add(spec)
        return keys

    locked = LockedRows(others_may_add=t.hierarchy.session.relies_on_locks)
    understood: set[TableSpec] = set()
    specs = dict.fromkeys(unlocked)
    wanted: Mapping[TableSpec, list[Key] | None] = {}
    if not pinned.may_restrict:
        wanted = dict.fromkeys(map(tables.spec, tables_of(statement, t.forest.store, tables)))
    elif not unlocked:  # else the text that is sent shows which rows
        specs_of_pinned = map(tables.spec, pinned.by_table)
        wanted = {spec: keys for spec in specs_of_pinned if (keys := _keys(spec, pinned))}
    attempt = 0
    while True:
        attempt += 1
        for spec, keys in wanted.items():
            if spec in specs and spec not in locked.keys:
                continue  # as a whole
            if keys is not None and attempt < _ATTEMPTS and not t.hierarchy.base.is_locked(spec):
                read(spec, keys)
                locked.keys.setdefault(spec, set()).update(keys)
            else:
                lock_table(t, spec, Mode.SIX if spec is to_write else Mode.S)
                locked.keys.pop(spec, None)
            specs[spec] = None
        t.check_usable()
        dirty = {
            spec: instead[spec] if spec in instead else t.dirty(spec, locked.keys_of_dirty(spec))
            for spec in specs
        }
        try:
            found = t.hierarchy.query(statement, tables, dirty, parameters, locked)
            if not unlocked:
                is_whole = not specs.keys() <= locked.keys.keys()
                finest = "predicates" if locked.asked else "rows"
                t.forest.counters.add(_QUERIES["tables" if is_whole else finest])
            return found
        except Unlocked as more:
            if unlocked:  # to look at their rows for those of others would lock them
                wanted = {each.spec: None for each in more.mentions if each.spec is not None}
            else:
                wanted = restricted_keys(more.mentions, read, find, ask)
                for spec, keys in wanted.items():
                    if keys is None and spec not in understood:
                        t.forest.whole_tables.tell(spec, more.sent[0])
                locked.checked.append(more.sent)


def _unique_rows(
    t: TransactionNode,
    spec: TableSpec,
    names: tuple[str, ...],
    values: list[tuple[Any, ...]],
    mode: Mode,
    read: Callable[[TableSpec, list[Key]], Iterable[Row | None]],
) -> list[Key] | None:
    """Lock the rows that have certain values of a unique constraint; return their keys.

    None if no committed row has some of the values, because nothing keeps others from inserting it.
    The constraint keeps out other hierarchies. Transactions beside `t` in its own are kept out by a
    lock on the values: there may be two rows with one value until the commit.
    """
    if not values:
        return []
    if t.hierarchy.is_parallel:
        if any(spec.table.c[name].computed is not None for name in names):
            return None  # rows that are written do not have its value yet
        chosen_values = zip(names, zip(*values, strict=True), strict=True)
        lock_predicate(t, spec, Predicate(itertools.starmap(OneOf, chosen_values)), mode)
    equal = [
        Predicate(OneOf(name, [value]) for name, value in zip(names, row, strict=True))
        for row in values
    ]
    chosen = keys_covered(spec, equal)
    for _ in range(_LOOKS):
        rows = _select(t, chosen, unlocked=(spec,))
        keys = spec.in_order({spec.key(tuple(row)) for row in rows})
        found = {
            tuple([row[name] for name in names]) for row in read(spec, keys) if row is not None
        }
        if t.dirty(spec, keys):  # also by a sibling that has committed since
            return None  # no constraint protects a value that is not committed
        if found.issuperset(values):
            return keys
        if len(keys) < len(values):
            return None
    return None


def _covered_rows(
    t: TransactionNode,
    spec: TableSpec,
    predicate: Predicate,
    mode: Mode,
    read: Callable[[TableSpec, list[Key]], Iterable[Row | None]],
    *,
    is_last: bool,
) -> list[Key] | None:
    """Lock a predicate, and the rows that satisfy it if other processes may write them.

    Returns the keys of these rows, perhaps repeatedly; None if there are too many, the table is
    locked, or predicates cannot be. What no other process can write needs no locks on the rows: if
    no other table is restricted by them (`is_last`), no row is looked for.
    """
    if not t.hierarchy.may_ask(spec):
        return None
    lock_predicate(t, spec, predicate, mode)
    if is_last and not t.hierarchy.session.relies_on_locks and t.log is None:
        t.hierarchy.asked(spec, predicate, ())
        return []
    if _locks(t, spec):
        exclusive = mode is Mode.SIX or spec in t.hierarchy.run.announced
        keys = t.hierarchy.read_single(spec, predicate, exclusive=exclusive)
        dirty = t.dirty(spec).items()
        keys += [key for key, row in dirty if row is not None and predicate.covers(row)]
    else:
        chosen = keys_covered(spec, [predicate]).limit(KEYS_PINNED_MAX + 1)
        keys = [spec.key(tuple(row)) for row in _select(t, chosen, unlocked=(spec,))]
    if len(keys) > KEYS_PINNED_MAX:
        return None
    keys = spec.in_order(keys)
    read(spec, list(dict.fromkeys(keys)))
    t.hierarchy.asked(spec, predicate, keys)
    return keys


def _known_rows(t: TransactionNode, pinned: PinnedKeys, *, to_write: bool) -> list[Any] | None:
    """Return the rows of a SELECT of plain columns, if locking them is enough to know them."""
    if pinned.columns is None:
        return None
    by = _rows_by_key if pinned.predicate is None else _rows_by_predicate
    return by(t, pinned, to_write=to_write)


def _rows_by_key(t: TransactionNode, pinned: PinnedKeys, *, to_write: bool) -> list[Any] | None:
    """Return the rows of a SELECT of plain columns by key; None if only the server knows them."""
    ((table, _),) = pinned.by_table.items()
    spec = _declared(t, table)
    if spec is None:
        return None
    keys = _keys(spec, pinned)
    if keys is None:
        return None
    rows = read_locked(t, spec, keys) if to_write else read_rows(t, spec, keys, Mode.S)
    # The values of rows that are not written yet may look different at the server. Also those of a
    # sibling for whose end the locks have waited, or of a cause.
    if t.dirty(spec, keys) or t.hierarchy.shows_unwritten(spec, keys):
        return None
    t.forest.counters.add(_QUERIES["rows"])
    return _shown(spec, pinned, rows.values())


def _rows_by_predicate(
    t: TransactionNode, pinned: PinnedKeys, *, to_write: bool
) -> list[Any] | None:
    """Return the rows of a SELECT of plain columns by predicate; None if only the server knows."""
    predicate, columns = pinned.predicate, pinned.columns
    if predicate is None or columns is None:
        return None
    spec = _declared(t, columns[0].table)
    if spec is None or not _locks(t, spec):
        return None
    compared = {condition.column for condition in predicate.conditions}
    if any(compared.issuperset(unique) for unique in spec.unique_keys):
        return None
    # The values of rows that are not written yet may look different at the server.
    if any(row is not None and predicate.covers(row) for row in t.dirty(spec).values()):
        return None

    def read(spec: TableSpec, keys: list[Key]) -> Iterable[Row | None]:
        found.update(read_locked(t, spec, keys) if to_write else read_rows(t, spec, keys, Mode.S))
        return found.values()

    found: dict[Key, Row | None] = {}
    mode = Mode.SIX if to_write else Mode.S
    keys = _covered_rows(t, spec, predicate, mode, read, is_last=True)
    # Several rows with one key: those of tables that inherit. A row that is not there, or does not
    # satisfy the predicate: row security, or a type at the server that is not the declared one.
    if (
        keys is None
        or len(found) < len(keys)
        or t.dirty(spec, keys)
        or not all(row is not None and predicate.covers(row) for row in found.values())
    ):
        return None
    t.forest.counters.add(_QUERIES["predicates"])
    return _shown(spec, pinned, found.values())


def _declared(t: TransactionNode, table: Any) -> TableSpec | None:
    """Return a table that is declared in the database's metadata; None for all others.

    Another table may have the name of one, or be the server's own: see the text that is sent.
    """
    is_declared = t.forest.store.metadata.tables.get(table.key) is table
    return t.forest.tables.spec(table) if is_declared else None


def _shown(spec: TableSpec, pinned: PinnedKeys, rows: Iterable[Row | None]) -> list[Any]:
    """Return the columns of rows that a statement selects."""
    columns = pinned.columns
    assert columns is not None
    names = [column.name for column in columns]
    shown = [spec.shown(row) for row in rows if row is not None]
    return named_rows(names, [tuple([row[name] for name in names]) for row in shown], columns)


def _locks(t: TransactionNode, spec: TableSpec) -> bool:
    """Return whether rows are locked on the server when they are read."""
    session = t.hierarchy.session
    return session.relies_on_locks and session.locks_rows(spec)


def _keys(spec: TableSpec, pinned: PinnedKeys) -> list[Key] | None:
    """Return the keys to which a statement is restricted, in order; None for any key."""
    keys = pinned.by_table.get(spec.table)
    try:
        return None if keys is None else spec.in_order(set(map(spec.key, keys)))
    except InvalidRow:
        return None  # the server decides what such values are equal to


def _claim(
    t: TransactionNode, spec: TableSpec, plan: LockingRead, parameters: Mapping[str, Any] | None
) -> list[Any]:
    """Lock the first unlocked rows that the statement selects, and return them.

    The table is not locked, so other transactions may write it. Each row is therefore read again
    once it is locked, but rows that have begun to match the statement meanwhile may be missed.
    """
    if plan.limit == 0:
        return []
    if plan.skip_locked:
        lock(t, (spec.name,), Mode.IX)
        will_declare(t, spec)
    claimed: list[Key] = []
    seen: set[Key] = set()
    size = None if plan.limit is None else plan.limit + _AT_ONCE
    while True:
        found = _select(t, plan.keys(size), parameters, unlocked=(spec,))
        fresh = [key for row in found if (key := spec.key(plan.key(row))) not in seen]
        while fresh and (plan.limit is None or len(claimed) < plan.limit):
            count = len(fresh) if plan.limit is None else plan.limit - len(claimed)
            batch, fresh = fresh[: min(count, _KEYS_MAX)], fresh[min(count, _KEYS_MAX) :]
            seen.update(batch)
            locked = read_free(t, spec, batch)
            if plan.nowait and len(locked) < len(batch):
                taken = next(key for key in batch if key not in locked)
                raise LockNotAvailable(f"table {spec.name}: another transaction has row {taken!r}")
            if locked:
                again = plan.keys_among(list(locked))
                rows = _select(t, again, parameters, unlocked=(spec,))
                claimed += [spec.key(plan.key(row)) for row in rows]
        if size is None or len(found) < size or len(claimed) >= (plan.limit or 0):
            break
        size *= 4
    if not claimed:
        return []
    return _select(t, plan.rows(claimed), parameters, unlocked=(spec,))


# -- writing -----------------------------------------------------------------------------------


def _changed(
    t: TransactionNode, plan: StatementPlan, spec: TableSpec, parameters: Any
) -> list[Version]:
    """Return the versions that an UPDATE or DELETE makes; locks the rows, writes none."""
    width = len(spec.key_columns)
    found: dict[Key, tuple[Any, ...]] = {}
    pinned = pinned_keys(plan.select, parameters if isinstance(parameters, Mapping) else None)
    keys = _keys(spec, pinned)
    if keys is not None:
        read_locked(t, spec, keys, to_write=True)
    for row in _select(t, plan.select, parameters, pinned=pinned, to_write=spec):
        values = tuple(row)
        key = spec.key(values[:width])
        if found.setdefault(key, values[width:]) != values[width:]:
            raise UnsupportedStatement(
                f"the update of {spec.name} finds several new values for the row {key!r}: make "
                f"its condition join one row at most"
            )
    old = read_locked(t, spec, list(found), to_write=True)
    if plan.kind == "delete":
        return [(key, old[key], None) for key in found]
    missing = {n: d for n, d in spec.onupdates.items() if n not in plan.columns}
    written = [dict(zip(plan.columns, values, strict=True)) for values in found.values()]
    _fill(t, spec, missing, written)
    versions: list[Version] = []
    for key, record in zip(found, written, strict=True):
        before = old[key]
        if before is None:
            raise UnsupportedStatement(
                f"table {spec.name}: the row {key!r} is visible, but cannot be locked: the row "
                f"security's policies hide it from changes; use one policy for all commands"
            )
        new = spec.changed(before, record)
        versions.append((key, before, new))
    return versions


def _inserted(
    t: TransactionNode, plan: StatementPlan, spec: TableSpec, parameters: Any
) -> list[Version]:
    """Return the complete rows of an INSERT; locks their keys, writes none."""
    if plan.rows is None:
        values: Iterable[Sequence[Any]] = [
            tuple(row) for row in _select(t, plan.select, parameters)
        ]
    else:
        rows = plan.rows
        if plan.places:
            given = parameters if isinstance(parameters, Mapping) else None
            for (i, j), cell in zip(plan.places, _select(t, plan.select, given)[0], strict=True):
                rows[i][j] = cell
        values = rows
    records = [dict(zip(plan.columns, row, strict=True)) for row in values]
    if not records:
        return []
    missing = {name: spec.defaults[name] for name in spec.missing_defaults(records[0])}
    _fill(t, spec, missing, records)
    _number(t, spec, records)
    new: dict[Key, Row] = {}
    for record in records:
        row = spec.complete(record)
        key = spec.key(spec.key_of(row))
        if key in new:
            raise RowExists(f"table {spec.name}: the statement inserts the key {key!r} twice")
        new[key] = row
    before = read_locked(t, spec, list(new), inserting=True)
    taken = next((key for key in new if before[key] is not None), None)
    if taken is not None:
        raise RowExists(f"table {spec.name}: a row with key {taken!r} exists; update it instead")
    return [(key, None, row) for key, row in new.items()]


def _number(t: TransactionNode, spec: TableSpec, records: list[dict[str, Any]]) -> None:
    """Assign generated keys to the rows for which the database would generate one."""
    bare: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        for name in spec.unnumbered(record):
            bare.setdefault(name, []).append(record)
    for name, lacking in bare.items():
        if t.hierarchy.session.is_shared:
            numbers = numbering(t.forest.store.engine.dialect, spec, name)
            found = [row[0] for row in _select(t, rows_by_default([numbers], len(lacking)))]
            found = [_certain(spec, name, number) for number in found]
        else:
            found = [next_number(t, spec, name) for _ in lacking]
        for record, number in zip(lacking, found, strict=True):
            record[name] = number


def next_number(t: TransactionNode, spec: TableSpec, name: str) -> int:
    """Return the next number of a column that the database numbers.

    Raises
    ------
    InvalidRow
        If it has no sequence.
    """
    return _certain(spec, name, t.hierarchy.look_up(lambda s: s.next_number(spec, name)))


def _certain(spec: TableSpec, name: str, number: int | None) -> int:
    if number is None:
        raise InvalidRow(
            f"table {spec.name}: the server has no sequence that numbers column {name}; give it a "
            f"value, or make the column an identity (ALTER TABLE … ALTER … ADD GENERATED BY "
            f"DEFAULT AS IDENTITY)"
        )
    return number


def default_of(t: TransactionNode, spec: TableSpec, default: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of a column's default, one of `TableSpec.defaults` or `onupdates`."""
    return default(values) if callable(default) else _computed(t, spec, default)[0][0]


def _computed(t: TransactionNode, spec: TableSpec, statement: Any) -> list[Any]:
    """Return the rows of a SELECT of default values.

    Raises
    ------
    DefinitionError
        If the database cannot compute them.
    """
    try:
        return _select(t, statement)
    except StoreError as error:
        if type(error) is not StoreError:
            raise
        raise DefinitionError(
            f"table {spec.name}: the database cannot compute a column's default= or onupdate=: "
            f"{error}. It is computed before the row is written, and knows none of the row's "
            f"columns: give a value that depends on them with each write, as in "
            f"update(…, version=row['version'] + 1)"
        ) from error


def _fill(
    t: TransactionNode,
    spec: TableSpec,
    defaults: Mapping[str, Any],
    records: Sequence[dict[str, Any]],
) -> None:
    """Add default values for columns that a statement omits, to each row separately."""
    for name, default in defaults.items():
        if callable(default):
            for record in records:
                record[name] = default(record)
    of_server = [name for name, default in defaults.items() if not callable(default)]
    if of_server and records:
        chosen = rows_by_default([defaults[name] for name in of_server], len(records))
        rows = _computed(t, spec, chosen)
        for record, row in zip(records, rows, strict=True):
            record.update(zip(of_server, row, strict=True))


def _returned(
    t: TransactionNode, plan: StatementPlan, spec: TableSpec, versions: Sequence[Version]
) -> list[Any]:
    """Return the RETURNING values of the rows, in their order; nothing is written yet."""
    returning = plan.returning
    assert returning is not None
    shown = {key: old if new is None else new for key, old, new in versions}
    if returning.names is not None:
        plain = (returning.values(spec.shown(row)) for row in shown.values() if row is not None)
        return named_rows(returning.names, plain)
    found: dict[Key, tuple[Any, ...]] = {}
    names: Sequence[str] = ()
    width = len(spec.key_columns)
    keys = list(shown)
    for start in range(0, len(keys), _KEYS_MAX):
        part = {key: shown[key] for key in keys[start : start + _KEYS_MAX]}
        rows = _select(t, returning.select(list(part)), unlocked=(spec,), instead={spec: part})
        for row in rows:
            names = row._fields[width:]
            found[spec.key(tuple(row[:width]))] = tuple(row[width:])
    return named_rows(names, (found[key] for key in keys))
