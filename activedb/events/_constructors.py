"""Constructors of expressions: of primitive events, and of the operators that combine events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from activedb.clock import moment_of
from activedb.errors import BadEvent, PatternError
from activedb.events._accuracy import microseconds
from activedb.events._choices import Selection, SkipTo
from activedb.events._expressions import (
    Conjunction,
    Disjunction,
    Expression,
    Kleene,
    Negation,
    OccurrencePredicate,
    Periodic,
    Primitive,
    Query,
    ReadingPredicate,
    Sequence,
    checked_alias,
    is_count,
    window_us_of,
)
from activedb.events._names import repeated
from activedb.events._schedules import At, Cron, Every, Schedule
from activedb.functions import checked_function
from activedb.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "aborted",
    "all_of",
    "any_of",
    "aperiodic",
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
    "many",
    "optional",
    "periodic",
    "query",
    "returned",
    "seq",
    "some_of",
    "updated",
]


def any_of(*parts: Expression) -> Disjunction:
    """Return the expression for any one of several events, also written ``a | b``.

    The occurrence is the event itself, once, however many of the parts take it.

    Raises
    ------
    PatternError
        If there are no parts, or one of them is not an event.

    Examples
    --------
    >>> from activedb.events import event
    >>> any_of(event("EXIT"), event("ENTER"))
    ANY(EXIT, ENTER)
    """
    if not parts:
        raise PatternError('any_of() needs events: any_of(event("A"), event("B"))')
    return Disjunction.of(*parts)


def all_of(*parts: Expression) -> Conjunction:
    """Return the expression for all of several events, in any order, also written ``a & b``.

    Raises
    ------
    PatternError
        If there are no parts, one of them is not an event, or two have the same name.
    """
    if not parts:
        raise PatternError('all_of() needs events: all_of(event("A"), event("B"))')
    return Conjunction.of(*parts)


def some_of(count: int, *parts: Expression) -> Conjunction:
    """Return the expression for `count` of several events, in any order (any-of-n).

    Raises
    ------
    PatternError
        If there are fewer parts, one of them is not an event, or two have the same name.
    """
    if not is_count(count, 1) or count > len(parts):
        raise PatternError(
            f"some_of() takes how many of its {len(parts)} events must occur, not {count!r}"
        )
    if count == len(parts):
        return all_of(*parts)  # one expression for one meaning
    made = Conjunction(tuple(map(_event, parts)), count=count)
    made.check()
    return made


def many(
    operand: Expression, minimum: int = 1, maximum: int | None = None, *, greedy: bool = True
) -> Kleene:
    """Return several events of one kind, as a part of a sequence.

    Parameters
    ----------
    operand : Expression
        A primitive event, or `any_of` some (which then needs ``.named(…)``).
    minimum, maximum : int, int or None
        The number of elements, inclusive; None: unbounded.
    greedy : bool
        True if a longer binding is preferred to a shorter one where only one is made.

    Raises
    ------
    PatternError
        If the bounds are invalid, or the operand is not such an event.
    """
    return Kleene.of(operand, minimum, maximum, greedy=greedy)


def optional(operand: Expression, *, greedy: bool = True) -> Kleene:
    """Return an event that may be missing, as a part of a sequence: ``many(operand, 0, 1)``."""
    return many(operand, 0, 1, greedy=greedy)


def seq(*parts: Expression) -> Sequence:
    """Return the sequence of `parts` in strict time order (Wang, Rundensteiner, Ellison 2011, B).

    Parameters
    ----------
    *parts : Expression
        Events of any kind. Some may be `many`; primitive events may be negated with ``~``.

    Raises
    ------
    PatternError
        If there are no parts, all are negated, one of them is not an event, or two positive parts
        have the same name.

    Examples
    --------
    >>> from activedb.events import event
    >>> seq(event("EXIT"), ~event("SANITIZE"), event("ENTER")).same("worker").within(45)
    SEQ(EXIT, !SANITIZE, ENTER) SAME worker WITHIN 45s
    """
    if not parts:
        raise PatternError('a sequence needs parts: seq(event("A"), event("B"))')
    wrong: list[object] = [part for part in parts if not isinstance(part, Expression)]
    if wrong:
        hint = " (negate with ~, not with `not`)" if isinstance(wrong[0], bool) else ""
        raise PatternError(
            f'a part of a sequence is an expression, event("A"), not {wrong[0]!r}{hint}'
        )
    made = Sequence(tuple(parts))
    if not made.positives:
        raise PatternError("a sequence of negations never occurs: add an event that does occur")
    name = repeated(made.names)
    if name is not None:
        raise PatternError(
            f"two parts of the sequence are called {name!r}: "
            'tell them apart with alias="…", say alias="first"'
        )
    return made


def aperiodic(
    start: Expression, what: Primitive | Disjunction, end: Primitive, *, collected: bool = False
) -> Sequence:
    """Return A(start, what, end), or A* if `collected` (Chakravarthy et al. 1994).

    A occurs at each `what` after a `start` without an `end` in between; A* occurs at the first
    `end` after a `start`, with every `what` in between, perhaps none.
    """
    if collected:
        sequence = seq(start, many(what, 0), end).selecting(Selection.NEXT.value)
        return sequence.skipping(SkipTo.NEXT.value)
    return seq(start, ~end, what)


def periodic(
    start: Expression,
    period: float | timedelta,
    end: Expression,
    *,
    collected: bool = False,
    alias: str = "tick",
) -> Periodic:
    """Return P(start, period, end), or P* if `collected` (Chakravarthy et al. 1994).

    P occurs at each tick, a multiple of the period after a `start`, before the next `end`; P* at
    that `end`, with all the ticks.
    """
    made = Periodic(
        _event(start),
        window_us_of(period, "periodic()"),
        _event(end),
        collected,
        alias=checked_alias(alias),
    )
    made.check()
    return made


def query(
    name: str,
    pattern: Expression,
    returns: Mapping[str, Any] | None = None,
    *,
    stream: str | None = None,
) -> Query:
    """Return a pattern with a name and an output, ``CREATE QUERY`` of the rule language.

    Parameters
    ----------
    name : str
        The name of the composite events.
    pattern : Expression
    returns : mapping of str to Term, optional
        Their parameters, ``{"worker": part("ENTER").worker}``; by default those of all parts.
    stream : str, optional
        The name of the stream that the query is on.

    Raises
    ------
    PatternError
        If the name or the pattern is invalid.
    """
    if stream is not None and (not isinstance(stream, str) or not stream):
        raise PatternError(f"stream= takes the name of a stream, not {stream!r}")
    made = Query(checked_alias(name), _event(pattern), tuple((returns or {}).items()), stream)
    made.check()
    return made


def _event(part: object) -> Expression:
    if isinstance(part, Expression) and not isinstance(part, Negation | Kleene):
        return part
    raise PatternError(f'an event is an expression such as event("A"), not {part!r}')


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
        moment_of(us)
    except BadEvent as error:
        raise PatternError(f"at() takes a moment: {error}") from None
    except OverflowError:
        raise PatternError(
            f"at() takes a moment: {moment!r} is not within the years 1 to 9999 in UTC"
        ) from None
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
    is_zero = not isinstance(offset, bool) and offset in (0, timedelta())
    offset_us = 0 if is_zero else window_us_of(offset, "every(offset=…)")
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
        predicate, reading = None, cast("ReadingPredicate", predicate)  # a Term can be either
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
    return tuple([str(getattr(column, "name", column)) for column in columns])
