"""Operators that combine events: seq, any_of, all_of, some_of, many, periodic, query and others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from activedb.errors import PatternError
from activedb.events._choices import Selection, SkipTo
from activedb.events._conjunction import Conjunction
from activedb.events._disjunction import Disjunction
from activedb.events._expression import Expression, window_us_of
from activedb.events._kleene import Kleene
from activedb.events._names import repeated
from activedb.events._primitives import Negation, Primitive, checked_alias
from activedb.events._query import Query
from activedb.events._sequence import Sequence
from activedb.events._temporal import Periodic

__all__ = [
    "all_of",
    "any_of",
    "aperiodic",
    "many",
    "optional",
    "periodic",
    "query",
    "seq",
    "some_of",
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
    if not _is_count(count, 1) or count > len(parts):
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
    is_primitive = isinstance(operand, Primitive) or (
        isinstance(operand, Disjunction) and operand.is_primitive
    )
    if not is_primitive:
        raise PatternError(f"many() takes a primitive event or any_of() some, not {operand!r}")
    if not _is_count(minimum, 0) or not (maximum is None or _is_count(maximum, max(minimum, 1))):
        raise PatternError(
            f"many() takes how many at least and at most, not {minimum!r} and {maximum!r}"
        )
    assert isinstance(operand, Primitive | Disjunction)
    return Kleene(operand, minimum, maximum, greedy)


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


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _event(part: object) -> Expression:
    if isinstance(part, Expression) and not isinstance(part, Negation | Kleene):
        return part
    raise PatternError(f'an event is an expression such as event("A"), not {part!r}')
