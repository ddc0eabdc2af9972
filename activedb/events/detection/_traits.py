"""Static properties of expressions: reach, dependencies, and sequence layouts for the search."""

from __future__ import annotations

from collections.abc import Iterable

from activedb.events._choices import Context, Selection, SkipTo
from activedb.events._expressions import (
    Combination,
    Conjunction,
    Disjunction,
    Expression,
    Kleene,
    Negation,
    Periodic,
    Plus,
    Primitive,
    Query,
    Sequence,
    TimedOut,
    walk,
)
from activedb.events.detection._entry import Stage
from activedb.events.detection._predicates import Predicates

__all__ = [
    "SequenceLayout",
    "begins_negated",
    "durations_of",
    "ends_by_time",
    "horizon_of",
    "is_merging",
    "is_timed",
    "lasting_us",
    "merges",
    "reads",
    "remembers",
    "stage_of",
    "window_of",
]


class SequenceLayout:
    """Description of a sequence by stages, computed once.

    Attributes
    ----------
    index : int
        The number of the sequence's node.
    stages : list of Stage
    negated : list of list of Negation
        By stage, the negated parts right before it; the last list has those at the end.
    predicates : Predicates
    window_us, gap_us : int or None
    attributes : tuple of str
        The attributes of ``same``.
    is_next, is_strict, is_picky : bool
        The selection; picky means next or strict.
    completes, closes : list of bool
        By stage, whether its constituents can complete a match when they arrive; and whether the
        end of the window completes matches that end with them, as a negation follows.
    is_simple : bool
        True if all paths of viable entries with a valid beginning are candidates: single primitive
        events, selection any, no predicates.
    is_straight : bool
        True if `is_simple` and no negation comes before the first constituent.
    is_closed_by_time : bool
        True if some stage closes.
    begins_negated : bool
        True if a negation can come before the first constituent.
    may_begin, may_end : list of bool
        By stage, whether a match can begin or end there, as all other parts on that side may be
        empty.
    begins_alone : bool
        True if the first stage takes exactly one constituent, with which every match begins. An
        event that can begin no match is then useless to it.
    is_exact : list of bool
        By stage, and for the end, whether its entries begin when they end. Then the order by place
        is the order of their beginnings.
    is_local : bool
        True if all stages are in `next_is_local`, or the selection is not next.
    next_is_local : list of bool
        By stage, whether an event between two neighbours is eligible for the place of the second
        regardless of the earlier constituents. Then only the last event that the part took matters.
    keeps_last : bool
        True if entries of the last stage are needed after they have been last.
    """

    def __init__(self, sequence: Sequence, index: int):
        self.index = index
        self.window_us = sequence.window_us
        self.gap_us = sequence.gap_us
        self.attributes = sequence.attributes
        self.is_next = sequence.selection is Selection.NEXT
        self.is_strict = sequence.selection is Selection.STRICT
        self.is_picky = self.is_next or self.is_strict
        self.stages: list[Stage] = []
        self.parts: list[Expression] = []
        self.negated: list[list[Negation]] = [[]]
        for part in sequence.parts:
            if isinstance(part, Negation):
                self.negated[-1].append(part)
            else:
                self.parts.append(part)
                self.stages.append(stage_of(part))
                self.negated.append([])
        self.predicates = Predicates(self.stages, sequence.predicates, sequence.readings)
        count = len(self.stages)
        empty = [stage.minimum == 0 for stage in self.stages]
        self.may_begin = [all(empty[:number]) for number in range(count)]
        self.may_end = [all(empty[number + 1 :]) for number in range(count)]
        self.closes = [
            self.may_end[number] and any(self.negated[number + 1 :]) for number in range(count)
        ]
        self.completes = [
            self.may_end[number] and not self.closes[number] for number in range(count)
        ]
        self.is_closed_by_time = any(self.closes)
        self.begins_negated = any(
            self.negated[number] and self.may_begin[number] for number in range(count)
        )
        self.begins_alone = not self.stages[0].kleene
        self.is_exact = [*(stage.is_primitive for stage in self.stages), True]
        self.next_is_local = [self._is_local(number) for number in range(count)]
        self.is_simple = (
            not self.is_picky
            and self.predicates.is_empty
            and all(self.is_exact)
            and not any(stage.kleene for stage in self.stages)
        )
        self.is_straight = self.is_simple and not self.begins_negated
        self.is_local = not self.is_next or all(self.next_is_local)
        self.keeps_last = self.is_next or self.is_closed_by_time or self.stages[-1].kleene

    def _is_local(self, number: int) -> bool:
        predicates = self.predicates
        if not self.stages[number].is_primitive or predicates.joining[number]:
            return False
        if not self.may_end[number]:
            return True
        later = range(number, len(self.stages))
        return not (
            self.begins_negated
            or predicates.final
            or any(predicates.leaving[place] for place in later)
        )


def stage_of(part: Expression) -> Stage:
    """Return the stage of a positive part."""
    if isinstance(part, Kleene):
        return Stage(
            part.name,
            (part.name,),
            kleene=True,
            minimum=part.minimum,
            maximum=part.maximum,
            greedy=part.greedy,
        )
    alternatives = primitives_of((part,))
    names = part.names
    return Stage(
        names[0],
        names,
        is_primitive=alternatives is not None,
        merged_keys=part.keys if is_merging(part) else frozenset(),
    )


