"""Constructors of primitive events: event, inserted, at, called, began and others."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from activedb.errors import BadEvent, PatternError
from activedb.events._expression import window_us_of
from activedb.events._primitives import (
    OccurrencePredicate,
    Primitive,
    ReadingPredicate,
    checked_alias,
)
from activedb.events._schedules import At, Cron, Every, Schedule
from activedb.events._timestamps import microseconds
from activedb.functions import checked_function
from activedb.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "aborted",
    "at",
    "began",
    "called",
    "committing",
    "cron",
    "deleted",
    "event",
    "every",
    "inserted",
    "late",
    "returned",
    "updated",
]


def event(
    name: str,
    where: OccurrencePredicate | None = None,
    alias: str | None = None,
    *,
    reading: ReadingPredicate | None = None,
) -> Primitive:
    """Return the expression for an application or stream event.

    Parameters
    ----------
    name : str
        The event's name; for a stream event, its type.
    where : callable or Term, optional
        ``where(o) -> bool``: take only occurrences for which it is true. Must be pure.
    alias : str, optional
        The part's name in a sequence; the event's name by default.
    reading : callable, optional
        ``reading(t, o) -> bool``: like `where`, but may read the shared store through the
        transaction `t`, which sees the store as of the event's time.

    Raises
    ------
    PatternError
        If an argument is invalid.
    """
    if not isinstance(name, str) or not name:
        raise PatternError(f'event() takes the name of an event, event("EXIT"), not {name!r}')
    return _primitive(("event", name), (), where, alias, reading)


def late(
    stream: object, where: OccurrencePredicate | None = None, alias: str | None = None
) -> Primitive:
    """Return the expression for an event of a stream that arrived after its punctuation.

    Its occurrences have the stream's name, and the parameters ``type``, ``timestamp``, ``id`` and
    ``params`` of the late event.

    Parameters
    ----------
    stream : str or Stream
    where, alias : optional
        As in `event`.
    """
    name = stream if isinstance(stream, str) else getattr(stream, "name", None)
    if not isinstance(name, str) or not name:
        raise PatternError(f"late() takes a stream or its name, not {stream!r}")
    return _primitive(("late", name), (), where, alias)


def inserted(
    table: object,
    *,
    where: OccurrencePredicate | None = None,
    alias: str | None = None,
    reading: ReadingPredicate | None = None,
) -> Primitive:
    """Return the expression for the insertion of a row; ``o.new`` and ``o.params`` are the row.

    Parameters
    ----------
    table : Table or mapped class
        Any object with a ``name`` (``fullname`` is preferred), or with such a ``__table__``.
    where, alias, reading : optional
        As in `event`; the default part name is the table's full name.

    Raises
    ------
    PatternError
        If an argument is invalid.
    """
    return _primitive(("insert", _table_name(table, "inserted")), (), where, alias, reading)


def updated(
    table: object,
    *columns: str,
    where: OccurrencePredicate | None = None,
    alias: str | None = None,
    reading: ReadingPredicate | None = None,
) -> Primitive:
    """Return the expression for the update of a row; ``o.old`` and ``o.new`` are its versions.

    Parameters
    ----------
    table : Table or mapped class
        As in `inserted`.
    *columns : str
        Column names: the value of at least one of them must have changed. Default: any update.
    where, alias, reading : optional
        As in `inserted`.

    Raises
    ------
    PatternError
        If an argument is invalid, or a column is not one of the table's.
    """
    name = _table_name(table, "updated")
    known = _column_names(table)
    for column in columns:
        if not isinstance(column, str):
            raise PatternError(f"updated({name}, …) takes column names, not {column!r}")
        if known is not None and column not in known:
            raise PatternError(
                f"table {name} has no column {column!r}: name one of "
                f"{', '.join(known)}{nearest(column, known)}"
            )
    return _primitive(("update", name), tuple(dict.fromkeys(columns)), where, alias, reading)


def deleted(
    table: object,
    *,
    where: OccurrencePredicate | None = None,
    alias: str | None = None,
    reading: ReadingPredicate | None = None,
) -> Primitive:
    """Return the expression for the deletion of a row; ``o.old`` and ``o.params`` are the row.

    Parameters
    ----------
    table, where, alias, reading
        As in `inserted`.

    Raises
    ------
    PatternError
        If an argument is invalid.
    """
    return _primitive(("delete", _table_name(table, "deleted")), (), where, alias, reading)


def at(moment: datetime | float, alias: str | None = None) -> Primitive:
    """Return the expression for a moment: an aware datetime, or seconds since the epoch."""
    try:
        us = microseconds(moment)
    except BadEvent as error:
        raise PatternError(f"at() takes a moment: {error}") from None
    return _scheduled(At(us), alias)


def every(
    period: float | timedelta, offset: float | timedelta = 0, alias: str | None = None
) -> Primitive:
    """Return the expression for moments at equal distances, counted from the epoch.

    Parameters
    ----------
    period, offset : seconds or timedelta
        ``every(3600, offset=60)`` is a minute after each full hour.
    alias : str, optional
        The part's name in a sequence.
    """
    offset_us = window_us_of(offset, "every(offset=…)") if offset else 0
    return _scheduled(Every(window_us_of(period, "every()"), offset_us), alias)


def cron(expression: str, zone: str = "UTC", alias: str | None = None) -> Primitive:
    """Return the expression for the moments given by a crontab line.

    Parameters
    ----------
    expression : str
        Minute, hour, day, month and weekday, ``"*/5 * * * *"``; a sixth field in front is seconds.
    zone : str
        The IANA name of a time zone.
    alias : str, optional
        The part's name in a sequence.

    Raises
    ------
    PatternError
        If the expression or the zone is invalid.
    """
    return _scheduled(Cron.of(expression, zone), alias)


def called(
    function: Callable[..., Any] | str,
    where: OccurrencePredicate | None = None,
    alias: str | None = None,
) -> Primitive:
    """Return the expression for the start of a call of a function wrapped by `Database.emits`.

    Its parameters are the call's arguments by name, including defaults but not ``self``.

    Parameters
    ----------
    function : callable or str
        The function, or its qualified name: ``"Account.withdraw"``.
    where, alias : optional
        As in `event`.
    """
    return _primitive(("call", _function_name(function, "called")), (), where, alias)


def returned(
    function: Callable[..., Any] | str,
    where: OccurrencePredicate | None = None,
    alias: str | None = None,
) -> Primitive:
    """Return the expression for the return of a function wrapped by `Database.emits`.

    It has the parameters of `called` and ``result``. A call that raises does not return.
    """
    return _primitive(("return", _function_name(function, "returned")), (), where, alias)


def began(where: OccurrencePredicate | None = None) -> Primitive:
    """Return the expression for the beginning of a top-level transaction of the application."""
    return _primitive(("transaction", "begin"), (), where, None)


def committing(where: OccurrencePredicate | None = None) -> Primitive:
    """Return the expression for the commit point of a top-level transaction of the application.

    Immediate rules run before the deferred cycles, sequential rules after the commit.
    """
    return _primitive(("transaction", "commit"), (), where, None)


def aborted(where: OccurrencePredicate | None = None) -> Primitive:
    """Return the expression for the abort of a top-level transaction of the application.

    Only detached rules can use it: the transaction has ended.
    """
    return _primitive(("transaction", "abort"), (), where, None)


def _scheduled(schedule: Schedule, alias: str | None) -> Primitive:
    checked = None if alias is None else checked_alias(alias)
    return Primitive(("clock", schedule.text), alias=checked, schedule=schedule)


def _primitive(
    key: tuple[str, str],
    columns: tuple[str, ...],
    predicate: OccurrencePredicate | None,
    alias: str | None,
    reading: ReadingPredicate | None = None,
) -> Primitive:
    if predicate is not None and not callable(predicate):
        raise PatternError(f"where takes a function of the occurrence, not {predicate!r}")
    if reading is not None and not callable(reading):
        raise PatternError(f"reading takes a function of (t, o), not {reading!r}")
    for function, what in ((predicate, "the predicate (where=)"), (reading, "the reading")):
        if function is not None:
            checked_function(function, f"{what} of {key[0]} {key[1]}")
    checked = None if alias is None else checked_alias(alias)
    if getattr(predicate, "part_names", None):
        raise PatternError(
            f"{predicate!r} is about parts, and this is one event: write attr('x') for part('A').x"
        )
    if reading is None and getattr(predicate, "is_reading", False):
        predicate, reading = None, cast(ReadingPredicate, predicate)  # a Term can be either
    return Primitive(key, columns, predicate, checked, reading)


def _function_name(function: object, what: str) -> str:
    name = function if isinstance(function, str) else getattr(function, "__qualname__", None)
    if not isinstance(name, str) or not name:
        raise PatternError(f"{what}() takes a function or its qualified name, not {function!r}")
    return name


def _table(table: object) -> Any:
    # A mapped class comes first: it may have a column called `name`.
    return getattr(table, "__table__", table)


def _table_name(table: object, function: str) -> str:
    described = _table(table)
    for name in (getattr(described, "fullname", None), getattr(described, "name", None)):
        if isinstance(name, str) and name:
            return name
    raise PatternError(f"{function}() takes a Table or a mapped class, not {table!r}")


def _column_names(table: object) -> tuple[str, ...] | None:
    described = _table(table)
    columns = getattr(described, "columns", None)
    if columns is None:
        columns = getattr(described, "c", None)
    if columns is None:
        return None
    names: Iterable[str] = columns.keys() if hasattr(columns, "keys") else columns
    return tuple(names)
