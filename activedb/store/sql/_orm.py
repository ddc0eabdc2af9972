"""Use of the ORM: flushes of ordinary sessions, and rows as objects of mapped classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Column, Connection, Table, event, inspect
from sqlalchemy import Row as SQLRow
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.orm import LoaderCallableStatus, Session, sessionmaker
from sqlalchemy.orm import Session as ORMSession

from activedb.errors import ConfigurationError
from activedb.store.server import converting

__all__ = ["Flushed", "listen_to_flushes", "named_rows", "rows_of"]


_mapped: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""Statements run before, and whether they select mapped classes."""


def rows_of(
    connection: Connection, statement: Any, parameters: Mapping[str, Any] | None
) -> list[SQLRow[Any]]:
    """Run a SELECT; rows of mapped classes contain their objects, loaded and detached.

    Eager relationships are read over the same connection. The connection's transaction stays open.
    """
    values = dict(parameters or {})
    if not _is_mapped(statement):
        with converting():
            return list(connection.execute(statement, values).all())
    if not connection.in_transaction():
        connection.begin()  # otherwise the ORM session would begin its own, and end it
    orm = ORMSession(connection, autoflush=False, join_transaction_mode="rollback_only")
    try:
        with converting():
            result = orm.execute(statement, values)
        if result._unique_filter_state is not None:
            # A collection loaded by a join repeats its owner, and requires this call.
            result = result.unique()
        return list(result.all())  # errors of the classes' own code are theirs
    finally:
        orm.expunge_all()
        orm.close()


def named_rows(
    names: Sequence[str],
    rows: Iterable[tuple[Any, ...]],
    columns: Sequence[Column[Any]] | None = None,
) -> list[SQLRow[Any]]:
    """Return rows like those of a SELECT, from known values.

    Parameters
    ----------
    columns : sequence of Column, optional
        Columns by which the values can be found in a row's mapping as well.
    """
    extra = None if columns is None else [(column,) for column in columns]
    result: IteratorResult[Any] = IteratorResult(SimpleResultMetaData(names, extra), iter(rows))
    return list(result.all())


def _is_mapped(statement: Any) -> bool:
    known = _mapped.get(statement)
    if known is None:
        described = getattr(statement, "column_descriptions", ())
        known = any(column.get("entity") is not None for column in described)
        _mapped[statement] = known
    return known


Flushed: TypeAlias = Callable[[Any, list[tuple[Table, tuple[Any, ...]]]], None]
"""Called with the session and the rows' tables and keys; rows without a key yet are left out."""


def listen_to_flushes(target: Any, before: Flushed, after: Flushed) -> Callable[[], None]:
    """Call `before` and `after` around each flush of a session; return a function that stops this.

    The calls report the objects in ``session.new``, ``dirty`` and ``deleted``; an object whose key
    changes under both keys. They do not report bulk statements (``session.execute(update(…))``),
    rows of ``secondary`` tables, and a flush's effects on further objects: orphans that it deletes,
    foreign keys that it sets to NULL.

    Parameters
    ----------
    target : Session, sessionmaker or subclass of Session
        All sessions it makes are listened to.

    Raises
    ------
    ConfigurationError
        If it is none of these.
    """
    is_class = isinstance(target, type) and issubclass(target, Session)
    if not (is_class or isinstance(target, Session | sessionmaker)):
        raise ConfigurationError(
            f"watch() takes a sqlalchemy.orm Session, sessionmaker or Session class, not "
            f"{type(target).__name__}"
        )

    def before_flush(session: Session, context: Any, instances: Any) -> None:
        before(session, _rows(_written(session)))

    def after_flush(session: Session, context: Any) -> None:
        after(session, _rows(_written(session)))

    event.listen(target, "before_flush", before_flush)
    event.listen(target, "after_flush", after_flush)

    def stop() -> None:
        event.remove(target, "before_flush", before_flush)
        event.remove(target, "after_flush", after_flush)

    return stop


def _written(session: Session) -> Iterable[Any]:
    yield from session.new
    yield from (each for each in session.dirty if session.is_modified(each))
    yield from session.deleted


def _rows(instances: Iterable[Any]) -> list[tuple[Table, tuple[Any, ...]]]:
    found: dict[tuple[Table, tuple[Any, ...]], None] = {}
    for instance in instances:
        state = inspect(instance)
        for mapper in state.mapper.iterate_to_root():
            table = mapper.local_table
            if not isinstance(table, Table):
                continue
            names = [mapper.get_property_by_column(c).key for c in table.primary_key.columns]
            now = [getattr(instance, name) for name in names]
            was = [
                state.committed_state.get(name, value)
                for name, value in zip(names, now, strict=True)
            ]
            for key in (tuple(was), tuple(now)):
                if None not in key and LoaderCallableStatus.NO_VALUE not in key:
                    found[table, key] = None
    return list(found)