def primitives_of(parts: Iterable[Expression]) -> list[Primitive] | None:
    """Return the primitive events that a part may be; None if it may be anything else."""
    found: list[Primitive] = []
    for part in parts:
        if isinstance(part, Primitive):
            found.append(part)
        elif isinstance(part, Disjunction | Kleene | Negation):
            inner = primitives_of(part.children)
            if inner is None:
                return None
            found += inner
        else:
            return None
    return found


# -- static properties of expressions: how far back they reach, and what their nodes depend on -----


def ends_by_time(sequence: Sequence) -> bool:
    """Return whether a match can end with a negation, as all parts after it may be empty."""
    for part in reversed(sequence.parts):
        if isinstance(part, Negation):
            return True
        if not (isinstance(part, Kleene) and part.minimum == 0):
            return False
    return False


def begins_negated(sequence: Sequence) -> bool:
    """Return whether a negation can come before the first constituent."""
    for part in sequence.parts:
        if isinstance(part, Negation):
            return True
        if not (isinstance(part, Kleene) and part.minimum == 0):
            return False
    return False


def window_of(
    expression: Sequence | Conjunction, bound_us: int | None, *, times_out: bool = False
) -> int | None:
    """Return how far before the end of its occurrences a combination must keep events.

    That is its window; or twice the window, if negations before the first constituent are evaluated
    at the end of the window, or for an earlier event that may be the next one. If its parent has no
    use for longer occurrences, it is that bound.
    """
    window_us = expression.window_us
    if isinstance(expression, Sequence) and begins_negated(expression):
        # The whole window is kept, whatever the bound.
        looks_back = times_out or ends_by_time(expression) or expression.selection is Selection.NEXT
        if window_us is not None and looks_back:
            return 2 * window_us
        return window_us
    return lasting_us(expression, bound_us)


def lasting_us(expression: Sequence | Conjunction, bound_us: int | None) -> int | None:
    """Return the longest duration of occurrences that are useful, here and in the parent."""
    window_us = expression.window_us
    depends = expression.consumption is not Context.UNRESTRICTED or (
        isinstance(expression, Sequence) and expression.skip.to is not SkipTo.NONE
    )
    # Otherwise earlier matches may influence later ones.
    if bound_us is None or depends:
        return window_us
    return bound_us if window_us is None else min(window_us, bound_us)


def horizon_of(expression: Expression, bound_us: int | None = None) -> int | None:
    """Return how far before an occurrence the events that decide it reach; None: unbounded."""
    if isinstance(expression, Primitive):
        return 0
    if isinstance(expression, Plus):
        inner_us = horizon_of(expression.operand, bound_us)
        return None if inner_us is None else inner_us + expression.delay_us
    if isinstance(expression, Disjunction | Query):
        return _longest([horizon_of(part, bound_us) for part in expression.children])
    times_out = isinstance(expression, TimedOut)
    if isinstance(expression, TimedOut):
        expression, bound_us = expression.sequence, None
    if isinstance(expression, Sequence | Conjunction):
        window_us = window_of(expression, bound_us, times_out=times_out)
        if window_us is None:
            return None
        inner_us = _longest(
            [
                horizon_of(part, lasting_us(expression, bound_us))
                for part in expression.children
                if not isinstance(part, Negation | Kleene)
            ]
        )
        return None if inner_us is None else window_us + inner_us
    return None


def durations_of(expression: Expression) -> int:
    """Return the sum of all windows, gaps and delays: events further apart do not interact."""
    names = ("window_us", "gap_us", "delay_us")
    return sum(getattr(each, name, None) or 0 for each in walk(expression) for name in names)


def _longest(reaches: list[int | None]) -> int | None:
    return None if None in reaches else max((us for us in reaches if us is not None), default=0)


def is_timed(expression: Expression) -> bool:
    """Return whether time completes its occurrences; clock events do not count."""
    if isinstance(expression, Sequence):
        return ends_by_time(expression)
    if isinstance(expression, Periodic):
        return not expression.collected
    return isinstance(expression, Plus | TimedOut)


def remembers(expression: Expression) -> bool:
    """Return whether its earlier matches influence later ones."""
    if isinstance(expression, Sequence) and expression.skip.to is not SkipTo.NONE:
        return True
    return (
        isinstance(expression, Sequence | Conjunction)
        and expression.consumption is not Context.UNRESTRICTED
    )


def is_merging(expression: Expression) -> bool:
    """Return whether a match may be merged of several candidates: the cumulative context."""
    return any(map(merges, walk(expression)))


def merges(expression: Expression) -> bool:
    """Return whether this expression itself merges its candidates."""
    return (
        isinstance(expression, Combination | Periodic)
        and expression.consumption is Context.CUMULATIVE
    )


def reads(expression: Expression) -> bool:
    """Return whether one of its own predicates reads the shared store."""
    if isinstance(expression, Primitive):
        return expression.reading is not None
    return isinstance(expression, Sequence | Conjunction) and bool(expression.readings)
