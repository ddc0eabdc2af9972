"""How expressions are written: event, inserted, updated, deleted, any_of, seq."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from activedb.errors import PatternError
from activedb.events._expressions import (
    Disjunction,
    Expression,
    Negation,
    OccurrencePredicate,
    Primitive,
    Sequence,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["any_of", "deleted", "event", "inserted", "seq", "updated"]


def event(
    name: str, where: OccurrencePredicate | None = None, alias: str | None = None
) -> Primitive:
    """Return the expression for an application or stream event.

    Parameters
    ----------
    name : str
        The event's name (of a stream event: its type).
    where : callable, optional
        ``where(o) -> bool``: only occurrences for which it holds. Pure.
    alias : str, optional
        The part's name in a sequence; the event's name by default.

    Raises
    ------
    PatternError
        If an argument cannot serve.
    """
    if not isinstance(name, str) or not name:
        raise PatternError(f'event() takes the name of an event, event("EXIT"), not {name!r}')
    return _primitive(("event", name), (), where, alias)


def inserted(
    table: object, *, where: OccurrencePredicate | None = None, alias: str | None = None
) -> Primitive:
    """Return the expression for the insert of a row; ``o.new`` and ``o.params`` are the row.

    Parameters
    ----------
    table : Table or mapped class
        Anything with a ``name`` (``fullname`` is preferred) or a ``__table__`` that has one.
    where, alias : optional
        As in `event`; the default part name is the table's full name.

    Raises
    ------
    PatternError
        If an argument cannot serve.
    """
    return _primitive(("insert", _table_name(table, "inserted")), (), where, alias)


def updated(
    table: object,
    *columns: str,
    where: OccurrencePredicate | None = None,
    alias: str | None = None,
) -> Primitive:
    """Return the expression for the update of a row; ``o.old`` and ``o.new`` are its versions.

    Parameters
    ----------
    table : Table or mapped class
        As in `inserted`.
    *columns : str
        Column names: the value of at least one of them must have changed. None given: any update.
    where, alias : optional
        As in `inserted`.

    Raises
    ------
    PatternError
        If an argument cannot serve, or a column is not one of the table's.
    """
    name = _table_name(table, "updated")
    known = _column_names(table)
    for column in columns:
        if not isinstance(column, str):
            raise PatternError(f"updated({name}, …) takes column names, not {column!r}")
        if known is not None and column not in known:
            raise PatternError(
                f"table {name} has no column {column!r}: name one of {', '.join(known)}"
            )
    return _primitive(("update", name), tuple(dict.fromkeys(columns)), where, alias)


def deleted(
    table: object, *, where: OccurrencePredicate | None = None, alias: str | None = None
) -> Primitive:
    """Return the expression for the delete of a row; ``o.old`` and ``o.params`` are the row.

    Parameters
    ----------
    table, where, alias
        As in `inserted`.

    Raises
    ------
    PatternError
        If an argument cannot serve.
    """
    return _primitive(("delete", _table_name(table, "deleted")), (), where, alias)


def any_of(*parts: Expression) -> Disjunction:
    """Return the expression for any one of several primitive events; also written ``a | b``.

    What triggers the rule is the event itself, once, however many of the parts take it.

    Parameters
    ----------
    *parts : Expression
        Primitive events, or others of these.

    Raises
    ------
    PatternError
        If there are no parts, or one is not a primitive event.

    Examples
    --------
    >>> any_of(event("EXIT"), event("ENTER"))
    ANY(EXIT, ENTER)
    """
    if not parts:
        raise PatternError('any_of() needs events: any_of(event("A"), event("B"))')
    found = Disjunction(())
    for part in parts:
        found = found | part
    return found


def seq(*parts: Expression) -> Sequence:
    """Return the sequence of `parts` in strict time order (Wang, Rundensteiner, Ellison 2011, B).

    Parameters
    ----------
    *parts : Expression
        Primitive events, some of them negated with ``~``; the last one is positive.

    Raises
    ------
    PatternError
        If there are no parts, a part is not a primitive event or its negation, the last part is
        negated (so also if all are), or two positive parts have the same name.

    Examples
    --------
    >>> seq(event("EXIT"), ~event("SANITIZE"), event("ENTER")).same("worker").within(45)
    SEQ(EXIT, !SANITIZE, ENTER) SAME worker WITHIN 45s
    """
    if not parts:
        raise PatternError('a sequence needs parts: seq(event("A"), event("B"))')
    checked = tuple(_part(part) for part in parts)
    positive = [part.name for part in checked if isinstance(part, Primitive)]
    if not positive:
        raise PatternError(
            "a sequence of negations never occurs: end it with the event that completes it"
        )
    if isinstance(checked[-1], Negation):
        raise PatternError(
            f"a sequence cannot end with {checked[-1]!r}, as nothing would complete it: "
            "end it with a positive event"
        )
    for name in positive:
        if positive.count(name) > 1:
            raise PatternError(
                f"two parts of the sequence are called {name!r}: "
                'tell them apart with alias="…", say alias="first"'
            )
    return Sequence(checked)


def _part(part: object) -> Primitive | Negation:
    if isinstance(part, Primitive | Negation):
        return part
    if isinstance(part, Sequence):
        raise PatternError(f"a sequence cannot be a part of another: write the parts of {part!r}")
    if isinstance(part, Disjunction):
        raise PatternError(
            f"{part!r} cannot be a part of a sequence: define a rule for each of the sequences"
        )
    hint = " (negate with ~, not with `not`)" if isinstance(part, bool) else ""
    raise PatternError(f'a part of a sequence is an expression, event("A"), not {part!r}{hint}')


def _primitive(
    key: tuple[str, str],
    columns: tuple[str, ...],
    predicate: OccurrencePredicate | None,
    alias: str | None,
) -> Primitive:
    if predicate is not None and not callable(predicate):
        raise PatternError(f"where takes a function of the occurrence, not {predicate!r}")
    if alias is not None and (not isinstance(alias, str) or not alias):
        raise PatternError(f"alias takes a non-empty string, not {alias!r}")
    return Primitive(key, columns, predicate, alias)


def _table(table: object) -> Any:
    # A mapped class comes first: it may well have a column called `name`.
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
