"""Flushes of ordinary SQLAlchemy sessions: notification of the rows before and after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from sqlalchemy import Table, event, inspect
from sqlalchemy.orm import LoaderCallableStatus, Session, sessionmaker

from activedb.errors import ConfigurationError

__all__ = ["Flushed", "listen_to_flushes"]

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
