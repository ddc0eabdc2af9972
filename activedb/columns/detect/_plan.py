"""Plan of an expression for the kernels, or the reason why they cannot detect it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from activedb.columns.detect._arrays import CONTEXTS
from activedb.columns.detect._programs import CompiledCondition, why_no_program
from activedb.errors import PatternError
from activedb.events import (
    Context,
    Expression,
    Kleene,
    Negation,
    Primitive,
    Query,
    Selection,
    Sequence,
    SkipTo,
)
from activedb.events.terms import Term

__all__ = ["PrimitiveListener", "SequencePlan", "plan_of", "supports"]

_PARTS_MAX = 31  # bits of a mask for positive parts, and as many for negated ones


@dataclass(frozen=True, slots=True)
class PrimitiveListener:
    """Primitive event of an expression and its role there.

    Attributes
    ----------
    primitive : Primitive
    bit : int
        i for positive part i; 32 + i for a negation right before it.
    """

    primitive: Primitive
    bit: int


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """Sequence in the form the kernels take.

    Attributes
    ----------
    name : str
        Name of the matches: the query's name, or the sequence as text.
    expression : Sequence
    names : tuple of str
        Names of the positive parts.
    listeners : tuple of PrimitiveListener
    window_us, gap_us : int
        In microseconds; -1: none.
    context : int
        Number of the context in `activedb.columns.detect._nodes`.
    is_next : bool
        True if the selection is next; otherwise it is any.
    negates_start : bool
    least, most : tuple of int
        Minimum and maximum events per positive part; `most` -1: unbounded.
    kleene, greedy : tuple of bool
        Flags per positive part.
    programs : tuple of CompiledCondition
        Compiled conditions over several events.
    filters : tuple of callable
        Remaining conditions, evaluated in Python on complete matches.
    returns : tuple of (str, Term)
        Parameters of a match, if the sequence belongs to a query that declares them.
    """

    name: str
    expression: Sequence
    names: tuple[str, ...]
    listeners: tuple[PrimitiveListener, ...]
    window_us: int
    gap_us: int
    context: int
    is_next: bool
    negates_start: bool
    least: tuple[int, ...]
    most: tuple[int, ...]
    kleene: tuple[bool, ...]
    greedy: tuple[bool, ...]
    programs: tuple[CompiledCondition, ...]
    filters: tuple[Callable[[Mapping[str, Any]], object], ...]
    returns: tuple[tuple[str, Any], ...]

    @property
    def keeps_runs(self) -> bool:
        """True if partial matches are kept individually, as stacks of events do not suffice."""
        return any(self.kleene) or bool(self.programs)


def supports(expression: Expression) -> str | None:
    """Return why an expression cannot be detected in columns; None if it can.

    Raises
    ------
    PatternError
        If the expression cannot be detected on its own.
    """
    if not isinstance(expression, Expression):
        raise PatternError(
            f'a detector takes an event expression, such as event("EXIT"), not {expression!r}'
        )
    expression.check()
    pattern = expression.pattern if isinstance(expression, Query) else expression
    if not isinstance(pattern, Sequence):
        return f"{pattern!r} is not a sequence"
    return _choices(pattern) or _parts(pattern)


def plan_of(expression: Expression) -> SequencePlan:
    """Return the plan for the kernels.

    Raises
    ------
    PatternError
        If `supports` returns a reason.
    """
    reason = supports(expression)
    if reason is not None:
        raise PatternError(f"its matches cannot be found in columns: {reason}; use a Detector")
    returns: tuple[tuple[str, Any], ...] = ()
    name = repr(expression)
    if isinstance(expression, Query):
        name, returns, expression = expression.name, expression.returns, expression.pattern
    assert isinstance(expression, Sequence)
    listeners: list[PrimitiveListener] = []
    positives = 0
    for part in expression.parts:
        if isinstance(part, Negation):
            listeners += [PrimitiveListener(one, 32 + positives) for one in part.alternatives]
            continue
        alternatives = part.alternatives if isinstance(part, Kleene) else (part,)
        for one in alternatives:
            assert isinstance(one, Primitive)
            listeners.append(PrimitiveListener(one, positives))
        positives += 1
    kleenes = [part if isinstance(part, Kleene) else None for part in expression.positives]
    return SequencePlan(
        name,
        expression,
        expression.names,
        tuple(listeners),
        -1 if expression.window_us is None else expression.window_us,
        -1 if expression.gap_us is None else expression.gap_us,
        CONTEXTS.index(expression.consumption),
        expression.selection is Selection.NEXT,
        isinstance(expression.parts[0], Negation),
        tuple(1 if part is None else part.minimum for part in kleenes),
        tuple(
            1 if part is None else -1 if part.maximum is None else part.maximum for part in kleenes
        ),
        tuple(part is not None for part in kleenes),
        tuple(part is None or part.greedy for part in kleenes),
        tuple(
            CompiledCondition(
                predicate,
                max(
                    map(expression.names.index, predicate.part_names),
                    default=len(expression.names) - 1,
                ),
            )
            for predicate in expression.predicates
            if isinstance(predicate, Term) and why_no_program(predicate) is None
        ),
        tuple(
            predicate
            for predicate in expression.predicates
            if why_no_program(predicate) is not None
        ),
        returns,
    )


def _choices(sequence: Sequence) -> str | None:
    if sequence.selection is Selection.STRICT:
        return "it selects strictly"
    if sequence.skip.to is not SkipTo.NONE:
        return "it skips after a match"
    if sequence.readings or any(map(_is_reading, sequence.predicates)):
        return "it reads the shared store"
    kleenes = [part for part in sequence.parts if isinstance(part, Kleene)]
    if kleenes and sequence.consumption is Context.RECENT:
        return "of matches of different lengths it makes the most recent one"
    reasons = [why_no_program(predicate) for predicate in sequence.predicates]
    uncompiled = next((reason for reason in reasons if reason is not None), None)
    chooses = (
        sequence.selection is not Selection.ANY or sequence.consumption is not Context.UNRESTRICTED
    )
    if uncompiled is not None and chooses:
        return f"{uncompiled}, and it chooses among the matches"
    if (kleenes or None in reasons) and sequence.window_us is None:
        return "it has partial matches and no window, so they would be kept for ever"
    if any(kleene.minimum == 0 for kleene in kleenes) and None in reasons:
        return "it has conditions and a part that may be empty"
    return None


def _parts(sequence: Sequence) -> str | None:
    for part in reversed(sequence.parts):
        if isinstance(part, Negation):
            return "it may end with a negation, which only time decides"
        if not isinstance(part, Kleene) or part.minimum > 0:
            break
    if isinstance(sequence.parts[0], Negation) and sequence.selection is not Selection.ANY:
        return "it selects and starts with a negation"
    first = sequence.positives[0]
    if isinstance(first, Kleene) and first.minimum == 0:
        return f"its first part {first!r} may be empty"
    if len(sequence.parts) > _PARTS_MAX:
        return f"it has more than {_PARTS_MAX} parts"
    for part in sequence.parts:
        alternatives: tuple[Expression, ...]
        alternatives = part.alternatives if isinstance(part, Negation | Kleene) else (part,)
        for one in alternatives:
            reason = _primitive(one)
            if reason is not None:
                return reason
    return None


def _primitive(one: Expression) -> str | None:
    if not isinstance(one, Primitive):
        return f"its part {one!r} is not a primitive event"
    if one.schedule is not None:
        return f"{one!r} is a clock event"
    if one.key[0] != "event":
        return f"{one!r} is not an event of a stream"
    if one.reading is not None or _is_reading(one.predicate):
        return f"{one!r} reads the shared store"
    return None


def _is_reading(predicate: object) -> bool:
    return isinstance(predicate, Term) and predicate.is_reading
