"""Random expressions.

Few names, few parameters and few times, so that ties, edges of windows and repeated constituents
are the rule. All is drawn through Hypothesis, which finds the least failing case, or by plain
seeded randomness, which yields far denser histories, with more matches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

from hypothesis import strategies as st

from activedb.events import (
    Expression,
    Kleene,
    Negation,
    Occurrence,
    all_of,
    any_of,
    event,
    every,
    many,
    periodic,
    query,
    seq,
    some_of,
)
from activedb.events import Sequence as Seq
from activedb.events.terms import part

from .choosing import Chooser, Drawn, Thrown

__all__ = ["CONTEXTS", "Plan", "plans", "random_expression"]

SECOND_US = 1_000_000
CONTEXTS = ["recent", "chronicle", "continuous", "cumulative"]


@dataclass(frozen=True)
class AtLeast:
    """A predicate of one event."""

    value: int

    def __call__(self, o: Occurrence) -> bool:
        return bool(o.params["x"] >= self.value)


@dataclass(frozen=True)
class Rising:
    """A predicate over the parts: x of the last one bound is at least x of the first."""

    strict: bool = False

    def __call__(self, parts: Any) -> bool:
        bound = [o for p in parts.values() for o in (p if isinstance(p, tuple) else (p,))]
        a, b = (o.params.get("x", 0) for o in (bound[0], bound[-1]))
        return bool(a < b) if self.strict else bool(a <= b)


@dataclass(frozen=True)
class Reads:
    """A predicate that reads: the reader is a number, and what is bound to which name counts."""

    def __call__(self, t: int, bound: Any) -> bool:
        if isinstance(bound, Occurrence):
            bound = {"": bound}
        read = t
        for number, (name, bound_to) in enumerate(bound.items()):
            for o in bound_to if isinstance(bound_to, tuple) else (bound_to,):
                read += (number + len(name)) * (o.us // SECOND_US + 1) + o.us // SECOND_US
        return read % 3 > 0


@dataclass(frozen=True)
class Plan:
    """Features that an expression may have.

    Attributes
    ----------
    kleene, negated, ending, nested, timed, conjunctions, reading : bool
        Kleene parts; negations at the start and inside; at the end; composites in composites;
        clock events, delays, time-outs and periodic events; conjunctions and some of n; predicates
        that read.
    contexts, selections, skips : sequence of str
    """

    kleene: bool = True
    negated: bool = True
    ending: bool = False
    nested: bool = False
    timed: bool = False
    conjunctions: bool = False
    reading: bool = False
    contexts: Sequence[str] = ("unrestricted",)
    selections: Sequence[str] = ("any",)
    skips: Sequence[str] = ("none",)


EVERYTHING = Plan(
    ending=True,
    nested=True,
    timed=True,
    conjunctions=True,
    contexts=("unrestricted", *CONTEXTS),
    selections=("any", "any", "next", "strict"),
    skips=("none", "none", "to_next", "past_last", "to_first", "to_last"),
)
"""All features but predicates that read."""


class _Writer:
    """Writer of one expression."""

    def __init__(self, choose: Chooser, plan: Plan):
        self.choose = choose
        self.pick = choose.pick
        self.plan = plan
        self.numbers = count()

    def often(self, one_in: int) -> bool:
        """Return True in one of `one_in` cases; shrink to False."""
        return self.choose.integer(0, one_in - 1) == one_in - 1

    def alias(self) -> str:
        return f"p{next(self.numbers)}"

    def primitive(self, alias: str | None = None) -> Any:
        where = AtLeast(1) if self.often(6) else None
        reading = Reads() if self.plan.reading and self.often(4) else None
        return event(self.pick("ABC"), where, alias or self.alias(), reading=reading)

    def operand(self, depth: int) -> Any:
        """A positive part that is no Kleene part."""
        plan = self.plan
        kinds: list[Callable[[], Expression]] = [self.primitive] * 4
        if plan.nested:
            kinds += [self.disjunction]
            if depth:
                kinds += [lambda: self.sequence(depth - 1, 2), lambda: self.conjunction(depth - 1)]
                kinds += [lambda: any_of(self.sequence(depth - 1, 2), self.primitive())]
                kinds += [lambda: query(self.alias(), self.sequence(depth - 1, 2))]
        if plan.timed:
            kinds += [self.delayed, lambda: every(self.pick([2, 3]), alias=self.alias())]
        return self.pick(kinds)()

    def delayed(self) -> Any:
        return self.primitive().after(self.pick([1, 2, 4]))

    def disjunction(self) -> Expression:
        return any_of(self.primitive(), self.primitive())

    def kleene(self) -> Any:
        minimum = self.pick([1, 0, 2])
        maximum = self.pick([max(minimum, 1), minimum + 1, None])
        greedy = not self.often(3)
        if self.often(5):
            several = any_of(self.primitive("q"), self.primitive("q"))
            return many(several, minimum, maximum, greedy=greedy).named(self.alias())
        return many(self.primitive(), minimum, maximum, greedy=greedy)

    def conjunction(self, depth: int) -> Any:
        size = self.pick([2, 2, 3])
        parts = [self.operand(depth) for _ in range(size)]
        made = all_of(*parts)
        if self.often(3):
            made = some_of(self.pick(range(1, size + 1)), *parts)
        return self.conditions(made)

    def conditions(self, made: Any) -> Any:
        if self.often(4) and not self.plan.timed:
            made = made.same("w")
        if self.often(3):
            made = made.within(self.pick([1, 2, 3, 5]))
        if self.often(5):
            made = made.where(Rising())
        if self.plan.reading and self.often(3):
            made = made.reading(Reads())
        return made.context(self.pick(self.plan.contexts))

    def sequence(self, depth: int, size: int = 3) -> Any:
        plan = self.plan
        parts: list[Expression] = []
        for place in range(self.choose.integer(1, size)):
            if plan.negated and self.often(4):
                parts.append(~self.primitive("n"))
            if plan.kleene and self.often(3):
                parts.append(self.kleene())
            else:
                parts.append(self.operand(depth if place == 0 or self.often(2) else 0))
        if all(isinstance(p, Negation) or _may_be_empty(p) for p in parts):
            parts.append(self.primitive())  # else there is a match without events
        if plan.ending and self.often(2):
            parts.append(~self.primitive("n"))
        made = seq(*parts)
        made = made.selecting(self.pick(plan.selections))
        made = self.conditions(made)
        made = self.terms(made)
        if made.window_us is None and self.needs_window(made):
            made = made.within(self.pick([2, 3, 5]))
        if self.often(5):
            made = made.gap(self.pick([1, 2]))
        return self.skips(made)

    def needs_window(self, made: Seq) -> bool:
        # A negation beside parts that may be empty needs one as if it stood at the edge.
        solid = [
            number
            for number, p in enumerate(made.parts)
            if not isinstance(p, Negation) and not _may_be_empty(p)
        ]
        bare = [n for n, p in enumerate(made.parts) if isinstance(p, Negation)]
        edges = not solid or any(n < solid[0] or n > solid[-1] for n in bare)
        return edges or any(isinstance(p, Kleene) and p.maximum is None for p in made.parts)

    def terms(self, made: Seq) -> Any:
        """Perhaps a predicate that is judged at its part."""
        if not self.often(4):
            return made
        # A clock event has no attributes, so that a term of it is refused.
        names = [p for p in made.positives if len(p.names) == 1 and not _has_clock(p)]
        if not names:
            return made
        last = self.pick(names)
        name = last.names[0]
        if isinstance(last, Kleene) and not self.often(3):
            x = part(name).x
            choices = [x >= x.prev(), x.sum() >= 2, part(name).count() <= 2, x >= 1]
            return made.where(self.pick(choices))
        first = names[0].names[0]
        return made.where(part(first).x <= part(name).x)

    def skips(self, made: Seq) -> Any:
        to = self.pick(self.plan.skips)
        if to == "none":
            return made
        return made.skipping(to, self.pick(made.names) if to in ("to_first", "to_last") else None)

    def timed(self) -> Any:
        """Return an expression that time itself completes."""
        kind = self.pick(["sequence", "timed_out", "after", "periodic", "every"])
        match kind:
            case "timed_out":
                writer = _Writer(self.choose, replace(self.plan, ending=False, timed=False))
                inner = writer.sequence(1 if self.plan.nested else 0)
                if _may_be_empty(inner.positives[0]):
                    return inner  # which part would a match that times out begin with?
                inner = inner if inner.window_us is not None else inner.within(self.pick([2, 4]))
                return inner.timed_out()
            case "after":
                return self.sequence(1, 2).after(self.pick([1, 3]))
            case "periodic":
                start, end = self.operand(0), self.operand(0)
                made = periodic(start, self.pick([1, 2, 3]), end, collected=self.often(2))
                return made.context(self.pick(self.plan.contexts))
            case "every":
                return self.primitive() | every(self.pick([2, 3]))
        return self.sequence(1)


def _has_clock(part: Expression) -> bool:
    return getattr(part, "schedule", None) is not None or any(map(_has_clock, part.children))


def _may_be_empty(part: Expression) -> bool:
    return isinstance(part, Kleene) and part.minimum == 0


def _expression(choose: Chooser, plan: Plan) -> Expression:
    writer = _Writer(choose, plan)
    depth = 1 if plan.nested else 0
    kinds: list[Callable[[], Expression]] = [lambda: writer.sequence(depth)] * 3
    if plan.conjunctions:
        kinds += [lambda: writer.conjunction(depth)]
    if plan.timed:
        kinds += [writer.timed] * 3
    made: Expression = writer.pick(kinds)()
    if plan.nested and writer.often(6):
        made = any_of(made, writer.primitive(), writer.sequence(0, 2))
    made.check()
    return made


@st.composite
def plans(draw: st.DrawFn, plan: Plan) -> Expression:
    """Expressions of a plan."""
    return _expression(Drawn(draw), plan)


def random_expression(random: Random, plan: Plan) -> Expression:
    """An expression of a plan."""
    return _expression(Thrown(random), plan)
